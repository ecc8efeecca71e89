"""Late arrivals: in a child process, finds the events that are older than one that their handler has settled.

It serves handlers with `stale="skip"`. What is newer is decided by the scheme's `sequence`, else by the time, each from
signed sources only. An event without either is never older. The newest settled one of each resource is stored with its
outcome; see lua/finish.lua. The worker stores the outcomes of a batch later, so those of the current batch are
remembered here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.config.values import parse_duration
from receiver.contract.event import Event
from receiver.contract.intake import parse_time
from receiver.contract.signing.sources import Reader
from receiver.inbox import Run, keys
from receiver.inbox.outcomes import Ending, RunResult
from receiver.inbox.redis import script_runner
from workers.plugins.router import Handler

LOOK_AGAIN = 1.0
"""Seconds between two looks whether the missing number has been settled. In a line of those that are there, times their
place: the end of each lets the next one begin."""
FARTHEST = 30
"""The place from which on the time is the same."""
KEEP_LONGER = 3600.0
MAX_DIGITS = 40
NO_ANSWER = "what Redis knows of the resource could not be read; asked again soon"
_T = TypeVar("_T")


class Rank(NamedTuple):
    """Which of two events of a resource is the newer."""

    kind: str
    """ "s": the number is the store's sequence; "t": it is a time in us; "u": the same, if a source of the scheme's
    time is not signed. Different kinds are not compared: a stored "t" of such a scheme is from when that counted."""
    number: int

    def is_older_than(self, other: Rank) -> bool:
        return self.kind == other.kind and self.number < other.number


class Settled(NamedTuple):
    """The newest event of a resource that a handler has settled."""

    rank: Rank
    event: str


class LateArrivals:
    """One for each child process."""

    def __init__(self, config: Config, redis: Redis) -> None:
        self._config = config
        self._redis = redis
        self._in_batch: dict[str, Settled] = {}

    def begin_batch(self) -> None:
        self._in_batch = {}

    def judge(self, run: Run, event: Event, handler: Handler) -> RunResult | None:
        """How the run ends without a call; None if the handler is to be called."""
        rank = self._rank(event)
        if rank is None or not event.resource_id:
            return None
        try:
            newest = self._newest(run, event)
            if newest and rank.is_older_than(newest.rank):
                text = f"stale: event {newest.event} is newer, and this handler has settled it"
                return RunResult(Ending.DROPPED, {"result": text, "reason": "stale"})
            return self._wait_for_gap(run, event, handler, rank, newest)
        except RedisError:
            return RunResult(Ending.WAIT, {"error": NO_ANSWER, "reason": "stale"}, LOOK_AGAIN)

    def note_settled(self, run: Run, event: Event, result: RunResult) -> None:
        """Have the end of a run be stored as the newest of its resource, if it is."""
        rank = self._rank(event)
        if rank is None or not event.resource_id or result.ending not in (Ending.DONE, Ending.DROPPED):
            return
        key, known = _key(run, event), self._in_batch.get(_key(run, event))
        if not known or not rank.is_older_than(known.rank):
            self._in_batch[key] = Settled(rank, event.id)
        keep = max(1, int(self._config.retention.records * 1000))
        result.detail["settles"] = f"{rank.kind}{rank.number} {keep}"

    def _wait_for_gap(
        self, run: Run, event: Event, handler: Handler, rank: Rank, newest: Settled | None
    ) -> RunResult | None:
        """Let a run wait for smaller numbers of its resource: for those that are there until they have ended, for one
        that is missing as long as the handler says. So all run by their number, also if they are old."""
        longest = parse_duration(handler.wait_for_gap)
        if not longest or rank.kind != "s":
            return None
        settled = newest.rank.number if newest and newest.rank.kind == "s" else -1
        keep = max(self._config.retention.records, longest + KEEP_LONGER)
        there, waited_ms = script_runner.run_one(
            self._redis, "gap", event.id, run.handler, _resource(event), rank.number, settled, int(keep * 1000)
        )
        if there:
            text = f"sequence {rank.number} waits for smaller ones that have not ended"
            return RunResult(Ending.WAIT, {"error": text, "reason": "gap"}, LOOK_AGAIN * min(there, FARTHEST))
        left = longest - waited_ms / 1000
        if rank.number <= max(settled, 0) + 1 or left <= 0:
            return None
        text = f"sequence {rank.number} waits for {rank.number - 1}, at most {longest:g} s"
        return RunResult(Ending.WAIT, {"error": text, "reason": "gap"}, min(left, LOOK_AGAIN))

    def _newest(self, run: Run, event: Event) -> Settled | None:
        stored = _parse(self._redis.get(_key(run, event)))
        here = self._in_batch.get(_key(run, event))
        return here if here and (not stored or not here.rank.is_older_than(stored.rank)) else stored

    def _rank(self, event: Event) -> Rank | None:
        known = self._config.known_stores.get(event.store)
        kind, occurred = "t", event.occurred_at
        if known and known.scheme.read_from["sequence"]:
            number = _read(known.scheme.readers["sequence"], event, _sequence)
            if number is not None:
                return Rank("s", number)
        if known and len(known.scheme.read_from["occurred"]) < len(known.scheme.event.occurred):
            # Read again: the time that is stored with an event of an earlier version may not be signed.
            kind, occurred = "u", _read(known.scheme.readers["occurred"], event, parse_time)
        if occurred and (us := round(occurred.timestamp() * 1e6)) >= 0:
            return Rank(kind, us)
        return None


def _read(read: Reader, event: Event, parse: Callable[[Any], _T | None]) -> _T | None:
    try:
        return parse(read(event.headers, event.payload))
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, or nested too deeply
        return None


def _sequence(value: Any) -> int | None:
    """A whole number, as JSON or as text. Anything else is none: such events are not compared by it."""
    return _number(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _key(run: Run, event: Event) -> str:
    return f"{keys.NEWEST}{run.handler}|{_resource(event)}"


def _resource(event: Event) -> str:
    return f"{event.store}|{event.topic.partition('.')[0]}|{event.resource_id}"


def _parse(text: Any) -> Settled | None:
    """A stored mark. A damaged one is none, and is written again."""
    rank, _, event = (text or b"").decode("utf-8", "replace").partition(" ")
    number = _number(rank[1:])
    return Settled(Rank(rank[0], number), event) if rank[:1] in ("s", "t", "u") and number is not None else None
