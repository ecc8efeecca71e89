"""send: send a signed event as the store would, and follow it to its handlers."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.config.values import is_loopback
from receiver.contract.compose import Request
from receiver.contract.diagnosis.formatting import span
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.contract.signing.grammar import Scheme
from receiver.contract.topics import WILDCARDS, translate
from receiver.inbox import EventQueries, Inbox
from receiver.inbox.outcomes import ENDED, EventStatus
from receiver.inbox.queries.events import EventRecord
from workers.cli import output
from workers.cli.auditing import record_if_reachable
from workers.cli.options import (
    Command,
    choose_store,
    connect_server,
    load_config,
    yes_option,
)
from workers.cli.typed_commands import commands_as_typed
from workers.operations.composing import (
    Tamper,
    change,
    compose_request,
    new_delivery_id,
    require_topic,
    sample_data,
    send_request,
    signer,
)
from workers.operations.topic_names import known_topics, nearest_topic

FOLLOW_SECONDS = 5.0
"""How long to wait for the event to settle."""
POLL_SECONDS = 0.02


@click.command(cls=Command)
@click.argument("topic")
@click.option("--store", help="The store to send as. Optional if only one store is configured.")
@click.option(
    "--data", "data_file", type=click.Path(exists=True, dir_okay=False), help="A JSON file to send instead of a sample."
)
@click.option("--set", "changes", multiple=True, metavar="a.b=v", help="Change a field of the data. Can be repeated.")
@click.option("--id", "delivery_id", help="The delivery id. The same id again is a duplicate.")
@click.option("--twice", is_flag=True, help="Send it twice; the second one is a duplicate.")
@click.option(
    "--tamper", type=click.Choice(["signature", "body", "time"]), help="Change it after signing, so that it is refused."
)
@click.option("--print", "print_", is_flag=True, help="Print the body, and send nothing.")
@yes_option
def send(
    topic: str,
    store: str | None,
    data_file: str | None,
    changes: tuple[str, ...],
    delivery_id: str | None,
    twice: bool,
    tamper: Tamper | None,
    print_: bool,
    yes: bool,
) -> None:
    """Send a signed event as the store would, and follow it.

    It asks for confirmation unless the URL is on this machine.
    """
    config = load_config()
    name = choose_store(config, store)
    if warning := _unknown_topic(config, name, topic):
        output.warn(warning)
    delivery_id = delivery_id or new_delivery_id()
    data = _data(config.known_stores[name].scheme, topic, data_file)
    change(data, changes)
    request = compose_request(config, name, topic, data, delivery_id, tamper)
    if print_:
        output.echo(request.body)
        return
    url = config.public_url_of(name)
    output.confirm(f"send it to {url}", yes=yes or is_loopback(url), note="that is not on this machine")
    only = "   (the only store)" if store is None else ""
    output.field("to", f"{url}{only}", wide=8)
    kind, size = "your own" if data_file else "sample", f"{len(request.body):,}"
    output.field("body", f"{kind} {topic}, {size} bytes   (--print shows it, --set changes it)", wide=8)
    secret = signer(config, name).secrets[0]
    output.field("signed", f"{config.stores[name].scheme}, secret {secret.fingerprint}, id {delivery_id}", wide=8)
    record_if_reachable(
        config, "send", count=2 if twice else None, store=name, topic=topic, delivery=delivery_id, tampered=tamper
    )
    answers = [_send_and_follow(config, name, request) for _ in range(2 if twice else 1)]
    if not all(answer.accepted for answer in answers):
        output.next_command(f"storehooks verify --refused last --store {name}  why it was refused")
        raise click.exceptions.Exit(1)
    record = answers[-1].record
    if record and any(run.error for run in record.runs):
        output.next_command(
            f"storehooks events show {record.summary.id}  what failed", "storehooks failures  all failures"
        )
        raise click.exceptions.Exit(1)
    same = f" --data {shlex.quote(data_file)}" if data_file else ""
    same += "".join(f" --set {shlex.quote(change)}" for change in changes)
    brief = "" if config.known_stores[name].scheme.event.id else span(config.receiver.dedupe_window_unidentified)
    again = "send it again: a duplicate" + (f" within {brief}, because its scheme has no id" if brief else "")
    output.next_command(f"storehooks send {topic} --store {name} --id {delivery_id}{same}  {again}")


# The topic


def _unknown_topic(config: Config, store: str, topic: str) -> str:
    """A warning if the topic is unknown here. It is sent anyway: a store may use its own names."""
    require_topic(topic)
    scheme = config.known_stores[store].scheme
    known = {*known_topics([scheme]), *_learned_topics(config, store)}
    if topic in scheme.topics or translate(topic, scheme.topics) in known:
        return ""
    nearest = nearest_topic(translate(topic, scheme.topics), known)
    hint = f"; did you mean {nearest}?" if nearest else "."
    return f"unknown topic {topic[:64]}{hint} It is sent anyway."


def _learned_topics(config: Config, store: str) -> Iterator[str]:
    """The topics that handlers name and that the store has sent. Nothing without a server."""
    try:
        client = connect_server(config)
        wanted = [topic for one in Inbox(client).declarations().handlers for topic in one.topics]
        names = [name.theirs for name in EventQueries(client).event_names(store) if name.theirs]
    except (ServerUnusable, RedisError):
        return
    yield from (topic for topic in wanted if not any(letter in topic for letter in WILDCARDS))
    yield from (translate(name, config.known_stores[store].scheme.topics) for name in names)


# The delivery


def _data(scheme: Scheme, topic: str, data_file: str | None) -> Any:
    """The data as the store sends it: a sample with the field names of its scheme, or a file as it is."""
    try:
        return json.loads(Path(data_file).read_text()) if data_file else sample_data(scheme, topic)
    except ValueError as error:
        raise ConfigError(f"{data_file} is not JSON: {error}") from None


# The answer and the runs


class Sent(NamedTuple):
    accepted: bool
    record: EventRecord | None = None
    """None if it cannot be followed from this host."""


def _send_and_follow(config: Config, name: str, request: Request) -> Sent:
    started = time.monotonic()
    answer = send_request(config, name, request)
    accepted = bool(answer.event_id)
    status = output.state(answer.word if accepted else "refused", f"{answer.status} {answer.word}")
    more = f", event {answer.event_id}" if accepted else f": {answer.detail}"
    output.field("answer", output.joined(status, f" in {answer.ms:.0f} ms{more}"), wide=8)
    if not accepted:
        return Sent(False)
    record = _follow(config, answer.event_id, started)
    if record:
        _show_runs(record, time.monotonic() - started)
    return Sent(True, record)


def _follow(config: Config, event_id: str, started: float) -> EventRecord | None:
    """The event when it has nothing more to do now, or after FOLLOW_SECONDS."""
    try:
        queries = EventQueries(connect_server(config))
        record = queries.event(event_id)
        while record and _is_active(record) and time.monotonic() - started < FOLLOW_SECONDS:
            time.sleep(POLL_SECONDS)
            record = queries.event(event_id)
    except (ServerUnusable, RedisError):
        return None  # the receiver's Redis cannot be reached from here: only the answer is known
    return record


def _is_active(record: EventRecord) -> bool:
    """Whether it is not routed yet, or has a run that is not scheduled for later."""
    soon = [run for run in record.runs if run.status not in ENDED and run.due_at is None]
    return record.summary.status == EventStatus.OPEN and bool(soon or not record.runs)


def _show_runs(record: EventRecord, took: float) -> None:
    output.echo()
    wide = max([len(run.handler) for run in record.runs], default=0)
    for run in record.runs:
        result = run.error or ("" if run.result is None else f'"{run.result}"')
        status = output.state(run.status, f"{run.status:<7}")
        output.line(f"  {run.handler:<{wide}}   ", status, f"   attempt {run.attempts}   {result}", indent=6)
    if record.reason == "unhandled":
        output.line(commands_as_typed("  no handler takes this topic; `storehooks handlers` lists the handlers"))
    output.line(output.state(record.summary.status, _summary(record, took)))


def _summary(record: EventRecord, took: float) -> str:
    after = f"after {took * 1000:.0f} ms" if took < 1 else f"after {took:.0f} s"
    if record.summary.status != EventStatus.OPEN:
        return f"{record.summary.status} {after}"
    due = min((run.due_at for run in record.runs if run.due_at), default=None)
    return f"still open {after}" + (f"; next attempt {output.clock(due)}" if due else "")
