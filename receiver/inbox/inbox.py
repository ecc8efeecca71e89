"""Inbox: the protocol between receivers and workers: accept, claim, route, finish. Each step is one script.

EVENT   (none) --accept--> open --last run ends--> settled | failed (any run failed)
RUN     ready --claim--> leased --finish--> done | dropped | failed | later (retry, wait) | ready (release, busy)
        later --tick, due--> ready        leased --tick, lapsed--> ready (loss + 1) | failed
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import orjson
from redis import Redis
from redis.exceptions import RedisError

from receiver import __version__
from receiver.contract.event import other_event_id
from receiver.contract.intake import Delivery
from receiver.inbox import keys
from receiver.inbox.accept_batch import AcceptBatch, AcceptResult, empty_call
from receiver.inbox.leases import LEASE_MS
from receiver.inbox.model import (
    DECLARATION_MS,
    EVENT_FIELDS,
    NO_LIMIT,
    NO_ROUTES,
    NOTHING_DECLARED,
    PLUGIN_FAULT_SECONDS,
    UNDECLARED_MS,
    WORKER_SILENT_MS,
    Claim,
    Declaration,
    Declarations,
    Limit,
    PlannedRun,
    Routes,
    Run,
    StoredEvent,
    order_in,
    planned_parts,
    read_declarations,
    run_of_event,
    to_number,
)
from receiver.inbox.outcomes import Outcome
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument, DirectConnection
from receiver.inbox.redis.script_runner import ScriptCall


class Inbox:
    """What receivers and workers do. For commands see `administration`, for the housekeeper `housekeeping`."""

    def __init__(self, client: Redis, *, direct: bool = False) -> None:
        """`direct` is faster, and for callers with one thread only."""
        self.client = client
        self._server = DirectConnection(client) if direct else client

    # Receivers

    def accept(
        self,
        deliveries: Sequence[Delivery],
        *,
        repeat_window: float = 60.0,
        quotas: Mapping[str, int] | None = None,
        replicas: int = 0,
        waited: Mapping[str, float] | None = None,
    ) -> list[AcceptResult]:
        """Store deliveries in one round trip, each in one atomic step with its duplicate mark and a wake-up.

        `quotas` is the maximum number of open events of a store (0: no maximum). `replicas` is the number of replicas
        that must have the events, or RedisError is raised.
        """
        replies = self.accept_each(
            deliveries, repeat_window=repeat_window, quotas=quotas, replicas=replicas, waited=waited
        )
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return [reply for reply in replies if isinstance(reply, AcceptResult)]

    def accept_each(
        self,
        deliveries: Sequence[Delivery],
        *,
        repeat_window: float = 60.0,
        quotas: Mapping[str, int] | None = None,
        replicas: int = 0,
        waited: Mapping[str, float] | None = None,
    ) -> list[AcceptResult | RedisError]:
        """Like `accept`, but an error is returned for the delivery that caused it, and the others are stored."""
        accepting = AcceptBatch(deliveries, repeat_window, quotas or {}, waited)
        return accepting.read(script_runner.run_each(self._server, accepting.calls, replicas=replicas))

    def are_accepted(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Whether each was accepted before. Only one with a delivery id is recognised; `rest` is not looked at."""
        pipeline = self.client.pipeline(transaction=False)
        for one in deliveries:
            for event_id in (one.event.id, one.first_id, other_event_id(one.event)):
                pipeline.hget(keys.EVENT + event_id, "digest")
        replies = pipeline.execute(raise_on_error=False)  # a damaged record has no digest
        return [one.event.signed_digest.encode() in replies[at * 3 : at * 3 + 3] for at, one in enumerate(deliveries)]

    def remember_ids(self, repeated: Mapping[str, str], seconds: float) -> None:
        """Remember which event each of these ids stands for: ids that senders were told, of deliveries whose event
        turned out to have another id."""
        pipeline = self.client.pipeline(transaction=False)
        for told, event_id in repeated.items():
            pipeline.set(keys.SAME + told, event_id, ex=max(1, int(seconds)))
        pipeline.execute()

    def check_accept(self, *, replicas: int = 0) -> None:
        """Raise RedisError unless the server would store a delivery now.

        Runs the script without a delivery. The server refuses that for the same reasons (maxmemory, a full disk, a
        replica). Nothing is changed; with `replicas` something is written, or they would have nothing to acknowledge.
        """
        script_runner.run(self._server, [empty_call(write=replicas > 0)], replicas=replicas)

    def publish_spool(
        self, host: str, count: int | None, oldest: float, *, stopped: bool = False, replicas: int = 0
    ) -> None:
        """Publish how many deliveries wait in the spool of a host, and since when; None if its file cannot be read.

        A receiver repeats it every second. `stopped` is its last report: nothing is added to the spool any more.
        """
        state = "stopped" if stopped else "receiving"
        arguments: list[Argument] = [host, "null" if count is None else count, oldest, state, __version__]
        script_runner.run(self._server, [ScriptCall("publish_spool", arguments)], replicas=replicas)

    # Workers

    def claim(self, lanes: Mapping[str, int], *, capacity: int, limits: Mapping[str, Limit] | None = None) -> Claim:
        """Lease up to `capacity` ready items, and of each lane at most the given number."""
        return self.finish_and_claim((), lanes, capacity=capacity, limits=limits)[1]

    def finish(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Write the outcomes of runs. False for a run whose lease was lost: nothing was changed."""
        if not outcomes:
            return []
        (results,) = script_runner.run(self._server, [_finish_call(outcomes)])
        return [result == b"ok" for result in results]

    def finish_and_claim(
        self,
        outcomes: Sequence[Outcome],
        lanes: Mapping[str, int],
        *,
        capacity: int,
        limits: Mapping[str, Limit] | None = None,
        routes: Routes = NO_ROUTES,
        suspects_first: bool = False,
        one_at_a_time: Collection[str] = (),
    ) -> tuple[list[bool] | RedisError, Claim]:
        """Finish and claim in one round trip, as a busy worker does.

        An event whose route is known is routed in the same step, and returned as the runs leased to the caller.
        With `suspects_first`, lanes that have runs which lost their worker before are served first. Of the handlers in
        `one_at_a_time`, no two runs of an order key are leased at once.

        An error of finish is returned in place of the results, because the claimed runs are leased in any case.
        """
        token = secrets.token_hex(6)
        wanted: list[Argument] = []
        for lane, most in lanes.items():
            limit = (limits or {}).get(lane, NO_LIMIT)
            wanted += (lane, most, limit.name, limit.concurrency, limit.spacing_ms, limit.burst)
            wanted.append(int(lane in one_at_a_time))
        start: list[Argument] = [token, LEASE_MS, capacity, routes.version, int(suspects_first), len(lanes)]
        calls = [ScriptCall("claim", [*start, *wanted, *routes.arguments()])]
        if outcomes:
            calls.insert(0, _finish_call(outcomes))
        *written, claimed = script_runner.run_each(self._server, calls)
        if isinstance(claimed, RedisError):
            raise claimed
        version, wait_ms, *items = claimed
        runs = tuple(run for item in items for run in _runs_from(item, token))
        return _results(written), Claim(version.decode(), runs, wait_ms / 1000)

    def route(self, decisions: Sequence[tuple[Run, Iterable[PlannedRun]]], version: str) -> list[list[str]]:
        """Create the runs of events, all in one round trip.

        Each reply begins with "routed", "unhandled", "postponed", "stale" or "reroute". After "routed" follow the
        handlers whose runs are leased to the caller, as `run_of_event` reads them.
        """
        if not decisions:
            return []
        arguments: list[Argument] = [version, LEASE_MS, UNDECLARED_MS]
        for run, handlers in decisions:
            parts = [planned_parts(one) for one in handlers]
            arguments += (run.token, run.stored.id, len(parts), *chain.from_iterable(parts))
        replies = script_runner.run_one(self._server, "route", *arguments)
        return [[*map(_text, reply)] for reply in replies]

    def renew(self, runs: Iterable[Run]) -> set[str]:
        """Extend the leases of runs. Returns the items whose lease was lost."""
        pairs = [part for run in runs for part in (run.item, run.token)]
        if not pairs:
            return set()
        lost = script_runner.run_one(self._server, "renew", LEASE_MS, *pairs)
        return {item.decode() for item in lost}

    def declare(
        self, handlers: Collection[Declaration], *, worker: str = "", known: Declarations = NOTHING_DECLARED
    ) -> str:
        """Declare the handlers of this worker, in place of those before. Returns the version of all declarations.

        `known` is what this worker knows of all workers. It is declared again if the server has lost it.
        """
        parts: list[Argument] = []
        for one in (*handlers, *known.handlers):
            text = orjson.dumps(asdict(one), option=orjson.OPT_SORT_KEYS)
            routing = orjson.dumps([one.topics, one.stores, one.queue])
            mark = hashlib.sha256(routing).hexdigest()[:6]  # one version may be deployed with two configs
            parts += (one.handler, f"{one.handler}@{one.version}#{mark}", one.queue, text)
        start: list[Argument] = [DECLARATION_MS, WORKER_SILENT_MS, worker, known.version, len(handlers)]
        version = script_runner.run_one(self._server, "declare", *start, *parts)
        return str(version.decode())

    def declarations(self) -> Declarations:
        """The declarations of all workers in the last 15 minutes. The version is read first: a change that follows is
        found by the next comparison of versions.

        Of a handler's versions the one declared last comes last, and so wins where only one can count: after a deploy
        the old one is not declared any more.
        """
        pipeline = self.client.pipeline(transaction=False)
        pipeline.get(keys.DECLARATIONS_VERSION)
        pipeline.hgetall(keys.DECLARATIONS)
        pipeline.hgetall(keys.DECLARED_AT)
        pipeline.time()
        version, texts, declared_at, (seconds, _) = pipeline.execute()
        oldest = seconds * 1000 - DECLARATION_MS
        declared = read_declarations(texts)
        live = [(name, at) for name in declared if (at := to_number(declared_at.get(name))) >= oldest]
        live.sort(key=lambda pair: (pair[0].partition(b"@")[0], pair[1], pair[0]))
        return Declarations((version or b"0").decode(), tuple(declared[name] for name, _ in live))

    def publish_plugin_fault(self, worker: str, fault: str, plugins: Collection[str] = ()) -> None:
        """Publish for a while why a worker cannot load these plugins any more. An empty fault ends that."""
        name = keys.PLUGIN_FAULT + worker
        if fault:
            self.client.set(name, f"{' '.join(plugins)}\n{fault}", ex=PLUGIN_FAULT_SECONDS)
        else:
            self.client.delete(name)


def _results(replies: list[Any]) -> list[bool] | RedisError:
    """Whether each outcome was written, from the reply to `finish`, if it was called."""
    for reply in replies:
        return reply if isinstance(reply, RedisError) else [result == b"ok" for result in reply]
    return []


def _finish_call(outcomes: Iterable[Outcome]) -> ScriptCall:
    parts: list[Argument] = []
    for one in outcomes:
        detail = orjson.dumps(one.detail if isinstance(one.detail, dict) else dict(one.detail))
        parts += (one.run.item, one.run.token, one.kind, detail, one.settles or int(one.delay * 1000))
    return ScriptCall("finish", parts)


def _runs_from(reply: list[Any], token: str) -> list[Run]:
    """The leased item, or the runs of an event that was routed in the same step."""
    item, attempts, losses, replays, order = reply[:5]
    name, end = item.decode(), 5 + len(EVENT_FIELDS)
    event_id, handler = keys.split_item(name)
    stored, handlers = StoredEvent(event_id, reply[5:end], reply[end]), reply[end + 1 :]
    if handlers:
        return [run_of_event(stored, _text(one), token) for one in handlers]
    ordered = order_in(_text(order)) if order else ()
    return [Run(name, handler, token, int(attempts), int(losses), stored, int(replays or 0), *ordered)]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
