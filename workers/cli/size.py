"""size: how much memory, disk and how many processes a number of events needs."""

from __future__ import annotations

from dataclasses import asdict

import click

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, span
from receiver.contract.diagnosis.formatting import size as size_text
from workers.cli import output
from workers.cli.options import OCTETS, SPAN, Command, json_option, load_config
from workers.operations.sizing import USABLE, Needs, PlannedLoad, needs_of


@click.command(cls=Command)
@click.option("--events-per-day", type=click.FloatRange(min=1), required=True, metavar="N", help="Of all stores.")
@click.option("--body", type=OCTETS, default="2k", show_default=True, help="Size of a body: 800, 2k.")
@click.option("--handlers", type=click.IntRange(0), default=1, show_default=True, help="Handlers that get an event.")
@click.option("--handler-time", type=SPAN, default="20ms", show_default=True, help="How long a handler takes.")
@click.option("--peak", type=click.FloatRange(min=1), default=5.0, show_default=True, help="Busiest minutes / average.")
@json_option
def size(events_per_day: float, body: int, handlers: int, handler_time: float, peak: float, json_: bool) -> None:
    """Show the memory, disk and processes that events need.

    It uses [history], [retention] and [receiver] of the config, and constants that were measured. Nothing is asked of
    the server.
    """
    config = load_config()
    load = PlannedLoad(events_per_day, body, handlers, handler_time, peak)
    needs = needs_of(config, load)
    if json_:
        output.as_json({"rate": load.rate, "peak_rate": load.peak_rate, **asdict(needs)})
        return
    rate = f"{load.rate:,.1f}/s on average, {load.peak_rate:,.0f}/s at the peak"
    output.field("events", f"{load.events_per_day:,.0f} a day: {rate}", wide=10)
    for name, text in _rows(config, needs):
        output.field(name, text, wide=10)
    output.echo()
    output.echo("Events that are open or have failed come on top, each with its whole size in Redis.")
    if not needs.moves_in_time:
        output.echo("The housekeeper may not be able to move that number of events: plan a test with your own load.")
    if needs.history == "off":
        output.next_command('[history] url = "postgresql://..."  in the config: settled events leave Redis')
    else:
        output.next_command("storehooks doctor  what the events of today take")


def _rows(config: Config, needs: Needs) -> list[tuple[str, str]]:
    memory = f"{size_text(needs.memory)} of data; set maxmemory to {size_text(needs.maxmemory)} or more"
    disk = f"{size_text(needs.redis_disk)} for the append-only file"
    kept = f"records for {span(config.retention.records)}, bodies for {span(config.retention.bodies)}"
    history = f"{size_text(needs.history_disk)} in {needs.history}: {kept}" if needs.history != "off" else "off"
    processes = [
        counted(needs.web, "web process", "web processes"),
        counted(needs.workers, "worker"),
        f"{counted(needs.child_processes, 'child process', 'child processes')} in all",
    ]
    return [
        ("memory", f"{memory} ({1 - USABLE:.0%} stays free for bursts)"),
        ("disk", disk),
        ("history", history),
        ("processes", ", ".join(processes)),
    ]
