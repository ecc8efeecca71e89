"""handlers run: run one handler for one event here, with the code of this config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError, NotFound, ServerUnusable
from receiver.contract.event import Event
from receiver.inbox import keys
from receiver.inbox.outcomes import Ending
from receiver.inbox.redis.connecting import check
from workers.cli import output
from workers.cli.auditing import record_if_reachable
from workers.cli.options import UNREADABLE_HINT, Command, all_events, connect_server, load_config, yes_option

if TYPE_CHECKING:
    from workers.operations.event_export import EventExport


@click.command("run", cls=Command)
@click.argument("handler")
@click.option(
    "--event",
    "source",
    metavar="ID|FILE",
    required=True,
    help="An event's id, `last`, an event export, or a JSON file with an event.",
)
@click.option("--live", is_flag=True, help="Let ctx.api call the real store. Default: a sandbox store for this run.")
@click.option("--record", is_flag=True, help="Store the marks of ctx.once and ctx.state. Default: store nothing.")
@click.option("--pdb", is_flag=True, help="Start the debugger at the exception.")
@click.option("--no-timeout", is_flag=True, help="Let it take any time, such as in a debugger.")
@yes_option
def run_here(handler: str, source: str, live: bool, record: bool, pdb: bool, no_timeout: bool, yes: bool) -> None:
    """Run one handler here, with this code. The inbox is not changed.

    As in a worker, the handler's timeout and [workers] memory hold: past one of them, the run is ended. It asks for
    confirmation with --live and with --record. Exit 1 if a worker would run it again or record a failure.
    """
    from workers.operations.local_run import LocalRun
    from workers.operations.watched_run import RunWatch

    if handler == keys.INTAKE:
        raise ConfigError(f"{handler} is not a handler: {UNREADABLE_HINT}")
    config = load_config()
    watch = RunWatch(config.workers.memory, has_timeout=not no_timeout)
    if ended := watch.go_on_in_child():
        if ended.why:
            output.line(handler, "   ", output.state(Ending.DIED), f"   {ended.why}", indent=4)
        raise click.exceptions.Exit(ended.code)
    event, export = _event_from(config, source)
    uses = [*(["the real store"] if live else []), *(["stored marks and state"] if record else [])]
    output.confirm(f"run {handler} with {' and '.join(uses)}", yes=yes or not uses)
    if uses:
        record_if_reachable(config, "run handler", handler=handler, event=event.id, live=live, record=record)
    redis = _redis_if_usable(config) if live else None
    run = LocalRun(config, handler, record=record, live=live, redis=redis, export=export, watch=watch)
    try:
        outcome = run.run(event)
    finally:
        run.close()
    output.line(handler, "   ", output.state(outcome.ending), f"   {outcome.ms:.0f} ms   {outcome.message}", indent=4)
    for line in outcome.traceback.splitlines():
        output.line(line, whole=True)
    if outcome.error is not None and pdb:
        import pdb as debugger  # noqa: T100  asked for with --pdb

        debugger.post_mortem(outcome.error.__traceback__)
    if outcome.ending not in (Ending.DONE, Ending.DROPPED):
        raise click.exceptions.Exit(1)


def _redis_if_usable(config: Config) -> Redis | None:
    """For the client of the real store. A run needs no server, but without it other processes know nothing of its
    calls."""
    try:
        client = connect_server(config)
        check(client, works=True)
    except ServerUnusable as error:
        why = str(error).partition(";")[0]
        output.warn(f"ctx.api does not share the token and the rate limit of the other processes: {why}")
        return None
    return client


def _event_from(config: Config, source: str) -> tuple[Event, EventExport | None]:
    from workers.operations import event_export

    if not Path(source).is_file():
        return _stored_event(config, source), None
    if found := event_export.read(Path(source)):
        return found.event, found
    return event_export.read_event(config, Path(source)), None


def _stored_event(config: Config, event_id: str) -> Event:
    stored = all_events(config, connect_server(config))
    event = stored.as_event(stored.find_id(event_id))
    if event is None:
        raise NotFound(f"no event and no file {event_id[:64]!r}; `storehooks events` lists the events")
    return event
