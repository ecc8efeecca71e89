"""Senders that are slow, or never close, do not keep the console from an operator."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.console import RunningConsole, running_console
from workers.console.patient_worker import MAX_FORM_BYTES, MAX_HEAD, ArrivingRequest

MANY = 200
SECONDS = 5.0
"""The pages of a console took until the slow senders closed: minutes, if they wanted."""
CHUNKED = b"POST /login HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nTransfer-Encoding: chunked\r\n"
HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as found:
        yield found


def address_of(console: RunningConsole) -> tuple[str, int]:
    return "127.0.0.1", int(console.url.rpartition(":")[2])


@contextmanager
def senders(console: RunningConsole, data: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        address = address_of(console)
        found = [stack.enter_context(socket.create_connection(address, SECONDS)) for _ in range(MANY)]
        for one in found:
            one.sendall(data.replace(b"HOST", f"{address[0]}:{address[1]}".encode()))
        yield found


@pytest.mark.full
@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD,
        HEAD + b"\r\npass",
        b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        HEAD + b"X: " + b"x" * (MAX_HEAD + 1),
        CHUNKED + b"X: 0\r\n\r\n",
        CHUNKED + b"\r\n5\r\n0\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Length: 0000000000009\r\n\r\n",
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "whole, and never closes",
        "a head without end",
        "a head that looks like the last chunk",
        "a chunk that looks like the last one",
        "a length with many digits",
    ],
)
def test_slow_senders_do_not_keep_the_console_from_others(console: RunningConsole, data: bytes) -> None:
    with senders(console, data):
        began = time.monotonic()
        assert console.browser().log_in()
        assert time.monotonic() - began < SECONDS


@pytest.mark.full
def test_a_sender_whose_request_takes_too_long_is_closed(console: RunningConsole) -> None:
    with socket.create_connection(address_of(console), 60) as slow:
        slow.sendall(HEAD)
        assert slow.recv(1) == b""


@pytest.mark.full
def test_a_form_is_read_in_any_pieces(console: RunningConsole) -> None:
    for pieces in (
        [HEAD + b"\r\n12345"],
        [HEAD, b"\r\n", b"123", b"45"],
        [bytes([one]) for one in HEAD + b"\r\n12345"],
    ):
        with socket.create_connection(address_of(console), 60) as browser:
            for piece in pieces:
                browser.sendall(piece)
            assert browser.makefile("rb").readline() == b"HTTP/1.1 400 Bad Request\r\n", "of an unknown Host"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\n", b"\r", b"\n"],
        [HEAD + b"\r\n1234", b"5"],
        [HEAD + b"\r\n", b"12345"],
        [b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"],
        [b"POST / HTTP/1.1\r\nContent-Length: 00000000000002\r\n\r\n1", b"2"],
        [b"x" * MAX_HEAD, b"x"],
        [b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_FORM_BYTES + 1)],
        [b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"],
    ],
)
def test_a_request_is_whole_once_its_answer_needs_no_more_of_it(pieces: list[bytes]) -> None:
    request = ArrivingRequest()
    assert [request.add(piece) for piece in pieces] == [*[False] * (len(pieces) - 1), True]
