"""For integrators: make events and contexts, run a real pipeline in a test, certify a plugin.

    from workers.testing import make_context, make_event

Law of this room: it starts the product as processes and never imports the edge. Nothing here is loaded before it is
used, since every pytest run imports `workers.testing.pytest_plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.testing.kit import (
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
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from workers.testing import kit

    return getattr(kit, name)
