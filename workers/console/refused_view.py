"""Refused deliveries of this host: the list, and one of them explained step by step."""

from __future__ import annotations

import threading

from flask import Blueprint, abort, render_template

from receiver.contract.errors import NotFound
from receiver.inbox.host_refusals import refusals_of_hosts
from receiver.inbox.keys import host_of
from receiver.spool import Refusal
from workers.console.page_data import ROWS, console, done, history, name_argument, reader, refusals
from workers.console.payload_tree import PersonalFields, body_tree, field_tree
from workers.operations.refusal_explanation import explain_refusal, other_refusals, place_of_fix
from workers.operations.scheme_preview import PreviewedStore

pages = Blueprint("refused", __name__)
MAX_CHECKED = 200
"""Other refused deliveries that are checked for one page."""
_is_free = threading.Lock()
"""One preview at a time: it compares many bodies."""


@pages.get("/refused")
def page() -> str:
    store, before = name_argument("store"), name_argument("before")
    if before and not (before.isdigit() and len(before) < 19):
        abort(400, "before is the number of a refused delivery.")
    with refusals() as stored:
        found = stored.newest(store=store or None, before=int(before) if before else None, limit=ROWS + 1)
        by_store = [one for one in stored.by_store() if store in ("", one.store)]
    host = host_of(console().config.data_dir)
    elsewhere = [
        (name, one)
        for name, at_host in refusals_of_hosts(reader()).items()
        for one in at_host.stores
        if name != host and store in ("", one.store)
    ]
    return render_template(
        "refused.html",
        rows=found[:ROWS],
        more=found[ROWS - 1].id if len(found) > ROWS else None,
        by_store=by_store,
        store=store,
        host=host,
        elsewhere=elsewhere,
        is_off=not console().config.receiver.refused,
        done=done(),
    )


@pages.get("/refused/<int:refusal_id>")
def refusal(refusal_id: int) -> str:
    config = console().config
    personal = PersonalFields(config.console.personal)
    with refusals() as stored:
        found = the_refusal(stored.get(refusal_id) if refusal_id < 1 << 62 else None, refusal_id)
        explained, others, fault = None, None, ""
        if found.body is not None:
            try:
                explained = explain_refusal(config, found)
                others = other_refusals(config, stored, explained.store, most=MAX_CHECKED)
            except NotFound as error:
                fault = str(error)
    return render_template(
        "refusal.html",
        refusal=found,
        explained=explained,
        places=[place_of_fix(config, explained.store, one.fix) for one in explained.explanation.hints]
        if explained
        else [],
        others=others,
        fault=fault,
        headers=field_tree(found.headers.items(), personal),
        tree=body_tree(found.body, personal) if found.body else None,
        done=done(),
    )


@pages.get("/refused/<int:refusal_id>/preview")
def preview(refusal_id: int) -> str:
    config = console().config
    with refusals() as stored:
        found = the_refusal(stored.get(refusal_id) if refusal_id < 1 << 62 else None, refusal_id)
        if found.body is None:
            raise NotFound("The body of this delivery is not stored, so no scheme can be tried. Try a later one.")
        store = explain_refusal(config, found).store
        if not _is_free.acquire(blocking=False):
            abort(503, "Another preview is running. Try again in a moment.")
        try:
            previews = PreviewedStore(config, reader(), history(), store).run(stored, found)
        finally:
            _is_free.release()
    return render_template("refusal_preview.html", refusal=found, previews=previews)


def the_refusal(found: Refusal | None, refusal_id: int) -> Refusal:
    if found is None:
        raise NotFound(f"There is no refused delivery {refusal_id} on this host. It was released, or removed by age.")
    return found
