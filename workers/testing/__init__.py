"""Test kit for integrators: events and contexts without a server, the real pipeline in a test, plugin certification.

    from storehooks.testing import make_context, make_event

    def test_a_paid_order_earns_points():
        event = make_event("order.paid", {"total": "42.00"})
        assert award_points(event, make_context(event)) == "42 points"

The same names are pytest fixtures, together with `store` (the sandbox over HTTP) and `system` (the real pipeline); see
docs/how-to/testing.md.

Law of this room: it starts the product as processes and never imports the edge. Modules load on first use, because
they are pytest fixtures, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.testing.events import make_event, sample_events
    from workers.testing.recording_context import RecordingContext, make_context
    from workers.testing.sandbox_store import SandboxStore
    from workers.testing.system_under_test import SentEvent, SystemUnderTest

__all__ = [
    "RecordingContext",
    "SandboxStore",
    "SentEvent",
    "SystemUnderTest",
    "make_context",
    "make_event",
    "sample_events",
]

_MODULES = {
    "RecordingContext": "recording_context",
    "SandboxStore": "sandbox_store",
    "SentEvent": "system_under_test",
    "SystemUnderTest": "system_under_test",
    "make_context": "recording_context",
    "make_event": "events",
    "sample_events": "events",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"workers.testing.{_MODULES[name]}"), name)
