"""The client of the store's API, for scripts; a handler has it as `ctx.api`. See docs/client.md."""

import storehooks.own_packages  # noqa: F401  first
from workers.storeapi import Client, Credentials, client_from_config

__all__ = ["Client", "Credentials", "client_from_config"]
