"""A worker's registration with RQ: `rq info` and RQ's other tools show it like any RQ worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.worker import Worker as RQWorker
from rq.worker.base import WorkerStatus

from receiver import logs

EXPIRES_AFTER = 20
"""Seconds after which RQ's tools no longer show a worker that was killed."""

log = logs.get("worker")


class RegisteredWorker(RQWorker):
    """An RQ worker that is registered under its name and queues. How it works is up to the subclass."""

    def __init__(self, queues: Sequence[str], *, name: str, connection: Redis) -> None:
        super().__init__(list(queues), name=name, connection=connection)

    def _set_connection(self, connection: Redis) -> Redis:
        return connection  # RQ would raise the timeouts to minutes

    def register(self) -> None:
        self._try(self.register_birth)
        self._try(self.heartbeat)
        self._try(lambda: self.set_state(WorkerStatus.IDLE))

    def refresh_registration(self) -> None:
        self._try(self.heartbeat)

    def unregister(self) -> None:
        self._try(self.register_death)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's heartbeat, but a killed worker disappears from RQ's lists soon."""
        super().heartbeat(timeout or EXPIRES_AFTER, pipeline)

    @staticmethod
    def _try(call: Callable[[], Any]) -> None:
        """Only RQ's own tools read this. At maxmemory the server refuses it, and the work goes on."""
        try:
            call()
        except RedisError as error:
            log.info("could not write the worker's RQ registration", why=type(error).__name__)
