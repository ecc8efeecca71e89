"""send: send a signed event as the store would, and follow it to its handlers."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.compose import Request, compose, event_id_in, in_store_shape
from receiver.contract.diagnosis.terminal_text import harmless
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.sources import with_query
from receiver.contract.stores import Store
from receiver.contract.topics import translate
from receiver.inbox import EventQueries, Inbox
from receiver.inbox.outcomes import ENDED, EventStatus
from receiver.inbox.queries.events import EventRecord
from receiver.process_files import web_addresses
from workers.cli import output
from workers.cli.options import (
    Command,
    choose_store,
    connect_server,
    is_on_this_machine,
    load_config,
    yes_option,
)
from workers.operations.release import stores_with_secrets
from workers.operations.topic_names import known_topics, nearest_topic
from workers.storeapi.samples import sample

FOLLOW_SECONDS = 5.0
"""How long to wait for the event to settle."""
POLL_SECONDS = 0.02
ONE_HOUR = 3600
ONE_DAY = 86400
_OWN_ID = re.compile("msg_([0-9a-f]{8})[0-9a-f]{6}")
"""A generated id begins with its time."""
WILDCARDS = "*?["


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
    tamper: str | None,
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
    delivery_id = delivery_id or f"msg_{int(time.time()):08x}{secrets.token_hex(3)}"
    data = _data(config.known_stores[name].scheme, topic, data_file, changes)
    request = _request(config, name, topic, data, delivery_id, tamper)
    if print_:
        output.echo(request.body)
        return
    url = config.public_url_of(name)
    output.confirm(f"send it to {url}", yes=yes or is_on_this_machine(url), note="that is not on this machine")
    only = "   (the only store)" if store is None else ""
    output.field("to", f"{url}{only}", wide=8)
    kind, size = "your own" if data_file else "sample", f"{len(request.body):,}"
    output.field("body", f"{kind} {topic}, {size} bytes   (--print shows it, --set changes it)", wide=8)
    secret = _signer(config, name).secrets[0]
    output.field("signed", f"{config.stores[name].scheme}, secret {secret.fingerprint}, id {delivery_id}", wide=8)
    answers = [_send_and_follow(config, url, request) for _ in range(2 if twice else 1)]
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
    output.next_command(f"storehooks send {topic} --store {name} --id {delivery_id}{same}  send it again: a duplicate")


# The topic


def _unknown_topic(config: Config, store: str, topic: str) -> str:
    """A warning if the topic is unknown here. It is sent anyway: a store may use its own names."""
    if not topic.isprintable() or " " in topic or any(letter in topic for letter in WILDCARDS):
        raise ConfigError(f"{harmless(topic[:64])!r} is not a topic; use one such as order.created")
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


def _data(scheme: Scheme, topic: str, data_file: str | None, changes: tuple[str, ...]) -> Any:
    """The data as the store sends it: a sample with the field names of its scheme, or a file as it is."""
    try:
        if data_file:
            data = json.loads(Path(data_file).read_text())
        else:
            data = in_store_shape(scheme, topic, sample(translate(topic, scheme.topics)))
    except ValueError as error:
        raise ConfigError(f"{data_file} is not JSON: {error}") from None
    for change in changes:
        path, sign, value = change.partition("=")
        if not sign:
            raise ConfigError(f"--set {change} is not a.b=VALUE, such as customer.name=Ada")
        *above, last = path.split(".")
        place = data
        for step in above:
            place = place.setdefault(step, {}) if isinstance(place, dict) else {}
        if not isinstance(place, dict):
            raise ConfigError(f"--set {change}: {path} is not inside an object")
        place[last] = _value(value)
    return data


def _value(text: str) -> Any:
    """The value if the text is JSON (42, true, null), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _request(config: Config, name: str, topic: str, data: Any, delivery_id: str, tamper: str | None) -> Request:
    now = time.time() - (ONE_HOUR if tamper == "time" else 0)
    store = _signer(config, name)
    if tamper == "time" and not (store.scheme.timestamp and store.scheme.tolerance):
        raise ConfigError(f"{store.scheme.name} signs no timestamp; use --tamper body")
    if tamper == "signature":
        store = replace(store, secrets=(Secret(secrets.token_bytes(32)),))
    occurred = _occurred(delivery_id, now)
    request = compose(store, topic=topic, delivery_id=delivery_id, data=data, now=now, occurred=occurred)
    if tamper == "body":
        return Request(request.headers, request.body[:-1] + b" " + request.body[-1:])
    return request


def _occurred(delivery_id: str, now: float) -> float:
    """When the event occurred: the same time for the same id, since with another time it would be another event."""
    ours = _OWN_ID.fullmatch(delivery_id)
    return int(ours[1], 16) if ours else now // ONE_DAY * ONE_DAY


def _signer(config: Config, name: str) -> Store:
    """The store with the one secret to sign with: its first active one, configured or learned."""
    store = stores_with_secrets(config)[name]
    live = [secret for secret in store.secrets if secret.is_active(time.time())]
    if not live:
        raise ConfigError(f"{name} has no active secret on this host; `storehooks subscriptions apply` creates one")
    return replace(store, secrets=(live[0],))


# The answer and the runs


class Sent(NamedTuple):
    accepted: bool
    record: EventRecord | None = None
    """None if it cannot be followed from this host."""


def _send_and_follow(config: Config, url: str, request: Request) -> Sent:
    import httpx2

    started = time.monotonic()
    try:
        target, headers = with_query(url, request.headers)
        answer = httpx2.post(target, headers=headers, content=request.body, timeout=10)
    except httpx2.HTTPError as error:
        raise ConfigError(f"{url} does not answer: {error}; {_where_web_is(config)}") from None
    took = (time.monotonic() - started) * 1000
    body = answer.json() if "json" in answer.headers.get("content-type", "") else {}
    if not answer.is_success:
        status = output.state("refused", f"{answer.status_code} {body.get('title', '')}")
        output.field("answer", output.joined(status, f" in {took:.0f} ms: {body.get('detail', '')}"), wide=8)
        return Sent(False)
    event_id = event_id_in(body)
    status = output.state(str(body.get("status")), f"{answer.status_code} {body.get('status')}")
    output.field("answer", output.joined(status, f" in {took:.0f} ms, event {event_id}"), wide=8)
    record = _follow(config, event_id, started)
    if record:
        _show_runs(record, time.monotonic() - started)
    return Sent(True, record)


def _where_web_is(config: Config) -> str:
    """What to do if the receiver does not answer. Its own environment may make it listen elsewhere, such as PORT."""
    addresses = web_addresses(config.data_dir)
    if not addresses:
        return "`storehooks dev` starts the receiver"
    if config.receiver.bind in addresses:
        return "the web process runs, so see its log for the cause"
    return f"the web process listens at {addresses[0]}: correct [receiver] public_url, or start it without PORT"


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
        output.line("  no handler takes this topic; `storehooks handlers` lists the handlers")
    output.line(output.state(record.summary.status, _summary(record, took)))


def _summary(record: EventRecord, took: float) -> str:
    after = f"after {took * 1000:.0f} ms" if took < 1 else f"after {took:.0f} s"
    if record.summary.status != EventStatus.OPEN:
        return f"{record.summary.status} {after}"
    due = min((run.due_at for run in record.runs if run.due_at), default=None)
    return f"still open {after}" + (f"; next attempt {output.clock(due)}" if due else "")
