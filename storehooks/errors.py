"""Errors: what `ctx.api` and `storehooks.api` raise, and the base of all errors of storehooks.

docs/client.md says when each of them is raised.
"""

import storehooks.own_packages  # noqa: F401  first
from receiver.contract.errors import ConfigError, StorehooksError
from workers.storeapi.errors import (
    AccessDenied,
    ApiError,
    Blocked,
    ForeignOrigin,
    InvalidRequest,
    RateLimited,
    Redirected,
    ResourceNotFound,
    ResponseTooLarge,
    ServerError,
    StatusError,
    TokenRefused,
    TokenUnreachable,
    UnexpectedResponse,
    Unreachable,
    UnsafeAddress,
)

__all__ = [
    "AccessDenied",
    "ApiError",
    "Blocked",
    "ConfigError",
    "ForeignOrigin",
    "InvalidRequest",
    "RateLimited",
    "Redirected",
    "ResourceNotFound",
    "ResponseTooLarge",
    "ServerError",
    "StatusError",
    "StorehooksError",
    "TokenRefused",
    "TokenUnreachable",
    "UnexpectedResponse",
    "Unreachable",
    "UnsafeAddress",
]
