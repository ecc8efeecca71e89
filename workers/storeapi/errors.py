"""Every way a call of the store's API can end without an answer one can use.

ApiError                 store, operation; with an answer also status, request_id and a bounded excerpt
├── Refused              we did not do it, because it would not have been safe
│   ├── UnsafeAddress    the name resolves to a private address, or the address is not https
│   ├── ForeignOrigin    a redirect, or a link to another origin; the token stays here
│   └── TooLarge         the answer is larger than we read
├── Unreachable          no answer: connection, protocol or time; `sent` says whether the store may have it
├── TokenRefused         the token endpoint gives us none
├── Unreadable           an answer that is not what the catalogue says
└── Answered             the store answered with an error
    ├── Invalid          400, 409, 422 and other 4xx: it does not want this
    ├── Denied           401 after a fresh token, 403
    ├── NotThere         404, 405, 410, 501: no such record, or no such operation at this store
    ├── RateLimited      429; `retry_after` says when, if the store did
    └── StoreFault       5xx

No text of this family holds a token or a secret of ours.
"""

from __future__ import annotations

from receiver.contract.errors import StorehooksError

MAX_EXCERPT = 300


class ApiError(StorehooksError):
    """Base of the family."""

    def __init__(self, reason: str, *, store: str = "", operation: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.store = store
        self.operation = operation

    def about(self, *, store: str, operation: str) -> ApiError:
        """The same error, told of which call."""
        self.store, self.operation = store, operation
        return self

    def __str__(self) -> str:
        where = " at ".join(filter(None, (self.operation, self.store)))
        return f"{where}: {self.reason}" if where else self.reason


class Refused(ApiError):
    pass


class UnsafeAddress(Refused):
    pass


class ForeignOrigin(Refused):
    pass


class TooLarge(Refused):
    pass


class Unreachable(ApiError):
    def __init__(self, reason: str, *, sent: bool, store: str = "", operation: str = "") -> None:
        super().__init__(reason, store=store, operation=operation)
        self.sent = sent


class TokenRefused(ApiError):
    pass


class Unreadable(ApiError):
    pass


class Answered(ApiError):
    def __init__(
        self,
        reason: str,
        *,
        status: int,
        request_id: str = "",
        excerpt: str = "",
        retry_after: float | None = None,
        store: str = "",
        operation: str = "",
    ) -> None:
        super().__init__(reason, store=store, operation=operation)
        self.status = status
        self.request_id = request_id
        self.excerpt = excerpt
        self.retry_after = retry_after


class Invalid(Answered):
    pass


class Denied(Answered):
    pass


class NotThere(Answered):
    pass


class RateLimited(Answered):
    pass


class StoreFault(Answered):
    pass


def kind_of(status: int) -> type[Answered]:
    """The class for an answer's status."""
    if status >= 500 and status != 501:
        return StoreFault
    kinds: dict[int, type[Answered]] = {
        401: Denied,
        403: Denied,
        404: NotThere,
        405: NotThere,
        410: NotThere,
        429: RateLimited,
        501: NotThere,
    }
    return kinds.get(status, Invalid)


def is_refusal(error: ApiError) -> bool:
    """Whether the store certainly did not do what it was asked."""
    if isinstance(error, Unreachable):
        return not error.sent
    if isinstance(error, Answered):
        return not isinstance(error, StoreFault)
    return isinstance(error, TokenRefused | UnsafeAddress)
