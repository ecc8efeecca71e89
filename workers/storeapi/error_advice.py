"""Advice: what an answer with an error means, in a sentence, with the config key that may mend it. Pure.

Nearly everything of the API is assumed, so an error is often not the caller's fault but the catalogue's. Then
the sentence says what is assumed and names the lines to set.
"""

from __future__ import annotations

from typing import Protocol

from receiver.contract.event import follow
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation
from workers.storeapi.errors import MAX_EXCERPT, StatusError, error_class
from workers.storeapi.transport.http import HttpResponse

_WORDS = {401: "did not take the token", 403: "does not allow this", 404: "not found", 429: "too many calls"}


class ConfirmedAt(Protocol):
    """Which operations have worked before."""

    store: str

    def confirmed_on(self, operation: Operation) -> str: ...


def error_for(
    answer: HttpResponse, operation: Operation | None, catalogue: Catalogue, known: ConfirmedAt
) -> StatusError:
    """The error of an answer, told so that one knows what to do."""
    excerpt = _excerpt(answer)
    told = follow(_document(answer), catalogue.envelope.error)
    words = told if isinstance(told, str) else _WORDS.get(answer.status, "")
    request_id = answer.headers.get("x-request-id", "")[:100]
    reason = f"answered {answer.status}" + (f", {_one_line(words)}" if words else "")
    reason += f" (request {_one_line(request_id)})" if request_id else ""
    if operation is not None and operation.state != "documented":
        reason += _hint(answer, operation, known)
    return error_class(answer.status)(reason, status=answer.status, request_id=request_id, excerpt=excerpt)


def _hint(answer: HttpResponse, operation: Operation, known: ConfirmedAt) -> str:
    where = f"stores.{known.store}.catalogue.{operation.group}"
    if answer.status in (404, 405, 410, 501) and not known.confirmed_on(operation):
        allowed = answer.headers.get("allow", "")
        says = f" (the store allows {_one_line(allowed)})" if answer.status == 405 and allowed else ""
        return (
            f". Its path is {operation.state}, {operation.method} {operation.path}, and never confirmed here{says}; "
            f'if the store has it elsewhere, set\n[{where}.{operation.name}]\nmethod = "..."\npath = "..."'
        )
    if answer.status in (400, 422) and operation.body_fields:
        return (
            f". The names of its fields are assumed ({', '.join(operation.body_fields)}); if the store calls one "
            f'otherwise, set\n[{where}]\nfields = {{ {operation.body_fields[0]} = "..." }}'
        )
    return ""


def _excerpt(answer: HttpResponse) -> str:
    return _one_line(answer.content[: MAX_EXCERPT * 4].decode("utf-8", "replace"))


def _one_line(text: str) -> str:
    """Text of the store, made harmless: one line, bounded."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_EXCERPT]


def _document(answer: HttpResponse) -> object:
    try:
        return exact_json.loads(answer.content)
    except ValueError:
        return None
