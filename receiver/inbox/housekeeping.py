"""Housekeeping: due and lapsed work becomes ready again, old records are removed, runs without a handler end."""

from __future__ import annotations

import orjson
from redis import Redis

from receiver.inbox.inbox import LEASE_MS, LOSSES_ALLOWED
from receiver.inbox.model import DECLARATION_MS
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument
from receiver.inbox.redis.script_runner import ScriptCall

TICK_SLICE = 1_000
TRIM_SLICE = 500


class Housekeeping:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def tick(self, *, lapses: bool = True) -> tuple[int, int, int]:
        """Move due and lapsed work to ready and wake workers; give (due, lapsed, failed)."""
        detail = orjson.dumps(
            {"error": "lost-worker: its worker died or hung, again and again", "reason": "lost-worker"}
        )
        arguments: list[Argument] = [TICK_SLICE, LEASE_MS, LOSSES_ALLOWED, detail, int(lapses)]
        (moved,) = script_runner.run(self.client, [ScriptCall("tick", arguments)])
        due, lapsed, failed = moved
        return due, lapsed, failed

    def trim(self, *, bodies: float, records: float, failures: float = 0) -> tuple[int, int, int]:
        """Forget a slice of what is older than so many seconds; give (bodies, records, failures) removed."""
        ages = [int(seconds * 1000) for seconds in (bodies, records, failures)]
        (removed,) = script_runner.run(self.client, [ScriptCall("trim", [TRIM_SLICE, *ages])])
        return removed[0], removed[1], removed[2]

    def trim_store(self, store: str, *, keep: int, window: float, skip: int = 0) -> tuple[int, int]:
        """Keep at most so many events of a store; give how many were looked at, after `skip`, and how many removed."""
        arguments: list[Argument] = [store, keep, TRIM_SLICE, int(window * 1000), skip]
        (reply,) = script_runner.run(self.client, [ScriptCall("trim_store", arguments)])
        return int(reply[0]), int(reply[1])

    def end_orphans(self, *, absent: float = DECLARATION_MS / 1000) -> int:
        """Make failures of the runs whose handler no worker has had for so many seconds; at most a slice."""
        detail = orjson.dumps({"error": "no-such-handler: no worker has it any more", "reason": "no-such-handler"})
        (ended,) = script_runner.run(self.client, [ScriptCall("orphans", [int(absent * 1000), TRIM_SLICE, detail])])
        return int(ended)

    def lead(self, name: str, for_ms: int) -> bool:
        """Whether `name` leads the housekeepers now. It only saves work: correctness never rests on it."""
        (leads,) = script_runner.run(self.client, [ScriptCall("lead", [name, for_ms])])
        return bool(leads)
