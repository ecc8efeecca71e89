"""Housekeeping: due and lapsed work becomes ready again, old records are removed, runs without a handler end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.bulk_work import BulkWork
from receiver.inbox.leases import LEASE_MS, LOSSES_ALLOWED
from receiver.inbox.model import DECLARATION_MS
from receiver.inbox.queries.failures import notice_of
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.sampling import Sampler

TICK_SLICE = 1_000
TRIM_SLICE = 500
STRANDED_SLICE = 500
OPEN_SLICE = 500


class FailedRun(NamedTuple):
    """A run that housekeeping made a failure, as it is logged."""

    event_id: str
    handler: str
    store: str
    topic: str
    group: str


class Housekeeping:
    def __init__(self, client: Redis) -> None:
        self.client = client
        self.sampler = Sampler(client)
        self.bulk_work = BulkWork(client)
        self._position: bytes | str = ""
        self._skip_failures = 0

    def tick(self, *, lapses: bool = True) -> tuple[int, int, list[FailedRun]]:
        """Make due and lapsed work ready, and wake workers. Returns how many were due and lapsed, and which failed."""
        detail = orjson.dumps({"error": "lost-worker: its worker died or hung repeatedly", "reason": "lost-worker"})
        moved = script_runner.run_one(self.client, "tick", TICK_SLICE, LEASE_MS, LOSSES_ALLOWED, detail, int(lapses))
        due, lapsed, failed = moved
        return due, lapsed, _failed_runs(failed)

    def put_back_stranded(self) -> int:
        """Put open items that are in no set back, of the next slice of events. Returns how many there were."""
        reply = script_runner.run_one(self.client, "stranded", self._position, STRANDED_SLICE, LEASE_MS)
        self._position = reply[0]
        return int(reply[1])

    def advance_open(self) -> int:
        """Move the time before which no event is open on, over a slice of events. Returns how many were passed."""
        return int(script_runner.run_one(self.client, "advance_open", OPEN_SLICE))

    def trim(self, *, bodies: float, records: float, failures: float = 0) -> tuple[int, int, int]:
        """Remove a slice of what is older than these ages (s). Returns the numbers of (bodies, records, failures)."""
        ages = [int(seconds * 1000) for seconds in (bodies, records, failures)]
        notice = int(notice_of(failures) * 1000)
        reply = script_runner.run_one(self.client, "trim", TRIM_SLICE, *ages, self._skip_failures, notice)
        *removed, self._skip_failures = reply
        return removed[0], removed[1], removed[2]

    def trim_audit(self, kept: float) -> int:
        """Remove the entries of the audit trail that are older than `kept` seconds; 0 keeps all. Returns how many."""
        oldest = server_ms(self.client) - kept * 1000
        return int(self.client.zremrangebyscore(keys.AUDIT, "-inf", oldest)) if kept else 0

    def trim_store(self, store: str, *, keep: int, window: float, skip: int = 0) -> tuple[int, int]:
        """Remove a store's oldest events above `keep`. Returns how many were examined, after `skip`, and removed."""
        reply = script_runner.run_one(self.client, "trim_store", store, keep, TRIM_SLICE, int(window * 1000), skip)
        return int(reply[0]), int(reply[1])

    def end_orphans(self, *, absent: float = DECLARATION_MS / 1000) -> list[FailedRun]:
        """Fail runs whose handler no worker has had for `absent` seconds, at most a slice. Returns them."""
        detail = orjson.dumps(
            {"error": "no-such-handler: no worker has this handler any more", "reason": "no-such-handler"}
        )
        ended = script_runner.run_one(self.client, "orphans", int(absent * 1000), TRIM_SLICE, detail)
        return _failed_runs(ended)

    def lead(self, name: str, for_ms: int) -> bool:
        """Whether the housekeeper `name` leads now. This only saves work; correctness does not depend on it."""
        leads = script_runner.run_one(self.client, "lead", name, for_ms)
        return bool(leads)


def _failed_runs(replies: Iterable[Sequence[bytes]]) -> list[FailedRun]:
    return [FailedRun(*(part.decode("utf-8", "replace") for part in reply)) for reply in replies]
