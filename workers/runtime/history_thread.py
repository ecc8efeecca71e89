"""The history thread: moves settled events to the history next to the housekeeper's ticks, which do not wait for it.

It yields to ingest and runs. Without the database Redis keeps what it has, and the thread tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import connect_to
from receiver.inbox.history_moves import HistoryMoves, MoveReport
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryDatabase
from workers.processes import Schedule
from workers.runtime.history_mover import SHORT_OF_MEMORY, Load, Mover, pause_after, slice_at

ROUND_EVERY = 1.0
TRY_EVERY = 5.0
"""Seconds between two attempts to use a database that cannot be used."""
REPORT_EVERY, LOG_EVERY, DELETE_EVERY = 10.0, 60.0, 60.0

log = logs.get("history")


class HistoryThread:
    def __init__(self, config: Callable[[], Config]) -> None:
        self.leads = False
        """Whether its housekeeper leads: only one of them moves events. Several would only do the same work twice."""
        self._config = config
        self._redis: Redis = connect_to(config().redis, timeout=max(config().redis.timeout, 5.0))
        self._moves, self._load = HistoryMoves(self._redis), Load(self._redis)
        self._url = ""
        self._database: HistoryDatabase | None = None
        self._mover: Mover | None = None
        self._schedule = Schedule()
        self._moved = 0
        self._outage = logs.OutageLog(
            log, begins="the history cannot be used; events stay in Redis", ends="the history can be used again"
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within: float = 5.0) -> None:
        """End after the slice that is being moved. One that is cut off is moved again by the next housekeeper."""
        self._stopping.set()
        self._thread.join(within)

    def _run(self) -> None:
        pause = ROUND_EVERY
        while not self._stopping.wait(pause):
            pause = self.round() if self.leads else ROUND_EVERY

    def round(self) -> float:
        """Move a slice. Returns the seconds to wait before the next."""
        config = self._config()
        try:
            mover = self._open(config)
            pause = self._move(mover, config) if mover else ROUND_EVERY
        except StorehooksError as error:
            self._failed(error.logged)
        except RedisError:  # the housekeeper logs it
            return ROUND_EVERY
        except Exception as error:  # noqa: BLE001  a defect in a driver must not end the thread
            self._failed(f"{type(error).__name__} while events were moved")
        else:
            self._outage.worked()
            return pause
        return TRY_EVERY

    def _open(self, config: Config) -> Mover | None:
        """The mover for the configured database, which is checked when it is first used and after each fault."""
        if config.history_url != self._url:
            self._close()
            self._url = config.history_url
        if self._mover is None and (database := self._database or open_history(config, self._redis)):
            self._database = database
            database.check()
            self._mover = Mover(self._redis, database)
        return self._mover

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._mover = None

    def _move(self, mover: Mover, config: Config) -> float:
        is_short = self._is_short_of_memory()
        load = 0.0 if is_short else self._load.share()
        age = 0 if is_short else config.history.after
        began = time.monotonic()
        moved = mover.move(age=age, known_for=config.receiver.dedupe_retention, many=slice_at(load))
        spent = time.monotonic() - began
        self._moved += moved.moved
        if self._schedule.due("delete", DELETE_EVERY):
            self._delete_old(config)
        if self._schedule.due("report", REPORT_EVERY):
            self._moves.publish(_report(mover))
        if self._moved and self._schedule.due("log", LOG_EVERY):
            log.info("events moved to the history", events=self._moved, left=len(mover.left))
            self._moved = 0
        self._load.start()
        if not moved.examined:
            return ROUND_EVERY
        return 0.0 if is_short else pause_after(spent, load)

    def _delete_old(self, config: Config) -> None:
        """Apply `[retention]` to the history."""
        assert self._database is not None
        now = datetime.now(UTC)
        records = max(config.retention.records, config.receiver.dedupe_retention)
        while not self._stopping.is_set() and self._database.delete_older(
            bodies=now - timedelta(seconds=config.retention.bodies), records=now - timedelta(seconds=records)
        ):
            pass

    def _is_short_of_memory(self) -> bool:
        info = self._redis.info("memory")
        maximum = int(info.get("maxmemory", 0))
        return bool(maximum) and int(info["used_memory"]) > SHORT_OF_MEMORY * maximum

    def _failed(self, why: str) -> None:
        self._outage.failed(why=why)
        self._close()
        with suppress(RedisError):
            self._moves.publish(MoveReport(fault=why))


def _report(mover: Mover) -> MoveReport:
    example = next((f"{event_id}: {reason}" for event_id, reason in mover.left.items()), "")
    return MoveReport(left=len(mover.left), example=example)
