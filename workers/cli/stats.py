"""stats: a look at the whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from receiver.inbox import EventQueries
from receiver.inbox.queries.events import Spool
from workers.cli import output
from workers.cli.options import connect_server, load_config, with_config
from workers.formatting import waits

SETTLES_WITHIN = 5.0
LOOK_EVERY = 0.02
AN_HOUR = 3600


@click.command()
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def stats(json_: bool) -> None:
    """Counts of one moment; accepted = settled + open + failed, for every store."""
    config = load_config()
    ledger = EventQueries(connect_server(config))
    counters, spools = ledger.counters(), ledger.spools()
    counters.total["spooled"] = sum(spool.count for spool in spools.values())
    if json_:
        output.as_json(counters.as_json())
        return
    click.echo(equation(counters.total))
    click.echo()
    names = ("accepted", "settled", "open", "failed", "duplicates", "refused")
    rows = [(store, *(counts[name] for name in names)) for store, counts in sorted(counters.stores.items())]
    output.table(("STORE", *(name.upper() for name in names)), rows, drop=("DUPLICATES",))
    for store, counts in sorted(counters.stores.items()):
        tell_of_conflicts(store, counts)
    tell_of_spools(spools, config.receiver.spool_age)
    output.next_command("storehooks failures" if counters.total["failed"] else "storehooks events")


def tell_of_spools(spools: Mapping[str, Spool], longest: float) -> None:
    """What waits on each host, or since when nobody knows."""
    for host, spool in sorted(spools.items()):
        if spool.silent(time.time()):
            click.echo(f"\nspool of {host}: unknown since {output.clock(datetime.fromtimestamp(spool.at, UTC))}")
        elif spool.count:
            since = output.clock(datetime.fromtimestamp(spool.oldest, UTC))
            late = ", longer than [receiver] spool_age" if time.time() - spool.oldest > longest else ""
            click.echo(
                f"\nspool of {host}: {waits(spool.count, 'delivery', 'deliveries')}, the oldest since {since}{late}"
            )


def tell_of_conflicts(store: str, counts: Mapping[str, int]) -> None:
    """One delivery id with two bodies: a store that writes its deliveries anew, or somebody who plays with ids."""
    if many := counts.get("conflicts"):
        click.echo()
        click.echo(f"{store}: {many:,} came under a delivery id that had come with another body before;")
        click.echo("  kept as events of their own, or, where the scheme signs the id, taken for repetitions")


def equation(total: dict[str, int]) -> str:
    """The accounting identity with today's figures."""
    return (
        f"accepted {total['accepted']:,} = settled {total['settled']:,} + open {total['open']:,} "
        f"+ failed {total['failed']:,}    duplicates {total['duplicates']:,}    refused {total['refused']:,}"
    )
