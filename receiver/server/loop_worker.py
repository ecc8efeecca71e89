"""The gunicorn worker class: one event loop for each process, on uvloop, or asyncio's own where uvloop is missing.

The loop accepts connections (`http_connection`), reads requests (`request_reader`) in turns of bounded time (`turns`),
and verifies, stores and answers deliveries (`deliveries`, `group_commit`) without ever blocking.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import time
from functools import partial
from typing import Any

from gunicorn.workers.base import Worker

from receiver.contract.sender_address import TrustedProxies
from receiver.server.deliveries import Deliveries
from receiver.server.flask_bridge import FlaskBridge, LongWorkBridge
from receiver.server.group_commit import GroupCommit
from receiver.server.http_connection import HttpConnection
from receiver.server.open_connections import OpenConnections
from receiver.server.turns import Turns

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]

ACCEPT_AT_ONCE = 16
MOST_AT_ONCE = 64
CHECK_EVERY = 0.05
NOTIFY_EVERY = 1.0
COLLECT_AFTER = 20_000
"""Objects allocated between garbage collections. A request allocates a few hundred, and most are freed with it."""
ENDING = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


class LoopWorker(Worker):
    def run(self) -> None:
        """Called by gunicorn when the app is loaded. What is loaded now stays, and need not be scanned for garbage."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        self._loop = new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._compose()
        self._accepting: dict[asyncio.Task[Any], HttpConnection] = {}
        self._times_more = 1
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        for number in (signal.SIGINT, signal.SIGQUIT):
            self._loop.add_signal_handler(number, self._loop.stop)
        for listener in self.sockets:
            listener.setblocking(False)
        self._listen()
        self._notify_at, self._stop_at = 0.0, float("inf")
        self._check()
        # The master process has blocked these. They wait until the loop runs: before that, uvloop does not notice them.
        self._loop.call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, ENDING)
        self._loop.run_forever()

    def _compose(self) -> None:
        config, pipeline, turns = self.app.config, self.app.pipeline, Turns(self._loop)
        self._commit = GroupCommit(pipeline.storage, self._loop, timeout=config.redis.timeout)
        flask = FlaskBridge(self.wsgi, self._loop, config.receiver.threads)
        long_work = LongWorkBridge(self.wsgi, self._loop)
        deliveries = Deliveries(pipeline.admission, self._commit, flask.serve, long_work.serve)
        turns.at_end = deliveries.store_next_group
        self._connections = OpenConnections(
            turns,
            deliveries.serve,
            max_body=config.receiver.max_body,
            read_seconds=config.receiver.read_timeout,
            proxies=TrustedProxies(config.receiver.trusted_proxies),
        )

    def _listen(self) -> None:
        self._connections.crowded = False
        for listener in self.sockets:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: Any) -> None:
        """Accept a few connections: the others in the queue may be for another process. Accept more, and make space for
        more, each time that some are left: while the loop is busy, cheap connections would keep senders waiting in a
        full queue."""
        space = min(self._connections.free - self._arriving(), ACCEPT_AT_ONCE * self._times_more, MOST_AT_ONCE)
        if space <= 0:
            self._make_space(listener, self._times_more)
            return
        for _ in range(space):
            try:
                sock, _address = listener.accept()
            except OSError as error:  # there are no more, the sender is gone, or there are no descriptors
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_space(listener, 1)
                self._times_more = 1
                break
            connection = HttpConnection(self._connections)
            task = self._loop.create_task(self._loop.connect_accepted_socket(partial(_given, connection), sock))
            self._accepting[task] = connection
            task.add_done_callback(self._on_accepted)
        else:
            self._times_more = min(2 * self._times_more, MOST_AT_ONCE)

    def _make_space(self, listener: Any, count: int) -> None:
        self._connections.make_space(count)
        if self._connections.crowded:
            self._loop.remove_reader(listener)  # until the next check

    def _arriving(self) -> int:
        """How many accepted connections are not among the open ones yet."""
        return sum(one not in self._connections.all for one in self._accepting.values())

    def _on_accepted(self, task: asyncio.Task[Any]) -> None:
        del self._accepting[task]
        task.exception()  # the sender may be gone

    def _check(self) -> None:
        """Called again and again: deadlines, the sign of life for the master process, and the end of a stop."""
        self._loop.call_later(CHECK_EVERY, self._check)  # first: it must go on if something below raises
        now = time.monotonic()
        if now >= self._notify_at:
            self._notify_at = now + NOTIFY_EVERY
            self.notify()
        if self.ppid != os.getppid():
            self._stop()
        if self._connections.stopping and (now > self._stop_at or not (self._connections.all or self._accepting)):
            self._loop.stop()
        if self._connections.crowded and not self._connections.stopping:
            self._listen()
        self._connections.check()
        self._commit.check()

    def _stop(self) -> None:
        """Accept no more connections, and end when the open ones have been answered."""
        if self._connections.stopping:
            return
        self._connections.stop()
        self._stop_at = time.monotonic() + self.cfg.graceful_timeout
        for listener in self.sockets:
            self._loop.remove_reader(listener)
            listener.close()


def _given(connection: HttpConnection) -> HttpConnection:
    return connection
