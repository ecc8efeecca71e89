"""Properties of verification that hold for every scheme, secret and body."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import SchemeError
from receiver.contract.signing.signatures import PRESETS, Scheme, Secret, sign, verify
from receiver.contract.stores import Store
from tests.support.deliveries import NOW, URL, WHOLE_BODY

examples = settings(deadline=None, max_examples=150)

presets = st.sampled_from(list(WHOLE_BODY.values()))
secrets = st.binary(min_size=1, max_size=80).map(Secret)
header_texts = st.text(st.characters(max_codepoint=255), max_size=60)
header_names = st.sampled_from(
    [
        *sorted({name for scheme in PRESETS.values() for name in scheme.header_names}),
        *["webhook-id", "webhook-timestamp", "svix-id", "svix-timestamp", "x-slack-request-timestamp"],
    ]
)
any_headers = st.dictionaries(header_names, header_texts | st.from_regex(r"[vsht0-9=,; a-f]{0,90}"))
any_bodies = st.binary(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
).map(lambda value: orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) if _clean(value) else b"{}")


def _clean(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return False
    return True


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    """A random scheme. Combinations that the grammar refuses are not drawn."""
    list_sep = draw(st.sampled_from(["", ",", " ", ";"]))
    pair_sep = draw(st.sampled_from(["", "=", ","]))
    parts = draw(st.lists(st.sampled_from(["{timestamp}", "{url}", "{header:x-id}", ".", ":", "v0"]), max_size=4))
    parts.insert(draw(st.integers(0, len(parts))), "{body}")
    signed = "".join(parts)
    time = draw(st.sampled_from(["", "header:x-time", "sig:t", "json:timestamp"]))
    try:
        return Scheme(
            "random",
            headers=("X-Sig",),
            algorithm=draw(st.sampled_from(["hmac-sha256", "hmac-sha512"])),
            encoding=draw(st.sampled_from(["hex", "base64"])),
            list_sep=list_sep,
            pair_sep=pair_sep,
            sig_keys=draw(st.sampled_from([("v1",), ("v0", "v1")])) if pair_sep else (),
            signed=signed,
            timestamp=time,
            timestamp_unit=draw(st.sampled_from(["s", "ms", "rfc3339"])),
        )
    except SchemeError:
        assume(False)
        raise


def body_for(scheme: Scheme, content: Any) -> bytes:
    """A body with a timestamp, for schemes that read it from the body."""
    moment = {"s": 1_700_000_000, "ms": 1_700_000_000_000, "rfc3339": "2023-11-14T22:13:20Z"}
    return orjson.dumps({"timestamp": moment[scheme.timestamp_unit], "data": content})


def signed_by(scheme: Scheme, secret: Secret, body: bytes) -> dict[str, str]:
    headers = {"x-id": "msg_1", "webhook-id": "msg_1", "svix-id": "msg_1"}
    return headers | sign(scheme, secret=secret, headers=headers, body=body, now=NOW, url=URL).headers


@examples
@given(presets | schemes(), secrets, st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_signed_delivery_is_valid(scheme: Scheme, secret: Secret, content: str) -> None:
    body = body_for(scheme, content)
    headers = signed_by(scheme, secret, body)
    assert verify(scheme, secrets=[secret], headers=headers, body=body, now=NOW, url=URL).secret == secret


@examples
@given(presets, any_headers, any_bodies)
def test_verify_raises_nothing_but_delivery_refused(scheme: Scheme, headers: Any, body: bytes) -> None:
    with suppress(DeliveryRefused):
        verify(scheme, secrets=[Secret(b"k")], headers=headers, body=body, now=NOW, url=URL)
        raise AssertionError("a delivery without a signature was accepted")


@pytest.mark.full
@examples
@given(schemes(), any_headers.map(lambda found: {**found, "x-sig": next(iter(found.values()), "")}), any_bodies)
def test_verify_raises_nothing_but_delivery_refused_for_a_random_scheme(
    scheme: Scheme, headers: Any, body: bytes
) -> None:
    with suppress(DeliveryRefused):
        verify(scheme, secrets=[Secret(b"k")], headers=headers, body=body, now=NOW, url=URL)
        raise AssertionError("a delivery without a signature was accepted")


@examples
@given(presets | schemes(), secrets, st.data())
def test_a_single_changed_byte_of_the_body_never_matches(scheme: Scheme, secret: Secret, data: st.DataObject) -> None:
    body = body_for(scheme, {"id": 7, "total": "42.00"})
    headers = signed_by(scheme, secret, body)
    at = data.draw(st.integers(0, len(body) - 1))
    changed = bytearray(body)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert _refused(scheme, secret, headers, bytes(changed))


@examples
@given(presets | schemes(), secrets, st.data())
def test_a_single_changed_character_of_a_signed_header_never_matches(
    scheme: Scheme, secret: Secret, data: st.DataObject
) -> None:
    body = body_for(scheme, {"id": 7})
    headers = signed_by(scheme, secret, body)
    covered = [name for name in headers if name in scheme.header_names or scheme.signs(f"header:{name}")]
    name = data.draw(st.sampled_from(covered))
    at = data.draw(st.integers(0, len(headers[name]) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126))
    changed = headers[name][:at] + other + headers[name][at + 1 :]
    assume(changed.lower() != headers[name].lower())  # hex may be upper case
    assume(
        _without_keys(scheme, changed) != _without_keys(scheme, headers[name])
    )  # one accepted signature key was replaced by another
    assert _refused(scheme, secret, {**headers, name: changed}, body)


@examples
@given(presets | schemes(), secrets, secrets)
def test_another_secret_never_matches(scheme: Scheme, secret: Secret, other: Secret) -> None:
    # HMAC pads its key with zero bytes, so keys that differ in trailing zeros are the same key
    assume(secret.key.rstrip(b"\0") != other.key.rstrip(b"\0"))
    body = body_for(scheme, {"id": 7})
    assert _refused(scheme, other, signed_by(scheme, secret, body), body)


def _without_keys(scheme: Scheme, text: str) -> str:
    for key in scheme.sig_keys:
        text = text.replace(key + scheme.pair_sep, "")
    return text


def _refused(scheme: Scheme, secret: Secret, headers: dict[str, str], body: bytes) -> bool:
    try:
        verify(scheme, secrets=[secret], headers=headers, body=body, now=NOW, url=URL)
    except DeliveryRefused:
        return True
    return False


@examples
@given(presets, any_headers, any_bodies)
def test_receive_raises_nothing_but_delivery_refused(scheme: Scheme, headers: Any, body: bytes) -> None:
    store = Store("north", scheme, (Secret(b"k"),), url=URL, domain="north.example")
    with suppress(DeliveryRefused):
        receive(headers, body, store=store, now=NOW)
        raise AssertionError("a delivery without a signature was accepted")
