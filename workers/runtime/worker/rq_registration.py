"""A worker's registration with RQ: `rq info` and RQ's other tools show it like any RQ worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.utils import now
from rq.worker import Worker as RQWorker
from rq.worker.base import WorkerStatus

from receiver import logs
from receiver.inbox.keys import rq_queue
from receiver.inbox.redis.server_faults import reason_of
from receiver.inbox.rq_records import CHILD_PROCESSES, START_FAULT, register_worker

log = logs.get("worker")
# RQ asks for the worker's address, which only `rq info` shows: a user who may not run the command is no fault.
warnings.filterwarnings("ignore", message="CLIENT (LIST|SETNAME) command not supported")


class RegisteredWorker(RQWorker):
    """An RQ worker that is registered under its name and queues. How it works is up to the subclass."""

    def __init__(self, queues: Sequence[str], *, name: str, connection: Redis) -> None:
        super().__init__([rq_queue(queue) for queue in queues], name=name, connection=connection)
        self._handler_queues = queues
        self.birth_date = now()
        self._outage = logs.OutageLog(
            log,
            begins="could not write the worker's RQ registration",
            ends="the worker's RQ registration is written again",
        )

    def _set_connection(self, connection: Redis) -> Redis:
        return connection  # RQ would raise the timeouts to minutes

    def _set_ip_address(self, connection: Redis) -> None:
        self.ip_address = "unknown"
        with suppress(RedisError):  # the server may have become unreachable since the start
            super()._set_ip_address(connection)

    def queue_names(self) -> list[str]:
        """RQ's names of the queues that it serves now; those of the start may have changed with the config."""
        return [rq_queue(queue) for queue in self._handler_queues]

    @property
    def child_processes(self) -> int:
        """The number that are alive now."""
        return 0

    @property
    def start_fault(self) -> str:
        """Why it cannot start child processes now."""
        return ""

    def register(self, queues: Sequence[str]) -> None:
        """Show it with these queues from now on."""
        self._handler_queues = queues
        self.refresh_registration()

    def refresh_registration(self) -> None:
        """The heartbeat. It writes the whole record, since that may have expired while the server was away."""
        self.last_heartbeat = now()
        own = {CHILD_PROCESSES: self.child_processes, START_FAULT: self.start_fault}
        fields = {**self.serialize(), "state": WorkerStatus.IDLE.value, **own}
        self._try(lambda: register_worker(self.connection, self.name, self._handler_queues, fields))

    def unregister(self) -> None:
        self._try(self.register_death)

    def _try(self, call: Callable[[], Any]) -> None:
        """Only `doctor` and RQ's own tools read this, and the work goes on without it."""
        try:
            call()
            self._outage.worked()
        except RedisError as error:
            self._outage.failed(why=reason_of(error))
