"""The corpus of bad input: each case has a name, the bytes to send, and the status of the answer.

A signed delivery is genuine: if its content cannot be read, it is stored and answered like any other.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from receiver.config import Config
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import sign
from tests.support.harness import signed_store
from tests.support.raw_http import Sending, chunked, request

LIMIT = 4 << 20
OLD = "whsec_b2xkIGJ1dCBzdGlsbCBnb29kIHNlY3JldA=="
ENDED = "whsec_b2xkIGFuZCBlbmRlZCBzZWNyZXQgb2Ygb3Vycw=="
NEVER = "whsec_YSBzZWNyZXQgdGhhdCBub2JvZHkga25vd3MgaGVyZQ=="
STORES = f"""
{signed_store("hex", "hex-body")}
{signed_store("github", "github")}
{signed_store("stripe", "stripe")}
{signed_store("base64", "base64-body")}
[schemes.quiet]
extends = "hex-body"
success = 204
{signed_store("quiet", "quiet")}
[stores.rotating]
signing_secrets = [
  "{NEVER}",
  {{value = "{OLD}", not_after = 2099-01-01T00:00:00Z}},
  {{value = "{ENDED}", not_after = 2020-01-01T00:00:00Z}},
]
"""

ORDER = b'{"type":"order.created","data":{"id":1001,"total":"42.00"}}'


@dataclass(frozen=True)
class Case:
    name: str
    status: int
    sending: Sending | bytes
    result: str = ""
    """The `status` in the answer's body, where it matters: accepted or duplicate."""


class Corpus:
    """Builds the cases for the stores of a config."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._ids = 0

    def cases(self) -> list[Case]:
        groups = (
            self.signatures,
            self.times_and_ids,
            self.bodies,
            self.unsigned,
            self.framing,
            self.heads,
            self.targets,
        )
        return [case for group in (*groups, self.slow, self.routes, self.texts) for case in group()]

    # Signed deliveries

    def headers(
        self,
        body: bytes = ORDER,
        store: str = "north",
        *,
        now: float | None = None,
        secret: int = 0,
        extra: dict[str, str] | None = None,
    ) -> dict[str, str]:
        known = self._config.known_stores[store]
        self._ids += 1
        given = {**{name: f"msg_{self._ids}" for kind, name in known.scheme.signed_parts if kind == "header"}}
        given |= extra or {}
        at = time.time() if now is None else now
        signing = known.secrets[secret]
        return given | sign(known.scheme, secret=signing, headers=given, body=body, now=at, url=known.url).headers

    def signed(self, body: bytes = ORDER, store: str = "north", **how: object) -> bytes:
        return request(f"/webhooks/{store}", self.headers(body, store, **how).items(), body)  # type: ignore[arg-type]

    def resigned(self, change: Callable[[str], str], store: str = "north", body: bytes = ORDER) -> bytes:
        """A delivery whose signature header was changed after signing."""
        headers = self.headers(body, store)
        name = self._config.known_stores[store].scheme.header_names[0]
        return request(f"/webhooks/{store}", {**headers, name: change(headers[name])}.items(), body)

    def timed(self, text: bytes) -> bytes:
        """A delivery with a valid signature over this text as its timestamp."""
        key = self._config.known_stores["north"].secrets[0].key
        scheme = self._config.known_stores["hex"].scheme
        self._ids += 1
        name = f"msg_{self._ids}".encode()
        made = sign(scheme, secret=Secret(key), headers={}, body=b".".join((name, text, ORDER)), now=0)
        signature = b"v1," + _base64(bytes.fromhex(made.headers["x-signature"]))
        headers = (("webhook-id", name), ("webhook-timestamp", text), ("webhook-signature", signature))
        return request("/webhooks/north", headers, ORDER)

    def signatures(self) -> Iterator[Case]:
        headers = self.headers()
        good = headers["webhook-signature"]
        without = {name: value for name, value in headers.items() if name != "webhook-signature"}
        yield Case("signature missing", 401, request(headers=without.items(), body=ORDER))
        yield Case("signature empty", 401, self.resigned(lambda _: ""))
        yield Case("signature not ASCII", 401, self.resigned(lambda text: text[:-3] + "é\xff="))
        yield Case("signature truncated", 401, self.resigned(lambda text: text[:-6]))
        yield Case("signature 8 kB long", 401, self.resigned(lambda text: text + "A" * (8000 - len(text))))
        yield Case("signature in upper-case hex", 200, self.resigned(str.upper, "hex"), "accepted")
        yield Case(
            "signature with spaces in its hex", 401, self.resigned(lambda text: text[:8] + " " + text[8:], "hex")
        )
        yield Case(
            "signature of base64 with junk", 401, self.resigned(lambda text: text[:9] + "!" + text[9:], "base64")
        )
        yield Case("signature of url-safe base64", 401, self._url_safe())
        yield Case("signature without padding", 401, self.resigned(lambda text: text.rstrip("="), "base64"))
        yield Case("signature under sha1=", 401, self.resigned(lambda text: text.replace("sha256=", "sha1="), "github"))
        yield Case("signature under v0", 401, self.resigned(lambda text: text.replace("v1,", "v0,")))
        yield Case("signature under none", 401, self.resigned(lambda text: text.replace("v1,", "none,")))
        yield Case("signature 'none'", 401, self.resigned(lambda _: "none"))
        doubled = [*headers.items(), ("webhook-signature", good)]
        yield Case("two signature headers, joined by a comma", 401, request(headers=doubled, body=ORDER))
        yield Case("two signature headers where a list is read", 200, self._two_stripe_headers(), "accepted")
        yield Case("valid and invalid in one list", 200, self.resigned(lambda text: f"v1,AAAA {text} v2,x"), "accepted")
        yield Case("100 signatures, the last one valid", 401, self.resigned(lambda text: "v1,AAAA " * 99 + text))
        yield Case("another store's secret", 401, request("/webhooks/south", self.headers().items(), ORDER))
        yield Case("an old secret inside its window", 200, self.signed(store="rotating", secret=1), "accepted")
        yield Case("an old secret past its window", 401, self.signed(store="rotating", secret=2))
        rewritten = json.dumps(json.loads(ORDER), indent=1).encode()
        yield Case(
            "signature over re-serialised JSON", 401, request(headers=self.headers(rewritten).items(), body=ORDER)
        )

    def _url_safe(self) -> bytes:
        for number in range(100):
            body = b'{"type":"order.created","data":{"id":%d}}' % number
            text = self.headers(body, "base64")["x-signature"]
            if "+" in text or "/" in text:
                changed = text.replace("+", "-").replace("/", "_")
                return request("/webhooks/base64", {"x-signature": changed}.items(), body)
        raise AssertionError("no signature has a + or a /")

    def _two_stripe_headers(self) -> bytes:
        body = b'{"id":"evt_two","type":"product.updated","data":{"object":{"id":1}}}'
        time_part, _, good = self.headers(body, "stripe")["stripe-signature"].partition(",")
        lines = [("stripe-signature", f"{time_part},v1={'0' * 64}"), ("stripe-signature", good)]
        return request("/webhooks/stripe", lines, body)

    def times_and_ids(self) -> Iterator[Case]:
        now = int(time.time())
        yield Case("timestamp nan", 401, self.timed(b"nan"))
        yield Case("timestamp 1e400", 401, self.timed(b"1e400"))
        yield Case("timestamp inf", 401, self.timed(b"inf"))
        yield Case("timestamp negative", 401, self.timed(b"-1"))
        yield Case("timestamp with an underscore", 401, self.timed(f"{now // 1000}_{now % 1000:03}".encode()))
        arabic = "".join(chr(0x660 + int(digit)) for digit in str(now)).encode()
        yield Case("timestamp in Arabic digits", 401, self.timed(arabic))
        yield Case(
            "timestamp with a space inside", 401, self.timed(str(now)[:5].encode() + b" " + str(now)[5:].encode())
        )
        yield Case("timestamp in milliseconds for seconds", 401, self.timed(str(now * 1000).encode()))
        yield Case("timestamp an hour ahead", 401, self.signed(now=now + 3600))
        yield Case("timestamp an hour ago", 401, self.signed(now=now - 3600))
        again = self.signed(extra={"webhook-id": "msg_again"})
        yield Case("an id for the first time", 200, again, "accepted")
        yield Case("the same id again", 200, again, "duplicate")
        yield Case("a new id, the same body", 200, self.signed(extra={"webhook-id": "msg_new"}), "accepted")
        yield Case("an id with a colon", 200, self.signed(extra={"webhook-id": "a:b:c|d"}), "accepted")
        yield Case("an id with a newline", 200, self._stripe_id("evt\n1\r\nx: y"), "accepted")
        yield Case("an id of 10 kB in the body", 200, self._stripe_id("e" * 10_000), "accepted")
        yield Case("an id of 10 kB in a header", 431, self.signed(extra={"webhook-id": "m" * 10_000}))
        yield from self._ids_with_a_dot()
        yield Case("an id that is an object", 200, self._stripe_id({"a": 1}), "accepted")

    def _ids_with_a_dot(self) -> Iterator[Case]:
        """Standard Webhooks signs id.timestamp.body, so that a dot more can be cut there."""
        now, named = int(time.time()), {"webhook-id": "order.paid"}
        yield Case("an id with a dot", 200, self.signed(extra=named), "accepted")
        yield Case("the same id with a dot again", 200, self.signed(now=now - 1, extra=named), "duplicate")
        yield Case("an id with a dot, another body", 200, self.signed(ORDER + b" ", extra=named), "accepted")
        note = b'{"type":"order.created","data":{"note":"a.%d.b"}}' % now
        headers = self.headers(note, extra={"webhook-id": "msg_note"})
        yield Case("a timestamp in the body", 200, request(headers=headers.items(), body=note), "accepted")
        swallowed = f"msg_note.{headers['webhook-timestamp']}.{note.decode().partition('.1')[0]}"
        cut = headers | {"webhook-id": swallowed, "webhook-timestamp": str(now)}
        yield Case("the same, cut inside the body", 401, request(headers=cut.items(), body=b'b"}}'))
        headers = self.headers(extra={"webhook-id": f"order.{now}"})
        yield Case("a timestamp in the id", 200, request(headers=headers.items(), body=ORDER), "accepted")
        cut = headers | {"webhook-id": "order", "webhook-timestamp": str(now)}
        rest = f"{headers['webhook-timestamp']}.".encode() + ORDER
        yield Case("the same, cut inside the id", 401, request(headers=cut.items(), body=rest))
        yield Case("the id that the cut would take", 200, self.signed(extra={"webhook-id": "order"}), "accepted")

    def _stripe_id(self, name: object) -> bytes:
        body = json.dumps({"id": name, "type": "product.updated", "data": {"object": {"id": 1}}}).encode()
        return self.signed(body, "stripe")

    # Bodies, signed and unsigned

    def contents(self) -> Iterator[tuple[str, bytes]]:
        yield "empty", b""
        yield "a bare number", b"42"
        yield "nested 100,000 deep", b'{"type":"a.b","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        yield "an integer of 4,301 digits", b'{"type":"a.b","data":{"id":' + b"7" * 4301 + b"}}"
        yield "1e999", b'{"type":"a.b","data":{"id":1e999}}'
        yield "NaN", b'{"type":"a.b","data":{"id":NaN}}'
        yield "duplicate keys", b'{"type":"a.b","type":"c.d","data":{"id":1,"id":2}}'
        yield "a lone surrogate", rb'{"type":"a.b","data":{"id":"\ud800"}}'
        yield "a NUL in it", b'{"type":"a.b","data":{"id":"\\u0000"}}\x00'
        yield "UTF-16", ORDER.decode().encode("utf-16")
        yield "UTF-32", ORDER.decode().encode("utf-32")
        yield "a byte order mark", b"\xef\xbb\xbf" + ORDER
        yield "invalid UTF-8", b'{"type":"a.b","data":{"id":"\xff\xfe"}}'
        yield "300,000 keys", b'{"type":"a.b","data":{%s}}' % b",".join(b'"%d":1' % key for key in range(300_000))
        yield "trailing garbage", ORDER + b"}} trailing"
        yield "a gzip bomb", gzip.compress(b"0" * (64 << 20), 6)
        yield "a form", b"type=order.created&id=1"
        yield "binary noise", bytes(range(256)) * 8

    def bodies(self) -> Iterator[Case]:
        for name, body in self.contents():
            yield Case(f"signed body: {name}", 200, self.signed(body), "accepted")
        pad = LIMIT - len(b'{"type":"a.b","data":""}')
        exact = b'{"type":"a.b","data":"%s"}' % (b"x" * pad)
        yield Case("signed body: exactly the limit", 200, self.signed(exact), "accepted")
        yield Case("signed body: one byte more", 413, self.signed(exact + b" "))
        coded = {"content-encoding": "gzip"}
        yield Case("signed body: called gzip, but plain", 200, self.signed(extra=coded), "accepted")
        kind = {"content-type": "application/x-www-form-urlencoded"}
        yield Case("signed body: JSON called a form", 200, self.signed(extra=kind), "accepted")
        pieces = (("transfer-encoding", "chunked"), *self.headers().items())
        yield Case("signed body: chunked", 200, request(headers=pieces, length=False) + chunked(ORDER, 7), "accepted")

    def unsigned(self) -> Iterator[Case]:
        for name, body in self.contents():
            yield Case(f"unsigned body: {name}", 401, request(body=body))
        yield Case("unsigned body: longer than the limit", 413, request(body=b"x" * (LIMIT + 1)))

    # Framing and heads

    def framing(self) -> Iterator[Case]:
        coding = [("transfer-encoding", "chunked")]
        head = request(headers=coding, length=False)
        yield Case("chunked past the limit", 413, head + chunked(b"x" * (LIMIT + 70_000)))
        yield Case("chunked byte by byte", 401, head + chunked(b"x" * 5_000, 1))
        yield Case("chunked byte by byte, without an end", 413, head + b"1\r\nx\r\n" * 20_000)
        padded = b"1;%s\r\nx\r\n" % (b"x" * 1_000)
        yield Case("chunks that are mostly extensions", 413, head + padded * 200)
        yield Case("chunk that claims 2 GB, then the end", 400, Sending((head + b"7fffffff\r\nabc",), end=True))
        short = request(headers=[("content-length", "100")], length=False)
        yield Case("short body, then the end", 400, Sending((short + b"short",), end=True))
        yield Case(
            "length beyond the limit, no body", 413, request(headers=[("content-length", "99999999")], length=False)
        )
        yield Case("bad chunk size", 400, head + b"zz\r\nabc\r\n0\r\n\r\n")
        yield Case("negative chunk size", 400, head + b"-5\r\nabcde\r\n0\r\n\r\n")
        yield Case("chunk longer than it says", 400, head + b"2\r\nabcdef\r\n0\r\n\r\n")
        yield Case("truncated chunks", 400, Sending((head + b"5\r\nabc",), end=True))
        yield Case("chunks without an end", 400, Sending((head + b"3\r\nabc\r\n",), end=True))
        yield Case("endless chunk extension", 413, head + b"1;" + b"x" * 90_000)
        both = request(headers=coding, body=ORDER)
        yield Case("Content-Length and Transfer-Encoding", 400, both)
        two = [("content-length", "5"), ("content-length", "6")]
        yield Case("two lengths", 400, request(headers=two, length=False) + b"abcdef")
        yield Case("two equal lengths", 400, request(headers=[two[0], two[0]], length=False) + b"abcde")
        for text in ("-1", "+5", "5x", "0x10", "1_0", "", "9" * 30, "9" * 5_000, "0" * 5_000 + "5"):
            given = request(headers=[("content-length", text)], length=False)
            status = 413 if text.startswith("9") else 400
            yield Case(f"length {text[:12]!r}, {len(text)} digits", status, Sending((given + b"abcde",), end=True))
        blanks = "5" + " " * 60_000 + "5"
        yield Case(
            "a length with 60,000 blanks in it", 431, request(headers=[("content-length", blanks)], length=False)
        )
        yield Case("a coding with 60,000 blanks in it", 431, request(headers=[("transfer-encoding", blanks)]))
        odd = request(headers=[("transfer-encoding", "squeezed")], length=False)
        yield Case("unknown transfer coding", 501, odd + b"0\r\n\r\n")
        yield Case("transfer coding gzip alone", 400, request(headers=[("transfer-encoding", "gzip")], length=False))
        stacked = request(headers=[("transfer-encoding", "chunked, chunked")], length=False)
        again = request(headers=[*coding, *coding], length=False)
        yield Case("two transfer codings", 400, again + chunked(ORDER))
        signed = (*coding, *self.headers().items())
        zeros = request(headers=signed, length=False) + b"%020x\r\n%b\r\n0\r\n\r\n" % (len(ORDER), ORDER)
        yield Case("a chunk size with leading zeros", 200, zeros, "accepted")
        yield Case("chunked twice", 400, stacked + b"0\r\n\r\n")
        old = request(headers=coding, length=False, version="HTTP/1.0")
        yield Case("chunked in HTTP/1.0", 400, old + b"0\r\n\r\n")
        yield Case("no length at all", 401, request(length=False))

    def heads(self) -> Iterator[Case]:
        yield Case("folded header", 400, request(headers=[("x-a", "b\r\n c")]))
        yield Case("bare line feeds", 400, b"POST /webhooks/north HTTP/1.1\nHost: x\nContent-Length: 0\n\n")
        yield Case("bare line feed in the head", 400, b"POST /webhooks/north HTTP/1.1\r\nHost: x\nA: b\r\n\r\n")
        yield Case("NUL in a header", 400, request(headers=[("x-a", b"b\0c")]))
        yield Case("carriage return in a header", 400, request(headers=[("x-a", b"b\rc")]))
        yield Case("space in a header's name", 400, request(headers=[("x a", "b")]))
        yield Case("header without a colon", 400, b"POST /webhooks/north HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n")
        yield Case("underscore in a header's name", 200, self._with(("webhook_id", "other")), "accepted")
        yield Case("a header called SCRIPT_NAME", 200, self._with(("SCRIPT_NAME", "/x")), "accepted")
        schemes = (("x-forwarded-proto", "https"), ("x-forwarded-ssl", "off"))
        yield Case("contradicting scheme headers", 200, self._with(*schemes), "accepted")
        yield Case("HTTP/1.1 without Host", 400, b"POST /webhooks/north HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        yield Case("two content types", 400, request(headers=[("content-type", "a/b"), ("content-type", "a/b")]))
        yield Case("two Hosts", 400, request(headers=[("host", "other.example")]))
        yield Case("101 headers", 431, request(headers=[(f"x-{number}", "1") for number in range(99)]))
        yield Case("a header of 9 kB", 431, request(headers=[("x-a", "b" * 9000)]))
        yield Case("a head of 70 kB that never ends", 431, b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * 9000)
        yield Case("a URL of 5 kB", 414, request("/webhooks/" + "n" * 5000))
        yield Case("GET", 405, request(method="GET"))
        yield Case("PUT", 405, request(method="PUT", body=ORDER))
        yield Case("DELETE on the shared URL", 405, request("/webhooks", method="DELETE"))
        yield Case("a method in lower case", 400, request(method="post"))
        yield Case("a method of digits", 400, request(method="123"))
        yield Case("a method of 30 letters", 400, request(method="P" * 30))
        yield Case("HTTP/0.9", 400, b"GET /webhooks/north\r\n\r\n")
        yield Case("RTSP/1.0", 400, request(version="RTSP/1.0"))
        yield Case("HTTP/3.0", 400, request(version="HTTP/3.0"))
        yield Case("an HTTP/2 preface", 400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        yield Case("Expect: 100-continue", 200, self._with(("expect", "100-continue")), "accepted")
        yield Case("Expect: something unknown", 400, self._with(("expect", "something-unknown")))
        yield Case("Connection: close", 200, self._with(("connection", "close")), "accepted")
        upgrade = (("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABkAAQ"))
        yield Case("an upgrade to another protocol", 200, self._with(*upgrade), "accepted")
        again = self._with(*upgrade)
        halves = Sending((again[:40], again[40:]), pause=0.05)  # in the head
        yield Case("an upgrade to another protocol, in two pieces", 200, halves, "accepted")
        old = [*self.headers().items()]
        yield Case("HTTP/1.0", 200, request(headers=old, body=ORDER, version="HTTP/1.0"), "accepted")
        keep_alive = [*self.headers().items(), ("connection", "keep-alive")]
        yield Case(
            "HTTP/1.0 with keep-alive", 200, request(headers=keep_alive, body=ORDER, version="HTTP/1.0"), "accepted"
        )
        yield Case("a scheme that answers 204", 204, self.signed(store="quiet"))
        hello = bytes.fromhex("1603010200010001fc0303") + bytes(200)
        yield Case("TLS on the plain port", 400, hello)
        yield Case("half a head, then the end", 400, Sending((b"POST /webhooks/north HTTP/1.1\r\nHo",), end=True))
        yield Case("a control character in the URL", 400, request("/webhooks/no\x01rth"))
        yield Case("a letter that is not ASCII in the URL", 400, request("/webhooks/n\xf6rth"))

    def targets(self) -> Iterator[Case]:
        yield Case("OPTIONS *", 404, request("*", method="OPTIONS"))
        yield Case("POST *", 400, request("*"))
        yield Case("a host and port as the target", 400, request("internal.example:22"))
        yield Case("a URL with half an address", 400, request("http://[::1/webhooks/north"))
        yield Case("CONNECT", 404, request("internal.example:22", method="CONNECT"))
        yield Case("a query after the path", 200, self._at("/webhooks/north?from=shop"), "accepted")
        yield Case("a whole URL", 200, self._at("http://hooks.example.com/webhooks/north"), "accepted")

    def _with(self, *headers: tuple[str, str]) -> bytes:
        return request(headers=[*self.headers().items(), *headers], body=ORDER)

    def _at(self, path: str) -> bytes:
        return request(path, self.headers().items(), ORDER)

    def slow(self) -> Iterator[Case]:
        whole = self.signed()
        pieces = tuple(whole[at : at + 12] for at in range(0, len(whole), 12))
        yield Case("slow head", 408, Sending((b"POST /webhooks/north HTTP/1.1\r\n", *[b"a: b\r\n"] * 25), pause=0.1))
        yield Case("slow body", 408, Sending((whole[: -len(ORDER)], *[ORDER[:1]] * 25), pause=0.1))
        yield Case("in small pieces, but in time", 200, Sending(pieces, pause=0.001), "accepted")

    # Routes and texts

    def routes(self) -> Iterator[Case]:
        for path, status in (
            ("/webhooks/../north", 404),
            ("/webhooks/..", 401),
            ("/webhooks/%2e%2e%2f", 404),
            ("/webhooks/%2e%2e%2fnorth", 404),
            ("/webhooks/north%0aX-Evil:%20yes", 401),
            ("/webhooks/north%00", 401),
            ("/webhooks/*", 401),
            ("/webhooks/%ff%fe", 401),
            ("/webhooks/unknown", 401),
            ("/webhooks/NORTH", 401),
            ("/webhooks/" + "n" * 3000, 401),
            ("/webhooks/", 404),
            ("/webhooks", 401),
            ("//webhooks/north", 200),
            ("/", 404),
            ("/console", 404),
        ):
            headers = self.headers().items()
            yield Case(f"path {path[:40]}", status, request(path, headers, ORDER))
        yield Case("an unknown topic", 200, self.signed(b'{"type":"moon.landed","data":{"id":1}}'), "accepted")

    def texts(self) -> Iterator[Case]:
        for text in (
            "<script>alert(1)</script>",
            "</script><svg onload=alert(1)>",
            "\x1b[31mred\x1b[2J",
            "one\r\ntwo: three",
            "\u202eevil\u2066",
            "=cmd|'/C calc'!A0",
            "{{7*7}}${7*7}",
            "%s%n{0}{0.__class__}",
            "http://169.254.169.254/latest/meta-data/",
        ):
            body = json.dumps({"type": f"product.{text}", "data": {"id": text, "name": text}}).encode()
            yield Case(f"text {text[:24]!r}", 200, self.signed(body), "accepted")


def _base64(data: bytes) -> bytes:
    from base64 import b64encode

    return b64encode(data)
