"""The store's API: its catalogue of operations, a client, and a sandbox store that serves the same catalogue.

    from storehooks.api import Client

Law of this room: the shape of the API is data (catalogue.toml and config), never code. The sandbox imports the
catalogue and never the client. Importing this package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.storeapi.client import Client
    from workers.storeapi.configured_client import client_for_store, client_from_config
    from workers.storeapi.errors import ApiError
    from workers.storeapi.transport.auth import Credentials

__all__ = ["ApiError", "Client", "Credentials", "client_for_store", "client_from_config"]

_MODULES = {
    "ApiError": "errors",
    "Client": "client",
    "Credentials": "transport.auth",
    "client_for_store": "configured_client",
    "client_from_config": "configured_client",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use: the sandbox is in this package and must never load the client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
