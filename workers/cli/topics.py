"""topics: the names stores really send, what they become, and who handles them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import click

from receiver.config import Config
from receiver.contract.topics import MappedBy, mapped_by, matches, translate
from receiver.inbox import Declaration, Inbox, Ledger
from workers.cli import show
from workers.cli.look import tell_of_conflicts
from workers.cli.options import the_config, the_server, the_store, with_config


@dataclass(frozen=True)
class Row:
    """One name that one store sends. These are the fields of `--json`."""

    store: str
    theirs: str
    topic: str
    mapped_by: MappedBy
    seen: int
    last_at: datetime
    handlers: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """A topic that a handler asked for and no store has sent."""

    topic: str
    handler: str
    nearest: str


@click.command()
@click.option("--store", help="Only of this store.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def topics(store: str | None, json_: bool) -> None:
    """The event names each store really sends, what they map to, and who handles them."""
    config = the_config()
    client = the_server(config)
    ledger, handlers = Ledger(client), Inbox(client).declarations().handlers
    names = [the_store(config, store)] if store else sorted(config.stores)
    rows = [row for name in names for row in _rows(config, ledger, name, handlers)]
    if json_:
        show.as_json(rows)
        return
    if rows:
        _show(rows)
    else:
        click.echo("no store has sent anything yet")
    _tell_of_the_unsent(list(unsent(handlers, rows)))
    for name in names:
        tell_of_conflicts(name, ledger.counters().stores.get(name, {}))
    show.next_command(
        "storehooks handlers              who wants what", "storehooks scheme show NAME      its map of names"
    )


def _rows(config: Config, ledger: Ledger, store: str, handlers: Iterable[Declaration]) -> list[Row]:
    scheme = config.known_stores[store].scheme
    rows = []
    for name in ledger.names(store):
        topic = translate(name.theirs, scheme.topics) if name.theirs else ""
        takers = sorted({one.handler for one in handlers if topic and _wants(one, store, topic)})
        by = mapped_by(name.theirs, scheme.topics, scheme.configured)
        rows.append(Row(store, name.theirs, topic, by, name.seen, name.last_at, tuple(takers)))
    return rows


def _wants(handler: Declaration, store: str, topic: str) -> bool:
    return any(matches(pattern, topic) for pattern in handler.topics) and any(
        matches(pattern, store) for pattern in handler.stores
    )


def unsent(handlers: Iterable[Declaration], rows: Iterable[Row]) -> Iterable[Wanted]:
    """What handlers want that nobody has sent, with the nearest that somebody has."""
    sent = {row.topic: row for row in rows if row.topic}
    for handler in handlers:
        for pattern in handler.topics:
            if not any(matches(pattern, topic) for topic in sent):
                near = difflib.get_close_matches(pattern, sent, n=1, cutoff=0.4)
                yield Wanted(pattern, handler.handler, near[0] if near else "")


def _show(rows: list[Row]) -> None:
    show.table(
        ("STORE", "SENDS", "IS", "BY", "SEEN", "LAST", "HANDLERS"),
        [
            (
                row.store,
                row.theirs or "(more names)",
                row.topic,
                row.mapped_by if row.theirs else "",
                row.seen,
                row.last_at,
                ", ".join(row.handlers) or "nobody",
            )
            for row in rows
        ],
    )


def _tell_of_the_unsent(wanted: list[Wanted]) -> None:
    if not wanted:
        return
    click.echo()
    for one in wanted:
        nearest = f"; the nearest seen is {one.nearest}" if one.nearest else ""
        click.echo(f"{one.handler} wants {show.harmless(one.topic)}, which no store has sent{show.harmless(nearest)}")
