"""Failures: runs whose last attempt failed, retrying or given up, grouped by cause. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from receiver.inbox import keys
from receiver.inbox.model import from_ms, read_detail, to_number
from receiver.inbox.outcomes import RunState, RunStatus
from receiver.inbox.queries.cursors import Cursor, Page, page_before
from receiver.inbox.queries.damage import as_text, read_each
from receiver.inbox.queries.runs import members
from receiver.inbox.redis.connecting import ServerUser, server_ms

PAGE = 100
READ_AT_ONCE = 500
HOUR_MS = 3_600_000
DAMAGED_RECORD = "its record is damaged"
MAX_READ = 1000
"""Runs of a group that are read to find those that stop their keys."""
MAX_FIELDS = 10_000
"""Fields of a group among which its versions are looked for."""
NOTICE = 7 * 86400.0
"""Seconds for which failures that will be removed by age are announced."""
_GROUP = ("handler", "error", "at", "first", "last", "example", "retrying", "failed")


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one handler with one cause."""

    id: str
    handler: str
    error: str
    at: str
    retrying: int
    failed: int
    stores: int
    versions: dict[str, int]
    first_at: datetime
    last_at: datetime
    example: str


@dataclass(frozen=True)
class Failure:
    event: str
    store: str
    topic: str
    handler: str
    version: str
    status: str
    attempts: int
    error: str
    group: str
    next_at: datetime | None
    failed_at: datetime


@dataclass(frozen=True)
class StoppedKeys:
    """Order keys of a handler with on_failure="stop" that wait until failures of a group are replayed or dropped."""

    handler: str
    group: str
    keys: tuple[str, ...]
    waiting: int
    """Runs that are queued behind the failures."""


@dataclass(frozen=True)
class FailureFilter:
    """Conditions that failures must meet, all of them. Empty ones are met by every failure."""

    group: str = ""
    handler: str = ""
    store: str = ""
    error: str = ""
    """A part of the error of their group, in upper or lower case."""


@dataclass(frozen=True)
class MatchingGroup:
    id: str
    handler: str
    count: int
    """Its failures that match."""


class FailurePlace(NamedTuple):
    """Where a failure is: its group, its run, and the time of the failed attempt (ms)."""

    group: str
    item: str
    failed_at: float


@dataclass(frozen=True)
class EndingFailures:
    """Failures that will soon be removed by age: how many, and when the first."""

    count: int = 0
    first: datetime | None = None


def notice_of(kept: float) -> float:
    """Seconds before the first failure is removed by age, after failures are first stored for `kept` seconds only."""
    return min(NOTICE, kept)


class FailureQueries(ServerUser):
    def groups(self, *, before: Cursor | None = None, limit: int = PAGE) -> Page[FailureGroup]:
        """Groups, those with the latest failure first. A handler has 200 at most, and one for all further causes."""
        page = page_before(self.client, keys.GROUPS, before, limit=limit)
        return Page(self.read_groups([name for name, _ in page.entries]), page.next)

    def every_group(self) -> Iterator[FailureGroup]:
        """All groups, read a page at a time. A group that gets another failure meanwhile may be left out."""
        page = self.groups()
        yield from page.entries
        while page.next:
            page = self.groups(before=page.next)
            yield from page.entries

    def newest_group_ids(self, limit: int) -> list[str]:
        """The ids of the groups with the latest failures, the latest first."""
        found: Any = self.client.zrange(keys.GROUPS, 0, limit - 1, desc=True)
        return list(map(as_text, found))

    def group(self, group_id: str) -> FailureGroup | None:
        return next(iter(self.read_groups([group_id])), None)

    def matching(self, wanted: FailureFilter) -> list[MatchingGroup]:
        """All groups with failures that a filter matches, those with the latest failure first."""
        names: Any = [wanted.group] if wanted.group else self.client.zrange(keys.GROUPS, 0, -1, desc=True)
        found = []
        for at in range(0, len(names), READ_AT_ONCE):
            page = list(map(as_text, names[at : at + READ_AT_ONCE]))
            pipeline = self.client.pipeline(transaction=False)
            for name in page:
                pipeline.hmget(keys.GROUP + name, "handler", "error", "retrying", "failed", f"s:{wanted.store}")
            for name, fields in zip(page, read_each(pipeline), strict=True):
                handler, error, retrying, failed, of_store = (as_text(one or b"") for one in fields or [None] * 5)
                count = to_number(of_store) if wanted.store else to_number(retrying) + to_number(failed)
                is_met = wanted.handler in ("", handler) and wanted.error.lower() in error.lower()
                if is_met and count > 0:
                    found.append(MatchingGroup(name, handler, count))
        return found

    def runs_of(self, group: str, *, until: datetime | None = None) -> Iterator[str]:
        """Runs that are in a group now, the oldest first, each once: also those that stay in the group meanwhile. With
        `until`, those that have failed since then are left out."""
        return members(self.client, keys.GROUP_RUNS + group, until=until.timestamp() * 1000 if until else None)

    def ending(self, *, kept: float) -> EndingFailures:
        """Failures that will be removed by age within NOTICE if they are stored for `kept` seconds; 0 is for ever."""
        if not kept:
            return EndingFailures()
        now = server_ms(self.client)
        many = int(self.client.zcount(keys.FAILED, "-inf", now + (NOTICE - kept) * 1000) or 0)
        found: Any = self.client.zrange(keys.FAILED, 0, 0, withscores=True)
        if not many or not found:
            return EndingFailures()
        since = to_number(self.client.get(keys.FAILURES_END)) or now
        return EndingFailures(many, from_ms(max(found[0][1] + kept * 1000, since + notice_of(kept) * 1000)))

    def count_unreadable(self) -> int:
        """The number of events that could not be read."""
        return sum(one.failed for one in self.every_group() if one.handler == keys.INTAKE)

    def stopped_keys(self, groups: Iterable[FailureGroup]) -> list[StoppedKeys]:
        """The stopped keys of these groups, by their oldest failures."""
        found = [self._stopped_by(group) for group in groups if group.failed]
        return [one for one in found if one.keys]

    def _stopped_by(self, group: FailureGroup) -> StoppedKeys:
        order, waiting = keys.ORDER + group.handler, 0
        active = self.client.exists(order)
        runs: Any = self.client.zrange(keys.GROUP_RUNS + group.id, 0, MAX_READ - 1) if active else []
        events = [keys.split_item(as_text(item))[0] for item in runs]
        pipeline = self.client.pipeline(transaction=False)
        for event in events:
            pipeline.hmget(keys.EVENT + event, f"r:{group.handler}", f"k:{group.handler}")
        failed = []
        for event, fields in zip(events, read_each(pipeline), strict=True):
            state, mark = ((field or b"").decode("utf-8", "replace") for field in fields or (b"", b""))
            has_key = not mark.endswith(f":!{event}")  # behind the others nothing can wait
            if state.startswith(RunState.FAILED) and mark.startswith("s ") and has_key:
                failed.append((mark[2:], event))
        for key, _ in failed:
            pipeline.hget(order, key)
            pipeline.zcard(f"{keys.QUEUED}{group.handler}:{key}")
        replies, stopped = iter(read_each(pipeline)), []
        for key, event in failed:
            first, queued = next(replies), next(replies)
            if as_text(first or b"") == event:
                stopped.append(key)
                waiting += queued or 0
        return StoppedKeys(group.handler, group.id, tuple(stopped), waiting)

    def unreadable(self, store: str | None = None) -> Iterator[str]:
        """The events that could not be read, or those of one store, in the order in which they were accepted."""
        items = (keys.split_item(item) for item in members(self.client, keys.FAILED))
        events = (event_id for event_id, handler in items if handler == keys.INTAKE)
        while page := list(islice(events, READ_AT_ONCE)):
            pipeline = self.client.pipeline(transaction=False)
            for event_id in page if store else ():
                pipeline.hget(keys.EVENT + event_id, "store")
            stores = [as_text(one or b"") for one in read_each(pipeline)] if store else [store] * len(page)
            yield from (event_id for event_id, its_store in zip(page, stores, strict=True) if its_store == store)

    def latest(self, *, limit: int = 100) -> list[Failure]:
        """The latest failures of each group, those of the latest group first."""
        failures: list[Failure] = []
        for group in self.every_group():
            failures += self.in_group(group.id, limit=limit - len(failures)).entries
            if len(failures) >= limit:
                break
        return failures

    def trends(self, groups: Sequence[str], *, hours: int = 24) -> dict[str, list[int]]:
        """How many runs of each group failed last in each of the last hours, the oldest first."""
        end = server_ms(self.client)
        pipeline = self.client.pipeline(transaction=False)
        for group in groups:
            for hour in range(hours, 0, -1):
                pipeline.zcount(keys.GROUP_RUNS + group, end - hour * HOUR_MS, f"({end - (hour - 1) * HOUR_MS}")
        found = [number or 0 for number in read_each(pipeline)]
        return {group: found[place * hours : (place + 1) * hours] for place, group in enumerate(groups)}

    def in_group(self, group: str, *, before: Cursor | None = None, limit: int = 100) -> Page[Failure]:
        """The failures of a group, the latest first."""
        page = page_before(self.client, keys.GROUP_RUNS + group, before, limit=limit)
        return Page(self.read([FailurePlace(group, *one) for one in page.entries]), page.next)

    def places(self, *, since: float, group: str | None = None) -> list[FailurePlace]:
        """The failures of one group or of all since a time (ms), in order of their time."""
        names: Any = [group] if group else self.client.zrange(keys.GROUPS, since, "+inf", byscore=True)
        found: list[FailurePlace] = []
        for name in map(as_text, names):
            scored: Any = self.client.zrange(keys.GROUP_RUNS + name, since, "+inf", byscore=True, withscores=True)
            found += [FailurePlace(name, as_text(item), score) for item, score in scored]
        return sorted(found, key=lambda one: one.failed_at)

    def read(self, places: Sequence[FailurePlace]) -> list[Failure]:
        pipeline = self.client.pipeline(transaction=False)
        for one in places:
            _queue_reads(pipeline, one.item)
        replies = iter(read_each(pipeline))
        return [_failure(*one, next(replies), next(replies)) for one in places]

    def totals(self) -> dict[str, tuple[int, int]]:
        """By handler: how many of its runs are retried, and how many have failed."""
        names: Any = self.client.zrange(keys.GROUPS, 0, -1)
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(keys.GROUP + as_text(name), "handler", "retrying", "failed")
        found: dict[str, tuple[int, int]] = {}
        for handler, retrying, failed in filter(None, read_each(pipeline)):
            before = found.get(as_text(handler or b""), (0, 0))
            found[as_text(handler or b"")] = before[0] + to_number(retrying), before[1] + to_number(failed)
        return found

    def read_groups(self, names: Sequence[str]) -> list[FailureGroup]:
        """A group has a field for each of its stores, which may be many: they are only counted."""
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(keys.GROUP + name, _GROUP)
            pipeline.hlen(keys.GROUP + name)
            pipeline.hscan(keys.GROUP + name, match="v:*", count=MAX_FIELDS)
        replies = iter(read_each(pipeline))
        groups = [_group(name, next(replies), next(replies), next(replies)) for name in names]
        return [one for one in groups if one is not None]

    def traceback(self, item: str) -> str:
        """The traceback of a run's last attempt."""
        event_id, handler = keys.split_item(item)
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hget(keys.EVENT + event_id, f"x:{handler}")
        (detail,) = read_each(pipeline)
        return str(read_detail(detail).get("traceback", ""))


def _queue_reads(pipeline: Any, item: str) -> None:
    event_id, handler = keys.split_item(item)
    pipeline.hmget(keys.EVENT + event_id, "store", "topic", f"r:{handler}", f"x:{handler}")
    pipeline.zscore(keys.LATER, item)


def _group(
    name: str, values: list[bytes | None] | None, size: int, scanned: tuple[int, dict[bytes, bytes]]
) -> FailureGroup | None:
    if not values or not size:
        return None
    fields = {field: as_text(value) for field, value in zip(_GROUP, values, strict=True) if value is not None}
    versions = {as_text(field)[2:]: to_number(value) for field, value in scanned[1].items()}
    return FailureGroup(
        id=name,
        handler=fields.get("handler", ""),
        error=fields.get("error", DAMAGED_RECORD),
        at=fields.get("at", ""),
        retrying=to_number(fields.get("retrying")),
        failed=to_number(fields.get("failed")),
        stores=max(0, size - len(fields) - len(versions)),
        versions=versions,
        first_at=from_ms(to_number(fields.get("first"))),
        last_at=from_ms(to_number(fields.get("last"))),
        example=fields.get("example", ""),
    )


def _failure(group: str, item: str, score: float, fields: list[bytes | None] | None, due: float | None) -> Failure:
    store, topic, run, detail = ((field or b"").decode("utf-8", "replace") for field in fields or [None] * 4)
    result = read_detail(detail) if fields else {"error": DAMAGED_RECORD}
    state, attempts, *_ = [*(run or "failed").split(" "), "0"]
    event_id, handler = keys.split_item(item)
    return Failure(
        event=event_id,
        store=store,
        topic=topic,
        handler=handler,
        version=result.get("version") or "?",
        status=RunStatus.FAILED if state == RunState.FAILED else "retrying",
        attempts=to_number(attempts),
        error=result.get("error") or "",
        group=group,
        next_at=from_ms(due) if due else None,
        failed_at=from_ms(score),
    )
