"""Detection: one delivery and its secret give the scheme, or a list of what was tried."""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path

import orjson
import pytest

from receiver.config import load
from receiver.contract.diagnosis.detect import Detection, detect, to_toml
from receiver.contract.intake import receive
from receiver.contract.signing.signatures import PRESETS, Scheme, Secret
from receiver.contract.stores import Store
from tests.support.deliveries import BODY, NOW, URL, send

ORDINARY = {
    "host": "hooks.example.com",
    "user-agent": "Acme/1.0",
    "accept": "*/*",
    "content-type": "application/json",
    "content-length": "117",
    "x-forwarded-for": "203.0.113.9",
}
SECRETS = {
    "standard-webhooks": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "svix": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


def mac(text: str, content: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.digest(text.encode(), content, algorithm)


def timed(headers: dict[str, str], body: bytes, secret: str, url: str = "") -> Detection:
    start = time.process_time()
    found = detect({**ORDINARY, **headers}, body, secret, url=url)
    assert time.process_time() - start < 2
    return found


def loaded(found: Detection, secret: str, tmp_path: Path) -> Store:
    """Load a config with the printed TOML and return its store."""
    path = tmp_path / "config.toml"
    store = f'[stores.north]\nscheme = "acme"\nurl = "{URL}"\nsigning_secrets = ["{secret}"]\n'
    path.write_text(found.toml("acme") + store)
    return load(path, {}).known_stores["north"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_delivery_of_each_preset_is_detected(name: str, tmp_path: Path) -> None:
    scheme, text = PRESETS[name], SECRETS.get(name, "a secret as the store shows it")
    body = orjson.dumps({"scope": "store/order/created", **orjson.loads(BODY)}) if name == "bigcommerce" else BODY
    sent = send(scheme, body, secret=Secret(scheme.key_of(text)))
    found = timed(sent.headers, sent.body, text, url=URL)
    assert found.preset == name
    assert receive(sent.headers, sent.body, store=loaded(found, text, tmp_path), now=NOW)


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
    assert detect(headers, BODY + b" ", text).scheme is None


def test_without_a_match_the_result_lists_what_was_tried() -> None:
    headers, text = INVENTED["keys in a list, body before time"]
    found = timed(headers, BODY, "another secret")
    assert found.scheme is None
    assert found.toml("acme") == ""
    assert "16 presets" in found.tried
    assert "signatures: 1, in x-acme-auth" in found.tried
    assert "timestamps: sig:ts, json:timestamp" in found.tried
    assert text not in str(found)
    assert "another secret" not in str(found)


def test_a_large_delivery_without_a_match_takes_no_longer() -> None:
    headers = {f"x-acme-{number}": str(1_700_000_000 + number) for number in range(20)}
    headers |= {f"x-acme-id-{number}": f"id{number}" for number in range(20)}
    headers |= {"x-acme-signature": "00" * 32, "x-acme-other": "11" * 64}
    assert timed(headers, b'{"a":"' + b"x" * 1_000_000 + b'"}', "secret", url=URL).scheme is None
    assert timed(headers, BODY, "secret", url=URL).scheme is None


def test_sha1_is_detected_as_not_supported() -> None:
    found = timed({"x-hub-signature": "sha1=" + mac(SECRET, BODY, "sha1").hex()}, BODY, SECRET)
    assert found.scheme is None
    assert found.notes == ("the signature matches as HMAC-SHA1 over {body}, which is not supported",)


def test_url_safe_base64_is_detected_as_not_supported() -> None:
    body = next(body for n in range(100) if b"-" in urlsafe_b64encode(mac(SECRET, body := b"%d" % n)))
    found = timed({"x-sig": urlsafe_b64encode(mac(SECRET, body)).decode()}, body, SECRET)
    assert found.scheme is None
    assert "url-safe base64" in found.notes[0]


def test_a_scheme_that_does_not_sign_the_body_is_detected_with_a_warning() -> None:
    headers = {"x-acme-id": "7", "x-acme-time": "1700000000", "x-sig": mac(SECRET, b"7.1700000000").hex()}
    found = timed(headers, BODY, SECRET)
    assert found.scheme is not None
    assert found.scheme.allow_unsigned_body
    assert "the body is not signed" in found.notes[0]


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
            ("header:x-acme-delivery", "header:x-acme-event-uuid"),
        ),
        ({"x-acme-notification-id": "n"}, {"eventId": "e"}, ("header:x-acme-notification-id", "json:eventId")),
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
    assert not any("uuid" in source for source in found.scheme.event.topic)
    assert "dedupe" not in found.toml("acme")
    (note,) = found.notes
    assert "second delivery" in note
    assert all(source in note for source in ids)


def test_a_source_is_named_once() -> None:
    found = timed({"x-event-topic": "orders/create", "x-sig": mac(SECRET, BODY).hex()}, BODY, SECRET)
    assert found.scheme is not None
    assert found.scheme.event.topic.count("header:x-event-topic") == 1


def test_later_deliveries_under_a_constant_header_become_events(tmp_path: Path) -> None:
    def delivery(total: int) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps({"event": "order.updated", "data": {"id": 7, "total": total}})
        return {"x-shop-id": "4711", "x-sig": mac(SECRET, b"4711." + body).hex()}, body

    store = loaded(timed(*delivery(1), SECRET), SECRET, tmp_path)
    received = [receive(*delivery(total), store=store, now=NOW).event.id for total in range(5)]
    assert len(set(received)) == 5


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_loaded_from_its_own_toml(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(PRESETS[name], "acme"))
    written = load(path, {}).known_schemes["acme"]
    for field in Scheme.__dataclass_fields__:
        if field not in ("name", "configured"):
            assert getattr(written, field) == getattr(PRESETS[name], field)


def test_nothing_is_detected_without_a_signature() -> None:
    assert detect({}, b"", "secret").tried[1] == "signatures: none in any header"
    assert detect({"x-sig": hashlib.sha256(BODY).hexdigest()}, BODY, "").scheme is None


@pytest.mark.parametrize(("body", "guessed"), [(b'{"number":7}', True), (b'{"id":7}', False)])
def test_a_guessed_source_that_this_body_does_not_have_is_noted(body: bytes, guessed: bool) -> None:
    found = detect({"x-acme-signature": mac(SECRET, body).hex()}, body, SECRET)
    assert found.scheme is not None
    note = "no resource id was found: json:id is not in this delivery; set resource_id"
    assert (note in found.notes) == guessed
