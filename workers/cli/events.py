"""events: list and show accepted events, and run their handlers again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson
from redis import Redis

from receiver.config import Config
from receiver.config.errors import did_you_mean
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.event import UNREADABLE, form_fields
from receiver.contract.whole_characters import read_whole
from receiver.inbox import Inbox, keys
from receiver.inbox.outcomes import ENDED, EventStatus
from receiver.inbox.queries.cursors import Cursor
from receiver.inbox.queries.events import EventRecord, RunRecord
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.events_reread import reread
from workers.cli.events_tail import event_list, event_row, tail
from workers.cli.options import (
    MOMENT,
    MOMENT_FORMS,
    RATE,
    UNREADABLE_HINT,
    Noun,
    all_events,
    before_option,
    connect_reader,
    connect_server,
    json_option,
    load_config,
    require_handler,
    unknown_handler,
    yes_option,
)
from workers.cli.replay_run import run_replay
from workers.cli.send_hint import send_command
from workers.history.event_filter import EventFilter, where_of
from workers.operations.all_events import AllEvents
from workers.operations.replay import Replay, Selection, matching_runs
from workers.operations.topic_names import known_topics, nearest_pattern
from workers.plugins.effects import IN_DOUBT


@click.group(cls=Noun)
def events() -> None:
    """List, show, tail, replay and reread events."""


events.add_command(reread)
events.add_command(tail)


@events.command("list")
@click.option("--where", metavar="PATH=VALUE", multiple=True, help="Only this value in event.data; also PATH>VALUE.")
@click.option("--store", help="Only events of this store.")
@click.option("--topic", metavar="GLOB", help='Only these topics: "order.*".')
@click.option("--resource", metavar="ID", help="Only events of this product, order or customer.")
@click.option("--delivery", metavar="ID", help="Only events of this delivery.")
@click.option("--handler", metavar="H", help="Only events with a run of this handler.")
@click.option("--result", metavar="TEXT", help="Only events with a run whose result contains this text.")
@click.option("--error", metavar="TEXT", help="Only events with a run whose last error contains this text.")
@click.option("--status", type=click.Choice([one.value for one in EventStatus]), help="Only events with this status.")
@click.option("--since", type=MOMENT, help=f"Only events accepted since then. {MOMENT_FORMS}")
@click.option("--until", type=MOMENT, help="Only events accepted before then.")
@before_option
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of events.")
@json_option
def list_events(
    where: tuple[str, ...] = (),
    resource: str | None = None,
    delivery: str | None = None,
    status: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: Cursor | None = None,
    limit: int = 50,
    json_: bool = False,
    **texts: str | None,
) -> None:
    """List events, newest first, those in the history included."""
    config = load_config()
    shown = event_list(config)
    wanted = EventFilter(
        where=tuple(map(where_of, where)),
        resource_id=resource or "",
        delivery_id=delivery or "",
        since=_microseconds(since) if since else 0,
        until=_microseconds(until) if until else None,
        **{name: text or "" for name, text in texts.items()},
    )
    client = connect_reader(config)
    stored = all_events(config, client)
    listing = stored.find(wanted, status=status, before=before, limit=limit)
    found = listing.events
    if listing.fault:
        output.warn(f"only events in Redis are listed, because the history cannot be read: {listing.fault}")
    if listing.looked_back_to:
        output.warn(
            f"looked back to {listing.looked_back_to:%Y-%m-%dT%H:%M:%SZ}, and found {counted(len(found), 'event')}; "
            f"to go on from there, add --before {listing.next}"
        )
    for hint in [] if found else _unknown_names(config, client, wanted):
        output.warn(hint)
    shown.show([event_row(one) for one in found], json_=json_)
    if json_:
        return
    if listing.next and not listing.looked_back_to and found:
        output.echo(f"\nFor earlier ones, add --before {listing.next}")
    if found:
        output.next_command(
            f"storehooks events show {found[0].id}  its payload and its runs",
            "storehooks events tail  new ones as they come",
        )
    else:
        output.echo("no events found")
        is_search = status or before or wanted != EventFilter()
        send = [f"{command}  send one" for command in send_command(config)]
        output.next_command(*(["storehooks events  the newest events"] if is_search else send))


def _unknown_names(config: Config, client: Redis, wanted: EventFilter) -> Iterator[str]:
    """Why nothing may have been found. No errors: a removed store may have events, and a store topics of its own."""
    if wanted.store and wanted.store not in config.stores:
        yield f"no store {wanted.store} is configured{did_you_mean(wanted.store, config.stores)}"
    known = known_topics(one.scheme for one in config.known_stores.values())
    if wanted.topic and (nearest := nearest_pattern(wanted.topic, known)):
        yield f"no known topic is {wanted.topic}; did you mean {nearest}?"
    if wanted.handler not in ("", keys.INTAKE) and (unknown := unknown_handler(client, wanted.handler)):
        yield unknown


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1e6)


@events.command("show")
@click.argument("event_id", metavar="ID")
@json_option
@click.option("--export", metavar="FILE", help="Write the event with its context to a file, to be run elsewhere.")
def show_event(event_id: str, json_: bool, export: str | None) -> None:
    """Show one event: its payload and its runs.

    ID is an event's id, a delivery's id, a resource's id (the newest event of it), or `last`.
    """
    config = load_config()
    stored = all_events(config, connect_reader(config))
    event_id = stored.find_id(event_id)
    if export is not None:
        _write_export(event_id, export)
        return
    record = stored.event(event_id)
    if record is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    if json_:
        output.as_json(_record_json(record))
    else:
        _show(record)


def _show(record: EventRecord) -> None:
    _show_summary(record)
    output.echo()
    if record.runs:
        output.table(
            ("HANDLER", "STATUS", "ATTEMPTS", "DUE AT", "RESULT"),
            [(r.handler, output.state(r.status), r.attempts, r.due_at, _result_of(r)) for r in record.runs],
            drop=("DUE AT", "ATTEMPTS"),
            wrap="RESULT",
        )
        output.echo()
    if record.redacted:
        output.echo(f"Removed by [redact] paths: {', '.join(record.redacted)}.")
    if record.erased_at:
        output.echo(f"The event was erased on {output.clock(record.erased_at)}; nothing of its content is left.")
        return
    if record.body:
        output.payload(record.body)
    else:
        output.echo("The body was deleted by retention.")
    event_id = record.summary.id
    if record.summary.topic == UNREADABLE:
        output.next_command(f"storehooks events reread {event_id}  read it again with the current scheme")
        return
    doubtful = [run.handler for run in record.runs if run.error and IN_DOUBT in run.error]
    once_more = "  if its call was not made: make it" if doubtful else "  run its handlers again"
    chosen = f" --handler {doubtful[0]} --again" if doubtful else ""
    output.next_command(
        f"storehooks handlers explain {event_id}  why each handler was called or not",
        f"storehooks events replay {event_id}{chosen}{once_more}",
    )


def _result_of(run: RunRecord) -> Any:
    shown = run.order.text if run.order and run.order.place else run.error or run.result
    return f"with {len(run.merged):,} merged events{f': {shown}' if shown else ''}" if run.merged else shown


def _show_summary(record: EventRecord) -> None:
    event = record.summary
    output.line(output.text(event.topic, "bold"), "  ", event.resource_id)
    output.field("event", event.id, wide=10)
    output.field("store", event.store, wide=10)
    why = f" ({record.reason})" if record.reason else ""
    output.field("status", output.state(event.status, f"{event.status}{why}"), wide=10)
    delivery = f", delivery {event.delivery_id}" if event.delivery_id else ""
    if record.signed_with:
        output.field("signed", f"secret {record.signed_with}", wide=10)
    output.field("received", f"{output.clock(event.received_at)} from {event.source}{delivery}", wide=10)


def _write_export(event_id: str, path: str) -> None:
    from workers.operations.event_export import write

    config = load_config()
    text = write(config, all_events(config, connect_server(config)), event_id)
    if path == "-":
        output.echo(text, nl=False)
        return
    try:
        Path(path).touch(mode=0o600)  # it holds customers' data
        Path(path).write_bytes(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    output.echo(f"wrote {path}, {len(text):,} bytes: headers and payload as they came, settings without secrets")
    output.next_command(f"storehooks handlers run HANDLER --event {path}      there, with that code, against a sandbox")


@events.command("replay")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--handler", metavar="H", help="Only this handler. It also gets events from before it existed.")
@click.option("--run-status", type=click.Choice([one.value for one in ENDED]), help="Only runs with this status.")
@click.option("--handler-version", metavar="V", help="Only runs of this version of the handler.")
@click.option("--store", help="Only events of this store.")
@click.option("--topic", metavar="GLOB", help='Only these topics: "order.*".')
@click.option("--since", type=MOMENT, help=f"Only events accepted since then. {MOMENT_FORMS}")
@click.option("--until", type=MOMENT, help="Only events accepted until then.")
@click.option("--first", type=click.IntRange(1), metavar="N", help="Maximum number of runs.")
@click.option("--rate", type=RATE, help="Maximum rate, such as 10/s.")
@click.option("--again", is_flag=True, help="Also repeat effects of ctx.once that are done or in doubt.")
@click.option("--dry-run", is_flag=True, help="Only count the runs.")
@yes_option
def replay_events(
    event_ids: tuple[str, ...],
    first: int | None,
    rate: float | None,
    again: bool,
    dry_run: bool,
    yes: bool,
    **chosen: Any,
) -> None:
    """Run handlers again for past events, also for runs that are done.

    If it stopped before its end, interrupted or at --first, the same command continues there. (With a duration such as
    --since 7d it is not the same: give a date.) Runs of a paused handler wait until it is resumed, but those chosen by
    ID or with --first begin at once.

    ID is an event's id, a delivery's id, a resource's id (the newest event of it), or `last`.
    """
    selection = Selection(**chosen)
    if not event_ids and selection == Selection():
        raise ConfigError(
            "no events chosen; give event ids, or a filter such as --handler or --since (all events: --topic '*')"
        )
    config = load_config()
    inbox = Inbox(connect_server(config))
    stored = all_events(config, inbox.client)
    if selection.handler:
        require_handler(inbox.client, selection.handler)
    replay = Replay(inbox, stored, rate=rate, first=first, again=again, urgent=bool(event_ids or first))
    total, work = _work(replay, stored, event_ids, selection)
    output.echo(f"{counted(total, 'run')} {'matches' if total == 1 else 'match'}")
    if not dry_run:
        total = min(total, first or total)
        output.confirm(f"replay {counted(total, 'run')}", yes=yes or not total)
        record(inbox.client, "replay", count=total, events=event_ids, first=first, again=again, **chosen)
        run_replay(replay, work, total=total)


def _work(
    replay: Replay, stored: AllEvents, event_ids: tuple[str, ...], selection: Selection
) -> tuple[int, Callable[[], None]]:
    """How many runs are to be replayed, and the function that does it."""
    if event_ids:
        items = [item for one in event_ids for item in _runs_of(stored, one, selection)]
        return len(items), partial(replay.items, items, make=bool(selection.handler))
    if replay.position(selection):
        output.echo("continuing after the runs that were replayed before")
    return sum(1 for _ in replay.matching(selection)), partial(replay.selection, selection)


def _runs_of(stored: AllEvents, event_id: str, selection: Selection) -> list[str]:
    event = stored.runs_of(stored.find_id(event_id))
    if event is None:
        raise NotFound(f"no event {event_id[:64]!r}; `storehooks events` lists them")
    if event.topic == UNREADABLE:
        raise ConfigError(f"event {event.id}: {UNREADABLE_HINT}")
    return matching_runs(selection, event, by_id=True)


def _record_json(record: EventRecord) -> dict[str, Any]:
    accepted_at = record.summary.accepted_at / 1e6
    about = {
        "accepted_at": datetime.fromtimestamp(accepted_at, UTC) if accepted_at else None,
        "signed_with": record.signed_with,
        "redacted": record.redacted,
        "erased_at": record.erased_at,
    }
    shown = {"headers": record.headers, "payload": _payload(record.body), "runs": record.runs}
    return {**asdict(record.summary), **about, **shown}


def _payload(body: bytes) -> Any:
    """What is printed of a body: as it was sent, if it is nested deeper than orjson writes."""
    try:
        document = read_whole(body, orjson.loads)
    except orjson.JSONDecodeError:
        return form_fields(body) or body.decode("utf-8", "replace")
    try:
        orjson.dumps([document])
    except orjson.JSONEncodeError:
        return orjson.Fragment(body)
    return document
