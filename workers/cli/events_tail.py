"""events tail: events as they are accepted, or as they get a status; and how events are listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.events import EventSummary
from workers.cli import output
from workers.cli.listing import RowList
from workers.cli.options import Command, all_events, connect_reader, json_option, load_config
from workers.history.event_filter import EventFilter, where_of
from workers.operations.arrivals import EventTail, TailPlace, parse_place

LISTING = RowList(
    cells={"status": output.state},
    drop=("cursor", "delivery_id", "source", "resource_id"),
    shorten=("store", "topic"),
)


def event_list(config: Config) -> RowList:
    """With one store, its name is one of the first columns that are left out on a narrow terminal."""
    drop = (*LISTING.drop[:3], "store", *LISTING.drop[3:])
    return replace(LISTING, drop=drop) if len(config.stores) == 1 else LISTING


def event_row(one: EventSummary) -> dict[str, Any]:
    names = ("received_at", "store", "topic", "resource_id", "status", "source", "delivery_id", "id")
    return {name: getattr(one, name) for name in names}


@click.command("tail", cls=Command)
@click.option("--where", metavar="PATH=VALUE", multiple=True, help="Only this value in event.data; also PATH>VALUE.")
@click.option("--store", default="", help="Only events of this store.")
@click.option("--topic", default="", metavar="GLOB", help='Only these topics: "order.*".')
@click.option(
    "--status",
    type=click.Choice([one.value for one in EventStatus]),
    help="Only events with this status, when they get it. Those settled between two polls never appear as open.",
)
@click.option(
    "--after",
    metavar="CURSOR",
    callback=lambda _context, _option, text: parse_place(text) if text else None,
    help="Begin after this event, with the cursor of its line. Not with --status.",
)
@click.option("--limit", type=click.IntRange(0), default=10, show_default=True, help="Earlier events to begin with.")
@json_option
def tail(
    where: tuple[str, ...],
    store: str,
    topic: str,
    status: str | None,
    after: TailPlace | None,
    limit: int,
    json_: bool,
) -> None:
    """Print events as they are accepted, each once and in that order, until Ctrl-C or until the pipe is closed.

    Spooled deliveries come when they are drained. None is left out, also after an outage of Redis. With --json each
    line is one JSON document, and --after goes on after the cursor of a line.
    """
    if status and after:
        raise ConfigError("--after is not for --status, whose events are not in the order of cursors; leave one out")
    config = load_config()
    stored = all_events(config, connect_reader(config))
    wanted = EventFilter(where=tuple(map(where_of, where)), store=store, topic=topic)
    found = EventTail(stored, wanted, status=status or "", place=after)
    before = [] if after or not limit else found.before(limit=limit).events
    event_list(config).follow(map(_row, reversed(before)), lambda: _new(found), json_=json_)


def _row(one: EventSummary) -> dict[str, Any]:
    return {**event_row(one), "cursor": str(TailPlace(one.accepted_at))}


def _new(found: EventTail) -> list[dict[str, Any]]:
    told, looked = found.fault, found.looks_at_all
    rows = [_row(one) for one in found.new()]
    if found.fault and not told:
        output.warn(f"only events in Redis are shown, because the history cannot be read: {found.fault}")
    if looked and not found.looks_at_all:
        output.warn("there are more open events than are looked at again; some may be missing here when they end")
    return rows
