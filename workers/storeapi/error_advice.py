"""Error advice: turns an error response into an exception whose message says what to set in config. Pure.

Nearly every operation of the API is assumed, so the cause of an error is often the catalogue and not the caller. Then
the message says what is assumed, and names the config lines to set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver.contract.event import follow
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation
from workers.storeapi.errors import StatusError, error_class
from workers.storeapi.response_shapes import MAX_TEXT, one_line, text_of, words_in
from workers.storeapi.transport.http import HttpResponse

if TYPE_CHECKING:
    from workers.storeapi.confirmations import Confirmations

_REQUEST_IDS = ("x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid", "x-trace-id", "cf-ray")
_STATUS_TEXTS = {401: "token refused", 403: "access denied", 404: "not found", 429: "rate limit exceeded"}


def error_for(
    response: HttpResponse, operation: Operation | None, catalogue: Catalogue, known: Confirmations
) -> StatusError:
    """The exception for an error response. Its message holds the store's own message and the config lines to set."""
    excerpt = one_line(response.content[:MAX_TEXT].decode("utf-8", "replace"), response.hidden)
    text = store_words(response, catalogue.envelope.error) or _STATUS_TEXTS.get(response.status, "")
    request_id = one_line(next(filter(None, map(response.headers.get, _REQUEST_IDS)), ""), limit=100)
    reason = f"answered {response.status}" + (f", {text}" if text else "")
    reason += f" (request {request_id})" if request_id else ""
    if operation is not None:
        reason += _hint(response, operation, known)
    return error_class(response.status)(reason, status=response.status, request_id=request_id, excerpt=excerpt)


def store_words(response: HttpResponse, path: str) -> str:
    """What the store says in a response, as one line of bounded length: at the catalogue's path, or elsewhere."""
    try:
        document = exact_json.loads(response.content)
    except ValueError:
        return one_line(text_of(response.content), response.hidden)
    message = follow(document, path)
    return one_line(message if isinstance(message, str) and message else words_in(document), response.hidden)


def _hint(response: HttpResponse, operation: Operation, known: Confirmations) -> str:
    where = f"stores.{known.store}.catalogue.{operation.group}"
    asks = response.headers.get("www-authenticate", "").partition(" ")[0].strip(",")
    if response.status == 401 and asks and asks.lower() != "bearer":
        scheme = one_line(asks, limit=40)
        return (
            f'. The store asks for the scheme {scheme}; if the token is for that, set scheme = "{scheme}" in '
            f"stores.{known.store}.auth"
        )
    if response.status in (404, 405, 410, 501) and not known.confirmed_on(operation):
        return _path_hint(response, operation, known.store)
    if response.status in (400, 422) and operation.body_fields and not operation.documented:
        return (
            f". Its field names are assumed ({', '.join(operation.body_fields)}); if the store uses another name, "
            f'set\n[{where}]\nfields = {{ {operation.body_fields[0]} = "..." }}'
        )
    return ""


def _path_hint(response: HttpResponse, operation: Operation, store: str) -> str:
    call = f". {operation.method} {operation.path} is"
    if operation.documented:
        return (
            f"{call} never confirmed at this store; check base_url of stores.{store}; if the store's API has another "
            f'path before every operation, set\n[stores.{store}.catalogue]\nprefix = "..."'
        )
    allowed = response.headers.get("allow", "")
    allows = f" (the store allows {one_line(allowed)})" if response.status == 405 and allowed else ""
    return (
        f"{call} {operation.state} and never confirmed at this store{allows}; if the store uses another path, set\n"
        f'[stores.{store}.catalogue.{operation.full_name}]\nmethod = "..."\npath = "..."'
    )
