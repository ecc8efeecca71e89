"""Whose requests are refused first when a process holds too many bytes."""

from __future__ import annotations

import pytest

from receiver.server import held_bytes
from receiver.server.held_bytes import KNOWN_BYTES, SPARE_BYTES, Held, KnownSenders, order_of_refusal
from tests.support.made_connections import new_content

MB = 1_000_000


def known(*senders: str, size: int = KNOWN_BYTES) -> KnownSenders:
    found = KnownSenders()
    for sender in senders:
        found.add_accepted(sender, new_content(size))
    return found


def test_a_crowd_of_one_address_is_refused_before_deliveries_in_larger_packets() -> None:
    """160 connections of one address, with small packets, had deliveries of others answered 503."""
    crowd = {f"crowd {number}": Held("192.0.2.66", MB // 2, 0.01) for number in range(40)}
    other = {"large": Held("192.0.2.7", MB, 0.2), "small": Held("192.0.2.8", MB // 20, 0.09)}
    assert order_of_refusal({**other, **crowd}, known())[:30] == list(reversed(crowd))[:30]


def test_a_busy_sender_is_refused_after_addresses_that_hold_less_but_send_less() -> None:
    """Where only bytes counted, eight addresses that sent at once and paused had its deliveries refused."""
    busy = {number: Held("192.0.2.7", MB // 2, 0.01) for number in range(20)}
    pausing = {100 + number: Held(f"192.0.2.{66 + number % 8}", MB, number / 100) for number in range(64)}
    order = order_of_refusal({**busy, **pausing}, known())
    assert min(map(order.index, busy)) > 20


def test_a_known_sender_is_refused_last_unless_its_bytes_wait() -> None:
    requests = {
        "known": Held("192.0.2.7", 15 * MB, 0.9),
        "known, and waits": Held("192.0.2.7", MB, 1.1),
        "waits longer": Held("192.0.2.8", MB, 1.2),
        "other": Held("192.0.2.9", MB, 0.0),
    }
    assert order_of_refusal(requests, known("192.0.2.7")) == ["waits longer", "known, and waits", "other", "known"]


def test_a_known_sender_crowds_no_other_out() -> None:
    """One that had sent a signed delivery, and then 160 unsigned bodies, had deliveries of new senders answered 503."""
    crowd = {f"crowd {number}": Held("192.0.2.66", MB // 2, 0.01) for number in range(120)}
    new = {f"new {number}": Held("192.0.2.7", MB, 0.2) for number in range(8)}
    order = order_of_refusal({**new, **crowd}, known("192.0.2.66"))
    assert set(order[:50]) <= set(crowd)
    assert set(order[-60:]) <= set(crowd), "what it holds below the limit is refused last"


def test_a_busy_sender_is_refused_after_those_that_have_signed_little() -> None:
    """Four that had signed one delivery each had a third of its deliveries answered 503."""
    busy = {number: Held("192.0.2.7", MB // 2, 0.01) for number in range(60)}
    crowds = {100 + number: Held(f"192.0.2.{66 + number % 4}", MB // 2, 0.01) for number in range(100)}
    senders = known(*(f"192.0.2.{66 + number}" for number in range(4)), size=300)
    senders.add_accepted("192.0.2.7", new_content(30 * MB))
    assert set(order_of_refusal({**busy, **crowds}, senders)[:100]) == set(crowds)


def test_a_sender_of_small_deliveries_is_known_until_it_has_lost_what_it_may() -> None:
    """And one of these at a time does not make it known again."""
    senders = known("a", size=300)
    assert [senders.trust("a", size) for size in (300, 301, SPARE_BYTES + 300, SPARE_BYTES + 301)] == [2, 1, 1, 0]
    for _ in range(20):
        senders.add_other("a", MB)
        senders.add_accepted("a", new_content(300))
    assert senders.trust("a", MB) == 0
    senders.add_accepted("a", new_content(MB))
    assert senders.trust("a", MB) == 1, "what it lost is bounded"


def test_a_sender_of_large_deliveries_stays_known_when_it_ends_some() -> None:
    senders = known("a", size=MB)
    for _ in range(100):
        senders.add_accepted("a", new_content(MB))
        senders.add_accepted("a", new_content(MB))
        senders.add_other("a", MB)
    assert senders.trust("a", KNOWN_BYTES - 2 * MB) == 2
    assert [senders.trust("a", size) for size in (KNOWN_BYTES, KNOWN_BYTES + 1)] == [1, 0], "also what it gains"


def test_who_has_signed_nothing_is_not_known() -> None:
    senders = known()
    senders.add_other("a", MB)
    assert senders.trust("a", 1) == 0


def test_requests_of_one_address_are_refused_by_the_time_that_they_wait() -> None:
    """Behind a proxy, all have one address."""
    requests = {waited: Held("127.0.0.1", size, waited) for waited, size in ((0.3, MB), (0.5, 1), (2.0, 1), (0.2, MB))}
    assert order_of_refusal(requests, known()) == [2.0, 0.5, 0.3, 0.2]


def test_the_latest_senders_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bytes, "KNOWN_SENDERS", 2)
    senders = known("a", "b", "a", "c")
    assert [senders.trust(sender, 1) > 0 for sender in "abc"] == [True, False, True]


def test_each_body_counts_once_for_the_first_who_sends_it() -> None:
    """Where the id is not signed, anyone may have a captured body accepted again under another id."""
    senders, content = known(), new_content(MB)
    senders.add_accepted("store", content)
    for _ in range(40):
        senders.add_accepted("attacker", content)
    assert (senders.balance("store"), senders.balance("attacker")) == (MB, -SPARE_BYTES)


def test_the_latest_bodies_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bytes, "KNOWN_SENDERS", 2)
    senders = known(*"abc")
    assert len(senders._contents) == 2
