"""The store's API, from both sides: what it offers (catalogue), a client of it, and a sandbox store (sandbox).

    from workers.storeapi import Client

Law of this room: what the API is like is data (catalogue.toml and config), never code. The sandbox imports the
catalogue and never the client. Nothing here is loaded before somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.storeapi.client import Client
    from workers.storeapi.configured_client import client_for_store
    from workers.storeapi.errors import ApiError
    from workers.storeapi.transport.auth import Credentials

__all__ = ["ApiError", "Client", "Credentials", "client_for_store"]

_HOMES = {
    "ApiError": "errors",
    "Client": "client",
    "Credentials": "transport.auth",
    "client_for_store": "configured_client",
}


def __getattr__(name: str) -> Any:
    """Loaded when first used: the sandbox shares this package and must never load the client."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
