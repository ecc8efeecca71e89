"""stats: how many events were accepted, settled, open, failed and refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from receiver.inbox import EventQueries
from receiver.inbox.queries.events import Spool
from workers.cli import output
from workers.cli.options import connect_server, json_option, load_config, with_config
from workers.formatting import counted, waits


@click.command()
@json_option
@with_config
def stats(json_: bool) -> None:
    """Show event counts. Always: accepted = settled + open + failed."""
    config = load_config()
    queries = EventQueries(connect_server(config))
    counters, spools = queries.counters(), queries.spools()
    counters.total["spooled"] = sum(spool.count for spool in spools.values())
    if json_:
        output.as_json(counters.as_json())
        return
    output.line(equation(counters.total), indent=2)
    output.echo()
    names = ("accepted", "settled", "open", "failed", "duplicates", "refused")
    rows = [
        (store, *(output.figure(counts[name], name) for name in names))
        for store, counts in sorted(counters.stores.items())
    ]
    output.table(("STORE", *(name.upper() for name in names)), rows, drop=("DUPLICATES",))
    for store, counts in sorted(counters.stores.items()):
        show_conflicts(store, counts)
    show_spools(spools, config.receiver.spool_age)
    output.next_command(
        "storehooks failures  what failed, and why"
        if counters.total["failed"]
        else "storehooks events  the newest events"
    )


def show_spools(spools: Mapping[str, Spool], longest: float) -> None:
    """The events in the spool of each host. A host that stopped reporting is shown as unknown."""
    for host, spool in sorted(spools.items()):
        if spool.silent(time.time()):
            _paragraph(f"spool of {host}: unknown, last report {output.clock(datetime.fromtimestamp(spool.at, UTC))}")
        elif spool.count:
            since = output.clock(datetime.fromtimestamp(spool.oldest, UTC))
            late = ", longer than [receiver] spool_age" if time.time() - spool.oldest > longest else ""
            _paragraph(f"spool of {host}: {waits(spool.count, 'delivery', 'deliveries')}, oldest {since}{late}")


def show_conflicts(store: str, counts: Mapping[str, int]) -> None:
    """Deliveries that reused an id with another body: the store changes what it redelivers, or ids are forged."""
    if many := counts.get("conflicts"):
        _paragraph(
            f"{store}: {counted(many, 'delivery', 'deliveries')} reused a delivery id with another body. "
            "They are separate events, or duplicates if the scheme signs the id."
        )


def _paragraph(sentence: str) -> None:
    output.echo()
    output.line(sentence, indent=2)


def equation(total: dict[str, int]) -> str:
    """The accounting identity with the current counts."""
    return (
        f"accepted {total['accepted']:,} = settled {total['settled']:,} + open {total['open']:,} "
        f"+ failed {total['failed']:,}    duplicates {total['duplicates']:,}    refused {total['refused']:,}"
    )
