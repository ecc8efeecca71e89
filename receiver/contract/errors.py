"""Every error this product raises on purpose.

StorehooksError          a sentence for a person
├── ConfigError          the config cannot be used; says where and how to mend it    (exit 2)
├── PluginError          a plugin cannot be loaded; names plugin, file and line      (exit 2)
├── ServerUnusable       the Redis server is too old or wrongly set                  (exit 2)
│   └── ServerAway       it does not answer; the receiver can start without it
└── Rejected             a delivery is not let in; `reason` is one of `REASONS`
"""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "no-signature",
    "malformed-signature",
    "signature-mismatch",
    "secret-expired",
    "no-timestamp",
    "malformed-timestamp",
    "too-old",
    "too-new",
    "incomplete",
    "wrong-store",
    "unknown-store",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class StorehooksError(Exception):
    """Base of the family; `str()` is a sentence fit to show to a person."""


class ConfigError(StorehooksError):
    """The config cannot be used."""


class PluginError(StorehooksError):
    """A plugin cannot be loaded."""


class ServerUnusable(StorehooksError):
    """The Redis server cannot be used."""


class ServerAway(ServerUnusable):
    """The Redis server does not answer now."""


class DeliveryRefused(StorehooksError):
    """A delivery is not let in. `reason` is fit for a metric label, the text is for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
