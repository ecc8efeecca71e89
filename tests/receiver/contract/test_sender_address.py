"""The address of a sender: the peer's own, or what a trusted proxy wrote, never what it claims."""

from __future__ import annotations

import pytest

from receiver.contract.sender_address import MAX_PROXIES, TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])
FORGED = "203.0.113.66"


@pytest.mark.parametrize(
    ("peer", "forwarded", "sender"),
    [
        ("192.0.2.1", FORGED, "192.0.2.1"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", f"{FORGED}, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", f"{FORGED},192.0.2.7 , 10.0.0.9", "192.0.2.7"),
        ("10.0.0.1", "10.0.0.8, 10.0.0.9", "10.0.0.8"),
        ("10.0.0.1", f"{FORGED}, unknown, 10.0.0.9", "10.0.0.9"),
        ("10.0.0.1", "not an address", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("fd00::1%eth0", "192.0.2.7", "192.0.2.7"),
        ("", "192.0.2.7", ""),
    ],
)
def test_the_sender_is_the_last_address_that_is_none_of_our_proxies(
    peer: str, forwarded: str | None, sender: str
) -> None:
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    assert PROXIES.sender(peer, headers) == sender
    assert TrustedProxies().sender(peer, headers) == peer


def test_a_list_of_any_length_is_read_up_to_a_limit() -> None:
    text = f"{FORGED}," + ",".join(["10.0.0.2"] * MAX_PROXIES)
    assert PROXIES.sender("10.0.0.1", {"x-forwarded-for": text}) == "10.0.0.2"
    assert PROXIES.sender("10.0.0.1", {"x-forwarded-for": text.replace(",10.0.0.2", "", 1)}) == FORGED
