"""handlers explain: why each handler was called for an event, or was not."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from receiver.config import Config
from receiver.contract.errors import NotFound, PluginError
from receiver.inbox import Declaration
from workers.cli import output
from workers.cli.options import Command, all_events, connect_reader, json_option, load_config
from workers.cli.typed_commands import commands_as_typed

if TYPE_CHECKING:
    from workers.operations.explain_handlers import HandlerExplanation, RoutingFacts

MAX_WHY = 2_000
"""Characters: enough for why a plugin cannot be loaded. The error of a run may be longer."""


@click.command("explain", cls=Command)
@click.argument("event_id", metavar="EVENT")
@json_option
def explain(event_id: str, json_: bool) -> None:
    """Explain why each handler was called for an event, or not.

    EVENT is an event's id, a delivery's id, a resource's id (the newest event of it), or `last`.
    """
    from workers.operations.explain_handlers import explain as explain_routing

    config = load_config()
    facts = _facts(config, event_id)
    verdicts = explain_routing(facts)
    if json_:
        output.as_json([asdict(one) for one in verdicts])
        return
    event = facts.event.summary
    output.line(output.text(event.topic, "bold"), f"   {event.store}   ", output.state(event.status), f"   {event.id}")
    output.echo()
    output.table(
        ("HANDLER", "CALLED", "WHY"),
        [row for one in verdicts for row in _rows(one)],
        wrap="WHY",
    )
    if not verdicts:
        output.echo("no handlers: this config has none, and no worker has declared one")
    fixes = [one.fix.replace(", ", "  ", 1) for one in verdicts if one.fix.startswith("storehooks ")]
    output.next_command(*dict.fromkeys(fixes), f"storehooks events show {event.id}  its payload and its runs")


def _rows(one: HandlerExplanation) -> list[tuple[Any, ...]]:
    text = one.why if one.why.startswith(one.reason) else f"{one.reason}: {one.why}"
    why = one.handler, output.state("yes" if one.called else "no"), text[:MAX_WHY]
    fix = os.path.relpath(one.fix) if one.fix.startswith("/") else commands_as_typed(one.fix)
    return [why, ("", "", fix)] if fix and not fix.startswith("storehooks ") else [why]


def _facts(config: Config, event_id: str) -> RoutingFacts:
    from workers.operations.routing_facts import read_routing_facts

    client = connect_reader(config)
    stored = all_events(config, client)
    record = stored.event(stored.find_id(event_id))
    if record is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    return read_routing_facts(config, client, record, _loaded_here(config))


def _loaded_here(config: Config) -> list[Declaration]:
    """The handlers of this config. A plugin that cannot be loaded is reported; the others are still explained."""
    from workers.plugins.discovery import declarations, load

    try:
        return declarations(config, load(config))
    except PluginError as error:
        output.warn(f"cannot load the plugins of this config here: {error}")
        return []
