"""topics: the event names that stores send, the topics they map to, and their handlers."""

from __future__ import annotations

from dataclasses import asdict

import click

from receiver.inbox import EventQueries, Inbox
from workers.cli import output
from workers.cli.listing import RowList
from workers.cli.options import Command, choose_store, connect_reader, json_option, load_config
from workers.cli.stats import show_reused_ids
from workers.operations.topic_names import Unsent, sent_names, unsent

LISTING = RowList(
    cells={
        "theirs": lambda name: name or "(other names)",
        "handlers": lambda names: ", ".join(names) or output.state("warn", "none"),
    },
    drop=("mapped_by", "last_at"),
    shorten=("handlers", "theirs"),
)


@click.command(cls=Command)
@click.option("--store", help="Only topics of this store.")
@json_option
def topics(store: str | None, json_: bool) -> None:
    """List the event names that stores send, and their handlers."""
    config = load_config()
    client = connect_reader(config)
    queries, handlers = EventQueries(client), Inbox(client).declarations().handlers
    chosen = choose_store(config, store) if store else ""
    schemes = {name: one.scheme for name, one in sorted(config.known_stores.items()) if name in config.stores}
    sent = [row for name in schemes for row in sent_names(name, schemes[name], queries.event_names(name), handlers)]
    rows = [row for row in sent if chosen in ("", row.store)]
    LISTING.show([asdict(row) for row in rows], json_=json_)
    if json_:
        return
    if rows:
        output.echo("\nSeen counts all events since the data in Redis began.")
    else:
        output.echo("no events received yet")
    _show_unsent(list(unsent(handlers, sent)))
    for name in [chosen] if chosen else schemes:
        show_reused_ids(name, queries.counters().stores.get(name, {}))
    output.next_command(
        "storehooks handlers  which handler takes which topics",
        "storehooks scheme show NAME  how a scheme maps event names to topics",
    )


def _show_unsent(wanted: list[Unsent]) -> None:
    if not wanted:
        return
    output.echo()
    for one in wanted:
        nearest = f"; did you mean {one.nearest}?" if one.nearest else ""
        output.line(f"{one.handler.handler} handles {one.topic}, which no store has sent{nearest}", indent=2)
