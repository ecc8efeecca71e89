"""Actions: replay, drop, pause, resume, release, show personal fields. Each is a POST, audited before it begins."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

from flask import Blueprint, Response, abort, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import NotFound
from receiver.contract.event import UNREADABLE
from receiver.inbox import Administration, FailureQueries, Inbox, keys
from receiver.inbox.administration import NOT_REPLAYED, DropResult, ReopenResult
from receiver.inbox.queries.runs import RunQueries
from workers.console.bulk_view import REREAD
from workers.console.events_view import event_page, the_event
from workers.console.failures_view import the_group
from workers.console.findings_process import ask_for_findings
from workers.console.page_data import all_events, begin_action, console, end_action, name_argument, refusals
from workers.console.page_data import text_argument as read_text
from workers.operations.release import ReleaseCheck, Released, count_selected, select_refusals
from workers.operations.release import release as accept_valid
from workers.operations.replay import Replay, Selection, matching_runs
from workers.operations.system_state import handler_rows

pages = Blueprint("actions", __name__)
SECONDS = 5.0
"""How long one action may take. One that is longer stops, says how far it came, and can be repeated."""
MAX_DIGITS = 3
T = TypeVar("T")


# Events and failures


@pages.post("/events/<event_id>/replay")
def replay_event(event_id: str) -> AnyResponse:
    handler = name_argument("handler", request.form)
    event = all_events(console().client).runs_of(the_event(event_id).summary.id)
    if event is None or event.topic == UNREADABLE:
        abort(400, "No handler was called for this event, so there is nothing to replay.")
    items = matching_runs(Selection(handler=handler or None), event, by_id=True)
    entry = begin_action("replay", count=len(items), event=event_id, handler=handler)
    replay = _replay(urgent=True)
    replay.items(items, make=bool(handler))
    return _finish(url_for("events.event", event_id=event_id), end_action(entry, _replayed(replay)))


@pages.post("/events/<event_id>/drop")
def drop_event(event_id: str) -> AnyResponse:
    reason = _reason()
    event = RunQueries(console().client).of_event(event_id)
    items = event.failures() if event else []
    if not items:
        raise NotFound(f"Event {event_id[:64]} has no failed run.")
    entry = begin_action("drop", count=len(items), event=event_id, reason=reason)
    result = _drop(items, reason)
    return _finish(url_for("events.event", event_id=event_id), end_action(entry, result))


@pages.post("/failures/<group_id>/replay")
def replay_first(group_id: str) -> AnyResponse:
    """Replay some runs of a group at once, to see whether they succeed. All of them are a bulk action."""
    group, first = the_group(group_id), name_argument("first", request.form)
    if not (first.isascii() and first.isdigit()) or len(first) > MAX_DIGITS or not 0 < int(first) <= 100:
        abort(400, "first is a number from 1 to 100.")
    if group.handler == keys.INTAKE:
        abort(400, REREAD)
    count = min(int(first), group.retrying + group.failed)
    entry = begin_action("replay", count=count, group=group_id, handler=group.handler)
    replay = _replay(first=int(first), urgent=True)
    replay.group(group_id)
    return _finish(_group_page(group_id), end_action(entry, _replayed(replay)))


@pages.post("/events/<event_id>/personal")
def show_personal(event_id: str) -> str:
    begin_action("show personal fields", event=the_event(event_id).summary.id)
    return event_page(event_id, with_personal=True)


@pages.post("/events/<event_id>/download")
def download(event_id: str) -> Response:
    record = the_event(event_id)
    if not record.body:
        raise NotFound("The body of this event was removed by age.")
    begin_action("download", event=record.summary.id)
    name = f'attachment; filename="{record.summary.id}.bin"'
    return Response(record.body, headers={"Content-Disposition": name}, mimetype="application/octet-stream")


# Handlers and stores


@pages.post("/handlers/<handler>/pause", endpoint="pause_handler", defaults={"pause": True})
@pages.post("/handlers/<handler>/resume", endpoint="resume_handler", defaults={"pause": False})
def pause_or_resume_handler(handler: str, *, pause: bool) -> AnyResponse:
    if handler not in {one.name for one in handler_rows(console().client)}:
        raise NotFound(f"No worker has a handler {handler[:100]}, and it has no runs.")
    entry = begin_action("pause" if pause else "resume", handler=handler)
    administration = Administration(console().client)
    administration.pause(handler=handler) if pause else administration.resume(handler=handler)
    result = f"{handler} is {'paused; its runs wait, and no attempt is used up' if pause else 'resumed'}"
    return _finish(url_for("system.handlers"), end_action(entry, result))


@pages.post("/stores/<store>/pause", endpoint="pause_store", defaults={"pause": True})
@pages.post("/stores/<store>/resume", endpoint="resume_store", defaults={"pause": False})
def pause_or_resume_store(store: str, *, pause: bool) -> AnyResponse:
    administration = Administration(console().client)
    if store not in console().config.stores and f"store:{store}" not in administration.paused():
        raise NotFound(f"There is no store {store[:64]} in the config.")
    entry = begin_action("pause" if pause else "resume", store=store)
    administration.pause(store=store) if pause else administration.resume(store=store)
    result = f"{store} is {'paused; its deliveries are accepted and wait' if pause else 'resumed'}"
    return _finish(url_for("system.store", name=store), end_action(entry, result))


# Refused deliveries


@pages.post("/refused/release")
def release() -> AnyResponse:
    config, store, number = console().config, name_argument("store", request.form), name_argument("id", request.form)
    if store and store not in config.stores:
        raise NotFound(f"There is no store {store[:64]} in the config.")
    if number and not (number.isdigit() and len(number) < 19):
        abort(400, "id is the number of a refused delivery.")
    ids, timer = [int(number)] if number else [], _Timer()
    with refusals() as stored:
        check = ReleaseCheck(config)
        count = count_selected(stored, check, store=store or None, ids=ids)
        entry = begin_action("release", count=count, store=store, refused=number)
        batches = timer.limit(select_refusals(stored, check, store=store or None, ids=ids))
        released = accept_valid(config, Inbox(console().client), stored, check, batches, ids)
    result = _released(released) + timer.text("released")
    return _finish(url_for("refused.page", store=store or None), end_action(entry, result))


# Words and bounds


class _Timer:
    """Ends an iteration after SECONDS."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._is_over = False

    def limit(self, items: Iterable[T]) -> Iterator[T]:
        return takewhile(lambda _: self._goes_on(), items)

    def _goes_on(self) -> bool:
        self._is_over = time.monotonic() > self._deadline
        return not self._is_over

    def text(self, verb: str) -> str:
        return f". Stopped after {SECONDS:.0f} s: not all are {verb} yet; press again to go on" if self._is_over else ""


def _replay(*, first: int | None = None, urgent: bool) -> Replay:
    client = console().client
    return Replay(Inbox(client), all_events(client), rate=None, first=first, urgent=urgent)


def _replayed(replay: Replay) -> str:
    parts = [f"{counted(replay.replayed, 'run')} replayed"]
    for result, reason in NOT_REPLAYED.items():
        if number := sum(many for (one, _), many in replay.counts.items() if one is result):
            parts.append(f"{counted(number, 'run')} not replayed: {reason}")
    paused = sum(many for (one, _), many in replay.counts.items() if one is ReopenResult.HANDLER_PAUSED)
    held = sum(many for (one, _), many in replay.counts.items() if one is ReopenResult.STORE_PAUSED)
    parts += [f"{counted(paused, 'run')} of a paused handler: it must be resumed"] if paused else []
    parts += [f"{counted(held, 'run')} of a paused store: it must be resumed"] if held else []
    return "; ".join(parts)


def _drop(items: Sequence[str], reason: str) -> str:
    counts = Counter(Administration(console().client).drop(items, reason=reason))
    kept = counts[DropResult.KEPT] + counts[DropResult.DAMAGED]
    more = f"; {counted(kept, 'run')} not dropped: running now, no failure any more, or damaged" if kept else ""
    return f"{counted(counts[DropResult.DROPPED], 'run')} dropped{more}"


def _released(released: Released) -> str:
    parts = [f"{counted(released.accepted, 'event')} accepted, with the original time of arrival"]
    parts += [f"{counted(released.duplicates, 'duplicate')}"] if released.duplicates else []
    parts += [f"{released.full:,} not released: the store has too many open events"] if released.full else []
    left = released.still_refused.most_common()
    parts += [f"{counted(number, 'delivery', 'deliveries')} still refused: {reason}" for reason, number in left]
    return "; ".join(parts)


def _reason() -> str:
    return read_text("reason", request.form) or abort(400, "Give a reason. It is stored with each run.")


def _group_page(group_id: str) -> str:
    """The group's page, or the list if no run is left in the group."""
    left = FailureQueries(console().client).group(group_id)
    return url_for("failures.group", group_id=group_id) if left else url_for("failures.page")


def _finish(page: str, entry_id: str) -> AnyResponse:
    """Go back to a page, which shows the result."""
    ask_for_findings(console().config.data_dir)
    return redirect(f"{page}{'&' if '?' in page else '?'}done={entry_id}", 303)
