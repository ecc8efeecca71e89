"""topics: the names stores really send, what they become, and who handles them."""

from __future__ import annotations

import click

from receiver.inbox import EventQueries, Inbox
from workers.cli import output
from workers.cli.options import choose_store, connect_server, load_config, with_config
from workers.cli.stats import tell_of_conflicts
from workers.operations.topic_names import SentName, Unsent, sent_names, unsent


@click.command()
@click.option("--store", help="Only of this store.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def topics(store: str | None, json_: bool) -> None:
    """The event names each store really sends, what they map to, and who handles them."""
    config = load_config()
    client = connect_server(config)
    ledger, handlers = EventQueries(client), Inbox(client).declarations().handlers
    names = [choose_store(config, store)] if store else sorted(config.stores)
    schemes = {name: config.known_stores[name].scheme for name in names}
    rows = [row for name in names for row in sent_names(name, schemes[name], ledger.names(name), handlers)]
    if json_:
        output.as_json(rows)
        return
    if rows:
        _show(rows)
    else:
        click.echo("no store has sent anything yet")
    _tell_of_the_unsent(list(unsent(handlers, rows)))
    for name in names:
        tell_of_conflicts(name, ledger.counters().stores.get(name, {}))
    output.next_command(
        "storehooks handlers              who wants what", "storehooks scheme show NAME      its map of names"
    )


def _show(rows: list[SentName]) -> None:
    output.table(
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
        drop=("BY", "LAST"),
        shorten=("HANDLERS", "SENDS"),
    )


def _tell_of_the_unsent(wanted: list[Unsent]) -> None:
    if not wanted:
        return
    click.echo()
    for one in wanted:
        nearest = f"; the nearest seen is {one.nearest}" if one.nearest else ""
        output.prose(f"{one.handler.handler} wants {one.topic}, which no store has sent{nearest}")
