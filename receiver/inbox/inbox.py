"""Inbox: the protocol by which events are kept, claimed, routed and settled. One method, one script.

EVENT   (none) --accept--> open --last run ends--> settled | failed (any run failed)
RUN     ready --claim--> leased --finish--> done | dropped | failed | later (retry) | ready (release)
        later --tick, due--> ready        leased --tick, lapsed--> ready (loss + 1) | failed
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from redis import Redis

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import keys, scripts
from receiver.inbox.scripts import Call

LEASE_MS = 4_000
LOSSES_ALLOWED = 5
DECLARATION_MS = 15 * 60 * 1000
TICK_SLICE = 1_000
NAMES_KEPT = 200
"""How many of a store's own event names are counted one by one."""

AcceptStatus = Literal["accepted", "duplicate", "full"]
OutcomeKind = Literal["done", "dropped", "failed", "retry", "wait", "release"]


@dataclass(frozen=True)
class Accepted:
    status: AcceptStatus
    id: str


@dataclass(frozen=True)
class Declaration:
    """What a worker says of one of its handlers, so that any worker can route to it."""

    handler: str
    version: str
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    queue: str = keys.DEFAULT_QUEUE
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Declarations:
    """The union of what all workers have declared lately, and its version."""

    version: str
    handlers: tuple[Declaration, ...]


@dataclass(frozen=True)
class Run:
    """One event for one handler, leased to us. With the handler "" it is an event to be routed."""

    item: str
    handler: str
    token: str
    attempts: int
    losses: int
    event: Event


@dataclass(frozen=True)
class Claim:
    version: str
    more: bool
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Outcome:
    """How a leased run ended. A retry is due after `delay` seconds, a wait too; wait and release burn no attempt."""

    run: Run
    kind: OutcomeKind
    detail: Mapping[str, Any] = field(default_factory=dict)
    delay: float = 0.0


class Inbox:
    """Both sides' view of the inbox: the receiver accepts, workers do the rest."""

    def __init__(self, client: Redis) -> None:
        self.client = client

    # The receiver's side

    def accept(self, deliveries: Sequence[Delivery], *, repeat_window: float = 60.0, quota: int = 0) -> list[Accepted]:
        """Keep deliveries, each in one atomic step with its duplicate mark and a wake-up; one round trip."""
        calls = [Call("accept", _accept_arguments(one, repeat_window, quota)) for one in deliveries]
        replies = scripts.run(self.client, calls)
        return [Accepted(status.decode(), found.decode()) for status, found in replies]

    # The workers' side

    def claim(self, lanes: Mapping[str, int], *, room: int) -> Claim:
        """Lease up to `room` ready items, at most so many of each lane."""
        return self.settle_and_claim((), lanes, room=room)[1]

    def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Write how runs ended. False where the lease was lost: then nothing was changed."""
        if not outcomes:
            return []
        (results,) = scripts.run(self.client, [_finish_call(outcomes)])
        return [result == b"ok" for result in results]

    def settle_and_claim(
        self, outcomes: Sequence[Outcome], lanes: Mapping[str, int], *, room: int
    ) -> tuple[list[bool], Claim]:
        """finish and claim in one round trip: what a busy worker does all day."""
        token = secrets.token_hex(6)
        wanted = [part for lane, many in lanes.items() for part in (lane, many)]
        calls = [Call("claim", [token, LEASE_MS, room, *wanted])]
        if outcomes:
            calls.insert(0, _finish_call(outcomes))
        replies = scripts.run(self.client, calls)
        results = [result == b"ok" for result in replies[0]] if outcomes else []
        version, more, *items = replies[-1]
        runs = tuple(_run_from(item, token) for item in items)
        return results, Claim(version.decode(), bool(more), runs)

    def route(self, decisions: Sequence[tuple[Run, Iterable[tuple[str, str, bool]]]], version: str) -> list[str]:
        """Give events their runs: for each (handler, queue, lease it to us). One round trip for all."""
        calls = []
        for run, handlers in decisions:
            parts = [part for name, queue, mine in handlers for part in (name, queue, "1" if mine else "0")]
            calls.append(Call("route", [run.token, run.event.id, version, LEASE_MS, *parts]))
        return [reply.decode() for reply in scripts.run(self.client, calls)] if calls else []

    def renew(self, runs: Iterable[Run]) -> set[str]:
        """Keep our leases; give the items that are no longer ours."""
        pairs = [part for run in runs for part in (run.item, run.token)]
        if not pairs:
            return set()
        (lost,) = scripts.run(self.client, [Call("renew", [LEASE_MS, *pairs])])
        return {item.decode() for item in lost}

    def declare(self, handlers: Iterable[Declaration]) -> str:
        """Say which handlers this worker has; give the version of all declarations."""
        parts = [
            part
            for one in handlers
            for part in (
                f"{one.handler}@{one.version}",
                orjson.dumps(asdict(one), option=orjson.OPT_SORT_KEYS),
            )
        ]
        (version,) = scripts.run(self.client, [Call("declare", [DECLARATION_MS, *parts])])
        return str(version.decode())

    def declarations(self) -> Declarations:
        """What all workers declared in the last 15 minutes, read in one moment."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.get(keys.DECLARATIONS_VERSION)
        pipeline.hgetall(keys.DECLARATIONS)
        pipeline.hgetall(keys.SEEN)
        pipeline.time()
        version, texts, seen, (seconds, _) = pipeline.execute()
        oldest = seconds * 1000 - DECLARATION_MS
        live = [text for name, text in sorted(texts.items()) if int(seen.get(name, 0)) >= oldest]
        return Declarations((version or b"0").decode(), tuple(_declaration_from(text) for text in live))

    # The housekeeper's side

    def tick(self) -> tuple[int, int, int]:
        """Move due and lapsed work to ready and wake workers; give (due, lapsed, failed)."""
        detail = orjson.dumps(
            {"error": "lost-worker: its worker died or hung, again and again", "reason": "lost-worker"}
        )
        (moved,) = scripts.run(self.client, [Call("tick", [TICK_SLICE, LEASE_MS, LOSSES_ALLOWED, detail])])
        due, lapsed, failed = moved
        return due, lapsed, failed

    def lead(self, name: str, for_ms: int) -> bool:
        """Whether `name` leads the housekeepers now. It only saves work: correctness never rests on it."""
        if self.client.set(keys.LEADER, name, nx=True, px=for_ms):
            return True
        if self.client.get(keys.LEADER) != name.encode():
            return False
        self.client.pexpire(keys.LEADER, for_ms)
        return True

    def set_aside(self, item: str, why: str) -> None:
        """Note something that is none of ours, or cannot be read, for people to see."""
        self.client.hset(keys.ASIDE, item, why)


def pack(event: Event) -> bytes:
    """Headers and body as they are kept: one line of JSON, then the raw bytes."""
    return orjson.dumps(dict(event.headers)) + b"\n" + event.body


def unpack(blob: bytes | None) -> tuple[dict[str, str], bytes]:
    """The reverse; empty where retention has removed the body."""
    line, _, body = (blob or b"{}\n").partition(b"\n")
    return orjson.loads(line), body


def from_ms(text: bytes | str) -> datetime:
    return datetime.fromtimestamp(int(text) / 1000, UTC)


def _accept_arguments(delivery: Delivery, repeat_window: float, quota: int) -> list[scripts.Argument]:
    event = delivery.event
    problem = orjson.dumps({"error": delivery.unreadable, "reason": "unreadable"}) if delivery.unreadable else ""
    return [
        event.id,
        event.store,
        event.topic,
        delivery.theirs,
        event.delivery_id,
        event.resource_id,
        int(event.received_at.timestamp() * 1000),
        event.occurred_at.isoformat() if event.occurred_at else "",
        event.source,
        event.data_path,
        pack(event),
        delivery.repeat_mark if repeat_window else "",
        int(repeat_window * 1000),
        quota,
        problem,
        hashlib.sha256(event.body).hexdigest()[:16],
        delivery.first_id,
        NAMES_KEPT,
    ]


def _finish_call(outcomes: Iterable[Outcome]) -> Call:
    parts: list[scripts.Argument] = []
    for one in outcomes:
        detail = orjson.dumps(dict(one.detail))
        parts += (one.run.item, one.run.token, one.kind, detail, int(one.delay * 1000))
    return Call("finish", parts)


def _run_from(reply: list[Any], token: str) -> Run:
    item, attempts, losses, store, topic, delivery, resource, received, occurred, source, path, blob = reply
    event_id, handler = keys.split_item(item.decode())
    headers, body = unpack(blob)
    event = Event(
        id=event_id,
        store=store.decode(),
        topic=topic.decode(),
        received_at=from_ms(received),
        body=body,
        headers=headers,
        delivery_id=delivery.decode(),
        resource_id=resource.decode(),
        occurred_at=datetime.fromisoformat(occurred.decode()) if occurred else None,
        source=source.decode(),
        data_path=path.decode(),
    )
    return Run(item.decode(), handler, token, int(attempts), int(losses), event)


def _declaration_from(text: bytes) -> Declaration:
    fields = orjson.loads(text)
    return Declaration(
        handler=fields["handler"],
        version=fields["version"],
        topics=tuple(fields["topics"]),
        stores=tuple(fields["stores"]),
        queue=fields["queue"],
        details=fields["details"],
    )
