"""Forms and pages that take long do not keep the console from others."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from selectors import EVENT_READ, DefaultSelector
from statistics import median
from typing import cast

import httpx2
import pytest

from tests.support.console import VIEWER, Browser, RunningConsole, running_console
from workers.console.application import MAX_VISITOR_BYTES
from workers.console.patient_worker import MAX_FORM_BYTES, ArrivingRequest
from workers.console.sender_turns import SenderTurns
from workers.operations.replay import ReplayRate

OUTSIDER, PROXY = "127.0.0.9", "127.0.0.8"
CONNECTIONS, SECONDS = 200, 8.0
LINE = 10_000_000
"""Bytes that the outsider sends in a second."""
LONGEST = 1.0
"""Seconds. The outsider's own requests take several, since they wait for each other."""
GOING = 600
"""Connections in a second that are reset."""
COSTLY = "%C3"
"""A character that is cut: the slowest to read for its size."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console"), receiver='trusted_proxies = ["' + PROXY + '"]') as found:
        yield found


def keep_asking(address: str, port: int, request: bytes) -> int:
    """An outsider asks again whenever it is answered, as fast as its line allows. Returns the answers."""
    asked, answers, began = 0, 0, time.monotonic()
    with DefaultSelector() as selector:
        while (now := time.monotonic()) < began + SECONDS:
            while asked - answers < CONNECTIONS and asked * len(request) <= LINE * (now - began):
                one = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
                one.sendall(request)
                selector.register(one, EVENT_READ)
                asked += 1
            for key, _ in selector.select(0.01):
                one = cast(socket.socket, key.fileobj)
                with suppress(ConnectionResetError):
                    if one.recv(65_536):
                        continue
                selector.unregister(one)
                one.close()
                answers += 1
        for key in list(selector.get_map().values()):
            cast(socket.socket, key.fileobj).close()
    return answers


def ask_and_go(address: str, port: int, request: bytes) -> int:
    """An outsider that resets each connection at once, without waiting for the answer. Returns how many it had."""
    asked, until, rate = 0, time.monotonic() + SECONDS, ReplayRate(GOING)
    while time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", port), source_address=(address, 0)) as one:
            one.sendall(request)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asked += 1
        rate.wait(1)
    return asked


def times_beside(
    address: str, request: bytes, operator: Browser, outsider: Callable[[str, int, bytes], int] = keep_asking
) -> list[float]:
    """How long pages take an operator while an outsider keeps asking."""
    port, times = int(operator.url.rpartition(":")[2]), []
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        asking = process.submit(outsider, address, port, request)
        while not asking.done():
            for path in ("/", "/events", "/login"):
                began = time.monotonic()
                assert operator.get(path).status_code == 200
                times.append(time.monotonic() - began)
        assert asking.result() > 20, "it went on all the time"
    print(f"median {median(times) * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms")
    return times


def request_of(browser: Browser, path: str, *, method: str = "GET", form: str = "") -> bytes:
    """A request with the cookies of a browser."""
    cookies = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {browser.url.removeprefix('http://')}",
        f"Origin: {browser.url}",
        f"Cookie: {cookies}",
        f"X-Forwarded-For: {browser.http.headers.get('X-Forwarded-For', '')}",
        "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {len(form)}",
    ]
    return "\r\n".join([*lines, "", form]).encode()


def form_of(browser: Browser, path: str, size: int) -> bytes:
    """A form of a page of ours with a field that is costly to read."""
    start = f"token={browser.token}&password="
    return request_of(browser, path, method="POST", form=start + COSTLY * ((size - len(start)) // len(COSTLY)))


@pytest.mark.timed
@pytest.mark.parametrize("size", [MAX_VISITOR_BYTES, MAX_FORM_BYTES])
def test_forms_of_an_outsider_do_not_keep_the_console_from_others(console: RunningConsole, size: int) -> None:
    visitor, operator = console.browser(), console.browser().log_in()
    visitor.get("/login")
    assert max(times_beside(OUTSIDER, form_of(visitor, "/login", size), operator)) < LONGEST


@pytest.mark.timed
def test_nor_do_costly_addresses_and_cookies(console: RunningConsole) -> None:
    operator, query = console.browser().log_in(), "&".join(f"{number:x}={COSTLY}" for number in range(400))
    lines = [
        f"GET /login?{query} HTTP/1.1",
        f"Host: {console.url.removeprefix('http://')}",
        *["Cookie: " + "a=b;" * 1000] * 3,
    ]
    request = "\r\n".join([*lines, "", ""]).encode()
    assert max(times_beside(OUTSIDER, request, operator)) < LONGEST


@pytest.mark.timed
def test_nor_do_requests_that_are_given_up(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    request = request_of(console.browser(), "/login")
    assert max(times_beside(OUTSIDER, request, operator, ask_and_go)) < LONGEST


@pytest.mark.timed
def test_nor_do_those_of_an_outsider_behind_the_same_proxy(console: RunningConsole) -> None:
    visitor = console.browser(address=PROXY, forwarded_for="203.0.113.9")
    operator = console.browser(address=PROXY, forwarded_for="203.0.113.7").log_in()
    visitor.get("/login")
    assert max(times_beside(PROXY, form_of(visitor, "/login", MAX_VISITOR_BYTES), operator)) < LONGEST


@pytest.mark.timed
def test_nor_do_the_costly_pages_of_a_viewer(console: RunningConsole) -> None:
    order = console.broken_order(lines=[{"sku": f"sku-{number}", "price": "1.00"} for number in range(8_000)])
    event = console.system.accept(data=order)
    viewer, operator = console.browser().log_in(VIEWER), console.browser().log_in()
    request = request_of(viewer, f"/events/{event}")
    assert max(times_beside(OUTSIDER, request, operator)) < LONGEST


def test_a_form_without_a_login_is_small(console: RunningConsole) -> None:
    visitor = console.browser()
    visitor.get("/login")
    assert visitor.post("/login", password="x" * MAX_VISITOR_BYTES).status_code == 413
    assert visitor.post("/login", password="x" * (MAX_VISITOR_BYTES // 2)).status_code == 403
    assert visitor.post("/stores/north/pause", token="0", reason="x" * MAX_VISITOR_BYTES).status_code == 403, "not read"


def test_without_a_login_an_address_is_short(console: RunningConsole) -> None:
    for path in ("/login", "/events"):
        answer = console.browser().http.get(f"{path}?next={'x' * MAX_VISITOR_BYTES}")
        assert (answer.status_code, "too long for a visitor" in answer.text) == (414, True)
    assert console.browser().log_in().http.get(f"/events?find={'x' * MAX_VISITOR_BYTES}").status_code != 414


def test_the_cookie_is_found_among_others(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    (name, value) = next(iter(operator.http.cookies.items()))
    for cookies in (f"a=b; {name}={value}", f"{name}={value};c=d", f'x{name}=0; a="{name}=1"; {name}={value}'):
        answer = httpx2.get(f"{console.url}/events", headers={"Cookie": cookies})
        assert answer.status_code == 200, cookies
    assert httpx2.get(f"{console.url}/events", headers={"Cookie": f"x{name}={value}"}).status_code == 303


def test_a_form_in_chunks_is_refused(console: RunningConsole) -> None:
    visitor = console.browser()
    answer = visitor.http.post("/login", content=iter([b"token=0"]), headers={"Origin": console.url})
    assert (answer.status_code, answer.text) == (411, "A form needs a Content-Length.\n")


def test_what_proxies_name_is_read_from_the_head_only() -> None:
    request, body = ArrivingRequest(), b"\r\nX-Forwarded-For: 203.0.113.3\r\n"
    head = b"POST / HTTP/1.1\r\nx-forwarded-for:203.0.113.1\r\nX-Forwarded-For: 203.0.113.2, 203.0.113.4\r\n"
    assert request.add(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert request.forwarded_for == "203.0.113.1, 203.0.113.2, 203.0.113.4"


def test_senders_take_turns_and_none_has_all_threads() -> None:
    turns: SenderTurns[str] = SenderTurns(6, of_one=4, beside_others=2)
    for request in ("a1", "a2", "a3", "a4", "a5", "a6"):
        turns.add("a", request)
    assert [turns.begin() for _ in range(5)] == ["a1", "a2", "a3", "a4", None]
    for request in ("b1", "b2", "b3", "c1"):
        turns.add(request[0], request)
    assert [turns.begin() for _ in range(3)] == ["b1", "c1", None], "all threads are busy"
    for ended in ("a1", "a2"):
        turns.end(ended)
    assert [turns.begin(), turns.begin()] == ["b2", None], "a and b have two beside c"
    turns.end("a3")
    assert [turns.begin(), turns.begin()] == ["a5", None]
    turns.add("d", "d1")
    turns.give_up("d", "d1")
    for ended in ("c1", "b1"):
        assert turns.end(ended) == ended[0]
    turns.end("b2")
    assert [turns.begin(), turns.begin()] == ["b3", None], "a has two beside b"
    turns.end("b3")
    assert [turns.begin(), turns.begin()] == ["a6", None]
