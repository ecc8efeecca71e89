"""Presets are tested against signatures made with openssl, independently of this code.

tests/receiver/contract/test_captures.py tests those that are not here, with messages of the providers' libraries.
"""

from __future__ import annotations

import pytest

from receiver.contract.signing.signatures import PRESETS, Secret, sign, verify
from tests.support.captures import CAPTURES
from tests.support.deliveries import NOW, URL

SECRET = Secret(b"an example secret")
BODY = b'{"type":"order.created","timestamp":1700000000,"data":{"id":7}}'
HEX = "1c0e74f868741a89b9fdb158c8bbeb6205901e78d129cdbe7409d326adb61bb5"
BASE64 = "HA50+Gh0Gom5/bFYyLvrYgWQHnjRKc2+dAnTJq22G7U="
STANDARD = "v1,bu1rx1PUh5GJmT7XmEOFeoNjmiqBXUvh160jHa1/YG4="
WITH_TIME = "496c99c08b2d4fdf626e9cecb88697ca0aa0df46fe168b311651da5acb7fefd4"

LITERALS = {
    "standard-webhooks": {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": STANDARD,
    },
    "svix": {"svix-id": "msg_1", "svix-timestamp": "1700000000", "svix-signature": STANDARD},
    "shopify": {"x-shopify-hmac-sha256": BASE64},
    "woocommerce": {"x-wc-webhook-signature": BASE64},
    "bigcommerce": {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": STANDARD,
    },
    "nuvemshop": {"x-linkedstore-hmac-sha256": HEX},
    "shopware": {"shopware-shop-signature": HEX},
    "salla": {"x-salla-signature": HEX},
    "square": {"x-square-hmacsha256-signature": "yPtRng/HLm1KZG+O9ibyaa4/HnzVioJj1T5rINNCTko="},
    "stripe": {"stripe-signature": f"t=1700000000,v1={WITH_TIME}"},
    "github": {"x-hub-signature-256": f"sha256={HEX}"},
    "slack": {
        "x-slack-request-timestamp": "1700000000",
        "x-slack-signature": "v0=cf99dc012cd9d31d7fe4d9c3f89e50584a9ea0dd4ec68159f1b7189277898d9c",
    },
    "spree": {"x-spree-webhook-timestamp": "1700000000", "x-spree-webhook-signature": WITH_TIME},
    "paddle": {
        "paddle-signature": ("ts=1700000000;h1=fa08868a10837897497933f56d08bedf6d584fa96c605d22476bd53774d0cc87")
    },
    "hex-body": {"x-signature": HEX},
    "base64-body": {"x-signature": BASE64},
}


def test_every_preset_has_a_literal_signature_or_captures() -> None:
    assert set(LITERALS) | {capture.preset for capture in CAPTURES} >= set(PRESETS)


@pytest.mark.parametrize("name", LITERALS)
def test_a_delivery_signed_with_openssl_is_valid(name: str) -> None:
    verify(PRESETS[name], secrets=[SECRET], headers=LITERALS[name], body=BODY, now=NOW, url=URL)


@pytest.mark.parametrize("name", LITERALS)
def test_sign_gives_the_same_signature_as_openssl(name: str) -> None:
    given = {header: value for header, value in LITERALS[name].items() if header.endswith("-id")}
    added = sign(PRESETS[name], secret=SECRET, headers=given, body=BODY, now=NOW, url=URL).headers
    assert {**given, **added} == LITERALS[name]
