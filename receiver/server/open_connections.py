"""Open connections of a process: which of them end when they are overdue, hold too many bytes, or others need a place.

A request that has arrived is answered. One that is arriving, or may come, ends if it is late. If all places are taken,
those of addresses end that have many and have had no more accepted than refused: they may have sent and gone, faster
than their requests are served.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from math import inf
from time import monotonic

from receiver.server.descriptors import is_reset, unreceived_bytes
from receiver.server.held_bytes import Held, order_of_refusal
from receiver.server.http_connection import (
    AHEAD_SECONDS,
    RECEIVE_BYTES,
    SLOW_SENDER,
    STOP_SECONDS,
    ConnectionGroup,
    HttpConnection,
)

MAX_HELD_BYTES = 64 << 20
"""Bytes of requests that one process holds. Beyond it, some are answered 503, in the order of `order_of_refusal`. A
quarter is always left for those that arrive: complete ones end soon, and are no reason to refuse others. Requests of at
most RECEIVE_BYTES are not refused: on all connections, they take less than that quarter."""
BEHIND_SECONDS = 0.25
"""How far a slower one may be behind when bytes of it wait in the kernel. Those of trickles do all the time."""
COSTLY_SECONDS = 0.001
CROWD_PLACES = 50
"""A sender that has more, while all are taken, loses some of them. For twenty of these there is place."""
CROWD_SECONDS = 0.25
"""How long a request of it may wait for us then, if its balance is not above 0. That of a sender of genuine deliveries
is by then, if they can be stored: the first was accepted. Others are sent again."""
LONG_SECONDS = 1.0
"""The same for any other, such as one of a store whose deliveries come faster than they are stored."""


class OpenConnections(ConnectionGroup):
    def make_space(self, count: int) -> None:
        """End the oldest connections for this number of new ones, less those that are closing. While none is closing
        and none may end, it is crowded."""
        closing = sum(one.state == "closing" for one in self.all)
        ended = self.end_oldest(count - closing) if closing < count else 0
        if closing + ended < count:
            ended += self.end_of_crowds(count - closing - ended)
        self.crowded = not (closing + ended)

    def end_oldest(self, count: int) -> int:
        """End connections for new ones, at most this number, and return how many: first those that linger or take long
        to read, then those that are behind, then the others; of each, senders with many places before others, those
        without a balance first, and those that have waited for their sender longest. Any other request that has
        arrived is answered, also if the loop has not received it yet, unless its sender was too slow before."""
        waiting = [one for one in self.all if one.state in ("idle", "receiving", "lingering") and may_be_late(one)]
        burdens = {one for one in waiting if one.state == "lingering" or is_costly(one)}
        ahead = ahead_of_a_flood(waiting, self.most)
        crowds, now = {one: self._has_balance(one) for one in self._crowds() if one}, monotonic()

        def place(one: HttpConnection) -> tuple[bool, bool, int, int, float]:
            is_behind, crowd = one.waiting_since <= now, crowds.get(one.sender, 2)
            return one not in burdens, not is_behind, crowd, ahead.get(one, 0), one.waiting_since

        waiting.sort(key=place)
        ended, stays = 0, inf
        for connection in waiting:
            if ended >= count:
                break
            if connection.waiting_since > stays + BEHIND_SECONDS:  # faster than one that stays
                continue
            if connection in burdens or not may_have_arrived(connection):
                end(connection)
                self.counted.add("connections ended for new ones")
                ended += 1
            elif connection.state == "receiving":
                stays = min(stays, connection.waiting_since)
        return ended

    def end_of_crowds(self, count: int) -> int:
        """End connections whose requests wait for us, and return how many: all of a sender that has many places, the
        one with most first, until there are as many. With a balance, it loses only what is no delivery, and without one
        no delivery that was verified, unless these wait for long."""
        now, ended = monotonic(), 0
        for sender in self._crowds():
            if ended >= count:
                break
            has_balance = self._has_balance(sender)
            for one in [one for one in self.all if one.sender == sender and waits_for_us(one)]:
                is_safe = not one.is_other and (has_balance or one.state == "served")
                if now - one.received_at > (LONG_SECONDS if is_safe else CROWD_SECONDS):
                    one.close() if one.state == "served" else one.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
                    self.counted.add("connections ended for new ones")
                    ended += 1
        return ended

    def _crowds(self) -> list[str]:
        """The senders that have many places, the one with most first."""
        senders = Counter(one.sender for one in self.all).most_common()
        return [sender for sender, places in senders if places > CROWD_PLACES]

    def _has_balance(self, sender: str) -> bool:
        return not sender or self.known_senders.balance(sender) > 0

    def check(self) -> None:
        """Called again and again: end those that are overdue, or gone, or that hold too many bytes."""
        now = monotonic()
        for connection in [one for one in self.all if not one.receives and is_reset(one.transport)]:
            connection.close()
        for connection in [one for one in self.all if one.deadline < now and may_be_late(one)]:
            end(connection)
        excess = sum(one.held_bytes for one in self.all) - MAX_HELD_BYTES
        receiving = [one for one in self.all if one.state == "receiving"] if excess > 0 else []
        held = {one: Held(one.sender, one.held_bytes, waited(one, now)) for one in receiving}
        excess = min(excess, sum(one.size for one in held.values()) - MAX_HELD_BYTES // 4)
        large = {one: its for one, its in held.items() if its.size > RECEIVE_BYTES}
        for connection in order_of_refusal(large, self.known_senders):
            if excess > 0:
                excess -= held[connection].size
                connection.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
                self.counted.add("requests answered 503, because too many bytes arrive at once")

    def stop(self) -> None:
        """Wait only a moment for new requests. Answers promised keep-alive, so some requests may be on the way."""
        self.stopping = True
        for connection in self.all:
            if connection.state == "idle":
                connection.deadline = min(connection.deadline, monotonic() + STOP_SECONDS)


def end(connection: HttpConnection) -> None:
    """Time out a request that is arriving, with an answer; close any other connection."""
    connection.refuse(HTTPStatus.REQUEST_TIMEOUT) if connection.state == "receiving" else connection.close()


def waits_for_us(connection: HttpConnection) -> bool:
    """Whether a request of it waits to be read or served, or its answer is not sent yet."""
    return connection.state in ("complete", "served") or (connection.state == "receiving" and connection.has_step)


def may_be_late(connection: HttpConnection) -> bool:
    """Whether time that passes is its own fault: it does not wait for its turn, was refused, or takes long to read."""
    return not connection.has_step or connection.state == "lingering" or is_costly(connection)


def is_costly(connection: HttpConnection) -> bool:
    """Whether a request has taken long to read, and goes on. That of no sender of webhooks does."""
    return connection.state == "receiving" and connection.spent > COSTLY_SECONDS


def ahead_of_a_flood(waiting: list[HttpConnection], most: int) -> dict[HttpConnection, int]:
    """The bytes of those that are not behind, while most connections have just begun: if thousands do in a second, all
    of them are newer than the last bytes of a sender that pauses. But few send as many bytes as it."""
    now = monotonic()
    if sum(now - one.since < AHEAD_SECONDS for one in waiting) <= most // 2:
        return {}
    return {one: one.held_bytes for one in waiting if one.waiting_since > now}


def waited(connection: HttpConnection, now: float) -> float:
    """For how long its bytes have waited for its sender, without the time in which they wait for their turn."""
    return (connection.scheduled_at if connection.has_step else now) - connection.holding_since


def may_have_arrived(connection: HttpConnection) -> bool:
    """Whether bytes of it wait in the kernel, and its sender was not too slow before, also with these."""
    size = unreceived_bytes(connection.transport)
    behind = connection.received_at - connection.waiting_since - size / SLOW_SENDER
    return size > 0 and (connection.state != "receiving" or behind < BEHIND_SECONDS)
