"""Request reader: the same bytes give the same requests however they are cut, and what gunicorn refuses is refused."""

from __future__ import annotations

import itertools
import random
import time
import weakref
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.message import Request as GunicornRequest
from gunicorn.http.unreader import IterUnreader
from hypothesis import example, given
from hypothesis import strategies as st

from receiver.server.chunked_body import MAX_CHUNKS, MAX_OVERHEAD, PIECE_BYTES, STEP_BYTES
from receiver.server.request_reader import MAX_FIELD, MAX_FIELDS, MAX_HEAD, MAX_LINE, HttpRequest, RequestReader
from tests.support.raw_http import chunked, request

LIMIT = 50_000
BODY = b"hello"
CODED = [("Transfer-Encoding", "chunked")]
ORDINARY = [("Host", "hooks.example.com"), ("Webhook-Id", "msg_1"), ("Content-Length", str(len(BODY)))]

Outcome = tuple[list[HttpRequest], HTTPStatus | str]


def read(pieces: list[bytes], limit: int = LIMIT) -> Outcome:
    """The requests in the pieces, and how it ends: the status of a refusal, or what is waited for."""
    reader, requests, unread = RequestReader(limit), [], b""
    for data in pieces:
        unread += data
        while unread and not reader.fault and (used := reader.read(unread)):
            unread = unread[used:]
            if reader.request and not reader.fault:
                requests.append(reader.request)
                reader.request = None
                if not requests[-1].keep_alive:
                    return requests, "closes"
    return requests, reader.fault or ("more" if reader.in_body or unread else "another")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(marks) if end > begin]


def coded(body: bytes, *more: tuple[str, str]) -> bytes:
    return request(headers=[*CODED, *more], length=False) + body


SAMPLES: dict[str, bytes] = {
    "two requests": request(body=BODY) + request("/healthz", method="GET", length=False),
    "chunks, then a request": coded(chunked(BODY * 50, 7)) + request(body=BODY),
    "chunks with blank lines": coded(chunked(b"\r\n\r\n\n\r\n\r" * 20, 3)) + request(body=BODY),
    "an extension": coded(b"5;a=b\r\nhello\r\n0\r\n\r\n") + request(body=BODY),
    "an extension without a name": coded(b"5;=\r\nhello\r\n0\r\n\r\n") + request(body=BODY),
    "semicolons that are no extensions": coded(b"5\r\n;;;;;\r\n0\r\nX-A: ;\r\n\r\n") + request(body=BODY),
    "trailers": coded(b"5\r\nhello\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n") + request(body=BODY),
    "a length with blanks": request(headers=[("content-length", " 5 \t")], length=False) + BODY + request(),
    "an empty line before": b"\r\n" + request(body=BODY) + b"\r\n" + request(body=BODY),
    "two empty lines before": b"\r\n\r\n" + request(body=BODY),
    "one-byte chunks": coded(chunked(b"x" * 900, 1)),
    "too many chunks": coded(b"1\r\nx\r\n" * (MAX_CHUNKS + 1)),
    "chunks past the limit": coded(chunked(b"x" * (LIMIT + 2 * PIECE_BYTES), 999)),
    "past the limit, then a bad chunk": coded(chunked(b"x" * (LIMIT + 900), 999)[:-5] + b"zz\r\n\r\n"),
    "endless extension": coded(b"1;" + b"x" * (MAX_OVERHEAD + 2 * PIECE_BYTES)),
    "extensions, then a bad chunk": coded((b"1;%b\r\nx\r\n" % (b"x" * 990)) * 66 + b"zz\r\n\r\n"),
    "endless trailers": coded(b"0\r\n" + b"X-A: b\r\n" * 12_000),
    "Host in the trailers": coded(b"5\r\nhello\r\n0\r\nHost: b\r\n\r\n") + request(),
    "a bad chunk size": coded(b"5\r\nhello\r\nzz\r\n\r\n"),
    "a chunk longer than it says": coded(b"2\r\nabcdef\r\n0\r\n\r\n"),
    "two codings": request(headers=[*CODED, *CODED], length=False) + chunked(BODY),
    "leading zeros in a chunk size": coded(b"0" * 20 + b"5\r\nhello\r\n0\r\n\r\n"),
    "the method 123": request(method="123", body=BODY),
    "bare line feeds": b"POST /a HTTP/1.1\nHost: x\nContent-Length: 5\n\nhello",
    "a bare line feed in the head": b"POST /a HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a long URL": request("/" + "x" * MAX_LINE),
    "a long URL with a line feed": b"GET /" + b"x" * (MAX_LINE + 1) + b"\nHost: a\r\n\r\n",
    "a line feed in a long URL": b"GET /" + b"x" * 3000 + b"\n" + b"x" * MAX_LINE,
    "the longest URL": request("/" + "x" * (MAX_LINE - len("POST / HTTP/1.1"))),
    "the longest header": request(headers=[("a", "x" * (MAX_FIELD - 5))]),
    "a longer header": request(headers=[("a", "x" * (MAX_FIELD - 4))]),
    "as many headers as allowed": request(headers=[("a", "b")] * (MAX_FIELDS - 2)),
    "one header more": request(headers=[("a", "b")] * (MAX_FIELDS - 1)),
    "a head that never ends": b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * (MAX_HEAD // 8 + 100),
    "a long head with a late line feed": b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * (MAX_HEAD // 8) + b"\n",
    "an upgrade": request(headers=[("Connection", "Upgrade"), ("Upgrade", "h2c")], body=BODY) + request(),
    "CONNECT": request("a:1", method="CONNECT", length=False) + request(),
    "close": request(headers=[("connection", "keep-alive, close")], body=BODY) + request(),
    "a body over the limit": request(headers=[("content-length", str(LIMIT + 1))], length=False) + b"x" * 9,
    "TLS": b"\x16\x03\x01" + bytes(200),
    "half a head": b"POST /webhooks/north HTTP/1.1\r\nHo",
    "half a body": request(body=BODY)[:-1],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_way_to_cut_a_sample_gives_the_same_outcome(name: str) -> None:
    data = SAMPLES[name]
    whole = read([data])
    assert read([data[at : at + 1] for at in range(len(data))] if len(data) < 20_000 else cut(data, [3])) == whole
    chosen = random.Random(name)
    for _ in range(60):
        places = [chosen.randrange(len(data) + 1) for _ in range(chosen.choice((1, 2, 5, 40)))]
        assert read(cut(data, places)) == whole, places


def mutated(chosen: random.Random) -> bytes:
    """Two samples, one after the other, with up to three bytes changed, removed or doubled."""
    short = [data for data in SAMPLES.values() if len(data) < 3_000]
    data = bytearray(chosen.choice(short) + chosen.choice(short))
    for _ in range(chosen.randrange(4)):
        at = chosen.randrange(len(data))
        change = chosen.randrange(3)
        if change == 0:
            data[at] = chosen.choice(b"\r\n:;, 0159afAZ_\0\x7f\xff")
        elif change == 1:
            del data[at : at + chosen.choice((1, 2, 9))]
        else:
            data[at:at] = data[at : at + chosen.choice((1, 2, 30))]
    return bytes(data)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_seeded_cuts_of_mutated_requests_give_the_same_outcome(count: int) -> None:
    chosen = random.Random(f"cuts {count}")
    ends = set()
    for _ in range(count):
        data = mutated(chosen)
        whole = read([data])
        ends.add(whole[1])
        places = [chosen.randrange(len(data) + 1) for _ in range(chosen.choice((1, 2, 4, 30)))]
        assert read(cut(data, places)) == whole, (data, places)
    assert {HTTPStatus.BAD_REQUEST, "more", "another", "closes"} <= ends


def outcome(name: str) -> Any:
    requests, end = read([SAMPLES[name]])
    return [one.body for one in requests], end


def test_a_request_that_was_read_is_not_kept() -> None:
    """The content of the last chunked body stayed, uncounted, for as long as its connection: a gigabyte of them."""
    reader, sent = RequestReader(LIMIT), coded(chunked(b"x" * 40_000, 10_000))
    used = reader.read(sent)
    assert reader.held_bytes >= used > 50, "the head counts"
    content = weakref.ref(reader._chunks) if reader._chunks else None
    while not reader.request:
        used += reader.read(sent[used:])
    reader.request = None
    assert content
    assert content() is None
    assert (reader.held_bytes, reader._headers, reader._fields) == (0, {}, [])


def test_a_head_of_too_many_fields_is_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 kB of them took 30 ms to parse and to join. Hundreds of senders kept all others waiting for 15 s."""
    parsed: list[bytes] = []
    monkeypatch.setattr(RequestReader, "on_header", lambda _, name, __: parsed.append(name))
    line = b"POST /webhooks/north HTTP/1.1\r\nHost: a\r\n"
    for fields in (b"a:\r\n" * 16_000, b"a:\r\n" * MAX_FIELDS, b"a: %b\r\n" % (b"x" * MAX_FIELD)):
        assert read([line + fields + b"\r\n"]) == ([], HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    assert parsed == []


def test_repeated_fields_are_joined_in_their_order() -> None:
    (one,), _ = read([request(headers=[("x-a", "1"), ("x-b", "2"), ("X-A", "3 "), ("x-a", "")])])
    assert (one.headers["x-a"], one.headers["x-b"]) == ("1,3,", "2")


@pytest.mark.parametrize("body", [b"9c40\r\n" + b"\r\n" * 20_000, b"1\r\nx\r\n" * 9_000])
def test_a_step_through_a_chunked_body_of_blank_lines_or_bytes_is_short(body: bytes) -> None:
    reader, sent = RequestReader(LIMIT), coded(body)
    used = reader.read(sent)
    for _ in range(20):
        size = reader.read(sent[used : used + PIECE_BYTES])
        assert 0 < size <= STEP_BYTES + 4
        used += size


def test_large_chunks_are_read_in_few_steps() -> None:
    reader, sent, steps = RequestReader(1 << 20), coded(chunked(b"x" * 900_000, 4_000)), 0
    while not reader.request:
        sent = sent[reader.read(sent) :]
        steps += 1
    assert steps < 2 + 1.2 * 900_000 / PIECE_BYTES


def test_what_becomes_of_the_samples() -> None:
    assert outcome("two requests") == ([BODY, b""], "another")
    assert outcome("chunks, then a request") == ([BODY * 50, BODY], "another")
    assert outcome("chunks with blank lines") == ([b"\r\n\r\n\n\r\n\r" * 20, BODY], "another")
    assert outcome("semicolons that are no extensions") == ([b";;;;;", BODY], "another")
    assert outcome("trailers") == ([BODY, BODY], "another")
    assert outcome("two empty lines before") == ([BODY], "another")
    assert outcome("an empty line before") == ([BODY, BODY], "another")
    assert outcome("one-byte chunks") == ([b"x" * 900], "another")
    assert outcome("an upgrade") == ([BODY, b""], "another")
    assert outcome("close") == ([BODY], "closes")
    assert outcome("CONNECT") == ([b""], "closes")
    assert outcome("leading zeros in a chunk size") == ([BODY], "another")
    assert outcome("half a body") == ([], "more")
    for name, status in {
        "an extension": 400,
        "an extension without a name": 400,
        "too many chunks": 413,
        "chunks past the limit": 413,
        "endless extension": 413,
        "endless trailers": 413,
        "Host in the trailers": 400,
        "two codings": 400,
        "the method 123": 400,
        "a long URL": 414,
        "a long URL with a line feed": 414,
        "a longer header": 431,
        "one header more": 431,
        "a head that never ends": 431,
        "a body over the limit": 413,
        "TLS": 400,
    }.items():
        assert outcome(name) == ([], status), name
    for name in ("the longest URL", "the longest header", "as many headers as allowed"):
        assert outcome(name) == ([b""], "another"), name


@pytest.mark.parametrize("value", ["a" + " " * 20_000 + "b", " " * 20_000 + "5", "5" + "\t " * 10_000, " \r" * 10_000])
@pytest.mark.parametrize("name", ["Content-Length", "Transfer-Encoding", "Expect"])
def test_a_head_full_of_blanks_is_read_quickly(name: str, value: str) -> None:
    """The event loop reads it, so a slow pattern delays every sender. A head of 64 kB once took a minute."""
    began = time.thread_time()
    read([request(headers=[(name, value)], length=False)])
    assert time.thread_time() - began < 1


@pytest.mark.timed
@pytest.mark.parametrize("content", [chunked(b"x" * 9_000, 1), chunked(b"\r\n\r\n" * 9_000, 4_000)])
def test_a_costly_chunked_body_is_read_in_short_steps(content: bytes) -> None:
    """13,000 chunks of one byte once took 80 ms in one step."""
    data, took = coded(content), []
    reader = RequestReader(LIMIT)
    while not reader.request:
        began = time.thread_time()
        data = data[reader.read(data) :]
        took.append(time.thread_time() - began)
    print(f"{len(took)} steps, the slowest {max(took) * 1000:.2f} ms of CPU, {sum(took) * 1000:.1f} ms in all")
    assert sorted(took)[-2] < 0.015  # the machine may be busy once


def test_only_a_sender_that_waits_gets_100_continue() -> None:
    head = request(headers=[("expect", "100-continue"), ("content-length", "5")], length=False)
    for data, expects in {
        head: True,
        head + BODY: False,
        head.replace(b"HTTP/1.1", b"HTTP/1.0"): False,
        head.replace(b": 5", b": 99999"): False,
    }.items():
        reader = RequestReader(LIMIT)
        reader.read(data)
        assert (reader.expects_continue and not reader.request and not reader.fault) is expects


# gunicorn's parser


def parser_settings() -> SimpleNamespace:
    """gunicorn's settings with the limits of the request rules, and without forwarding headers."""
    config = Config()
    for name, value in {
        "limit_request_line": MAX_LINE,
        "limit_request_fields": MAX_FIELDS,
        "limit_request_field_size": MAX_FIELD,
        "forwarder_headers": "",
        "secure_scheme_headers": {},
    }.items():
        config.set(name, value)
    plain = {name: setting.get() for name, setting in config.settings.items()}
    return SimpleNamespace(**plain, is_ssl=False, forwarded_allow_networks=config.forwarded_allow_networks)


SETTINGS = parser_settings()


def by_gunicorn(data: bytes) -> HttpRequest | None:
    try:
        found: Any = GunicornRequest(SETTINGS, IterUnreader(iter([data])), ("127.0.0.1", 1))
        body = found.body.read()
    except (ParseException, NoMoreData, StopIteration):
        return None
    headers: dict[str, str] = {}
    for upper, value in found.headers:
        name = upper.lower()
        if name != "content-length":
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    keep_alive = not found.should_close()
    return HttpRequest(found.method, found.uri, found.version[1], headers, body, keep_alive)


def assert_gunicorn_agrees(data: bytes) -> None:
    """What is accepted, gunicorn accepts and reads alike. Some of what it accepts is refused here."""
    requests, _ = read([data])
    if not requests:
        return
    first, theirs = requests[0], by_gunicorn(data.lstrip(b"\r\n"))  # empty lines before a request are ignored
    assert theirs is not None
    headers = theirs.headers
    if "," not in headers.get("connection", ""):  # a list of options, which gunicorn does not read
        assert first.keep_alive == theirs.keep_alive
    length = len(first.body)
    body = theirs.body if "transfer-encoding" in headers else theirs.body[:length]
    assert first._replace(keep_alive=True) == theirs._replace(keep_alive=True, body=body)


def made(fields: list[tuple[str, str]], line: str = "POST /webhooks/north HTTP/1.1") -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{line}\r\n{head}\r\n".encode("latin-1") + BODY


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
        "Content-Type",
        "Transfer-Encoding",
        "Expect",
        "TE",
        "Upgrade",
    ]
)
words = st.sampled_from(
    ["keep-alive", "close", "upgrade", "chunked", "5", "05", "+5", "5 ", "identity", " a ", "a b", "", "100-continue"]
)
values = st.builds(str.__add__, words | st.text("az-", max_size=9), odd)
fields = st.lists(st.tuples(st.builds(str.__add__, names, odd), values))
lines = st.one_of(
    st.just("POST /webhooks/north HTTP/1.1"),
    st.builds(
        "{} {}{} {}".format,
        st.sampled_from(["POST", "post", "POSTX", "GET", "123"]),
        st.sampled_from(["/webhooks", "/webhooks/north", "/webhooks/", "*", "http://a/webhooks"]),
        odd | st.sampled_from(["?", "#a", "%2e", "/../x", "/north"]),
        st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1 ", "http/1.1", "RTSP/1.0", "HTTP/1.2"]),
    ),
)


@given(extra=fields, line=lines, at=st.integers(0, 3))
@example(extra=[("X-One", " a ")], line="POST /webhooks/north HTTP/1.1", at=0)
def test_gunicorn_agrees_on_generated_heads(extra: list[tuple[str, str]], line: str, at: int) -> None:
    assert_gunicorn_agrees(made([*ORDINARY[:at], *extra, *ORDINARY[at:]], line))


@given(changes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3))
def test_gunicorn_agrees_on_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(made(ORDINARY))
    for at, byte in changes:
        data[at % (len(data) - len(BODY))] = byte
    assert_gunicorn_agrees(bytes(data))


@given(seed=st.integers(0, 1 << 30))
def test_gunicorn_agrees_on_mutated_requests(seed: int) -> None:
    assert_gunicorn_agrees(mutated(random.Random(seed)))


@pytest.mark.parametrize("name", ["?hmac", "?", "a?b"])
def test_no_header_can_have_the_name_of_a_query_field(name: str) -> None:
    """A query field is handled as a header named `?NAME`: a sender must not be able to add one as a header."""
    reader = RequestReader(1000)
    reader.read(f"POST /webhooks/shop HTTP/1.1\r\nHost: a\r\n{name}: 1\r\nContent-Length: 0\r\n\r\n".encode())
    assert reader.fault == HTTPStatus.BAD_REQUEST
    assert reader.request is None
