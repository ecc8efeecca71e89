"""Context: what a handler is given beside the event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class Settings(SimpleNamespace):
    """A plugin's settings, read as attributes. They may hold secrets, so they do not show themselves."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(vars(self)))})"


def make_settings(values: Mapping[str, Any]) -> Settings:
    return Settings(**{name: make_settings(v) if isinstance(v, Mapping) else v for name, v in values.items()})


@dataclass(frozen=True)
class Context:
    """One attempt of one run: everything in it is for this event, this handler and this store."""

    store: str
    settings: Any
    resource: Any
    """What the plugin's startup function returned in this process; None without one."""
    attempt: int
    """1 the first time."""
    log: logging.Logger
    replay: bool = False
    deadline: float = field(default=float("inf"), repr=False)
    stopped: Callable[[], bool] = field(default=lambda: False, repr=False)

    def remaining(self) -> float:
        """Seconds until this run is timed out."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop; a long handler may end early with Retry."""
        return self.stopped()
