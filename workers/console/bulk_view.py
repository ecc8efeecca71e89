"""Bulk actions: replay or drop many failures. Counted and confirmed first, then carried on by the housekeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import get_args

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from receiver.config.values import parse_rate
from receiver.contract.errors import NotFound
from receiver.inbox import Administration, FailureQueries, keys
from receiver.inbox.bulk_actions import TRIED_FIRST, BulkAction, BulkActions, BulkKind
from receiver.inbox.queries.failures import FailureFilter, MatchingGroup
from receiver.inbox.queries.health import HealthQueries
from workers.console.page_data import begin_action, choice_argument, console, done, end_action, name_argument, reader
from workers.console.page_data import text_argument as read_text

pages = Blueprint("bulk", __name__)
KINDS: tuple[BulkKind, ...] = get_args(BulkKind)
SHOWN = 100
REREAD = "These deliveries could not be read. Correct the scheme, then run `storehooks events reread`."


@pages.get("/failures/actions")
def page() -> str:
    return render_template("bulk_actions.html", actions=BulkActions(reader()).newest(SHOWN), most=SHOWN, done=done())


@pages.get("/failures/actions/new")
def form() -> str:
    kind, wanted = choice_argument("action", KINDS) or "replay", failure_filter()
    groups = _matching(kind, wanted)
    paused = {one.removeprefix("handler:") for one in Administration(reader()).paused()}
    return render_template(
        "bulk_new.html",
        kind=kind,
        wanted=_given(wanted),
        count=sum(one.count for one in groups),
        groups=len(groups),
        paused=sorted({one.handler for one in groups} & paused),
        tried_first=TRIED_FIRST,
    )


@pages.get("/failures/actions/<action_id>")
def action(action_id: str) -> str:
    found = _the_action(action_id)
    seconds = ((found.ended_at or found.began_at) - found.began_at).total_seconds()
    return render_template(
        "bulk_action.html",
        action=found,
        wanted=_given(found.selection),
        per_second=found.changed / seconds if seconds >= 1 else 0,
        housekeeper=HealthQueries(reader()).housekeeper(),
        done=done(),
    )


@pages.post("/failures/actions/start")
def start() -> Response:
    kind, wanted = choice_argument("action", KINDS, request.form) or "replay", failure_filter(request.form)
    rate, reason = _rate(), read_text("reason", request.form)
    if kind == "drop" and not reason:
        abort(400, "Give a reason. It is stored with each run.")
    groups = _matching(kind, wanted)
    count = sum(one.count for one in groups)
    if not count:
        raise NotFound("No failure matches any more. They were replayed, dropped or have succeeded.")
    entry = begin_action(
        f"bulk {kind}", count=count, **_given(wanted), reason=reason, rate=read_text("rate", request.form)
    )
    first = TRIED_FIRST if kind == "replay" and request.form.get("try") else 0
    action_id = BulkActions(console().client).start(kind, wanted, groups, entry, rate=rate, first=first, reason=reason)
    return redirect(url_for("bulk.action", action_id=action_id), 303)


@pages.post("/failures/actions/<action_id>/stop")
def stop(action_id: str) -> Response:
    found = _the_action(action_id)
    entry = begin_action("stop", bulk=found.id)
    stopped = BulkActions(console().client).stop(found.id)
    result = _the_action(action_id).result if stopped else "it had ended already"
    ended = end_action(entry, result)
    return redirect(url_for("bulk.action", action_id=action_id, done=ended), 303)


def failure_filter(values: Mapping[str, str] | None = None) -> FailureFilter:
    """The filter of a list of failures, as an address or a form has it."""
    names = {name: name_argument(name, values) for name in ("group", "handler", "store")}
    return FailureFilter(**names, error=read_text("error", values))


def _given(wanted: FailureFilter) -> dict[str, str]:
    return {name: value for name, value in asdict(wanted).items() if value}


def _matching(kind: BulkKind, wanted: FailureFilter) -> list[MatchingGroup]:
    found = FailureQueries(reader()).matching(wanted)
    readable = [one for one in found if one.handler != keys.INTAKE]
    if kind == "replay" and found and not readable:
        abort(400, REREAD)
    return readable if kind == "replay" else found


def _the_action(action_id: str) -> BulkAction:
    found = BulkActions(reader()).find(action_id) if len(action_id) <= 64 else None
    if found is None:
        raise NotFound(f"There is no bulk action {action_id[:64]}. The latest ones are kept.")
    return found


def _rate() -> float:
    text = read_text("rate", request.form)
    try:
        return parse_rate(text)
    except ValueError as error:
        abort(400, f"{text[:40]} is {error}")
