"""Group commit: stores one group of deliveries at a time without blocking the event loop.

Normally a group is sent to the inbox and acknowledged inside the loop, on a polled connection, with no thread to wake.
A thread does what may block: the spool, and opening a connection. What fails on the polled connection is repeated by
the thread. Accepting is idempotent, so a repeat costs only the status "duplicate".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from receiver.contract.intake import Delivery
from receiver.delivery.bounded_spool import HANGS_AFTER
from receiver.delivery.storage import DeliveryStorage, Stored, StoreResults, stored_in_inbox
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis.polled_connection import PolledConnection

ThreadResult = tuple[StoreResults, PolledConnection | None]


class GroupCommit:
    """Stores one group at a time; `on_stored` is called in the loop, with the outcome of each delivery."""

    def __init__(self, storage: DeliveryStorage, loop: asyncio.AbstractEventLoop, *, timeout: float) -> None:
        self._storage, self._loop, self._timeout = storage, loop, timeout
        self._thread = _started_thread()
        self._in_progress: _InProgress | None = None
        self._connection: PolledConnection | None = None
        self._sent: AcceptBatch | None = None
        """The group, if it was sent on the polled connection and is not acknowledged yet."""
        self.busy = False

    def store(self, deliveries: Sequence[Delivery], on_stored: Callable[[StoreResults], None]) -> None:
        self.busy, self._deliveries, self._on_stored = True, deliveries, on_stored
        if self._connection and self._connection.outdated:  # it may still take writes, and they would be lost
            self._close_connection()
        self._sent = self._storage.batch_for_inbox(deliveries) if self._connection else None
        if not self._connection or not self._sent:
            self._store_in_thread()
            return
        self._deadline = monotonic() + self._timeout
        try:
            self._connection.start(self._sent.calls)
            if self._connection.unsent:
                self._loop.add_writer(self._connection, self._on_event)
        except Exception as error:  # noqa: BLE001  the thread finds the cause and the delivery
            self._fail(error)

    def check(self) -> None:
        """Called again and again: a group whose reply is overdue goes to the thread, and from a thread that waits for
        a disk that hangs to another, which does not use the disk."""
        if self._sent and monotonic() > self._deadline:
            self._on_event()  # the loop may have been busy elsewhere, and the reply may be here
            if self._sent and monotonic() > self._deadline:
                self._fail(RedisTimeout("no reply in time"))
        group = self._in_progress
        if group and group.is_first and self._storage.disk_hangs and monotonic() - group.began > HANGS_AFTER:
            self._leave_thread(group)

    # On the polled connection

    def _on_event(self) -> None:
        if self._connection is None:  # closed by an earlier callback of the same turn
            return
        try:
            if self._connection.unsent:
                self._send_more(self._connection)
            replies = self._connection.read()
            results = self._sent.read(replies) if replies is not None and self._sent else None
        except Exception as error:  # noqa: BLE001  the thread repeats it, whatever the cause
            self._fail(error)
            return
        if results is not None:
            self._on_replies([stored_in_inbox(one) for one in results])

    def _send_more(self, connection: PolledConnection) -> None:
        before = len(connection.unsent)
        connection.write()
        if len(connection.unsent) < before:  # a server that takes bytes is not hanging
            self._deadline = monotonic() + self._timeout
        if not connection.unsent:
            self._loop.remove_writer(connection)

    def _on_replies(self, stored: list[Stored | None]) -> None:
        """`stored` has None for each delivery that the server refused."""
        self._sent = None
        done = [one for one in stored if one]
        if done:
            self._storage.inbox_worked()
        if len(done) == len(stored):
            self._finish(list(done))
        elif done:  # not the whole group again: the accepted ones would be counted as duplicates
            left = [delivery for delivery, one in zip(self._deliveries, stored, strict=True) if one is None]
            self._in_thread(lambda: (merged(stored, self._storage.spool_all(left)), None))
        else:  # also from a server that was flushed, or is no longer the primary
            self._close_connection()
            self._store_in_thread()

    def _fail(self, error: Exception) -> None:
        """Close the connection. A group on it goes to the thread; an idle one was only closed by the server."""
        self._close_connection()
        if self._sent:
            self._sent = None
            if isinstance(error, RedisError):  # any other error is our own, and says nothing about the server
                self._storage.inbox_failed(error)
            self._store_in_thread()

    def _close_connection(self) -> None:
        if self._connection:
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()
        self._connection = None

    # In the thread

    def _store_in_thread(self) -> None:
        deliveries, connect = self._deliveries, self._connection is None

        def store() -> ThreadResult:
            stored = self._storage.store_all(deliveries)
            answers = any(isinstance(one, Stored) and one.where == "redis" for one in stored)
            # only if the server has just answered, because the group waits meanwhile
            return stored, self._storage.open_connection() if connect and answers else None

        self._in_thread(store)

    def _leave_thread(self, group: _InProgress) -> None:
        """Once for a group: the next thread does not use the disk, and may have to wait for Redis."""
        thread = _started_thread()
        self._thread.shutdown(wait=False)  # it may end days later
        self._thread = thread
        self._in_thread(group.store, is_first=False)

    def _in_thread(self, store: Callable[[], ThreadResult], *, is_first: bool = True) -> None:
        started = self._in_progress = _InProgress(store, monotonic(), is_first)
        done = self._thread.submit(store)
        done.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._on_thread_done, started, future))

    def _on_thread_done(self, started: _InProgress, future: Future[ThreadResult]) -> None:
        stored, connection = future.result()
        if started is not self._in_progress:  # the disk answers again; the group was stored by another thread
            if connection:
                connection.close()
            return
        self._in_progress = None
        if connection:
            self._connection = connection
            self._loop.add_reader(connection, self._on_event)
        self._finish(stored)

    def _finish(self, stored: StoreResults) -> None:
        self.busy = False
        self._on_stored(stored)


class _InProgress(NamedTuple):
    """A group that a thread stores."""

    store: Callable[[], ThreadResult]
    began: float
    is_first: bool


def _started_thread() -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1, "storage")
    thread.submit(int)  # it starts now: at a limit of processes it could not start later
    return thread


def merged(stored: list[Stored | None], rest: StoreResults) -> StoreResults:
    """The results of all deliveries in order: `rest` has those of the missing ones."""
    others = iter(rest)
    return [one or next(others) for one in stored]
