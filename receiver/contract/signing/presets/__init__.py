"""Presets: the schemes of known stores. Only data; `scheme show NAME` and docs/schemes.md print it.

Law of this room: only data; it imports the grammar and nothing that applies it.

They follow the vendors' packages and documentation. Where these are incomplete, a comment says what is assumed.
A key that is left out has the grammar's default: the signature is hex, and of the body alone.
"""

from __future__ import annotations

from receiver.contract.signing.grammar import Scheme
from receiver.contract.signing.presets import generic, payments, services, shops
from receiver.contract.signing.presets.generic import STANDARD_WEBHOOKS

__all__ = ["PRESETS", "STANDARD_WEBHOOKS"]

PRESETS: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        STANDARD_WEBHOOKS,
        generic.SVIX,
        *shops.PRESETS,
        *payments.PRESETS,
        *services.PRESETS,
        generic.HEX_BODY,
        generic.BASE64_BODY,
    )
}
"""By name, in the order in which `scheme detect` tries them: the bases are last."""
