"""Replay: have runs done again, at a rate one chooses. Interrupted, it goes on where it was when started again.

A group needs no bookkeeping: what was replayed has left the group, and what fails again after the start is
not taken a second time. A replay by filter keeps a cursor, written in the same step that reopens the runs.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from redis import Redis

from receiver.contract.topics import PROBE, matches
from receiver.inbox import Administration, FailureQueries, Inbox, keys
from receiver.inbox.outcomes import ENDED, status_of

PAGE = 200


@dataclass(frozen=True)
class Selection:
    """Which runs of past events are meant."""

    handler: str | None = None
    run_status: str | None = None
    handler_version: str | None = None
    store: str | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def name(self) -> str:
        """The same selection, started again, finds its cursor by this."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]


class ReplayRate:
    """Waits so that not more than `rate` a second go out; no rate is as fast as it goes."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._sent = 0

    @property
    def slice(self) -> int:
        """How many to send at once."""
        return PAGE if self._rate is None else max(1, min(PAGE, int(self._rate / 10)))

    def wait(self, sent: int) -> None:
        self._sent += sent
        if self._rate is not None:
            time.sleep(max(0.0, self._started + self._sent / self._rate - time.monotonic()))


class Replay:
    def __init__(
        self, inbox: Inbox, *, rate: float | None, first: int | None, told: Callable[[int], None], again: bool = False
    ) -> None:
        self.administration = Administration(inbox.client)
        self.client: Redis = inbox.client
        self.queues = {one.handler: one.queue for one in inbox.declarations().handlers}
        self.counts: Counter[str] = Counter()
        self._pace = ReplayRate(rate)
        self._first = first
        self._told = told
        self._again = again

    @property
    def _room(self) -> int:
        """How many may still be reopened."""
        left = PAGE if self._first is None else self._first - self.counts["reopened"]
        return min(left, self._pace.slice)

    def group(self, group: str) -> Counter[str]:
        """Every run that is in a group of failures now."""
        failures, until, stuck = FailureQueries(self.client), self._now(), 0
        while (room := self._room) > 0:
            items = failures.page(group, until=until, skip=stuck, many=room)
            if not items:
                break
            replies = self._reopen(items)
            stuck += sum(reply not in ("reopened", "open") for reply in replies)
        return self.counts

    def items(self, items: list[str], *, make: bool = False) -> Counter[str]:
        """Just these runs."""
        while items and (room := self._room) > 0:
            self._reopen(items[:room], make=make)
            items = items[room:]
        return self.counts

    def selection(self, selection: Selection) -> Counter[str]:
        """Every run that fits, in order of arrival, going on where an interrupted one stopped."""
        for after, items in self._pages(selection, self.position(selection)):
            if not self._send_page(items, selection, after):
                return self.counts
        self.client.delete(keys.CURSOR + selection.name)
        return self.counts

    def _send_page(self, items: list[str], selection: Selection, after: str) -> bool:
        """Reopen a page in slices; the cursor moves past it with the last one. False: as many as were wanted."""
        while items:
            if (room := self._room) <= 0:
                return False
            cursor = (selection.name, after) if room >= len(items) else ("", "")
            self._reopen(items[:room], make=selection.handler is not None, cursor=cursor)
            items = items[room:]
        return True

    def position(self, selection: Selection) -> str:
        """Where an interrupted replay of this selection stopped; empty if there was none."""
        found: Any = self.client.get(keys.CURSOR + selection.name)
        return (found or b"").decode()

    def matching(self, selection: Selection) -> Iterator[str]:
        """What would be replayed."""
        for _, items in self._pages(selection, ""):
            yield from items

    def _reopen(self, items: list[str], *, make: bool = False, cursor: tuple[str, str] = ("", "")) -> list[str]:
        replies = self.administration.reopen(items, self.queues, make=make, again=self._again, cursor=cursor)
        self.counts.update(replies)
        self._told(len(items))
        self._pace.wait(len(items))
        return replies

    def _pages(self, selection: Selection, position: str) -> Iterator[tuple[str, list[str]]]:
        """Runs that fit, event by event in order of arrival, each page with the position after it."""
        index = keys.index_of(selection.store) if selection.store else keys.INDEX
        start: float | str = selection.since.timestamp() * 1000 if selection.since else "-inf"
        end = (selection.until or self._now()).timestamp() * 1000
        seen = ""
        if position:
            at, _, seen = position.partition(" ")
            start = float(at)
        while page := self._index_page(index, start, end, seen):
            pipeline = self.client.pipeline(transaction=False)
            for event_id, _ in page:
                pipeline.hgetall(keys.EVENT + event_id)
            items: list[str] = []
            for (event_id, _), fields in zip(page, pipeline.execute(), strict=True):
                items += fitting(selection, event_id, fields)
            start, seen = page[-1][1], page[-1][0]
            yield f"{start:.0f} {seen}", items

    def _index_page(self, index: str, start: float | str, end: float, seen: str) -> list[tuple[str, float]]:
        """Events from `start` on that come after `seen`, which stands at `start` itself."""
        offset = 0
        while True:
            found: Any = self.client.zrange(index, start, end, byscore=True, offset=offset, num=PAGE, withscores=True)
            page = [(event_id.decode(), score) for event_id, score in found]
            fresh = [one for one in page if one[1] != start or one[0] > seen]
            if fresh or len(page) < PAGE:
                return fresh
            offset += PAGE  # more events of one millisecond than a page holds

    def _now(self) -> datetime:
        seconds, micro = self.client.time()
        return datetime.fromtimestamp(seconds + micro / 1e6, UTC)


def fitting(selection: Selection, event_id: str, fields: dict[Any, Any]) -> list[str]:
    """The runs of one event that a selection means. A probe of our own is for no handler."""
    if not fields or fields[b"topic"] == PROBE.encode():
        return []
    if selection.topic and not matches(selection.topic, fields[b"topic"].decode()):
        return []
    runs = {name[2:].decode(): value.decode().split(" ")[0] for name, value in fields.items() if name.startswith(b"r:")}
    if selection.handler and selection.handler not in runs and selection.run_status is None:
        return [keys.run_item(event_id, selection.handler)]
    return [
        keys.run_item(event_id, handler)
        for handler, state in sorted(runs.items())
        if handler not in ("", "intake")
        and selection.handler in (None, handler)
        and selection.run_status in (None, state)
        and status_of(state) in ENDED
        and _version_fits(selection, fields.get(f"x:{handler}".encode()))
    ]


def _version_fits(selection: Selection, detail: bytes | None) -> bool:
    if selection.handler_version is None:
        return True
    return bool(detail) and orjson.loads(detail or b"{}").get("version") == selection.handler_version
