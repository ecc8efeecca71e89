"""Handover: groups of deliveries go from the loop to where they are kept, and the loop goes on meanwhile.

While all is well they go by the line: sent and acknowledged inside the loop, with no thread to wake. When it is not, a
thread does what must be waited for: the spool, a server that is slow, a connection to be made. What went wrong on the
line is done again there; accepting is idempotent, so that costs nothing but the word "duplicate".
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TooSlow

from receiver.contract.intake import Delivery
from receiver.delivery.storage import DeliveryStorage, NotStored, Stored
from receiver.inbox import Accepted
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis.polled_connection import PolledConnection

Outcomes = list[Stored | NotStored]
Then = Callable[[Outcomes], None]


class GroupCommit:
    """One group at a time; `then` is called in the loop, with what became of each."""

    def __init__(
        self, keeping: DeliveryStorage, poller: selectors.BaseSelector, defer: Callable[..., None], *, timeout: float
    ) -> None:
        self._keeping = keeping
        self._poller = poller
        self._defer = defer
        """Has something called in the loop; may be called by any thread."""
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(1, "keeping")
        self._line: PolledConnection | None = None
        self._watched = 0
        self._sent: tuple[Sequence[Delivery], AcceptBatch, Then] | None = None
        """What is on the line."""
        self._due = 0.0
        self.busy = False

    def keep(self, deliveries: Sequence[Delivery], then: Then) -> None:
        self.busy = True
        if self._line and self._line.outdated:  # it may still take writes, and they would be lost
            self._drop_line()
        accepting = self._keeping.accepting(deliveries) if self._line else None
        if accepting is None:
            self._keep_in_thread(deliveries, then)
            return
        assert self._line
        self._sent, self._due = (deliveries, accepting, then), time.monotonic() + self._timeout
        try:
            self._line.put(accepting.calls)
            self._watch()
        except Exception as error:  # noqa: BLE001  the thread finds out what and whose it is
            self._give_up(error)

    def patience(self, longest: float) -> float:
        """How long the loop may wait for events before it must look."""
        return max(0.0, min(longest, self._due - time.monotonic())) if self._sent else longest

    def look(self) -> None:
        """Called in each turn of the loop: a server that takes too long is not waited for."""
        if self._is_late():
            self._on_event()  # the loop may have been busy elsewhere, and the reply is here
        if self._is_late():
            self._give_up(TooSlow("no reply in time"))

    def _is_late(self) -> bool:
        return self._sent is not None and time.monotonic() > self._due

    # By the line

    def _on_event(self, _: Any = None) -> None:
        if self._line is None:  # dropped by whoever was called before, in the same turn
            return
        try:
            if self._line.unsent:
                self._write_on()
            replies = self._line.read()
            kept = self._read(replies) if replies is not None and self._sent else None
        except Exception as error:  # noqa: BLE001  whatever it is, the thread does it again
            self._give_up(error)
            return
        if kept is not None:
            self._on_kept(kept)

    def _write_on(self) -> None:
        """A server that takes bytes does not hang, however many turns of the loop a large group needs."""
        assert self._line
        if self._line.write():
            self._due = time.monotonic() + self._timeout
        self._watch()

    def _read(self, replies: list[Any]) -> list[Stored | None]:
        """What became of each; None where the server has something against it."""
        assert self._sent
        _, accepting, _ = self._sent
        return [Stored(one.status, one.id) if isinstance(one, Accepted) else None for one in accepting.read(replies)]

    def _on_kept(self, kept: list[Stored | None]) -> None:
        assert self._sent
        deliveries, _, then = self._sent
        self._sent = None
        if None not in kept:
            self._done([one for one in kept if one], then)
        elif any(kept):  # it took the others, and would count them as duplicates
            left = [delivery for delivery, one in zip(deliveries, kept, strict=True) if one is None]
            self._in_thread(lambda: (self._keeping.spool_all(left), None), lambda rest: then(_filled(kept, rest)))
        else:  # also from a server that was flushed, or is no longer the primary
            self._drop_line()
            self._keep_in_thread(deliveries, then)

    def _give_up(self, error: Exception) -> None:
        """The line is broken. One that was idle was only closed, and the next group finds out how things are."""
        self._drop_line()
        if self._sent:
            deliveries, _, then = self._sent
            self._sent = None
            if isinstance(error, RedisError):  # else it is ours, and says nothing of the server
                self._keeping.doubt(error)
            self._keep_in_thread(deliveries, then)

    def _watch(self) -> None:
        assert self._line
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._line.unsent else 0)
        if wanted != self._watched:
            change = self._poller.modify if self._watched else self._poller.register
            change(self._line, wanted, self._on_event)
            self._watched = wanted

    def _drop_line(self) -> None:
        if self._line:
            if self._watched:
                self._poller.unregister(self._line)
            self._line.close()
        self._line, self._watched = None, 0

    # By the thread

    def _keep_in_thread(self, deliveries: Sequence[Delivery], then: Then) -> None:
        wants_line = self._line is None
        self._in_thread(lambda: self._keep_and_connect(deliveries, wants_line=wants_line), then)

    def _in_thread(self, keep: Callable[[], tuple[Outcomes, PolledConnection | None]], then: Then) -> None:
        done = self._thread.submit(keep)
        done.add_done_callback(lambda future: self._defer(self._on_thread, future, then))

    def _keep_and_connect(
        self, deliveries: Sequence[Delivery], *, wants_line: bool
    ) -> tuple[Outcomes, PolledConnection | None]:
        """A new line is opened only where the server has just answered: a group is waiting meanwhile."""
        kept = self._keeping.keep_all(deliveries)
        answers = any(isinstance(one, Stored) and one.where == "redis" for one in kept)
        return kept, self._keeping.open_line() if wants_line and answers else None

    def _on_thread(self, future: Future[tuple[Outcomes, PolledConnection | None]], then: Then) -> None:
        kept, line = future.result()
        if line:
            self._line = line
            self._watch()
        self._done(kept, then)

    def _done(self, kept: Outcomes, then: Then) -> None:
        self.busy = False
        then(kept)


def _filled(kept: list[Stored | None], rest: Outcomes) -> Outcomes:
    """What became of all, in order: of those that were left, what the rest says."""
    others = iter(rest)
    return [one or next(others) for one in kept]
