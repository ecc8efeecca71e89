"""Detection: captured deliveries and their secret give the scheme, or a list of what was tried."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest

from receiver.config import load
from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import BASES, Detection, detect, to_toml
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.intake import receive
from receiver.contract.signing.signatures import PRESETS, Scheme, Secret
from receiver.contract.signing.sources import put
from receiver.contract.stores import Store
from tests.support.deliveries import BODY, NOW, URL, WHOLE_BODY, send

ORDINARY = {
    "host": "hooks.example.com",
    "user-agent": "Acme/1.0",
    "accept": "*/*",
    "content-type": "application/json",
    "content-length": "117",
    "x-forwarded-for": "203.0.113.9",
}
SECRETS = {
    "squarespace": "c0ffee00112233445566778899aabbcc",
    "standard-webhooks": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "svix": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


def mac(text: str, content: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.digest(text.encode(), content, algorithm)


def timed(headers: dict[str, str], body: bytes, secret: str, url: str = "") -> Detection:
    return detected([(headers, body)], secret, url)


def detected(deliveries: Sequence[tuple[dict[str, str], bytes]], secret: str, url: str = "") -> Detection:
    start = time.process_time()
    found = detect([Capture({**ORDINARY, **headers}, body) for headers, body in deliveries], secret, url=url)
    assert time.process_time() - start < 20  # its work is limited: 2 to 6 s, by the machine
    return found


def loaded(found: Detection, secret: str, tmp_path: Path) -> Store:
    """Load a config with the printed TOML and return its store."""
    path = tmp_path / "config.toml"
    store = f'[stores.north]\nscheme = "{found.preset or "acme"}"\nurl = "{URL}"\nsigning_secrets = ["{secret}"]\n'
    path.write_text(found.toml("acme") + store)
    return load(path, {}).known_stores["north"]


@pytest.mark.parametrize("name", [name for name in WHOLE_BODY if name not in BASES])
def test_a_delivery_of_each_preset_is_detected(name: str, tmp_path: Path) -> None:
    """By its topic, too: many stores copy the headers of a known one."""
    scheme, text = PRESETS[name], SECRETS.get(name, "a secret as the store shows it")
    kind, place = scheme.event.parts["topic"][0]
    body = orjson.loads(BODY)
    if kind == "json":
        body.pop(place.split(".")[0], None)
        put(body, place, "order.created")
    extra = {place: "order.created"} if kind == "header" else {}
    sent = send(scheme, orjson.dumps(body), secret=Secret(scheme.key_of(text)), **extra)
    found = timed(sent.headers, sent.body, text, url=URL)
    assert found.preset == name
    assert found.readings[0].topic == "order.created"
    assert receive(sent.headers, sent.body, store=loaded(found, text, tmp_path), now=NOW)


@pytest.mark.parametrize("name", BASES)
def test_a_base_to_extend_gets_its_sources(name: str) -> None:
    sent = send(PRESETS[name], x_acme_delivery="d-1")
    found = timed(sent.headers, sent.body, sent.secret.key.decode())
    assert found.preset == ""
    assert found.scheme is not None
    assert found.scheme.event.id == ("header:x-acme-delivery",)


SECRET = "k3y-0f_acme"
INVENTED: dict[str, tuple[dict[str, str], str]] = {
    "milliseconds, a bar and base64": (
        {
            "x-acme-time": "1700000000000",
            "x-acme-sign": b64encode(mac(SECRET, b"1700000000000|" + BODY)).decode(),
        },
        SECRET,
    ),
    "keys in a list, body before time": (
        {"x-acme-auth": "ts=1700000000; sig=" + mac(SECRET, BODY + b".1700000000").hex()},
        SECRET,
    ),
    "sha512 over url and body": (
        {"acme-hmac": mac(SECRET, URL.encode() + b"\n" + BODY, "sha512").hex()},
        SECRET,
    ),
    "id, time and body by colons, version prefixed": (
        {
            "x-acme-request-id": "r-1",
            "x-acme-timestamp": "2023-11-14T22:13:20Z",
            "x-acme-signature": "v2=" + mac(SECRET, b"r-1:2023-11-14T22:13:20Z:" + BODY).hex(),
        },
        SECRET,
    ),
    "a hex secret and a version in the content": (
        {
            "x-acme-signature": hmac.digest(bytes.fromhex("00ff17aa"), b"v1:1700000000:" + BODY, "sha256").hex(),
            "x-acme-timestamp": "1700000000",
        },
        "00ff17aa",
    ),
    "a prefixed base64 secret": (
        {"x-acme-signature": b64encode(hmac.digest(b"inner key", BODY, "sha256")).decode()},
        "acmesec_" + b64encode(b"inner key").decode(),
    ),
    "a time in the body": ({"x-acme-signature": mac(SECRET, b"1700000000." + BODY).hex()}, SECRET),
    "topic and body": (
        {
            "x-acme-topic": "orders/create",
            "x-acme-delivery": "d-1",
            "x-acme-signature": mac(SECRET, b"orders/create." + BODY).hex(),
        },
        SECRET,
    ),
}


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_scheme_is_detected_and_its_toml_works(name: str, tmp_path: Path) -> None:
    headers, text = INVENTED[name]
    found = timed(headers, BODY, text, url=URL)
    assert found.scheme is not None
    assert found.preset == ""
    assert text not in found.toml("acme")
    store = loaded(found, text, tmp_path)
    delivery = receive(headers, BODY, store=store, now=NOW)
    assert delivery.unreadable == ""
    assert delivery.event.topic == "order.created"


def test_a_changed_body_does_not_match_the_detected_scheme(tmp_path: Path) -> None:
    headers, text = INVENTED["topic and body"]
    found = timed(headers, BODY, text)
    assert found.scheme is not None
    assert found.scheme.signed == "{header:x-acme-topic}.{body}"
    assert timed(headers, BODY + b" ", text).scheme is None


def test_without_a_match_the_result_lists_what_was_tried() -> None:
    headers, text = INVENTED["keys in a list, body before time"]
    found = timed(headers, BODY, "another secret")
    assert found.scheme is None
    assert found.toml("acme") == ""
    assert f"{len(PRESETS)} presets" in found.tried
    assert "signatures: x-acme-auth" in found.tried
    assert "timestamps: sig:ts, json:timestamp" in found.tried
    assert text not in str(found)
    assert "another secret" not in str(found)


@pytest.mark.full
def test_a_large_delivery_without_a_match_takes_no_longer() -> None:
    headers = {f"x-acme-{number}": str(1_700_000_000 + number) for number in range(20)}
    headers |= {f"x-acme-id-{number}": f"id{number}" for number in range(20)}
    headers |= {"x-acme-signature": "00" * 32, "x-acme-other": "11" * 64}
    assert timed(headers, b'{"a":"' + b"x" * 1_000_000 + b'"}', "secret", url=URL).scheme is None
    assert timed(headers, BODY, "secret", url=URL).scheme is None


def test_a_large_body_says_how_many_ways_were_tried() -> None:
    headers = {"x-acme-signature": "00" * 32, "x-acme-time": "1700000000", "x-acme-id": "7"}
    *_, large = timed(headers, b'{"a":"' + b"x" * 600_000 + b'"}', "secret", url=URL).tried
    *_, small = timed(headers, BODY, "secret", url=URL).tried
    tried = int(large.split()[0].replace(",", ""))
    assert 100 < tried < int(small.split()[0].replace(",", ""))
    assert "not all: it takes too long; capture a body shorter than 600,008 bytes, or remove headers" in large
    assert "not all" not in small


def test_what_the_grammar_cannot_say_is_named() -> None:
    found = timed({"x-signature": mac(SECRET, BODY, "sha384").hex()}, BODY, SECRET)
    assert found.scheme is None
    assert found.notes == ("the signature matches over {body} as HMAC-SHA384, hex, which is not supported",)
    body = next(body for n in range(100) if b"+" in b64encode(mac(SECRET, body := b"%d" % n)))
    found = timed({"x-sig": b64encode(mac(SECRET, body)).decode().rstrip("=")}, body, SECRET)
    assert found.scheme is None
    assert "base64 without padding" in found.notes[0]


# What one capture cannot show


def signed_with(encode: Callable[[bytes], bytes], has: str, start: int = 0) -> tuple[dict[str, str], bytes]:
    """A delivery whose signature has one of these characters; with an empty text, none of `+/-_`."""
    for number in range(start, 1000):
        body = orjson.dumps({"type": "order.created", "data": {"id": number}})
        text = encode(mac(SECRET, body)).decode()
        if (set(has) & set(text)) if has else not set("+/-_") & set(text):
            return {"x-sig": text}, body
    raise AssertionError(has)


@pytest.mark.parametrize(
    ("encode", "special", "encoding"), [(b64encode, "+/", "base64"), (urlsafe_b64encode, "-_", "base64url")]
)
def test_base64_and_base64url_are_told_apart_or_said_to_be_ambiguous(
    encode: Callable[[bytes], bytes], special: str, encoding: str
) -> None:
    plain, telling = signed_with(encode, ""), signed_with(encode, special)
    one = detected([plain], SECRET)
    assert one.scheme is not None
    assert {one.scheme.encoding, *(other.encoding for other in one.alternatives)} == {"base64", "base64url"}
    for captures in ([telling], [plain, telling]):
        found = detected(captures, SECRET)
        assert found.scheme is not None
        assert found.scheme.encoding == encoding
        assert found.alternatives == ()


def test_two_equal_times_are_ambiguous_until_a_capture_has_different_ones() -> None:
    def delivery(sent: int, created: int) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps({"type": "order.created", "data": {"id": 7}, "timestamp": created})
        signature = mac(SECRET, b"%d." % sent + body).hex()
        return {"x-acme-time": str(sent), "x-acme-created": str(created), "x-sig": signature}, body

    one = detected([delivery(1_700_000_000, 1_700_000_000)], SECRET)
    assert one.scheme is not None
    assert {one.scheme.timestamp, *(other.timestamp for other in one.alternatives)} == {
        "header:x-acme-time",
        "header:x-acme-created",
        "json:timestamp",
    }
    two = detected([delivery(1_700_000_000, 1_700_000_000), delivery(1_700_000_900, 1_700_000_700)], SECRET)
    assert two.scheme is not None
    assert two.scheme.timestamp == "header:x-acme-time"
    assert two.alternatives == ()


def shop_order(total: int, identity: str = "") -> tuple[dict[str, str], bytes]:
    """A store that signs SHOP.TIME.BODY; and its delivery id, if it has one."""
    body = orjson.dumps({"event": "order.updated", "data": {"id": 7, "total": total}})
    moment = str(1_700_000_000 + total)
    headers = {"x-shop-id": "4711", "x-time": moment, "x-sig": mac(SECRET, f"4711.{moment}.".encode() + body).hex()}
    return headers | ({"x-acme-id": identity} if identity else {}), body


@pytest.mark.parametrize("captures", [1, 2])
def test_five_orders_under_a_constant_header_are_five_events(captures: int, tmp_path: Path) -> None:
    found = detected([shop_order(total) for total in range(captures)], SECRET)
    assert found.scheme is not None
    assert found.scheme.signed == "{header:x-shop-id}.{timestamp}.{body}"
    assert found.scheme.event.id == ()
    assert any("no delivery id was found" in note for note in found.notes)
    store = loaded(found, SECRET, tmp_path)
    events = [receive(*shop_order(total), store=store, now=NOW).event.id for total in range(5)]
    assert len(set(events)) == 5


def test_a_signed_header_is_the_id_if_two_captures_prove_that_it_differs() -> None:
    def delivery(number: int) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps({"event": "order.updated", "data": {"id": number}})
        return {"x-acme-id": f"a{number}", "x-sig": mac(SECRET, b"a%d." % number + body).hex()}, body

    one, two = detected([delivery(1)], SECRET), detected([delivery(1), delivery(2)], SECRET)
    assert one.scheme is not None
    assert one.scheme.event.id == ()
    assert two.scheme is not None
    assert two.scheme.event.id == ("header:x-acme-id",)
    assert two.scheme.dedupe == "id+body"
    assert "proven: header:x-acme-id differs in 2 captures with different bodies" in two.notes


def ref_order(number: int, **more: str) -> tuple[dict[str, str], bytes]:
    """A store that signs REF.BODY, or REF.X.BODY with another header `x`."""
    headers, body = {"z-ref": f"ab{number}", **more}, orjson.dumps({"event": "order.updated", "data": {"id": number}})
    return {**headers, "x-sig": mac(SECRET, ".".join(headers.values()).encode() + b"." + body).hex()}, body


def test_the_only_signed_header_that_differs_is_guessed_to_be_the_id() -> None:
    found = detected([ref_order(1), ref_order(2), ref_order(3)], SECRET)
    assert found.scheme is not None
    assert found.scheme.event.id == ("header:z-ref",)
    assert found.notes[0].startswith("guess: the id is header:z-ref: no other signed header differs; remove it if")
    constant = detected([ref_order(1, x="a"), ref_order(2, x="a")], SECRET)
    assert constant.scheme is not None
    assert constant.scheme.event.id == ("header:z-ref",)


@pytest.mark.parametrize(
    "captures",
    [
        [ref_order(1)],
        [ref_order(1), ref_order(2), ref_order(2)],
        [ref_order(1, x="qa"), ref_order(2, x="qb")],
        [({"z-ref": "ab1", "x-sig": mac(SECRET, b'{"event":"a.b"}').hex()}, b'{"event":"a.b"}')],
    ],
    ids=["one capture", "a redelivery", "two that differ", "not signed"],
)
def test_no_id_is_guessed_without_proof(captures: list[tuple[dict[str, str], bytes]]) -> None:
    found = detected(captures, SECRET)
    assert found.scheme is not None
    assert found.scheme.event.id == ()
    assert any("no delivery id was found" in note for note in found.notes)


def test_two_captures_of_one_delivery_prove_nothing() -> None:
    body = orjson.dumps({"event": "order.updated", "data": {"id": 7}})
    delivery = ({"x-delivery-id": "d", "x-sig": mac(SECRET, body).hex()}, body)
    (note,) = detected([delivery, delivery], SECRET).notes
    assert note.startswith("assumed: the id is header:x-delivery-id")


def test_an_id_that_is_equal_in_two_deliveries_is_none() -> None:
    def delivery(number: int) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps({"event": "order.updated", "data": {"id": number}})
        return {"x-delivery-id": "always", "x-sig": mac(SECRET, body).hex()}, body

    found = detected([delivery(1), delivery(2)], SECRET)
    assert found.scheme is not None
    assert found.scheme.event.id == ()


def test_every_capture_must_match() -> None:
    good, bad = shop_order(1), shop_order(2)
    assert detected([good, ({**bad[0], "x-sig": "00" * 32}, bad[1])], SECRET).scheme is None


def test_a_url_of_the_captured_request_is_tried() -> None:
    capture = Capture({**ORDINARY, "x-sig": mac(SECRET, URL.encode() + BODY).hex()}, BODY, URL)
    found = detect([capture], SECRET)
    assert found.scheme is not None
    assert found.scheme.signed == "{url}{body}"
    assert found.url == URL


@pytest.mark.parametrize("key", ["", "events"])
def test_a_batch_is_detected(key: str, tmp_path: Path) -> None:
    items = [{"event_id": f"e{n}", "type": "order.created", "order_id": n} for n in (7, 8)]
    body = orjson.dumps({key: items} if key else items)
    headers = {"x-sig": mac(SECRET, body).hex()}
    found = timed(headers, body, SECRET)
    assert found.scheme is not None
    assert found.scheme.batch == (f"json:{key}" if key else "body")
    delivery = receive(headers, body, store=loaded(found, SECRET, tmp_path), now=NOW)
    read = [one.event for one in (delivery, *delivery.rest)]
    assert [(event.topic, event.delivery_id, event.resource_id) for event in read] == [
        ("order.created", "e7", "7"),
        ("order.created", "e8", "8"),
    ]


def test_a_body_that_may_be_cut_is_detected_but_not_read() -> None:
    headers = {"x-topic": "a.b", "x-sig": mac(SECRET, b"a.b.not json").hex()}
    found = timed(headers, b"not json", SECRET)
    assert found.scheme is not None
    assert not found.has_topic


def test_what_is_missing_is_said() -> None:
    body = b'{"amount":7}'
    (reading,) = timed({"x-acme-signature": mac(SECRET, body).hex()}, body, SECRET).readings
    assert reading.missing == ["topic", "id", "resource_id", "time"]


def test_a_scheme_that_does_not_sign_the_body_is_detected_with_a_warning() -> None:
    headers = {"x-acme-id": "7", "x-acme-time": "1700000000", "x-sig": mac(SECRET, b"7.1700000000").hex()}
    found = timed(headers, BODY, SECRET)
    assert found.scheme is not None
    assert found.scheme.allow_unsigned_body
    assert any("the body is not signed" in caveat for caveat in caveats(found.scheme))


def test_standard_webhooks_with_a_plain_secret_is_not_mistaken_for_bigcommerce() -> None:
    sent = send(PRESETS["bigcommerce"], secret=Secret(b"plain text, not base64"))
    found = timed(sent.headers, sent.body, "plain text, not base64")
    assert found.scheme is not None
    assert found.preset == ""
    assert found.scheme.signed == "{header:webhook-id}.{timestamp}.{body}"
    assert found.scheme.event.id == ("header:webhook-id",)
    assert found.scheme.dedupe == "id+body"


EVENT = {"event": "order.updated", "data": {"id": 7, "total": "10"}}


@pytest.mark.parametrize(
    ("headers", "fields", "ids"),
    [
        ({"x-shop-id": "4711"}, {}, ()),
        ({"x-webhook-id": "wh_17"}, {}, ()),
        ({"x-subscription-id": "s_1", "x-correlation-id": "c"}, {}, ()),
        ({"x-event-subscription-id": "s_1", "x-delivery-attempt": "1"}, {}, ()),
        ({"x-acme-id": "a"}, {}, ()),
        ({"x-app-id": "app_9", "x-delivery-id": "d1"}, {}, ("header:x-delivery-id",)),
        ({"x-customer-id": "c1"}, {"message_id": "m1"}, ("json:message_id",)),
        ({"x-request-id": "r", "x-amzn-trace-id": "Root=1"}, {"event_id": "e1"}, ("json:event_id",)),
        (
            {"x-acme-delivery": "d1", "x-acme-event-uuid": "u"},
            {},
            ("header:x-acme-delivery",),
        ),
        ({"x-acme-notification-id": "n"}, {"eventId": "e"}, ("header:x-acme-notification-id",)),
    ],
)
def test_only_what_names_one_delivery_is_its_id(
    headers: dict[str, str], fields: dict[str, str], ids: tuple[str, ...]
) -> None:
    body = orjson.dumps({**EVENT, **fields})
    signed = b".".join((*(value.encode() for value in headers.values()), body)) if len(headers) == 1 else body
    found = timed({**headers, "x-sig": mac(SECRET, signed).hex()}, body, SECRET)
    assert found.scheme is not None
    assert found.scheme.event.id == ids
    assert found.scheme.event.topic == ("json:event",)
    assert "dedupe" not in found.toml("acme")
    (note,) = found.notes
    assert "second delivery" in note
    assert all(source in note for source in ids)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_loaded_from_its_own_toml(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(PRESETS[name], "acme"))
    written = load(path, {}).known_schemes["acme"]
    for field in Scheme.__dataclass_fields__:
        if field not in ("name", "configured"):
            assert getattr(written, field) == getattr(PRESETS[name], field)


def test_nothing_is_detected_without_a_signature() -> None:
    assert detect([Capture({}, b"")], "secret").tried[1] == "signatures: none"
    assert detect([Capture({"x-sig": hashlib.sha256(BODY).hexdigest()}, BODY)], "").scheme is None
