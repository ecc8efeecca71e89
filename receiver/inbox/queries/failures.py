"""Failures: runs whose last attempt failed, retrying or given up, grouped by cause. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import from_ms, read_detail, to_number
from receiver.inbox.outcomes import RunState, RunStatus
from receiver.inbox.queries.damage import as_text, read_each
from receiver.inbox.queries.runs import members

DAMAGED_RECORD = "its record is damaged"


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
    first: datetime
    last: datetime
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


class FailureQueries:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def groups(self) -> list[FailureGroup]:
        """Every group, the latest first. Their number is the number of causes, not of failed runs."""
        found: Any = self.client.zrange(keys.GROUPS, 0, -1, desc=True)
        names = [as_text(name) for name in found]
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.GROUP + name)
        return [_group(name, fields) for name, fields in zip(names, read_each(pipeline), strict=True) if fields]

    def runs_of(self, group: str, *, until: datetime | None = None) -> Iterator[str]:
        """Runs that are in a group now, the oldest first, each once: also those that stay in the group meanwhile. With
        `until`, those that have failed since then are left out."""
        return members(self.client, keys.GROUP_RUNS + group, until=until.timestamp() * 1000 if until else None)

    def unreadable(self) -> Iterator[str]:
        """The events that could not be read, in the order in which they were accepted."""
        for item in members(self.client, keys.FAILED):
            event_id, handler = keys.split_item(item)
            if handler == keys.INTAKE:
                yield event_id

    def latest(self, *, group: str | None = None, limit: int = 100) -> list[Failure]:
        """The latest failures, of one group or of all."""
        failures: list[Failure] = []
        for name in [group] if group else [one.id for one in self.groups()]:
            failures += self._latest_of(name, limit - len(failures))
            if len(failures) >= limit:
                break
        return failures

    def _latest_of(self, group: str, limit: int) -> list[Failure]:
        scored: Any = self.client.zrange(keys.GROUP_RUNS + group, 0, limit - 1, desc=True, withscores=True)
        items = [(as_text(item), score) for item, score in scored]
        pipeline = self.client.pipeline(transaction=False)
        for item, _ in items:
            self._queue_reads(pipeline, item)
        replies = iter(read_each(pipeline))
        return [_failure(group, item, score, next(replies), next(replies)) for item, score in items]

    def traceback(self, item: str) -> str:
        """The traceback of a run's last attempt."""
        event_id, handler = keys.split_item(item)
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hget(keys.EVENT + event_id, f"x:{handler}")
        (detail,) = read_each(pipeline)
        return str(read_detail(detail).get("traceback", ""))

    @staticmethod
    def _queue_reads(pipeline: Any, item: str) -> None:
        event_id, handler = keys.split_item(item)
        pipeline.hmget(keys.EVENT + event_id, "store", "topic", f"r:{handler}", f"x:{handler}")
        pipeline.zscore(keys.LATER, item)


def _group(name: str, fields: dict[bytes, bytes]) -> FailureGroup:
    values = {as_text(field): as_text(value) for field, value in fields.items()}
    return FailureGroup(
        id=name,
        handler=values.get("handler", ""),
        error=values.get("error", DAMAGED_RECORD),
        at=values.get("at", ""),
        retrying=to_number(values.get("retrying")),
        failed=to_number(values.get("failed")),
        stores=sum(field.startswith("s:") for field in values),
        versions={field[2:]: to_number(value) for field, value in values.items() if field.startswith("v:")},
        first=from_ms(to_number(values.get("first"))),
        last=from_ms(to_number(values.get("last"))),
        example=values.get("example", ""),
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
