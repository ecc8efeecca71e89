"""Events: the list with its filters, and one event with its runs, payload and headers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from receiver.contract.errors import NotFound
from receiver.contract.event import UNREADABLE
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.events import EventRecord
from workers.console.page_data import (
    ROWS,
    all_events,
    choice_argument,
    console,
    cursor_argument,
    done,
    name_argument,
    parse_moment,
    reader,
    text_argument,
)
from workers.console.payload_tree import PersonalFields, body_tree, field_tree
from workers.console.visible_text import visible
from workers.history.event_filter import EventFilter, where_of
from workers.operations.edited_events import edited_from
from workers.operations.explain_handlers import explain
from workers.operations.routing_facts import read_routing_facts

pages = Blueprint("events", __name__)
STATUSES = tuple(one.value for one in EventStatus)
SEARCH_SECONDS = 5.0
"""How long a search in the history may take for one page."""
MAX_BODY_TEXT = 4_000


@dataclass(frozen=True)
class Shown:
    """Which events a list is for, as its address says."""

    wanted: EventFilter
    status: str
    arguments: dict[str, str]
    """The address without the cursor."""


@pages.get("/events")
def page() -> str | Response:
    if which := text_argument("find"):
        try:
            event_id = all_events().find_id(which)
        except NotFound:
            raise NotFound(f"No event, delivery or resource {which[:64]} was found among the latest events.") from None
        return redirect(url_for("events.event", event_id=event_id), 303)
    shown = _shown()
    found = all_events().find(
        shown.wanted, status=shown.status or None, before=cursor_argument(), limit=ROWS, seconds=SEARCH_SECONDS
    )
    return render_template("events.html", found=found, shown=shown.arguments, statuses=STATUSES, rows=ROWS)


@pages.get("/events/<event_id>")
def event(event_id: str) -> str:
    return event_page(event_id, with_personal=False)


def event_page(event_id: str, *, with_personal: bool) -> str:
    record = the_event(event_id)
    personal = PersonalFields(() if with_personal else console().config.console.personal)
    tree = body_tree(record.body, personal) if record.body else None
    return render_template(
        "event.html",
        event=record.summary,
        record=record,
        explanations={one.handler: one for one in explain(read_routing_facts(console().config, reader(), record))},
        tree=tree,
        body_text=_text_of(record.body, with_personal) if record.body and tree is None else "",
        headers=field_tree(record.headers.items(), personal),
        with_personal=with_personal,
        edited_from=edited_from(record.summary.source, record.headers),
        is_unreadable=record.summary.topic == UNREADABLE,
        done=done(),
    )


def the_event(event_id: str) -> EventRecord:
    record = all_events().event(event_id) if len(event_id) <= 64 and event_id.isalnum() else None
    if record is None:
        raise NotFound(f"There is no event {event_id[:64]}. It may have been removed by age.")
    return record


def _shown() -> Shown:
    names = ("store", "topic", "handler", "resource", "delivery", "error", "where", "since", "until")
    values = {name: text_argument(name) for name in names}
    name_argument("store")
    status = choice_argument("status", STATUSES) or ""
    wanted = EventFilter(
        store=values["store"],
        topic=values["topic"],
        handler=values["handler"],
        resource_id=values["resource"],
        delivery_id=values["delivery"],
        error=values["error"],
        where=tuple(where_of(one) for one in request.args.getlist("where") if one.strip()),
        since=_microseconds(parse_moment(values["since"])) or 0,
        until=_microseconds(parse_moment(values["until"])),
    )
    arguments = {name: value for name, value in {**values, "status": status}.items() if value}
    return Shown(wanted, status, arguments)


def _microseconds(moment: datetime | None) -> int | None:
    return max(0, int(moment.timestamp() * 1e6)) if moment else None


def _text_of(body: bytes, with_personal: bool) -> str:
    """A body that is neither JSON nor a form: its fields are not known, so all of it may be personal."""
    return visible(body.decode("utf-8", "replace"), MAX_BODY_TEXT) if with_personal else ""
