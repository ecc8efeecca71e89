"""Request head: what llhttp reads, gunicorn's parser reads alike; all other requests are left to gunicorn's parser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.config import load
from receiver.server.loop_worker import lower_case_headers
from receiver.server.request_head import MAX_FIELDS, read_head
from receiver.server.request_parser import PlainRequest
from receiver.server.web import settings
from tests.support.programs import ROOT

BODY = b"hello"
ORDINARY = [("Host", "hooks.example.com"), ("Webhook-Id", "msg_1"), ("Content-Length", str(len(BODY)))]


class Read(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    length: str
    minor: int
    closes: bool


def parser_settings() -> SimpleNamespace:
    """The settings that the web process gives to gunicorn's parser."""
    config = Config()
    for name, value in settings(load(ROOT / "config.example.toml", {})).items():
        config.set(name, value)
    plain = {name: setting.get() for name, setting in config.settings.items()}
    return SimpleNamespace(**plain, is_ssl=False, forwarded_allow_networks=config.forwarded_allow_networks)


SETTINGS = parser_settings()


def by_gunicorn(data: bytes) -> Read | None:
    try:
        found: Any = PlainRequest(SETTINGS, IterUnreader(iter([data])), ("127.0.0.1", 1))
    except (ParseException, StopIteration):
        return None
    headers, length = lower_case_headers(found)
    return Read(found.method, found.path, headers, length, found.version[1], found.should_close())


def made(fields: list[tuple[str, str]], line: str = "POST /webhooks/north HTTP/1.1") -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{line}\r\n{head}\r\n".encode("latin-1") + BODY


def assert_both_parsers_agree(data: bytes) -> None:
    """Checks only requests that `read_head` reads; it may leave any request to gunicorn."""
    head = read_head(data)
    if head is None:
        return
    expected = by_gunicorn(data)
    path = f"/webhooks/{head.store}" if head.store else "/webhooks"
    assert expected == Read("POST", path, head.headers, str(head.length), minor=1, closes=False)
    assert list(expected.headers) == list(head.headers)
    assert data.endswith(b"\r\n\r\n" + data[len(data) - head.length :])


@pytest.mark.parametrize("target", ["/webhooks", "/webhooks/north", "/webhooks/a_b-c"])
def test_an_ordinary_delivery_is_read(target: str) -> None:
    data = made([*ORDINARY, ("content-type", "application/json"), ("X-Empty", "")], f"POST {target} HTTP/1.1")
    head = read_head(data)
    assert head
    assert head.store == target.removeprefix("/webhooks").removeprefix("/")
    assert head.headers == {
        "host": "hooks.example.com",
        "webhook-id": "msg_1",
        "x-empty": "",
        "content-type": "application/json",
    }
    assert_both_parsers_agree(data)


@pytest.mark.parametrize("value", ["keep-alive", "Keep-Alive", " keep-alive "])
def test_connection_keep_alive_is_read(value: str) -> None:
    data = made([*ORDINARY, ("Connection", value)])
    assert read_head(data)
    assert_both_parsers_agree(data)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (ORDINARY[:2], "POST /webhooks/north HTTP/1.1"),
        (ORDINARY, "POST /webhooks/north HTTP/1.0"),
        (ORDINARY, "POST /webhooks/north?a=b HTTP/1.1"),
        (ORDINARY, "POST http://hooks.example.com/webhooks/north HTTP/1.1"),
        (ORDINARY, "POST /webhooks/North HTTP/1.1"),
        (ORDINARY, "POST /webhooks//north HTTP/1.1"),
        (ORDINARY, "PUT /webhooks/north HTTP/1.1"),
        (ORDINARY, "GET /healthz HTTP/1.1"),
        ([*ORDINARY, ("Connection", "close")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Connection", "keep-alive, close")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Connection", "webhook-id")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Connection", "Upgrade"), ("Upgrade", "h2c")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Transfer-Encoding", "chunked")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Expect", "100-continue")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("Content-Length", "5")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("host", "other.example.com")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X_Under", "score")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Latin", "caf\xe9")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Tab", "a\tb")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Fold", "a\r\n b")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Line-Feed", "a\nX-Other: b")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Space ", "a")], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, ("X-Long", "a" * 5000)], "POST /webhooks/north HTTP/1.1"),
        ([*ORDINARY, *((f"X-{n}", "a") for n in range(MAX_FIELDS))], "POST /webhooks/north HTTP/1.1"),
    ],
)
def test_unusual_requests_are_left_to_gunicorn(fields: list[tuple[str, str]], line: str) -> None:
    assert read_head(made(fields, line)) is None


def test_a_length_that_differs_from_the_body_is_left_to_gunicorn() -> None:
    assert read_head(made(ORDINARY)) is not None
    assert read_head(made(ORDINARY) + b"more") is None
    assert read_head(made(ORDINARY)[:-1]) is None


odd = st.sampled_from(["", "", "", " ", "\t", "\r\n", "\n", "\0", ":", "_", ",", "\xe9", "\x7f", "\r\n "])
names = st.sampled_from(
    [
        "Host",
        "X-One",
        "x-one",
        "X_One",
        "Cookie",
        "Connection",
        "Content-Length",
        "Transfer-Encoding",
        "Expect",
        "TE",
        "Upgrade",
    ]
)
words = st.sampled_from(
    ["keep-alive", "close", "upgrade", "chunked", "5", "05", "+5", "5 ", "identity", " a ", "a b", ""]
)
values = st.builds(str.__add__, words | st.text("az-", max_size=9), odd)
fields = st.lists(st.tuples(st.builds(str.__add__, names, odd), values))
lines = st.one_of(
    st.just("POST /webhooks/north HTTP/1.1"),
    st.builds(
        "{} {}{} {}".format,
        st.sampled_from(["POST", "post", "POSTX", "GET"]),
        st.sampled_from(["/webhooks", "/webhooks/north", "/webhooks/", "*", "http://a/webhooks"]),
        odd | st.sampled_from(["?", "#a", "%2e", "/../x", "/north"]),
        st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1 ", "http/1.1"]),
    ),
)


@given(extra=fields, line=lines, at=st.integers(0, 3))
@example(extra=[("X-One", " a ")], line="POST /webhooks/north HTTP/1.1", at=0)
def test_both_parsers_agree_on_generated_heads(extra: list[tuple[str, str]], line: str, at: int) -> None:
    assert_both_parsers_agree(made([*ORDINARY[:at], *extra, *ORDINARY[at:]], line))


@given(changes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3))
def test_both_parsers_agree_on_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(made(ORDINARY))
    for at, byte in changes:
        data[at % (len(data) - len(BODY))] = byte
    assert_both_parsers_agree(bytes(data))
