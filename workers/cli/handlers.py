"""handlers: what the plugins of this config offer, loaded and judged here."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import click

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.inbox import Declaration, Inbox, Ledger, keys
from workers.cli import show
from workers.cli.options import the_config, the_server, with_config


@click.group(invoke_without_command=True)
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
@click.pass_context
def handlers(context: click.Context, json_: bool) -> None:
    """Handlers: list, pause, resume, retire, run."""
    if context.invoked_subcommand is None:
        context.invoke(list_handlers, json_=json_)


@handlers.command("list")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_handlers(json_: bool = False) -> None:
    """Every handler this config and environment would load."""
    from workers.plugins import declarations, load

    config = the_config()
    found = declarations(config, load(config))
    if json_:
        show.as_json([_handler_json(one) for one in found])
        return
    if not found:
        click.echo("no handlers: no plugin is installed, and [workers] plugins names none")
        return
    rows = [
        (
            one.handler,
            ", ".join(one.topics),
            ", ".join(one.stores),
            _retries(one),
            f"{one.details['timeout']:g} s",
            one.version,
        )
        for one in found
    ]
    show.table(("HANDLER", "TOPICS", "STORES", "RETRIES", "TIMEOUT", "VERSION"), rows)
    show.next_command("storehooks send order.created      see them called")


@handlers.command("pause")
@click.argument("handler")
@with_config
def pause(handler: str) -> None:
    """Let no more runs of a handler begin. They wait, nothing is lost, no attempt is burned."""
    inbox = _inbox_with(handler)
    click.echo(f"{handler} is paused" if inbox.pause(handler=handler) else f"{handler} was paused already")
    show.next_command(f"storehooks handlers resume {handler}")


@handlers.command("resume")
@click.argument("handler")
@with_config
def resume(handler: str) -> None:
    """Let the runs of a handler begin again, in their order."""
    inbox = _inbox_with(handler)
    if f"handler:{handler}" not in inbox.paused():
        click.echo(f"{handler} was not paused")
        return
    waiting = inbox.client.zcard(keys.READY + handler)
    inbox.resume(handler=handler)
    click.echo(f"{handler} goes on; {waiting:,} runs were waiting")


@handlers.command("retire")
@click.argument("handler")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def retire(handler: str, yes: bool) -> None:
    """A handler is gone for good: end its waiting runs as failures, and route no more to it."""
    inbox = _inbox_with(handler)
    waiting = inbox.client.zcard(keys.READY + handler)
    if not yes and waiting and sys.stdin.isatty():
        click.confirm(f"End {waiting:,} waiting runs of {handler} as failures?", abort=True)
    click.echo(f"{handler} is retired; {inbox.retire(handler):,} waiting runs became failures")
    show.next_command("storehooks failures")


@handlers.command("run")
@click.argument("handler")
@click.option(
    "--event", "source", metavar="ID|FILE", required=True, help="An event's id, or a JSON file that holds one."
)
@click.option("--record", is_flag=True, help="Keep what ctx.once and ctx.state remember; else nothing stays.")
@click.option("--pdb", is_flag=True, help="Stop in the debugger where it raises.")
@with_config
def run_here(handler: str, source: str, record: bool, pdb: bool) -> None:
    """Do one run here and now, with this code. The inbox does not learn of it."""
    from workers.trial import Trial, event_from_file

    config = the_config()
    trial = Trial(config, handler, record=record)
    outcome = trial.run(event_from_file(config, source) if Path(source).is_file() else _stored_event(config, source))
    click.echo(f"{handler}   {outcome.end}   {outcome.ms:.0f} ms   {show.harmless(outcome.said)}")
    if outcome.traceback:
        click.echo(outcome.traceback, nl=False)
    if outcome.error is not None and pdb:
        import pdb as debugger  # noqa: T100  asked for with --pdb

        debugger.post_mortem(outcome.error.__traceback__)
    if outcome.end in ("raised", "failed"):
        raise click.exceptions.Exit(1)


def _stored_event(config: Config, event_id: str) -> Event:
    event = Ledger(the_server(config)).as_event(event_id)
    if event is None:
        raise ConfigError(f"there is no event and no file {event_id[:64]!r}; `storehooks events` lists events")
    return event


def _inbox_with(handler: str) -> Inbox:
    """The inbox, if anybody ever declared such a handler or it has work."""
    inbox = Inbox(the_server(the_config()))
    known = {one.handler for one in inbox.declarations().handlers}
    if handler not in known and not inbox.client.hexists(keys.LANES, handler):
        near = difflib.get_close_matches(handler, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no worker has declared a handler {handler}{hint}")
    return inbox


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
