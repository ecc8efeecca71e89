"""Framing: the end of a request is found for every split of its bytes, and never where there is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.server.request_framing import MAX_HEAD, Framing
from tests.support.raw_http import chunked, request

LIMIT = 5_000
bodies = st.binary(max_size=300)
requests = st.one_of(
    bodies.map(lambda body: request(body=body)),
    st.builds(
        lambda body, size: request(headers=[("Transfer-Encoding", "chunked")], length=False) + chunked(body, size),
        bodies,
        st.integers(1, 64),
    ),
    st.just(request("/healthz", method="GET", length=False)),
)


@given(whole=requests, rest=st.binary(max_size=40), cuts=st.lists(st.integers(0, 800), max_size=12))
def test_a_request_is_complete_at_its_last_byte_for_every_split(whole: bytes, rest: bytes, cuts: list[int]) -> None:
    framing = Framing(limit=LIMIT)
    marks = sorted({min(cut, len(whole) - 1) for cut in cuts})
    for begin, end in zip([0, *marks], [*marks, len(whole) - 1], strict=True):
        framing.feed(whole[begin:end]) if end > begin else None
        assert not framing.ready
    framing.feed(whole[-1:] + rest)
    assert (framing.complete, framing.too_long) == (True, False)
    assert framing.split() == (whole, rest)


@given(data=st.lists(st.binary(min_size=1, max_size=200), max_size=10))
def test_any_bytes_are_either_ready_or_waited_for(data: list[bytes]) -> None:
    framing = Framing(limit=LIMIT)
    for piece in data:
        framing.feed(piece)
    request_, rest = framing.split()
    assert request_ + rest == b"".join(data)
    assert framing.ready or not framing.complete


@given(data=st.binary(max_size=400))
def test_any_bytes_in_place_of_chunks_raise_nothing(data: bytes) -> None:
    framing = Framing(request(headers=[("transfer-encoding", "chunked")], length=False), limit=LIMIT)
    for byte in data:
        framing.feed(bytes([byte]))


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (request(headers=[("content-length", "5001")], length=False), "too long"),
        (request(headers=[("content-length", "9" * 5000)], length=False), "too long"),
        (request(headers=[("transfer-encoding", "chunked")], length=False) + chunked(b"x" * 6000), "too long"),
        (request(headers=[("transfer-encoding", "chunked")], length=False) + b"ffffffff\r\nx", "waiting"),
        (request(headers=[("transfer-encoding", "chunked")], length=False) + b"0\r\nTrailer: x\r\n", "waiting"),
        (request(headers=[("transfer-encoding", "chunked")], length=False) + b"0\r\nTrailer: x\r\n\r\n", "complete"),
        (request(headers=[("transfer-encoding", "gzip, chunked")], length=False) + b"0\r\n\r\n", "complete"),
        (request(headers=[("transfer-encoding", "chunked")], length=False) + b"xyz\r\n", "invalid"),
        (request(headers=[("transfer-encoding", "chunked")], body=b"abc"), "invalid"),
        (b"GET / HTTP/1.1\nHost: x\n\n", "invalid"),
        (b"\x16\x03\x01", "invalid"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MAX_HEAD // 6), "invalid"),
        (b"GET / HT", "waiting"),
    ],
)
def test_the_state_of_complete_too_long_invalid_and_unfinished_requests(data: bytes, state: str) -> None:
    framing = Framing(data, limit=LIMIT)
    states = {(True, True, False): "complete", (True, False, True): "too long", (True, False, False): "invalid"}
    assert states.get((framing.ready, framing.complete, framing.too_long), "waiting") == state


@pytest.mark.parametrize("name", ["Content-Length", "Transfer-Encoding", "Expect"])
@pytest.mark.parametrize("value", ["a" + " " * 20_000 + "b", " " * 20_000 + "5", "5" + "\t " * 10_000, " \r" * 10_000])
def test_a_head_full_of_blanks_is_read_quickly(name: str, value: str) -> None:
    """The event loop reads it, so a slow pattern delays every sender. A head of 64 kB once took a minute."""
    began = time.monotonic()
    Framing(request(headers=[(name, value)], length=False), limit=LIMIT)
    assert time.monotonic() - began < 0.5


def test_only_a_sender_that_waits_gets_100_continue() -> None:
    head = request(headers=[("expect", "100-continue"), ("content-length", "5")], length=False)
    assert Framing(head, limit=LIMIT).expects_continue
    assert not Framing(head + b"abcde", limit=LIMIT).expects_continue
    assert not Framing(head.replace(b"HTTP/1.1", b"HTTP/1.0"), limit=LIMIT).expects_continue
    assert not Framing(head.replace(b": 5", b": 9999"), limit=LIMIT).expects_continue
