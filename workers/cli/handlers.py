"""handlers: what the plugins of this config offer, loaded and judged here."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.errors import ConfigError, NotFound, PluginError, ServerUnusable
from receiver.contract.event import Event
from receiver.inbox import Administration, Declaration, EventQueries, Inbox, keys
from receiver.inbox.outcomes import Ending
from receiver.inbox.queries.handlers import Absent, HandlerQueries
from workers.cli import output
from workers.cli.options import Noun, connect_server, load_config, load_config_or_defaults, with_config
from workers.formatting import counted, waits

if TYPE_CHECKING:
    from workers.operations.explain_handlers import RoutingFacts, Verdict
    from workers.operations.export import EventExport
    from workers.testing.certify.runner import Target


@click.group(cls=Noun)
@with_config
def handlers() -> None:
    """Handlers: list, explain, run, certify, pause, resume, retire."""


@handlers.command("list")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_handlers(json_: bool = False) -> None:
    """Every handler this config and environment would load."""
    from workers.plugins.discovery import declarations, load

    config = load_config()
    found = declarations(config, load(config))
    paused, absent = _at_the_server(config, found)
    if json_:
        output.as_json(
            [{**_handler_json(one), "paused": None if paused is None else one.handler in paused} for one in found]
        )
        return
    if not found:
        click.echo("no handlers: no plugin is installed, and [workers] plugins names none")
        return
    _show_handlers(found, paused)
    _tell_of_the_absent(absent)
    held = [one.handler for one in found if one.handler in (paused or ())]
    output.next_command(
        "storehooks send order.created  see them called",
        *(f"storehooks handlers resume {name}  let its runs begin again" for name in held),
    )


def _show_handlers(found: list[Declaration], paused: set[str] | None) -> None:
    rows = [
        (
            one.handler,
            "?" if paused is None else "paused" if one.handler in paused else "on",
            ", ".join(one.topics),
            ", ".join(one.stores),
            _retries(one),
            f"{one.details['timeout']:g} s",
            one.version,
            _conditions(one),
        )
        for one in found
    ]
    headings = ("HANDLER", "STATE", "TOPICS", "STORES", "RETRIES", "TIMEOUT", "VERSION", "WHEN")
    output.table(headings, rows, drop=("VERSION", "TIMEOUT", "RETRIES", "STORES"), shorten=("WHEN", "TOPICS"))


def _tell_of_the_absent(absent: Mapping[str, Absent]) -> None:
    """Handlers that are not of this config, and that no worker has."""
    for name, one in absent.items():
        told = f"; {waits(one.waiting, 'run of it', 'runs of it')}" if one.waiting else ""
        click.echo(f"\n{name}: no worker has this handler any more{told}")
        click.echo(f"  for good: {output.our_name()} handlers retire {name}")


def _at_the_server(config: Config, found: list[Declaration]) -> tuple[set[str] | None, dict[str, Absent]]:
    """Which handlers are paused, and which nobody has, if a server is there: this list works without one, too."""
    try:
        client = connect_server(config)
        names = Administration(client).paused()
        paused = {name.removeprefix("handler:") for name in names if name.startswith("handler:")}
        here = {one.handler for one in found}
        return paused, {name: one for name, one in HandlerQueries(client).absent().items() if name not in here}
    except (ServerUnusable, RedisError):
        return None, {}


@handlers.command("pause")
@click.argument("handler")
@with_config
def pause(handler: str) -> None:
    """Let no more runs of a handler begin. They wait, nothing is lost, no attempt is burned."""
    administration = _administration_with(handler)
    click.echo(f"{handler} is paused" if administration.pause(handler=handler) else f"{handler} was paused already")
    output.next_command(f"storehooks handlers resume {handler}")


@handlers.command("resume")
@click.argument("handler")
@with_config
def resume(handler: str) -> None:
    """Let the runs of a handler begin again, in their order."""
    administration = _administration_with(handler)
    if f"handler:{handler}" not in administration.paused():
        click.echo(f"{handler} was not paused")
        return
    waiting = administration.client.zcard(keys.READY + handler)
    administration.resume(handler=handler)
    click.echo(f"{handler} goes on; {counted(waiting, 'waiting run')}")


@handlers.command("retire")
@click.argument("handler")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def retire(handler: str, yes: bool) -> None:
    """A handler is gone for good: end its waiting runs as failures, and route no more to it."""
    administration = _administration_with(handler)
    roster = HandlerQueries(administration.client)
    waiting, still_there = roster.waiting([handler])[handler], handler in roster.present()
    if not yes and waiting and sys.stdin.isatty():
        click.confirm(f"End {counted(waiting, 'waiting run')} of {handler} as failures?", abort=True)
    ended = administration.retire(handler)
    became = "became a failure" if ended == 1 else "became failures"
    click.echo(f"{handler} is retired; {counted(ended, 'waiting run')} {became}")
    if still_there:
        output.warn("a worker had it within the last 20 s; one that still has it takes new events for it again")
    output.next_command("storehooks failures")


@handlers.command("explain")
@click.argument("event_id", metavar="EVENT")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def explain(event_id: str, json_: bool) -> None:
    """For each handler: why it was, or was not, called.

    EVENT is an event's id, or `last`, or a delivery's or a resource's id: then it is the newest of those.
    """
    from workers.operations.explain_handlers import explain as judge

    config = load_config()
    facts = _facts(config, event_id)
    verdicts = judge(facts)
    if json_:
        output.as_json([asdict(one) for one in verdicts])
        return
    about = facts.event.summary
    click.echo(f"{output.harmless(about.topic)}   {about.store}   {about.status}   {about.id}\n")
    output.table(
        ("HANDLER", "CALLED", "WHY"),
        [row for one in verdicts for row in _explained(one)],
        wrap=True,
    )
    if not verdicts:
        click.echo("no handler is loaded here, and no worker has declared one")
    fixes = [one.fix for one in verdicts if one.fix.startswith("storehooks ")]
    output.next_command(*dict.fromkeys(fixes), f"storehooks events show {about.id}", "storehooks handlers")


def _explained(one: Verdict) -> list[tuple[str, str, str]]:
    why = one.handler, "yes" if one.called else "no", f"{one.reason}: {one.why}"[:160]
    fix = os.path.relpath(one.fix) if one.fix.startswith("/") else one.fix
    return [why, ("", "", fix)] if fix and not fix.startswith("storehooks ") else [why]


def _facts(config: Config, event_id: str) -> RoutingFacts:
    from workers.operations.explain_handlers import RoutingFacts

    client = connect_server(config)
    ledger, inbox = EventQueries(client), Inbox(client)
    record = ledger.event(ledger.find(event_id))
    if record is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    limits = {name: one.concurrency for name, one in config.limits.items() if one.concurrency}
    return RoutingFacts(
        event=record,
        declared={one.handler: one for one in inbox.declarations().handlers},
        loaded={one.handler: one for one in _loaded_here(config)},
        paused=frozenset(Administration(client).paused()),
        shut=ledger.busy_limits(),
        full=frozenset(name for name, most in limits.items() if ledger.slots_taken(name) >= most),
        absent=HandlerQueries(client).absent(),
    )


def _loaded_here(config: Config) -> list[Declaration]:
    """What this config loads; a plugin that cannot be loaded here is said, and no reason to explain nothing."""
    from workers.plugins.discovery import declarations, load

    try:
        return declarations(config, load(config))
    except PluginError as error:
        output.warn(f"plugins of this config cannot be loaded here: {error}")
        return []


@handlers.command("run")
@click.argument("handler")
@click.option(
    "--event",
    "source",
    metavar="ID|FILE",
    required=True,
    help="An event's id, an event export, or a JSON file with an event.",
)
@click.option("--live", is_flag=True, help="Let ctx.api be the store's own; else it is a sandbox, made for this run.")
@click.option("--record", is_flag=True, help="Keep what ctx.once and ctx.state remember; else nothing stays.")
@click.option("--pdb", is_flag=True, help="Stop in the debugger where it raises.")
@with_config
def run_here(handler: str, source: str, live: bool, record: bool, pdb: bool) -> None:
    """Do one run here and now, with this code. The inbox does not learn of it."""
    from workers.operations.local_run import LocalRun

    config = load_config()
    event, export = _event_from(config, source)
    trial = LocalRun(config, handler, record=record, live=live, export=export)
    try:
        outcome = trial.run(event)
    finally:
        trial.close()
    click.echo(f"{handler}   {outcome.ending}   {outcome.ms:.0f} ms   {output.harmless(outcome.message)}")
    if outcome.traceback:
        click.echo(outcome.traceback, nl=False)
    if outcome.error is not None and pdb:
        import pdb as debugger  # noqa: T100  asked for with --pdb

        debugger.post_mortem(outcome.error.__traceback__)
    if outcome.ending in (Ending.RAISED, Ending.FAILED):
        raise click.exceptions.Exit(1)


def _event_from(config: Config, source: str) -> tuple[Event, EventExport | None]:
    from workers.operations import export
    from workers.operations.local_run import event_from_file

    if not Path(source).is_file():
        return _stored_event(config, source), None
    if found := export.read(Path(source)):
        return found.event, found
    return event_from_file(config, source), None


@handlers.command("certify")
@click.argument("which", metavar="PLUGIN")
@click.option("--seed", default=7, show_default=True, help="The same seed, the same events and the same mishaps.")
@click.option("--only", multiple=True, metavar="SCENARIO", help="Only this way of going wrong; may be repeated.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def certify(which: str, seed: int, only: tuple[str, ...], json_: bool) -> None:
    """Put a plugin (its name, file or module) through what stores and machines do; exit 1 when it breaks.

    It runs in a folder of its own, on an embedded server, against a sandbox store. What the plugin sends elsewhere is
    sent: use settings made for testing.
    """
    from workers.testing.certify import report
    from workers.testing.certify.runner import CertificationRun

    config = load_config_or_defaults()
    trials = CertificationRun(
        config, _target(config, which), seed=seed, only=_known_scenarios(only), on_scenario=_progress(json_)
    )
    results = trials.run()
    if json_:
        output.as_json(report.as_json(results))
    else:
        for line in report.lines(results):
            click.echo(output.harmless(line))
    if results.findings:
        raise click.exceptions.Exit(1)


def _target(config: Config, which: str) -> Target:
    """The plugin, judged in a process that is thrown away: its code runs in the rig's child processes, not here."""
    from workers.plugins.validation_process import validate_plugin
    from workers.testing.certify.runner import target_of

    found = validate_plugin(config, which)
    if not found:
        raise ConfigError(f"{which} has no handlers, so there is nothing to certify")
    return target_of(which, found)


def _known_scenarios(only: tuple[str, ...]) -> tuple[str, ...]:
    from workers.testing.certify.scenarios import scenarios

    known = [one.name for one in scenarios((), 0, uses_api=True)]
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: there are {', '.join(known)}")
    return only


def _progress(json_: bool) -> Callable[[str], None]:
    """One line that changes, where a person is looking."""
    if json_ or not sys.stderr.isatty():
        return lambda _: None
    return lambda name: click.echo(f"\r{name:<20}\r", err=True, nl=False)


def _stored_event(config: Config, event_id: str) -> Event:
    event = EventQueries(connect_server(config)).as_event(event_id)
    if event is None:
        raise NotFound(f"no event and no file {event_id[:64]!r}; `storehooks events` lists the events")
    return event


def _administration_with(handler: str) -> Administration:
    """The inbox, if anybody ever declared such a handler or it has work."""
    inbox = Inbox(connect_server(load_config()))
    known = {one.handler for one in inbox.declarations().handlers}
    if handler not in known and not inbox.client.hexists(keys.LANES, handler):
        near = difflib.get_close_matches(handler, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(f"no worker has a handler {handler}{hint}")
    return Administration(inbox.client)


def _conditions(one: Declaration) -> str:
    """What else must be true before it is called."""
    details = one.details
    told = [details["when"], f"{details['delay']:g} s after arrival" if details["delay"] else None]
    told.append(f"limit {details['limit']}" if details["limit"] else None)
    return ", ".join(filter(None, told))


def _retries(one: Declaration) -> str:
    retries = one.details["retries"]
    return str(retries) if isinstance(retries, int) else "/".join(f"{delay:g}" for delay in retries) + " s"


def _handler_json(one: Declaration) -> dict[str, Any]:
    return {
        "plugin": one.details["plugin"],
        "handler": one.handler,
        "topics": one.topics,
        "stores": one.stores,
        "retries": one.details["retries"],
        "timeout": one.details["timeout"],
        "limit": one.details["limit"],
        "version": one.version,
        "file": one.details["file"],
        "line": one.details["line"],
    }
