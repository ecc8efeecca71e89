"""Signed deliveries for the tests of the contract."""

from __future__ import annotations

from dataclasses import dataclass, field

from receiver.contract.signing.signatures import PRESETS, Scheme, Secret, sign
from receiver.contract.stores import Store

NOW = 1_700_000_000.0
URL = "https://hooks.example.com/webhooks/north"
KEY = Secret(b"a secret of thirty-two bytes, ok", origin="config.toml:41")
BODY = (
    b'{"type":"order.created","event":"order.created","timestamp":1700000000,'
    b'"data":{"id":7,"total":"42.00","lines":[1,2]}}'
)

WHOLE_BODY = {
    name: scheme for name, scheme in PRESETS.items() if scheme.signs_body and not scheme.batch and not scheme.reads_form
}
"""The presets that sign every byte of any body. tests/receiver/contract/test_captures.py tests the others."""


@dataclass
class Sent:
    """One signed delivery."""

    scheme: Scheme
    headers: dict[str, str]
    body: bytes
    url: str = URL
    secret: Secret = field(default=KEY)

    @property
    def store(self) -> Store:
        return Store("north", self.scheme, (self.secret,), url=self.url)


def send(scheme: Scheme, body: bytes = BODY, *, secret: Secret = KEY, now: float = NOW, **extra: str) -> Sent:
    """Return a delivery signed by `scheme`. Signed headers are filled; others are given with _ for -."""
    headers = {name: "msg_1" for kind, name in scheme.signed_parts if kind == "header"}
    headers |= {name.replace("_", "-"): value for name, value in extra.items()}
    headers |= sign(scheme, secret=secret, headers=headers, body=body, now=now, url=URL).headers
    return Sent(scheme, headers, body, secret=secret)
