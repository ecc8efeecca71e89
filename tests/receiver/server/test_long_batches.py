"""Long batches are read in a thread, and only they: not refused deliveries, and not large ones of other stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from redis import Redis

from receiver.contract.compose import Request
from receiver.contract.intake import LOOP_BYTES, LOOP_ITEMS, Delivery
from receiver.delivery.answers import Answer
from receiver.delivery.storage import Stored, StoreResults
from receiver.inbox.accept_batch import AcceptResult, AcceptStatus
from receiver.server.deliveries import Deliveries
from receiver.server.group_commit import GroupCommit
from receiver.server.held_bytes import SPARE_BYTES, KnownSenders
from receiver.server.http_connection import HttpConnection
from receiver.server.request_reader import HttpRequest
from receiver.server.turns import SMALL_BYTES
from tests.receiver.delivery.test_unknown_stores import admission
from tests.support import batches
from tests.support.batches import items, signed
from tests.support.harness import System
from tests.support.made_connections import new_content

HEAD_BYTES = 500


class Ways:
    """Deliveries, and which way each goes: "thread", "Flask", "stored", or the status of its answer."""

    address = sender = "192.0.2.1"
    is_other = False

    def __init__(self, system: System, redis: Redis) -> None:
        self.way, self.known_senders = "", KnownSenders()
        self.status = cast(AcceptStatus, "accepted")
        self._deliveries = Deliveries(
            admission(system.config, redis), cast(GroupCommit, self), self._serve_others, self._serve_in_thread
        )

    busy = False

    def store(self, deliveries: Sequence[Delivery], on_stored: Callable[[StoreResults], None]) -> None:
        on_stored([Stored(self.status, "1", items=[AcceptResult(self.status, "1")] * (1 + len(deliveries[0].rest)))])
        self.way = "stored"

    def answer(self, answer: Answer) -> None:
        self.way = str(answer.status)

    def _serve_others(self, *_: Any) -> None:
        self.way = "Flask"

    def _serve_in_thread(self, _: object, __: object, store: str) -> None:
        self.way = "thread" if store == "batches" else f"thread, of {store or 'no store'}"

    @property
    def balance(self) -> int:
        return self.known_senders.balance(self.sender)

    def way_of(self, request: Request, store: str) -> str:
        self.way = ""
        target, self.request_bytes = f"/webhooks/{store}", HEAD_BYTES + len(request.body)
        self._deliveries.serve(
            cast(HttpConnection, self), HttpRequest("POST", target, 1, request.headers, request.body, True)
        )
        self._deliveries.store_next_group()
        return self.way


@pytest.fixture
def system(make_system: Callable[..., System]) -> System:
    return make_system(more=batches.CONFIG)


@pytest.fixture
def ways(system: System, redis: Redis) -> Ways:
    return Ways(system, redis)


def test_many_items_or_many_bytes_are_read_in_a_thread(ways: Ways) -> None:
    for content, way in (
        (items("a", LOOP_ITEMS), "stored"),
        (items("a", LOOP_ITEMS + 1), "thread"),
        (["x" * LOOP_BYTES], "thread"),
        ([1] * 1001, "stored"),  # as one unreadable event
        ([], "200"),
    ):
        before, request = ways.balance, signed(content)
        assert ways.way_of(request, "batches") == way, str(content)[:40]
        assert (ways.balance > before) == (way == "stored"), "the thread counts what it stores"


def test_who_sends_a_captured_delivery_again_is_not_known(ways: Ways, system: System) -> None:
    """Forty times from each of six addresses, and they had half of the large deliveries of new senders refused."""
    request = system.request(data={"id": 1, "lines": list(range(10_000))})
    ways.status = "duplicate"
    assert ways.way_of(request, "north") == "stored"
    assert ways.balance == -SPARE_BYTES
    ways.status = "accepted"
    ways.way_of(request, "north")
    assert ways.balance == len(request.body)


def test_a_refused_delivery_takes_the_same_way_for_known_and_unknown_stores(ways: Ways) -> None:
    forged = signed(items("a", 1000), "another secret")
    size = HEAD_BYTES + len(forged.body)
    ways.known_senders.add_accepted(ways.sender, new_content(23 * size))
    assert {ways.way_of(forged, store) for store in ("batches", "north", *map("shop-{}".format, range(20)))} == {"401"}
    assert ways.balance == size, "each of 22 counted against its sender, with its head"
    assert ways.way_of(forged, "north/other") == "Flask"
    assert ways.balance == 0, "what is no delivery counts, too"


def test_a_large_delivery_of_another_store_stays_in_the_loop(ways: Ways, system: System) -> None:
    request = system.request(data={"id": 1, "lines": list(range(10_000))})
    assert len(request.body) > SMALL_BYTES
    assert ways.way_of(request, "north") == "stored"


def test_an_unverified_delivery_in_the_thread_counts_as_one_if_its_sender_has_a_balance(
    ways: Ways, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no delivery loses its place first when an address has too many of them."""
    monkeypatch.setattr("receiver.delivery.admission.LOOP_HASHED", 0)
    request = system.request(data={"id": 1, "lines": list(range(20_000))})
    assert ways.way_of(request, "north") == "thread, of no store"
    assert ways.is_other
    ways.known_senders.add_accepted(ways.sender, new_content(1))
    assert ways.way_of(request, "north") == "thread, of no store"
    assert not ways.is_other
