"""Wake-ups: the only RQ jobs of ours. A worker waits for them on RQ's lists, and never blocks on that.

A worker recognizes a wake-up by its id. Any other job is another program's. It never resolves a function from a job's
data, and never unpickles anything; the data only shows RQ's own tools what the job is.
"""

from __future__ import annotations

import time
from selectors import EVENT_READ, BaseSelector
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError, ResponseError

from receiver import logs
from receiver.inbox.keys import WAKE, rq_intermediate, rq_list
from receiver.inbox.redis.raw_connection import RawConnection
from receiver.inbox.redis.server_faults import reason_of

WAIT_SECONDS = 5
TRY_AGAIN_AFTER = 0.5
OVERDUE = 2.0

log = logs.get("worker")


def refuse_plain_rq_worker() -> None:
    """The function that a wake-up's data names. A plain RQ worker that takes the job fails here, with the reason."""
    raise RuntimeError("this queue is worked by `storehooks worker`, not by a plain RQ worker")


class WakeUps:
    """The listeners of a worker, one for each queue."""

    def __init__(self, client: Redis, selector: BaseSelector) -> None:
        self._client = client
        self._selector = selector
        self._listeners: dict[str, WakeUpListener] = {}
        self._refused = logs.OutageLog(
            log, begins="the Redis server refuses to wait for wake-ups", ends="waiting for wake-ups is possible again"
        )

    @property
    def queues(self) -> list[str]:
        return list(self._listeners)

    def listen_to(self, queues: list[str]) -> None:
        """Wait on these queues from now on."""
        for queue in self._listeners.keys() - queues:
            self._listeners.pop(queue).drop()
        for queue in queues:
            if queue not in self._listeners:
                self._listeners[queue] = WakeUpListener(self._client, queue, self._selector, self._refused)

    def arm(self) -> None:
        for listener in self._listeners.values():
            listener.arm()

    def drop(self) -> None:
        for listener in self._listeners.values():
            listener.drop()


class WakeUpListener:
    """A BLMOVE that is sent without waiting for its reply. `read` reads that.

    As RQ's own workers do, it moves a job to the intermediate list of the queue, so that a job of another program is
    not lost if this worker is killed. A wake-up is removed from there by the command that is sent along with it.
    The connection stays in the selector. Where that reports it while no reply is due, the connection was lost.
    """

    def __init__(self, client: Redis, queue: str, selector: BaseSelector, refused: logs.OutageLog) -> None:
        self.wake_up = f"{WAKE}{queue}".encode()
        """The id of the wake-up of this queue."""
        self._client = client
        self._selector = selector
        self._commands = (
            ("BLMOVE", rq_list(queue), rq_intermediate(queue), "LEFT", "RIGHT", WAIT_SECONDS),
            ("LREM", rq_intermediate(queue), 0, self.wake_up),
        )
        self._refused = refused
        self._connection: RawConnection | None = None
        self._watched: int | None = None
        self._replies: list[Any] = []
        self._not_before = 0.0
        self._armed_at = 0.0
        self._armed = False

    def arm(self) -> None:
        """Start waiting for a wake-up. Where the server does not answer, a later call tries again."""
        if self._armed and time.monotonic() - self._armed_at > WAIT_SECONDS + OVERDUE:
            self.drop()  # the reply is overdue: this connection is dead
        if self._connection and self._connection.outdated:
            self.drop()
            self._not_before = 0.0
        if self._armed or time.monotonic() < self._not_before:
            return
        try:
            if self._connection is None:
                self._connection = RawConnection(self._client)
                self._watched = self._connection.fileno()
                self._selector.register(self._watched, EVENT_READ, self)
            self._connection.send(self._commands)
            self._armed = True
            self._armed_at = time.monotonic()
        except (RedisError, OSError):
            self.drop()

    def read(self) -> bytes | None:
        """The id of the job that was in the queue; None if the wait timed out, or the connection was lost.

        Where the server refuses to wait, as at maxmemory, it is the id of the wake-up: the worker then looks for work
        by itself, twice a second.
        """
        try:
            if self._connection is None or not self._armed:
                raise LostConnection
            self._replies += self._connection.receive()
        except RedisError:
            self.drop()
            return None
        match self._replies:
            case [] | [None | bytes()]:
                return None  # the rest follows
            case [None | bytes() as job, int()]:
                self._armed, self._replies = False, []
                self._refused.worked()
                return job
        if isinstance(self._replies[0], ResponseError):
            self._refused.failed(why=reason_of(self._replies[0]))
        self.drop()
        return self.wake_up

    def drop(self) -> None:
        """Close the connection; the next `arm` opens a new one."""
        self._armed, self._replies = False, []
        self._not_before = time.monotonic() + TRY_AGAIN_AFTER
        if self._watched is not None:
            self._selector.unregister(self._watched)  # by its number: its socket may be closed already
            self._watched = None
        if self._connection is not None:
            self._connection.close()
        self._connection = None
