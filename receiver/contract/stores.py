"""Store: one sender of deliveries, as the receiver needs to know it."""

from __future__ import annotations

import secrets as entropy
from dataclasses import dataclass, field

from receiver.contract.scheme import STANDARD_WEBHOOKS, Scheme, Secret


@dataclass(frozen=True)
class Store:
    name: str
    scheme: Scheme
    secrets: tuple[Secret, ...] = field(repr=False)
    url: str = ""
    """What the store was told to send to; part of the signed content in some schemes."""
    domain: str = ""


def decoy() -> Store:
    """Stands in for a store nobody configured, so that an unknown name costs the same work."""
    return Store(name="?", scheme=STANDARD_WEBHOOKS, secrets=(Secret(entropy.token_bytes(24)),))
