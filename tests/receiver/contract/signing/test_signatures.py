"""Verification: which deliveries are valid, which are refused, and with which reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from receiver.contract.errors import REASONS, DeliveryRefused
from receiver.contract.signing.signatures import PRESETS, Scheme, Secret, find_secret, sign, verify
from receiver.contract.signing.sources import BodyFields, reader
from tests.support.deliveries import BODY, KEY, NOW, URL, WHOLE_BODY, Sent, send

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())
HELLO = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
GITHUB = Secret(b"It's a Secret to Everybody")
FINGERPRINT = "1e97e4"
every_preset = pytest.mark.parametrize("preset", WHOLE_BODY.values(), ids=lambda preset: preset.name)


def scheme_of(vector: dict[str, Any]) -> Scheme:
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in vector["scheme"].items()}
    return Scheme("vector", **given)


def check(sent: Sent, *, now: float = NOW, secrets: tuple[Secret, ...] = ()) -> None:
    secrets = secrets or (sent.secret,)
    verify(sent.scheme, secrets=secrets, headers=sent.headers, body=sent.body, now=now, url=sent.url)


def refusal(sent: Sent, **options: Any) -> str:
    with pytest.raises(DeliveryRefused) as caught:
        check(sent, **options)
    assert caught.value.reason in REASONS
    return caught.value.reason


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_every_published_vector_gives_the_published_result(vector: dict[str, Any]) -> None:
    scheme = scheme_of(vector)
    headers = {name.lower(): value for name, value in vector["request_headers"].items()}
    sent = Sent(scheme, headers, vector["body"].encode(), secret=Secret(scheme.key_of(vector["secret"])))
    now = vector.get("now", NOW)
    if vector["valid"]:
        check(sent, now=now)
    else:
        assert refusal(sent, now=now) in ("signature-mismatch", "too-old")


def test_a_delivery_signed_by_the_standardwebhooks_package_is_valid() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    signature = Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").sign("msg_1", at, BODY.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": "1700000000", "webhook-signature": signature}
    scheme = PRESETS["standard-webhooks"]
    check(Sent(scheme, headers, BODY, secret=Secret(scheme.key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))))


def test_the_standardwebhooks_package_accepts_our_signature() -> None:
    scheme = PRESETS["standard-webhooks"]
    text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    now = datetime.now(UTC).timestamp()
    headers = {"webhook-id": "msg_1"}
    headers |= sign(scheme, secret=Secret(scheme.key_of(text)), headers=headers, body=BODY, now=now).headers
    assert Webhook(text).verify(BODY, headers)["type"] == "order.created"


@pytest.mark.parametrize(
    ("signature", "answer"),
    [
        (f"sha256={HELLO}", "matches"),
        (f"sha256={HELLO.upper()}", "matches"),
        (f" sha256={HELLO} ", "matches"),
        ("", "no-signature"),
        (HELLO, "malformed-signature"),
        (f"sha1={HELLO[:40]}", "malformed-signature"),
        (f"sha1={HELLO}", "malformed-signature"),
        (f"v0={HELLO}", "malformed-signature"),
        (f"none={HELLO}", "malformed-signature"),
        (f"sha256={HELLO[:-1]}", "malformed-signature"),
        (f"sha256={HELLO[:-2]}", "malformed-signature"),
        (f"sha256={HELLO[:30]} {HELLO[30:]}", "malformed-signature"),
        (f"sha256={HELLO}é", "malformed-signature"),
        (f"sha256={HELLO}\n{HELLO}", "malformed-signature"),
        (f"sha256={HELLO}, sha256={HELLO}", "malformed-signature"),
        (f"sha256={HELLO[:-1]}8", "signature-mismatch"),
        ("sha256=" + "0" * 8000, "malformed-signature"),
        ("é", "malformed-signature"),
        ("\x00", "malformed-signature"),
    ],
)
def test_a_hex_signature_is_decoded_strictly(signature: str, answer: str) -> None:
    sent = Sent(PRESETS["github"], {"x-hub-signature-256": signature}, b"Hello, World!", secret=GITHUB)
    if answer == "matches":
        check(sent)
    else:
        assert refusal(sent) == answer


@pytest.mark.parametrize(
    ("signature", "answer"),
    [
        ("B23tXN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7g=", "matches"),
        ("B23tXN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7g", "malformed-signature"),
        ("B23tXN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7h=", "malformed-signature"),
        ("B23t XN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7g=", "malformed-signature"),
        ("*B23tXN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7g=", "malformed-signature"),
        ("B23tXN681gZ0qIWNRrgtzBE9XSDo5yaUu6wfmhu3a7g=\n=", "malformed-signature"),
    ],
)
def test_a_base64_signature_is_decoded_strictly(signature: str, answer: str) -> None:
    sent = Sent(PRESETS["shopify"], {"x-shopify-hmac-sha256": signature}, b'{"foo": "bar"}')
    secret = (Secret(b"test_secret_key"),)
    if answer == "matches":
        check(sent, secrets=secret)
    else:
        assert refusal(sent, secrets=secret) == answer


def test_url_safe_base64_is_not_base64() -> None:
    sent = next(
        sent
        for number in range(100)
        if "+" in (sent := send(PRESETS["shopify"], b"%d" % number)).headers["x-shopify-hmac-sha256"]
    )
    sent.headers["x-shopify-hmac-sha256"] = sent.headers["x-shopify-hmac-sha256"].replace("+", "-")
    assert refusal(sent) == "malformed-signature"


def test_one_valid_signature_among_others_is_enough() -> None:
    sent = send(PRESETS["standard-webhooks"])
    good = sent.headers["webhook-signature"]
    bad = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    sent.headers["webhook-signature"] = f"v1a,junk {bad} {good}"
    check(sent)


def test_only_the_first_sixteen_signatures_are_tried() -> None:
    sent = send(PRESETS["standard-webhooks"])
    good = sent.headers["webhook-signature"]
    bad = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    sent.headers["webhook-signature"] = " ".join([*[bad] * 15, good, *[bad] * 40])
    check(sent)
    sent.headers["webhook-signature"] = " ".join([*[bad] * 16, good])
    assert refusal(sent) == "signature-mismatch"


@every_preset
def test_every_preset_accepts_its_own_signature(preset: Scheme) -> None:
    check(send(preset))


@every_preset
def test_every_preset_refuses_another_stores_secret(preset: Scheme) -> None:
    assert refusal(send(preset), secrets=(Secret(b"another"),)) == "signature-mismatch"


@every_preset
def test_every_preset_refuses_a_changed_body(preset: Scheme) -> None:
    sent = send(preset)
    sent.body = sent.body.replace(b"42.00", b"42.01")
    assert refusal(sent) == "signature-mismatch"


@every_preset
def test_a_signature_does_not_match_the_same_json_in_another_format(preset: Scheme) -> None:
    sent = send(preset)
    sent.body = json.dumps(json.loads(sent.body)).encode()
    assert refusal(sent) == "signature-mismatch"


def test_an_old_secret_matches_until_it_expires() -> None:
    old = replace(KEY, not_after=datetime.fromtimestamp(NOW, UTC))
    sent = send(PRESETS["shopify"], secret=old)
    check(sent, secrets=(Secret(b"new"), old))
    assert refusal(sent, secrets=(Secret(b"new"), old), now=NOW + 0.001) == "secret-expired"


def test_a_secret_listed_as_expired_and_as_active_is_active() -> None:
    expired = replace(KEY, not_after=datetime.fromtimestamp(NOW, UTC) - timedelta(days=1))
    check(send(PRESETS["shopify"]), secrets=(expired, KEY))


def test_of_equal_secrets_the_first_is_named() -> None:
    both = [replace(KEY, origin="config.toml:4"), replace(KEY, origin="config.toml:5")]
    scheme = PRESETS["github"]
    found = find_secret(scheme, both, BODY, [KEY.macs[scheme.mac](BODY)], NOW)
    assert found
    assert found.origin == "config.toml:4"


def test_people_see_six_characters_of_a_secret() -> None:
    """They are in notes and tickets of operators, so they stay as they are."""
    assert GITHUB.fingerprint == FINGERPRINT


def test_a_source_without_a_name_is_the_whole_document() -> None:
    assert reader(("body", ""))({}, {"id": 7}) == {"id": 7}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "no-timestamp"),
        ("nan", "malformed-timestamp"),
        ("1e400", "malformed-timestamp"),
        ("-1700000000", "malformed-timestamp"),
        ("1_700_000_000", "malformed-timestamp"),
        (" 1700000000", "malformed-timestamp"),
        ("1700000000\n", "malformed-timestamp"),
        ("\u0661\u0667" + "\u0660" * 8, "malformed-timestamp"),
        ("1700000000000", "too-new"),
        ("1700000301", "too-new"),
        ("1699999699", "too-old"),
        ("9" * 17, "malformed-timestamp"),
    ],
)
def test_a_genuine_delivery_with_a_bad_timestamp_is_refused(written: str, reason: str) -> None:
    by_header = Scheme("x", headers=PRESETS["spree"].headers, signed="{header:x-spree-webhook-timestamp}.{body}")
    headers = {"x-spree-webhook-timestamp": written}
    headers |= sign(by_header, secret=KEY, headers=headers, body=BODY, now=NOW).headers
    assert refusal(Sent(PRESETS["spree"], headers, BODY)) == reason


def test_the_tolerance_includes_its_limits() -> None:
    sent = send(PRESETS["stripe"])
    check(sent, now=NOW + 300)
    check(sent, now=NOW - 300)
    assert refusal(sent, now=NOW + 301) == "too-old"
    assert refusal(sent, now=NOW - 301) == "too-new"


def test_a_tolerance_of_zero_is_off() -> None:
    check(send(replace(PRESETS["stripe"], tolerance=0)), now=NOW + 1e9)


@pytest.mark.parametrize("unit", ["s", "ms", "rfc3339"])
def test_the_timestamp_is_read_in_the_unit_of_the_scheme(unit: Any) -> None:
    sent = send(replace(PRESETS["spree"], timestamp_unit=unit))
    check(sent)
    assert refusal(sent, now=NOW + 302) == "too-old"


def test_a_timestamp_in_the_body_is_checked_after_the_signature() -> None:
    sent = send(PRESETS["shopware"], b"not json at all")
    assert refusal(sent) == "no-timestamp"
    sent.headers["shopware-shop-signature"] = HELLO
    assert refusal(sent) == "signature-mismatch"


def test_a_signed_header_that_is_missing_is_incomplete() -> None:
    sent = send(PRESETS["svix"])
    del sent.headers["svix-id"]
    assert refusal(sent) == "incomplete"


def test_a_signed_url_must_match_exactly() -> None:
    sent = send(PRESETS["square"])
    sent.url = URL + "/"
    assert refusal(sent) == "signature-mismatch"


def test_parts_of_the_json_can_be_signed() -> None:
    scheme = Scheme("acme", signed="{json:data.id}|{timestamp}|{body}", timestamp="json:timestamp")
    check(send(scheme))
    assert refusal(Sent(scheme, {"webhook-signature": HELLO}, b"[]")) == "no-timestamp"


def test_a_body_that_takes_long_to_read_is_refused_before_it_is_read_for_its_signature() -> None:
    scheme = Scheme("acme", signed="{json:id}|{body}")
    assert (
        refusal(Sent(scheme, {"webhook-signature": HELLO}, b'{"id":1,"a":[' + b"[]," * 60_000 + b"0]}")) == "incomplete"
    )


def test_the_first_header_present_is_used() -> None:
    sent = send(Scheme("acme", headers=("X-New", "X-Old")))
    sent.headers = {"x-old": sent.headers["x-new"]}
    check(sent)


def test_sha512_can_be_chosen() -> None:
    sent = send(Scheme("acme", algorithm="hmac-sha512"))
    assert len(sent.headers["webhook-signature"]) == 128
    check(sent)


def test_no_secret_shows_in_a_repr() -> None:
    assert "a secret" not in repr(KEY) + repr(send(PRESETS["github"]).store)


def test_fields_that_are_given_for_several_schemes_are_parsed_once() -> None:
    """At the common URL, a body was parsed anew for each of the four stores that it may name."""
    fields = BodyFields(b'{"a":1}')
    for _ in range(2):
        with pytest.raises(DeliveryRefused):
            verify(PRESETS["adyen"], secrets=(), headers={}, body=fields, now=0.0)
    assert vars(fields)["_document"] == {"a": 1}
