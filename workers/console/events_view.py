"""Events: the list with its filters, and one event with its runs, payload and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flask import Blueprint, abort, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from receiver.contract.errors import NotFound
from receiver.contract.event import UNREADABLE
from receiver.inbox.model import unpack
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.events import EventRecord, EventSummary, read_summary
from workers.console.field_changes import FieldChange, field_changes
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
    utc_texts,
)
from workers.console.payload_tree import PersonalFields, body_tree, field_tree
from workers.console.visible_text import visible
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryError
from workers.operations.arrivals import EventTail, parse_place
from workers.operations.edited_events import edited_from
from workers.operations.explain_handlers import explain
from workers.operations.routing_facts import read_routing_facts

pages = Blueprint("events", __name__)
STATUSES = tuple(one.value for one in EventStatus)
SEARCH_SECONDS = 5.0
"""How long a search in the history may take for one page."""
MAX_BODY_TEXT = 4_000
EARLIER = 5
"""Earlier events of the same resource on the page of an event."""
MOST_OPEN = 100
"""Open events that a tail looks at again, and rows whose status it refreshes. They are in its address."""
_TIMES = re.compile(r"(\d{1,18}(-\d{1,18}){0,99})?", re.ASCII)


@dataclass(frozen=True)
class Shown:
    """Which events a list is for, as its address says."""

    wanted: EventFilter
    status: str
    arguments: dict[str, str]
    """The address without the cursor."""


@dataclass(frozen=True)
class EarlierEvent:
    """An event of the same resource, and what the next one after it changed."""

    summary: EventSummary
    changes: list[FieldChange]
    more: int
    is_whole: bool
    """False if the bodies were not compared to their end."""
    is_known: bool
    """False if a body was removed by age."""


@pages.get("/events")
def page() -> str | Response:
    if which := text_argument("find"):
        try:
            event_id = all_events().find_id(which)
        except NotFound:
            raise NotFound(f"No event, delivery or resource {which[:64]} was found among the latest events.") from None
        return redirect(url_for("events.event", event_id=event_id), 303)
    shown, before = _shown(), cursor_argument()
    wanted, live = shown.wanted, None
    if choice_argument("live", ("on",)) and not before and wanted.until is None:
        live = EventTail(all_events(), wanted, status=shown.status, most_open=MOST_OPEN)
        found = live.before(limit=ROWS, seconds=SEARCH_SECONDS)
    else:
        status = shown.status or None
        found = all_events().find(wanted, status=status, before=before, limit=ROWS, seconds=SEARCH_SECONDS)
    return render_template("events.html", found=found, shown=shown.arguments, statuses=STATUSES, tail=live)


@pages.get("/events/tail")
def tail() -> dict[str, Any]:
    """For the script of a live page: the events since a place in the tail, and the status of rows that were open."""
    shown, rows = _shown(), request.args.get("rows", "")
    place = parse_place(text) if (text := request.args.get("place")) else None
    if (place and len(place.open) > MOST_OPEN) or not _TIMES.fullmatch(rows):
        abort(400, "This is not an address of a live page.")
    events, times = all_events(), [int(one) for one in rows.split("-") if one]
    found = EventTail(
        events, shown.wanted, status=shown.status, place=place, most_open=MOST_OPEN, seconds=SEARCH_SECONDS
    )
    new = [_row(one) for one in found.new()]
    here = {one.accepted_at: read_summary(one.id, one.fields).status for one in events.in_redis.accepted_at(times)}
    return {
        "rows": new,
        "statuses": {str(one): here.get(one, EventStatus.SETTLED) for one in times},  # only settled events leave Redis
        "place": str(found.place),
        "more": found.has_more,
        "note": _note(found),
    }


def _note(tail: EventTail) -> str:
    if tail.fault:
        return f"Only events in Redis are shown, because the history cannot be read: {visible(tail.fault)}"
    if not tail.looks_at_all:
        return f"More than {MOST_OPEN} events are open: older ones are not shown here if they match later."
    return ""


def _row(one: EventSummary) -> dict[str, str]:
    iso, utc = utc_texts(one.received_at)
    texts = {"store": one.store, "topic": one.topic, "resource": one.resource_id, "status": one.status}
    texts |= {"source": one.source, "event": one.id, "utc": utc, "received": iso, "at": str(one.accepted_at)}
    return {name: visible(text) for name, text in texts.items()}


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
        earlier=_earlier(record, personal),
        with_personal=with_personal,
        edited_from=edited_from(record.summary.source, record.headers),
        is_unreadable=record.summary.topic == UNREADABLE,
        done=done(),
    )


def _earlier(record: EventRecord, personal: PersonalFields) -> list[EarlierEvent]:
    """The events of the same resource before this one, the newest first."""
    try:
        past = all_events().earlier_of_resource(record.summary.id, limit=EARLIER)
    except HistoryError:
        past = all_events().in_redis.earlier_of_resource(record.summary.id, limit=EARLIER)
    found, newer = [], record.body
    for one in past:
        body = unpack(one.content)[1]
        known = bool(body and newer)
        compared = field_changes(body, newer, personal, one.event.data_path) if known else ([], 0, False)
        found.append(EarlierEvent(read_summary(one.id, one.fields), *compared, known))
        newer = body
    return found


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
    where = [one for one in request.args.getlist("where") if one.strip()]
    if where and g.role == "viewer":
        abort(403, "Only operators search by payload fields: what is found tells a personal field's value.")
    wanted = EventFilter(
        store=values["store"],
        topic=values["topic"],
        handler=values["handler"],
        resource_id=values["resource"],
        delivery_id=values["delivery"],
        error=values["error"],
        where=tuple(map(where_of, where)),
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
