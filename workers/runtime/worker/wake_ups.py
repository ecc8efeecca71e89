"""Wake-ups: the only RQ jobs of ours. A worker waits for them on RQ's lists, and never blocks on that.

A worker recognizes a wake-up by its queue and id. Any other job is another program's. It never resolves a function from
a job's data, and never unpickles anything; the data only shows RQ's own tools what the job is.
"""

from __future__ import annotations

import time
from selectors import EVENT_READ, BaseSelector
from typing import NamedTuple

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from receiver import logs
from receiver.inbox.keys import WAKE, rq_list
from receiver.inbox.redis.raw_connection import RawConnection

WAIT_SECONDS = 5
TRY_AGAIN_AFTER = 0.5
OVERDUE = 2.0

log = logs.get("worker")


class QueuedJob(NamedTuple):
    """An RQ job that was on one of our queues."""

    queue: str
    id: bytes

    @property
    def is_wake_up(self) -> bool:
        """Whether it is a wake-up of storehooks, and not another program's job."""
        return self.id == f"{WAKE}{self.queue}".encode()


def refuse_plain_rq_worker() -> None:
    """The function that a wake-up's data names. A plain RQ worker that takes the job fails here, with the reason."""
    raise RuntimeError("this queue is worked by `storehooks worker`, not by a plain RQ worker")


class WakeUpListener:
    """A BLPOP that is sent without waiting for its reply. `armed` until the reply has come; `read` reads it.

    Its connection stays in the selector it was given. Where that reports it while not armed, the connection was lost.
    """

    def __init__(self, client: Redis, queues: list[str], selector: BaseSelector) -> None:
        self._client = client
        self._selector = selector
        self._queues = queues
        self._connection: RawConnection | None = None
        self._watched: int | None = None
        self._not_before = 0.0
        self._armed_at = 0.0
        self.armed = False
        self._refused = logs.OutageLog(
            log, begins="the Redis server refuses to wait for wake-ups", ends="waiting for wake-ups is possible again"
        )

    def arm(self) -> bool:
        """Start waiting for a wake-up. False when the server does not answer; a later call tries again."""
        if self.armed and time.monotonic() - self._armed_at > WAIT_SECONDS + OVERDUE:
            self.drop()  # the reply is overdue: this connection is dead
        if self._connection and self._connection.outdated:
            self.drop()
            self._not_before = 0.0
        if self.armed or time.monotonic() < self._not_before:
            return self.armed
        try:
            if self._connection is None:
                self._connection = RawConnection(self._client)
                self._watch(self._connection)
            self._connection.send([("BLPOP", *map(rq_list, self._queues), WAIT_SECONDS)])
            self.armed = True
            self._armed_at = time.monotonic()
        except (RedisError, OSError):
            self.drop()
        return self.armed

    def _watch(self, connection: RawConnection) -> None:
        self._watched = connection.fileno()
        self._selector.register(self._watched, EVENT_READ, self)

    def listen_to(self, queues: list[str]) -> None:
        """Wait on these queues from now on."""
        if queues != self._queues:
            self._queues = queues
            self.drop()
            self._not_before = 0.0

    def read(self) -> QueuedJob | None:
        """The job that was in a queue, or None when the wait timed out."""
        if self._connection is None or not self.armed:
            self.drop()
            return None
        try:
            replies = self._connection.receive()
        except RedisError:
            self.drop()
            return None
        match replies:
            case []:  # part of a reply; the rest follows
                return None
            case [None]:
                self.armed = False
                self._refused.worked()
                return None
            case [[bytes(name), bytes(job_id)]]:
                self.armed = False
                self._refused.worked()
                return QueuedJob(next(one for one in self._queues if rq_list(one).encode() == name), job_id)
            case _:  # an error, or a reply to no request
                if isinstance(replies[0], ResponseError):
                    self._refused.failed(why=str(replies[0])[:300])
                self.drop()
                return None

    def drop(self) -> None:
        """Close the connection; the next `arm` opens a new one."""
        self.armed = False
        self._not_before = time.monotonic() + TRY_AGAIN_AFTER
        if self._watched is not None:
            self._selector.unregister(self._watched)  # by its number: its socket may be closed already
            self._watched = None
        if self._connection is not None:
            self._connection.close()
        self._connection = None
