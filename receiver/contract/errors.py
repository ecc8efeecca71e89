"""The errors that carry a message for people.

StorehooksError          the base class; `str(error)` is one sentence with the cause and, where possible, the fix
├── ConfigError          the config or a command's arguments are invalid; says where and how to fix it
├── NotFound             the event, store, handler or other item asked for does not exist
├── PluginError          a plugin cannot be loaded; names the plugin, file and line
│   └── MissingSetting       the config does not have a setting that the plugin needs
├── ServerUnusable       the Redis server is too old or its settings are wrong
│   └── ServerUnreachable    the Redis server does not answer; the receiver can start without it
└── DeliveryRefused      a delivery is refused; `reason` is one of `REASONS`

Other modules derive their own from StorehooksError, such as `RecordError` in records.py.
The command line prints any of them as one line, without a traceback, and exits with 2.
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
    "ambiguous",
    "wrong-store",
    "unknown-store",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class StorehooksError(Exception):
    """Base class of the product's errors. The message is a sentence that can be shown to a user.

    A log gets `logged` instead: the same without what a log must not have, such as the message of a plugin's exception.
    """

    _logged = ""

    def __init__(self, *message: object, logged: str = "") -> None:
        super().__init__(*message)
        self._logged = logged

    @property
    def logged(self) -> str:
        return self._logged or str(self)


class ConfigError(StorehooksError):
    """The config, or a command's arguments, are invalid."""


class NotFound(StorehooksError):
    """The event, store, handler or other item asked for does not exist. The message says how to list what exists."""


class PluginError(StorehooksError):
    """A plugin cannot be loaded."""


class MissingSetting(PluginError):
    """A plugin needs a setting that the config does not have."""


class ServerUnusable(StorehooksError):
    """The Redis server cannot be used: it is too old, or its settings are wrong."""


class ServerUnreachable(ServerUnusable):
    """The Redis server does not answer at the moment."""


class DeliveryRefused(StorehooksError):
    """A delivery is refused. `reason` is a slug, safe as a metric label; the message explains it to people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
