"""Rehearse: the page of a handler's rehearsal on an event, as `workers/operations/rehearsal.py` runs it."""

from __future__ import annotations

import threading

import orjson
from flask import Blueprint, abort, render_template, request
from markupsafe import escape

from receiver.contract.errors import ConfigError
from receiver.inbox import EventQueries
from workers.console.events_view import the_event
from workers.console.page_data import begin_action, console, end_action, name_argument, reader
from workers.console.payload_tree import Node, PersonalFields, body_tree
from workers.console.visible_text import visible
from workers.operations.rehearsal import MAX_PRINTED, rehearse

pages = Blueprint("rehearsal", __name__)
AT_ONCE = 2
"""Rehearsals at the same time: each is a process with the plugin, and a sandbox."""
_free = threading.BoundedSemaphore(AT_ONCE)


@pages.post("/events/<event_id>/rehearse")
def run(event_id: str) -> str | tuple[str, int]:
    event, handler = the_event(event_id).summary, name_argument("handler", request.form)
    if handler not in {one.handler for one, _ in EventQueries(reader()).declared()}:
        abort(404, f"No worker has a handler {handler[:100]}.")
    if not _free.acquire(blocking=False):
        abort(503, f"{AT_ONCE} rehearsals are running. Try again in a moment.")
    try:
        entry = begin_action("rehearse", event=event.id, handler=handler)
        found, fault = rehearse(console().config, handler, event.id), ""
        end_action(entry, f"{found.ending} in {found.ms:.0f} ms; nothing was stored")
    except ConfigError as error:
        found, fault = None, str(error)
        end_action(entry, f"no result: {fault}")
    finally:
        _free.release()
    page = render_template(
        "rehearsal.html",
        event=event,
        handler=handler,
        found=found,
        fault=fault,
        printed=escape(visible(found.printed, MAX_PRINTED)) if found else "",
        calls=[(one["operation"], _tree([*one["arguments"], one["fields"]])) for one in found.calls] if found else [],
        written=[(one["name"], _tree({"before": one["before"], "after": one["after"]})) for one in found.state]
        if found
        else [],
        skipped=[(one["mark"], _tree({"result": one["result"]})) for one in found.skipped] if found else [],
    )
    return page if found else (page, 400)


def _tree(value: object) -> Node | None:
    """Values as a tree with personal fields folded, like a payload."""
    return body_tree(orjson.dumps(value), PersonalFields(console().config.console.personal))
