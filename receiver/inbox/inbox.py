"""Inbox: the protocol by which events are kept, claimed, routed and settled. One method, one script.

EVENT   (none) --accept--> open --last run ends--> settled | failed (any run failed)
RUN     ready --claim--> leased --finish--> done | dropped | failed | later (retry, wait) | ready (release, busy)
        later --tick, due--> ready        leased --tick, lapsed--> ready (loss + 1) | failed
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from redis import Redis
from redis.exceptions import RedisError

from receiver.contract.intake import Delivery
from receiver.inbox import keys
from receiver.inbox.accept_batch import AcceptBatch, Accepted
from receiver.inbox.model import (
    DECLARATION_MS,
    EVENT_FIELDS,
    NO_LIMIT,
    NO_ROUTES,
    Claim,
    Declaration,
    Declarations,
    Limit,
    Routes,
    Run,
    StoredEvent,
    Wanted,
    how_text,
    read_declaration,
)
from receiver.inbox.outcomes import Outcome
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument, DirectConnection
from receiver.inbox.redis.script_runner import ScriptCall

LEASE_MS = 3_000
LOSSES_ALLOWED = 5


class Inbox:
    """Both sides' view of the inbox: the receiver accepts, workers do the rest."""

    def __init__(self, client: Redis, *, direct: bool = False) -> None:
        """`direct` is for whoever calls from one thread only, and often."""
        self.client = client
        self._server = DirectConnection(client) if direct else client

    # The receiver's side

    def accept(
        self,
        deliveries: Sequence[Delivery],
        *,
        repeat_window: float = 60.0,
        quotas: Mapping[str, int] | None = None,
        replicas: int = 0,
    ) -> list[Accepted]:
        """Keep deliveries, each in one atomic step with its duplicate mark and a wake-up; one round trip.

        With `quotas`, a store holds so many open events at most (0: any number). With `replicas`, they must
        have reached so many of them, or RedisError is raised.
        """
        replies = self.accept_each(deliveries, repeat_window=repeat_window, quotas=quotas, replicas=replicas)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return [reply for reply in replies if isinstance(reply, Accepted)]

    def accept_each(
        self,
        deliveries: Sequence[Delivery],
        *,
        repeat_window: float = 60.0,
        quotas: Mapping[str, int] | None = None,
        replicas: int = 0,
    ) -> list[Accepted | RedisError]:
        """`accept`, but what the server has against one delivery is that one's reply, and the others are kept."""
        accepting = AcceptBatch(deliveries, repeat_window, quotas or {})
        return accepting.read(script_runner.run_each(self._server, accepting.calls, replicas=replicas))

    # The workers' side

    def claim(self, lanes: Mapping[str, int], *, room: int, limits: Mapping[str, Limit] | None = None) -> Claim:
        """Lease up to `room` ready items, at most so many of each lane."""
        return self.settle_and_claim((), lanes, room=room, limits=limits)[1]

    def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Write how runs ended. False where the lease was lost: then nothing was changed."""
        if not outcomes:
            return []
        (results,) = script_runner.run(self._server, [_finish_call(outcomes)])
        return [result == b"ok" for result in results]

    def settle_and_claim(
        self,
        outcomes: Sequence[Outcome],
        lanes: Mapping[str, int],
        *,
        room: int,
        limits: Mapping[str, Limit] | None = None,
        routes: Routes = NO_ROUTES,
        suspects_first: bool = False,
    ) -> tuple[list[bool] | RedisError, Claim]:
        """finish and claim in one round trip: what a busy worker does all day.

        An event whose route is known is routed in the same step; it comes as the runs that are leased to us. With
        `suspects_first`, lanes where work waits that lost its worker before have their turn before the others.

        What the server has against the outcomes is given in place of their results: what was claimed is ours.
        """
        token = secrets.token_hex(6)
        wanted: list[Argument] = []
        for lane, many in lanes.items():
            limit = (limits or {}).get(lane, NO_LIMIT)
            wanted += (lane, many, limit.name, limit.concurrency, limit.spacing_ms, limit.burst)
        start: list[Argument] = [token, LEASE_MS, room, routes.version, int(suspects_first), len(lanes)]
        calls = [ScriptCall("claim", [*start, *wanted, *routes.arguments()])]
        if outcomes:
            calls.insert(0, _finish_call(outcomes))
        *written, claimed = script_runner.run_each(self._server, calls)
        if isinstance(claimed, RedisError):
            raise claimed
        version, again, *items = claimed
        runs = tuple(run for item in items for run in _runs_from(item, token))
        return _results(written), Claim(version.decode(), runs, again / 1000)

    def route(self, decisions: Sequence[tuple[Run, Iterable[Wanted]]], version: str) -> list[list[str]]:
        """Give events their runs: for each (handler, queue, how). One round trip for all.

        True is leased to us, False left ready; a number of seconds is how long after its arrival it is due.

        Each reply is a word, and after "routed" the handlers whose runs are leased to us.
        """
        if not decisions:
            return []
        arguments: list[Argument] = [version, LEASE_MS]
        for run, handlers in decisions:
            parts = [part for name, queue, how in handlers for part in (name, queue, how_text(how))]
            arguments += (run.token, run.kept.id, len(parts) // 3, *parts)
        (replies,) = script_runner.run(self._server, [ScriptCall("route", arguments)])
        return [[part.decode() for part in reply] for reply in replies]

    def renew(self, runs: Iterable[Run]) -> set[str]:
        """Keep our leases; give the items that are no longer ours."""
        pairs = [part for run in runs for part in (run.item, run.token)]
        if not pairs:
            return set()
        (lost,) = script_runner.run(self._server, [ScriptCall("renew", [LEASE_MS, *pairs])])
        return {item.decode() for item in lost}

    def declare(self, handlers: Iterable[Declaration]) -> str:
        """Say which handlers this worker has; give the version of all declarations."""
        parts: list[Argument] = []
        for one in handlers:
            text = orjson.dumps(asdict(one), option=orjson.OPT_SORT_KEYS)
            routing = orjson.dumps([one.topics, one.stores, one.queue])
            mark = hashlib.sha256(routing).hexdigest()[:6]  # one version may be deployed with two configs
            parts += (one.handler, f"{one.handler}@{one.version}#{mark}", one.queue, text)
        (version,) = script_runner.run(self._server, [ScriptCall("declare", [DECLARATION_MS, *parts])])
        return str(version.decode())

    def declarations(self) -> Declarations:
        """What all workers declared in the last 15 minutes, read in one moment.

        Of a handler's versions the one declared last comes last, and so wins where only one can: after a deploy the
        old one is declared no more.
        """
        pipeline = self.client.pipeline(transaction=True)
        pipeline.get(keys.DECLARATIONS_VERSION)
        pipeline.hgetall(keys.DECLARATIONS)
        pipeline.hgetall(keys.DECLARED_AT)
        pipeline.time()
        version, texts, seen, (seconds, _) = pipeline.execute()
        oldest = seconds * 1000 - DECLARATION_MS
        live = [(name, int(seen.get(name, 0))) for name in texts if int(seen.get(name, 0)) >= oldest]
        live.sort(key=lambda pair: (pair[0].partition(b"@")[0], pair[1], pair[0]))
        return Declarations((version or b"0").decode(), tuple(read_declaration(texts[name]) for name, _ in live))

    def publish_spool(self, host: str, count: int, oldest: float) -> None:
        """Say how many deliveries wait on a host, and since when; `stats` adds them up."""
        self.client.hset(keys.SPOOLS, host, orjson.dumps({"count": count, "oldest": oldest, "at": time.time()}))

    def quarantine(self, item: str, why: str) -> None:
        """Record an item that is damaged or not ours, for people to see."""
        self.client.hset(keys.QUARANTINED, item, why)


def _results(replies: list[Any]) -> list[bool] | RedisError:
    """What became of each outcome, of the reply to `finish` if it was called."""
    for reply in replies:
        return reply if isinstance(reply, RedisError) else [result == b"ok" for result in reply]
    return []


def _finish_call(outcomes: Iterable[Outcome]) -> ScriptCall:
    parts: list[Argument] = []
    for one in outcomes:
        detail = orjson.dumps(one.detail if isinstance(one.detail, dict) else dict(one.detail))
        parts += (one.run.item, one.run.token, one.kind, detail, int(one.delay * 1000))
    return ScriptCall("finish", parts)


def _runs_from(reply: list[Any], token: str) -> list[Run]:
    """The item that was leased; or the runs of an event that was routed in the same step, all of one record."""
    item, attempts, losses, replays = reply[:4]
    name, known = item.decode(), 4 + len(EVENT_FIELDS)
    event_id, handler = keys.split_item(name)
    kept, handlers = StoredEvent(event_id, reply[4:known], reply[known]), reply[known + 1 :]
    if handlers:
        return [Run(f"{name}|{one}", one, token, 0, 0, kept) for one in map(bytes.decode, handlers)]
    return [Run(name, handler, token, int(attempts), int(losses), kept, int(replays or 0))]
