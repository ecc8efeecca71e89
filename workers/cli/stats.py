"""stats: how many events were accepted, settled, open, failed and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import click
from redis import Redis

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, waits
from receiver.inbox import EventQueries
from workers.cli import output
from workers.cli.listing import RowList, repeat
from workers.cli.options import Command, connect_to_list_hosts, json_option, load_config
from workers.operations.host_spools import Host, find_hosts, total_spooled

WATCH_EVERY = 1.0
SHOWN_FIRST = ("accepted", "settled", "open", "failed", "refused", "duplicates")
SINCE_WHEN = "Open and failed are of now; the other counts are of all time since the data in Redis began."
LISTING = RowList(
    cells={name: partial(output.figure, name=name) for name in SHOWN_FIRST},
    drop=("unkeyed", "altered", "conflicts", "duplicates"),
)


@click.command(cls=Command)
@click.option("--watch", is_flag=True, help="Show them every second, until Ctrl-C; JSON has one document on each line.")
@json_option
def stats(watch: bool, json_: bool) -> None:
    """Show event counts. Always: accepted = settled + open + failed."""
    config = load_config()
    client = connect_to_list_hosts(config)
    if watch:
        repeat(lambda: _show(config, client, json_=json_, indent=False), every=WATCH_EVERY)
    else:
        _show(config, client, json_=json_)


def _show(config: Config, client: Redis, *, json_: bool, indent: bool = True) -> None:
    counters, hosts = EventQueries(client).counters(), find_hosts(config, client)
    if json_:
        spooled = {"spooled": total_spooled(hosts), "hosts": {one.name: one.as_json() for one in hosts}}
        output.as_json({**counters.as_json(), **spooled}, indent=indent)
        return
    output.line(equation(counters.total), indent=2)
    output.line(SINCE_WHEN, indent=2)
    output.echo()
    rows = [
        {"store": store, **{name: counts[name] for name in (*SHOWN_FIRST, *counts)}}
        for store, counts in sorted(counters.stores.items())
    ]
    LISTING.show(rows, json_=False)
    for store, counts in sorted(counters.stores.items()):
        show_reused_ids(store, counts)
    show_spools(hosts, config.receiver.spool_age)
    output.next_command(
        "storehooks failures  what failed, and why"
        if counters.total["failed"]
        else "storehooks events  the newest events"
    )


def show_spools(hosts: Sequence[Host], longest: float) -> None:
    """The deliveries in the spool of each host. That of a silent host is unknown."""
    for host in hosts:
        if host.spooled is None:
            _paragraph(f"spool of {host.name}: unknown{_last_report(host)}")
        elif host.spooled:
            oldest = host.oldest or datetime.now(UTC)
            late = datetime.now(UTC) - oldest > timedelta(seconds=longest)
            waiting = f"{waits(host.spooled, 'delivery', 'deliveries')}, oldest {output.clock(oldest)}"
            waiting += ", longer than [receiver] spool_age" if late else ""
            waiting += "; `storehooks web` is not running there" if host.state == "stopped" else ""
            _paragraph(f"spool of {host.name}: {waiting}")


def _last_report(host: Host) -> str:
    if host.reported is None or host.seen is None:
        return ""
    return f"; {counted(host.reported, 'delivery', 'deliveries')} at the last report, {output.clock(host.seen)}"


def show_reused_ids(store: str, counts: Mapping[str, int]) -> None:
    """Deliveries that reused an id with another body: the id names no delivery, or a redelivery was changed."""
    if many := counts.get("conflicts"):
        number = counted(many, "delivery", "deliveries")
        _paragraph(f"{store}: {number} reused a delivery id with another body. They are separate events.")
    if many := counts.get("altered"):
        number = counted(many, "delivery", "deliveries")
        _paragraph(
            f"{store}: {number} had the delivery id, topic, resource and time of an earlier one, but another body. "
            'They are duplicates, because dedupe = "id".'
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
