"""events: what has arrived, and what became of it."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import orjson

from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import EventQueries, Inbox
from receiver.inbox.outcomes import ENDED, EventStatus
from receiver.inbox.queries.events import EventRecord, EventSummary, RunRecord
from receiver.inbox.queries.runs import RunQueries
from workers.cli import output
from workers.cli.options import Moment, Noun, Rate, connect_server, load_config, with_config
from workers.formatting import counted
from workers.operations.replay import Replay, Selection, matching_runs


@click.group(cls=Noun)
@with_config
def events() -> None:
    """Events: list, show, replay."""


@events.command("list")
@click.option("--store", help="Only of this store.")
@click.option("--topic", metavar="GLOB", help='Only these topics: "order.*".')
@click.option("--status", type=click.Choice(list(EventStatus)), help="Only in this state.")
@click.option("--since", type=Moment(), help="Not older than this.")
@click.option("--limit", default=50, show_default=True, help="At most so many.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_events(
    store: str | None = None,
    topic: str | None = None,
    status: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
    json_: bool = False,
) -> None:
    """The newest events, newest first."""
    ledger = EventQueries(connect_server(load_config()))
    found = ledger.events(store=store, topic=topic, status=status, since=since, limit=limit)
    if json_:
        output.as_json([_summary_json(event) for event in found])
        return
    if not found:
        click.echo("no events that fit")
        output.next_command("storehooks send order.created      send one")
        return
    rows = [(e.received_at, e.store, e.topic, e.resource_id, e.status, e.source, e.id) for e in found]
    output.table(
        ("RECEIVED", "STORE", "TOPIC", "RESOURCE", "STATUS", "SOURCE", "ID"),
        rows,
        drop=("SOURCE", "RESOURCE"),
        shorten=("STORE", "TOPIC"),
    )
    output.next_command(f"storehooks events show {found[0].id}")


@events.command("show")
@click.argument("event_id", metavar="ID")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@click.option("--export", metavar="FILE", help="Write the event with its context to a file, to be run elsewhere.")
@with_config
def show_event(event_id: str, json_: bool, export: str | None) -> None:
    """One event: headers, payload, and a line for each handler.

    ID is an event's id, or `last`, or a delivery's or a resource's id: then it is the newest of those.
    """
    ledger = EventQueries(connect_server(load_config()))
    event_id = ledger.find(event_id)
    if export is not None:
        _write_export(event_id, export)
        return
    record = ledger.event(event_id)
    if record is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    if json_:
        output.as_json(_record_json(record))
        return
    about = record.summary
    topic, resource = output.harmless(about.topic), output.harmless(about.resource_id)
    delivery = output.harmless(about.delivery_id) or "-"
    click.echo(f"{topic}  {resource}   {about.store}   {about.status}   {about.id}")
    click.echo(f"received {output.clock(about.received_at)} from {about.source}, delivery {delivery}")
    click.echo()
    output.table(
        ("HANDLER", "STATUS", "ATTEMPTS", "DUE", "RESULT"),
        [(r.handler, r.status, r.attempts, r.due_at, r.error or r.result) for r in record.runs],
        drop=("DUE", "ATTEMPTS"),
        wrap=True,
    )
    if record.reason:
        click.echo(f"settled: {record.reason}")
    click.echo()
    click.echo(
        output.harmless(record.body.decode("utf-8", "replace"))[:2000] if record.body else "the body is gone by age"
    )
    output.next_command(f"storehooks events show {about.id} --json")


def _write_export(event_id: str, path: str) -> None:
    from workers.operations.export import write

    config = load_config()
    text = write(config, connect_server(config), event_id)
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(path).touch(mode=0o600)  # it holds customers' data
        Path(path).write_bytes(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}, {len(text):,} bytes: headers and payload as they came, settings without secrets")
    output.next_command(f"storehooks handlers run HANDLER --event {path}      there, with that code, against a sandbox")


@events.command("replay")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--handler", metavar="H", help="Only this handler; one that was not there gets the event too.")
@click.option("--run-status", type=click.Choice(ENDED), help="Only runs that ended so.")
@click.option("--handler-version", metavar="V", help="Only runs of this version of the handler.")
@click.option("--store", help="Only of this store.")
@click.option("--topic", metavar="GLOB", help='Only these topics: "order.*".')
@click.option("--since", type=Moment(), help="Events received from then on.")
@click.option("--until", type=Moment(), help="Events received up to then.")
@click.option("--first", type=click.IntRange(1), metavar="N", help="At most so many runs.")
@click.option("--rate", type=Rate(), help="Not faster than this, such as 10/s.")
@click.option("--again", is_flag=True, help="Forget what ctx.once remembers of them: effects are done again too.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def replay_events(
    event_ids: tuple[str, ...],
    first: int | None,
    rate: float | None,
    again: bool,
    dry_run: bool,
    yes: bool,
    **chosen: Any,
) -> None:
    """Have runs of past events done again, those that were done included. Interrupted, the same command goes on."""
    selection = Selection(**chosen)
    inbox = Inbox(connect_server(load_config()))
    if not event_ids and selection == Selection():
        raise ConfigError("say which: event ids, or a filter such as --handler or --since; all of it: --topic '*'")
    look = Replay(inbox, rate=None, first=None, told=lambda _: None)
    items = [item for one in event_ids for item in _runs_of(inbox, one, selection)]
    total = len(items) if event_ids else sum(1 for _ in look.matching(selection))
    click.echo(f"{counted(total, 'run')} {'fits' if total == 1 else 'fit'}")
    if dry_run:
        return
    if not yes and total > 1 and sys.stdin.isatty():
        click.confirm(f"Replay {counted(min(total, first or total), 'run')}?", abort=True)
    if not event_ids and look.position(selection):
        click.echo("going on where an earlier one was interrupted")
    with click.progressbar(length=min(total, first or total), label="replaying", show_pos=True) as bar:
        replay = Replay(inbox, rate=rate, first=first, told=bar.update, again=again)
        try:
            counts = replay.items(items, make=bool(selection.handler)) if event_ids else replay.selection(selection)
        except KeyboardInterrupt:
            click.echo(f"\ninterrupted after {replay.counts['reopened']:,}; the same command goes on")
            raise click.exceptions.Exit(1) from None
    output.replay_counts(counts)


def _runs_of(inbox: Inbox, event_id: str, selection: Selection) -> list[str]:
    event = RunQueries(inbox.client).of_event(event_id)
    if event is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    return matching_runs(selection, event)


def _summary_json(event: EventSummary) -> dict[str, Any]:
    return {
        "id": event.id,
        "store": event.store,
        "topic": event.topic,
        "delivery_id": event.delivery_id,
        "resource_id": event.resource_id,
        "received_at": event.received_at,
        "source": event.source,
        "status": event.status,
    }


def _record_json(record: EventRecord) -> dict[str, Any]:
    try:
        payload = orjson.loads(record.body)
    except orjson.JSONDecodeError:
        payload = record.body.decode("utf-8", "replace")
    return {
        **_summary_json(record.summary),
        "headers": record.headers,
        "payload": payload,
        "runs": [_run_json(run) for run in record.runs],
    }


def _run_json(run: RunRecord) -> dict[str, Any]:
    return {
        "handler": run.handler,
        "version": run.version,
        "status": run.status,
        "attempts": run.attempts,
        "result": run.result,
        "error": run.error,
        "due_at": run.due_at,
    }
