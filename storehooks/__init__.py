"""storehooks: the names that plugins, tests and scripts import.

    from storehooks import Busy, Context, Drop, Event, Fail, Retry, Router
    from storehooks.records import Order           what event.record is
    from storehooks.errors import ResourceNotFound  what ctx.api raises
    from storehooks.testing import make_context, make_event
    from storehooks.api import Client              the store's API, for scripts

Law of this package: it only names what is public; the code is in `receiver` and `workers`, which never import it.
Importing it loads nothing. A name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers import Busy, Context, Drop, Event, Fail, Retry, Router

__all__ = ["Busy", "Context", "Drop", "Event", "Fail", "Retry", "Router"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    import_module("storehooks.own_packages")
    return getattr(import_module("workers"), name)
