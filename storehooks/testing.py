"""The test kit for plugins; see docs/how-to/testing.md. A name is loaded when it is first used."""

from typing import TYPE_CHECKING, Any

import storehooks.own_packages  # noqa: F401  first
from workers import testing

if TYPE_CHECKING:
    from workers.testing import (
        RecordingContext,
        SandboxStore,
        SentEvent,
        SystemUnderTest,
        make_context,
        make_event,
        sample_events,
    )

__all__ = [
    "RecordingContext",
    "SandboxStore",
    "SentEvent",
    "SystemUnderTest",
    "make_context",
    "make_event",
    "sample_events",
]


def __getattr__(name: str) -> Any:
    return getattr(testing, name)
