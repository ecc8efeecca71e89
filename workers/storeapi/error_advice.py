"""Error advice: turns an error response into an exception whose message says what to set in config. Pure.

Nearly every operation of the API is assumed, so the cause of an error is often the catalogue and not the caller. Then
the message says what is assumed, and names the config lines to set.
"""

from __future__ import annotations

from typing import Protocol

from receiver.contract.event import follow
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation
from workers.storeapi.errors import MAX_EXCERPT, StatusError, error_class
from workers.storeapi.transport.http import HttpResponse

_STATUS_TEXTS = {401: "token refused", 403: "access denied", 404: "not found", 429: "rate limit exceeded"}


class ConfirmedOperations(Protocol):
    """Which operations a store has answered with 2xx."""

    store: str

    def confirmed_on(self, operation: Operation) -> str: ...


def error_for(
    response: HttpResponse, operation: Operation | None, catalogue: Catalogue, known: ConfirmedOperations
) -> StatusError:
    """The exception for an error response. Its message holds the store's own message and the config lines to set."""
    excerpt = _one_line(response.content[: MAX_EXCERPT * 4].decode("utf-8", "replace"))
    message = follow(_document(response), catalogue.envelope.error)
    text = message if isinstance(message, str) else _STATUS_TEXTS.get(response.status, "")
    request_id = response.headers.get("x-request-id", "")[:100]
    reason = f"answered {response.status}" + (f", {_one_line(text)}" if text else "")
    reason += f" (request {_one_line(request_id)})" if request_id else ""
    if operation is not None and operation.state != "documented":
        reason += _hint(response, operation, known)
    return error_class(response.status)(reason, status=response.status, request_id=request_id, excerpt=excerpt)


def _hint(response: HttpResponse, operation: Operation, known: ConfirmedOperations) -> str:
    where = f"stores.{known.store}.catalogue.{operation.group}"
    if response.status in (404, 405, 410, 501) and not known.confirmed_on(operation):
        allowed = response.headers.get("allow", "")
        allows = f" (the store allows {_one_line(allowed)})" if response.status == 405 and allowed else ""
        return (
            f". {operation.method} {operation.path} is {operation.state} and never confirmed at this store{allows}; "
            f'if the store uses another path, set\n[{where}.{operation.name}]\nmethod = "..."\npath = "..."'
        )
    if response.status in (400, 422) and operation.body_fields:
        return (
            f". Its field names are assumed ({', '.join(operation.body_fields)}); if the store uses another name, "
            f'set\n[{where}]\nfields = {{ {operation.body_fields[0]} = "..." }}'
        )
    return ""


def _one_line(text: str) -> str:
    """Text from the store as one line of printable characters, of bounded length."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_EXCERPT]


def _document(response: HttpResponse) -> object:
    try:
        return exact_json.loads(response.content)
    except ValueError:
        return None
