"""Errors of the store API client.

ApiError                    store, operation
├── Blocked                 the client stopped the call, because it would not be safe
│   ├── UnsafeAddress       the host name resolves to a private address, or the URL is not https
│   ├── ForeignOrigin       a link to another origin; the token is not sent there
│   │   └── Redirected      a redirect, which is not followed; status and target
│   └── ResponseTooLarge    the response is larger than the client reads; status and headers
├── Unreachable             no response: connection, protocol or timeout; `sent` says whether the store may have it
│   └── TokenUnreachable    no token for now: the token endpoint does not answer, or 429 or 5xx; `retry_after`
├── TokenRefused            the token endpoint issues no token
├── UnexpectedResponse      the response is not what the catalogue says
└── StatusError             the store answered with an error; status, request_id, and a bounded excerpt
    ├── InvalidRequest      400, 409, 422 and other 4xx
    ├── AccessDenied        401 after a fresh token, 403
    ├── ResourceNotFound    404, 405, 410, 501: no such record, or no such operation at this store
    ├── RateLimited         429; `retry_after` is the store's Retry-After, if it sent one
    └── ServerError         5xx

No message of these errors contains a token or a secret of the client.
"""

from __future__ import annotations

from collections.abc import Mapping

from receiver.contract.errors import StorehooksError

MAX_EXCERPT = 300


class ApiError(StorehooksError):
    """Base class of the client's errors."""

    def __init__(self, reason: str, *, store: str = "", operation: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.store = store
        self.operation = operation

    def with_context(self, *, store: str, operation: str) -> ApiError:
        """The same error, with the store and the operation of the call."""
        self.store, self.operation = store, operation
        return self

    def __str__(self) -> str:
        where = " at ".join(filter(None, (self.operation, self.store)))
        return f"{where}: {self.reason}" if where else self.reason


class Blocked(ApiError):
    pass


class UnsafeAddress(Blocked):
    pass


class ForeignOrigin(Blocked):
    pass


class Redirected(ForeignOrigin):
    def __init__(self, reason: str, *, status: int, target: str) -> None:
        super().__init__(reason)
        self.status = status
        self.target = target


class ResponseTooLarge(Blocked):
    def __init__(self, reason: str, *, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Unreachable(ApiError):
    def __init__(self, reason: str, *, sent: bool, **where: str) -> None:
        super().__init__(reason, **where)
        self.sent = sent


class TokenUnreachable(Unreachable):
    def __init__(self, reason: str, *, sent: bool, retry_after: float | None = None, **where: str) -> None:
        super().__init__(reason, sent=sent, **where)
        self.retry_after = retry_after


class TokenRefused(ApiError):
    pass


class UnexpectedResponse(ApiError):
    pass


class StatusError(ApiError):
    def __init__(
        self,
        reason: str,
        *,
        status: int,
        request_id: str = "",
        excerpt: str = "",
        retry_after: float | None = None,
        **where: str,
    ) -> None:
        super().__init__(reason, **where)
        self.status = status
        self.request_id = request_id
        self.excerpt = excerpt
        self.retry_after = retry_after


class InvalidRequest(StatusError):
    pass


class AccessDenied(StatusError):
    pass


class ResourceNotFound(StatusError):
    pass


class RateLimited(StatusError):
    pass


class ServerError(StatusError):
    pass


def error_class(status: int) -> type[StatusError]:
    """The exception class for a response's status."""
    if status in (401, 403):
        return AccessDenied
    if status in (404, 405, 410, 501):
        return ResourceNotFound
    if status == 429:
        return RateLimited
    return ServerError if status >= 500 else InvalidRequest


def had_no_effect(error: ApiError) -> bool:
    """Whether the failed call certainly changed nothing at the store."""
    if isinstance(error, Unreachable):
        return not error.sent
    if isinstance(error, StatusError):
        return not isinstance(error, ServerError)
    return isinstance(error, TokenRefused | UnsafeAddress)
