"""Explanations: every step, the true cause and its fix, and never a secret."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.contract.diagnosis.explain import Explanation, caveats, explain
from receiver.contract.signing.signatures import MAX_TRIED, PRESETS, Scheme, Secret
from receiver.contract.stores import Store
from tests.support.deliveries import BODY, KEY, NOW, URL, Sent, send

ACME = Scheme("acme", headers=("X-Store-Signature",), signed="{timestamp}.{body}", timestamp="header:X-Store-Time")


def explained(sent: Sent, *, now: float = NOW, **changes: Any) -> Explanation:
    return explain(replace(sent.store, **changes), sent.headers, sent.body, now)


def step(found: Explanation, title: str) -> Any:
    return next(step for step in found.steps if step.title == title)


def test_a_valid_delivery_shows_every_step() -> None:
    found = explained(send(ACME), now=NOW + 2)
    assert found.valid
    assert found.reason is None
    assert found.verdict == f"signed with {KEY.fingerprint}"
    assert [step.title for step in found.steps] == [
        "header",
        "candidates",
        "time",
        "signed",
        "secrets",
        "event",
    ]
    assert step(found, "header").lines[0].text == "X-Store-Signature, 64 characters"
    assert step(found, "candidates").lines[0].text == "1, hex, 32 bytes"
    assert step(found, "time").lines[0].text == "1700000000, 2 s before arrival, limit 300 s"
    assert step(found, "signed").lines[0].text.startswith('"{timestamp}.{body}", 128 bytes, sha256 ')
    assert step(found, "secrets").lines[0].text == f"{KEY.fingerprint}  config.toml:41"
    assert step(found, "event").lines[0].text == "order.created, delivery id none, resource id 7"


def test_line_breaks_between_signed_parts_are_shown_as_they_are_written() -> None:
    found = explained(send(replace(PRESETS["github"], signed="{method}\n{body}")))
    assert step(found, "signed").lines[0].text.startswith('"{method}\\n{body}", ')


def test_an_expired_secret_would_match() -> None:
    expired = replace(KEY, not_after=datetime(2023, 11, 14, 3, 12, tzinfo=UTC), origin="config.toml:42")
    found = explained(send(ACME), secrets=(Secret(b"new", origin="config.toml:41"), expired))
    assert found.reason == "secret-expired"
    assert [line.mark for line in step(found, "secrets").lines] == ["no match", "would match"]
    assert step(found, "secrets").lines[1].text.endswith("config.toml:42, expired 2023-11-14 03:12 UTC")
    assert f"matches {KEY.fingerprint}, which expired 2023-11-14 03:12 UTC" in found.hints[0].text
    assert "not_after in config.toml:42" in found.hints[0].fix


def test_every_secret_that_is_tried_is_listed() -> None:
    """Config may have 16, and the keyring 48 more."""
    others = tuple(Secret(b"another %d" % number) for number in range(MAX_TRIED - 1))
    found = explained(send(ACME), secrets=(*others, KEY, Secret(b"too many")))
    assert found.valid
    assert [line.mark for line in step(found, "secrets").lines] == ["no match"] * (MAX_TRIED - 1) + ["matches"]


def changed(sent: Sent, **changes: Any) -> Sent:
    for name, value in changes.items():
        setattr(sent, name, value)
    return sent


def resigned(sent: Sent, mac: bytes, form: str = "{}") -> Sent:
    name = sent.scheme.header_names[0]
    sent.headers[name] = form.format(mac.hex())
    return sent


TEXT = Secret(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
SHOPIFY, GITHUB, SQUARE = PRESETS["shopify"], PRESETS["github"], PRESETS["square"]
CAUSES: dict[str, tuple[Sent, str, str]] = {
    "a newline was added": (
        changed(send(SHOPIFY), body=BODY + b"\n"),
        "signature-mismatch",
        "if the body had no trailing newline",
    ),
    "a newline was added, and there is a signature of another kind": (
        changed(
            send(GITHUB, x_hub_signature="sha1=" + hmac.digest(KEY.key, BODY, "sha1").hex()),
            body=BODY + b"\n",
        ),
        "signature-mismatch",
        "the signature would match if the body had no trailing newline",
    ),
    "a newline was lost": (
        changed(send(SHOPIFY, BODY + b"\n"), body=BODY),
        "signature-mismatch",
        "if the body had a trailing newline",
    ),
    "the body was re-serialised": (
        changed(send(GITHUB), body=BODY.replace(b":", b": ").replace(b",", b", ")),
        "signature-mismatch",
        "if the body were re-serialised",
    ),
    "a byte order mark was added": (
        changed(send(GITHUB), body=b"\xef\xbb\xbf" + BODY),
        "signature-mismatch",
        "if the body had no byte order mark",
    ),
    "hex where base64 is expected": (
        resigned(send(SHOPIFY), hmac.digest(KEY.key, BODY, "sha256")),
        "malformed-signature",
        'with encoding = "hex"',
    ),
    "base64 where hex is expected": (
        changed(
            send(PRESETS["salla"]),
            headers={"x-salla-signature": b64encode(hmac.digest(KEY.key, BODY, "sha256")).decode()},
        ),
        "malformed-signature",
        'with encoding = "base64"',
    ),
    "the secret is base64": (
        changed(send(GITHUB, secret=Secret(b"\x31\xf2\x90\xf6 raw key")), secret=Secret(b"MfKQ9iByYXcga2V5")),
        "signature-mismatch",
        'with secret_encoding = "base64"',
    ),
    "the secret is plain text": (
        changed(
            send(PRESETS["standard-webhooks"], secret=TEXT),
            secret=Secret(PRESETS["standard-webhooks"].key_of(TEXT.key.decode())),
        ),
        "signature-mismatch",
        'with secret_encoding = "utf8"',
    ),
    "the secret has a space after it": (
        changed(send(GITHUB), secret=Secret(KEY.key + b" \n")),
        "signature-mismatch",
        "without the spaces or quotes around it",
    ),
    "another header": (
        changed(send(ACME), scheme=replace(ACME, headers=("X-Acme-Signature",))),
        "no-signature",
        'with headers = ["x-store-signature"]',
    ),
    "another preset": (
        changed(send(GITHUB), scheme=PRESETS["stripe"]),
        "no-signature",
        "with the preset github",
    ),
    "the url has a slash more": (
        changed(send(SQUARE), url=URL + "/"),
        "signature-mismatch",
        f"if the url were {URL}",
    ),
    "something else is signed": (
        changed(send(replace(ACME, signed="{timestamp}:{body}")), scheme=ACME),
        "signature-mismatch",
        'with signed = "{timestamp}:{body}"',
    ),
    "sha512": (
        changed(send(Scheme("acme", algorithm="hmac-sha512")), scheme=Scheme("acme")),
        "malformed-signature",
        'with algorithm = "hmac-sha512"',
    ),
    "sha1": (
        resigned(send(GITHUB), hmac.digest(KEY.key, BODY, "sha1"), "sha256={}"),
        "malformed-signature",
        'with algorithm = "hmac-sha1"',
    ),
    "sha384": (
        resigned(send(GITHUB), hmac.digest(KEY.key, BODY, "sha384"), "sha256={}"),
        "malformed-signature",
        "as HMAC-SHA384, hex, which is not supported",
    ),
    "sha256 without HMAC": (
        resigned(send(GITHUB), hashlib.sha256(BODY + KEY.key).digest(), "sha256={}"),
        "signature-mismatch",
        'with algorithm = "sha256", signed = "{body}{secret}"',
    ),
    "another key in the header": (
        resigned(send(PRESETS["slack"]), hmac.digest(KEY.key, b"v0:1700000000:" + BODY, "sha256"), "v1={}"),
        "malformed-signature",
        'with sig_keys = ["v1"]',
    ),
    "milliseconds": (
        changed(send(replace(ACME, timestamp_unit="ms")), scheme=ACME),
        "too-new",
        "another unit, ms",
    ),
    "no signature at all": (
        Sent(GITHUB, {"x-github-event": "push"}, BODY),
        "no-signature",
        "no header contains a signature; besides the usual headers the delivery has x-github-event",
    ),
    "an unknown secret": (send(GITHUB, secret=Secret(b"?")), "signature-mismatch", "not configured"),
}
CAUSES["an unknown secret"][0].secret = KEY


@pytest.mark.parametrize("name", CAUSES)
def test_the_true_cause_of_an_invalid_signature_is_named(name: str) -> None:
    sent, reason, hint_text = CAUSES[name]
    found = explained(sent)
    assert not found.valid
    assert found.reason == reason
    assert found.verdict.startswith(reason)
    assert any(hint_text in hint.text for hint in found.hints), found.hints


@pytest.mark.parametrize("now", [NOW + 4000, NOW - 4000])
def test_a_timestamp_outside_the_tolerance_shows_the_difference(now: float) -> None:
    found = explained(send(ACME), now=now)
    assert found.reason in ("too-old", "too-new")
    assert "4,000 s" in step(found, "time").lines[0].text
    assert step(found, "time").ok is False
    assert step(found, "secrets").ok is True
    assert "clock" in found.hints[0].text


def test_a_secret_of_another_store_is_named() -> None:
    sent = send(GITHUB, secret=Secret(b"of south"))
    south = Store("south", GITHUB, (sent.secret,))
    found = explain(replace(sent.store, secrets=(KEY,)), sent.headers, sent.body, NOW, others=[south])
    assert found.hints[0].text == f"the signature would match with {sent.secret.fingerprint}, a secret of south"


def test_a_delivery_that_names_another_store_says_so() -> None:
    sent = send(SHOPIFY, x_shopify_shop_domain="other.example", x_shopify_topic="orders/create")
    found = explained(sent, domain="north.example")
    assert found.reason == "wrong-store"
    assert "[stores.north] domain" in found.hints[0].fix


def test_a_genuine_delivery_that_is_unreadable_is_valid_and_says_so() -> None:
    found = explained(send(SHOPIFY, b"not json"))
    assert found.valid
    assert "not JSON" in found.verdict
    assert step(found, "event").ok is False


def test_the_caveats_of_body_only_schemes_are_shown() -> None:
    assert len(caveats(SHOPIFY)) == 4
    unused = "header:X-Shopify-Triggered-At, header:Shopify-Triggered-At"
    assert caveats(SHOPIFY)[3] == f"not signed, so not used to tell which of two events is newer: {unused}"
    assert len(caveats(PRESETS["woocommerce"])) == 3
    assert caveats(PRESETS["standard-webhooks"]) == ()
    assert caveats(PRESETS["stripe"]) == ()
    assert "no timestamp is signed" in caveats(GITHUB)[0]


@pytest.mark.parametrize("name", CAUSES)
def test_no_explanation_shows_a_secret(name: str) -> None:
    sent, _, _ = CAUSES[name]
    text = repr(explained(sent))
    key = sent.secret.key
    for secret in (
        key.decode("latin-1"),
        key.hex(),
        b64encode(key).decode(),
        b64encode(key).decode().rstrip("="),
    ):
        assert len(secret) < 4 or secret not in text


def test_a_large_delivery_is_explained_in_time() -> None:
    body = b'{"a":"' + b"x" * 1_000_000 + b'"}'
    sent = send(ACME, body, x_request_id="1", x_acme_time="1700000001")
    start = time.process_time()
    assert not explained(changed(sent, secret=Secret(b"wrong"))).valid
    assert time.process_time() - start < 20


def test_the_secret_is_not_blamed_for_what_may_be_the_scheme() -> None:
    """A wrong scheme, a wrong secret and a changed body look the same if nothing matches."""
    signature = hmac.digest(KEY.key, b"a text that no search builds" + BODY, "sha256")
    (hint,) = explained(resigned(send(GITHUB), signature, "sha256={}")).hints
    tried = re.search(
        r"or in a way that is not among the ([0-9,]+) that were tried, or the body was changed", hint.text
    )
    assert tried
    assert int(tried[1].replace(",", "")) > 1000
    assert "compare the scheme with the store's documentation" in hint.fix


@pytest.mark.full
def test_a_search_that_was_cut_short_says_so() -> None:
    body = b'{"a":"' + b"x" * 1_000_000 + b'"}'
    headers = {"x_acme_time": "1700000001", "x_acme_id": "7", "x_acme_nonce": "9"}
    sent = send(GITHUB, body, secret=Secret(b"?"), **headers)
    (hint,) = explained(changed(sent, secret=KEY)).hints
    assert "that were tried (the search reached its limit, so others were not tried), or the body" in hint.text


def test_control_characters_of_a_delivery_are_not_printed() -> None:
    found = explained(send(SHOPIFY, x_shopify_topic="\x1b[31morders/create\u202e"))
    assert not any(letter in repr(found.steps) for letter in "\x1b\u202e")


@pytest.mark.full
@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from([*PRESETS.values(), ACME]),
    st.dictionaries(
        st.sampled_from(["x-store-signature", "x-store-time", "webhook-signature", "stripe-signature", "x", "x-id"]),
        st.text(max_size=80) | st.from_regex(r"[vt]1?=[0-9a-f]{0,64},v1=[0-9a-f]{64}"),
    ),
    st.binary(max_size=60) | st.just(BODY),
)
def test_no_delivery_makes_an_explanation_fail(scheme: Scheme, headers: dict[str, str], body: bytes) -> None:
    store = Store("north", scheme, (KEY,), url=URL, domain="north.example")
    assert not explain(store, headers, body, NOW).valid
