"""The public endpoint: read bytes within limits, let them in, keep them, answer.

Law of this room: the edge. Nothing imports it but the web server; it never loads plugin code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, HTTPException, RequestEntityTooLarge

from receiver.config import Config, load_from_environment
from receiver.contract.errors import Rejected
from receiver.contract.intake import Delivery, kept_headers, receive
from receiver.contract.scheme import Headers
from receiver.contract.settings import is_store_name
from receiver.contract.stores import Store, StoreIndex, decoy
from receiver.inbox import Inbox, connect, server_url
from receiver.inbox.counters import UNKNOWN_STORE, Tally
from receiver.keeper import Keeper
from receiver.keeping import Keeping, NowhereToKeep
from receiver.locksmith import Locksmith
from receiver.spool import Refusal

RETRY_AFTER = "5"
SIGNED_BY_NOBODY = "The signature does not fit."
SIGNED_BY_NOBODY_YET = "The signature does not fit now; send it again."


def create_app(config: Config | None = None) -> Flask:
    """The WSGI app. Call it in the process that serves: it opens connections when first used."""
    config = config or load_from_environment()
    client = connect(server_url(config.redis.url, config.data_dir), timeout=config.redis.timeout)
    keeper = Keeper(config.data_dir, config.receiver.refused)
    keeping = Keeping(config, Inbox(client))
    keeping.start()
    locksmith = Locksmith(config, client)
    locksmith.start()
    door = Door(config, keeping, Tally(client), keeper, locksmith)

    app = Flask("receiver", static_folder=None)
    app.url_map.merge_slashes = False  # a redirect is no answer to a webhook
    app.add_url_rule("/webhooks", view_func=door.deliver, methods=["POST"])
    app.add_url_rule("/webhooks/<store>", view_func=door.deliver, methods=["POST"])
    app.add_url_rule("/healthz", view_func=healthz)
    app.add_url_rule("/readyz", view_func=door.readyz)
    app.register_error_handler(HTTPException, explain_refusal)
    return app


class Door:
    """Where deliveries come in."""

    def __init__(self, config: Config, keeping: Keeping, tally: Tally, keeper: Keeper, locksmith: Locksmith) -> None:
        self._config = config
        self._stores = config.known_stores
        self._index = StoreIndex(config.known_stores)
        self._decoy = decoy()
        self._keeping = keeping
        self._tally = tally
        self._keeper = keeper
        self._locksmith = locksmith

    def deliver(self, store: str = "") -> Response:
        """One delivery: to a store's own URL, or to the URL of all, where it says itself which store it is of."""
        now = time.time()
        body = read_body(request.environ, self._config.receiver.max_body)
        headers = lower_case_headers(request.environ)
        named = self._stores.get(store) if store else self._index.find(headers, body)
        known = self._locksmith.equipped(named)
        try:
            delivery = self._let_in(known, headers, body, now)
        except Rejected as refusal:
            self._refuse(refusal, known, store, headers, body, now)
            if self._locksmith.unsure:
                return unavailable(SIGNED_BY_NOBODY_YET)
            return problem(HTTPStatus.UNAUTHORIZED, SIGNED_BY_NOBODY)
        return self._keep(delivery)

    def readyz(self) -> Response:
        """Can it keep an event now, and where?"""
        ready = self._keeping.ready()
        if ready is None:
            return unavailable("Neither Redis nor the spool can take a delivery.")
        where, spooled = ready
        return as_json({"status": "ready", "keeps_in": where, "spooled": spooled})

    def _let_in(self, known: Store | None, headers: Headers, body: bytes, now: float) -> Delivery:
        """An unknown store costs the same work as a known one and ends the same way."""
        try:
            delivery = receive(headers, body, store=known or self._decoy, now=now)
        except Rejected:
            if known:
                raise
        if known is None:
            raise Rejected("unknown-store", "no such store")
        return delivery

    def _refuse(
        self, refusal: Rejected, known: Store | None, named: str, headers: Headers, body: bytes, now: float
    ) -> None:
        """Count it, and keep it for a while: the secret may be wrong on our side."""
        label = known.name if known else UNKNOWN_STORE
        self._tally.refused(label, refusal.reason)
        self._keeper.keep(
            Refusal(
                at=now,
                store=label,
                named=named if is_store_name(named) else "",
                reason=refusal.reason,
                length=len(body),
                hash=hashlib.sha256(body).hexdigest()[:16],
                address=request.remote_addr or "",
                headers=kept_headers(headers),
                body=body,
            )
        )

    def _keep(self, delivery: Delivery) -> Response:
        try:
            kept = self._keeping.keep(delivery)
        except NowhereToKeep:
            return unavailable("The delivery could not be kept; send it again.")
        if kept.status == "full":
            return unavailable("This store has too many events waiting; send it again later.")
        success = self._stores[delivery.event.store].scheme.success
        return as_json({"id": kept.id, "status": kept.status}, success)


def healthz() -> Response:
    """Alive; depends on nothing."""
    return as_json({"status": "alive"})


def read_body(environ: dict[str, Any], limit: int) -> bytes:
    """The whole body. Refuses one that is longer than the limit, or not as long as it says."""
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise RequestEntityTooLarge
    try:
        body = _read_up_to(environ["wsgi.input"].read, limit + 1)
    except Exception:  # noqa: BLE001  a bad chunk, a sender that went away: each server has its own errors for it
        raise BadRequest("The body could not be read.") from None
    if len(body) > limit:
        raise RequestEntityTooLarge
    if announced and len(body) != int(announced):
        raise BadRequest("The body is shorter than its Content-Length.")
    return body


def lower_case_headers(environ: dict[str, Any]) -> dict[str, str]:
    """The request's headers under their lower-case names, as the contract wants them."""
    found = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if content_type := environ.get("CONTENT_TYPE"):
        found["content-type"] = content_type
    return found


def problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Response:
    """An error as RFC 9457 has it."""
    content = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    answer = as_json(content, status.value)
    answer.mimetype = "application/problem+json"
    answer.headers.update(headers or {})
    return answer


def unavailable(detail: str) -> Response:
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": RETRY_AFTER})


def as_json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status=status, mimetype="application/json")


def explain_refusal(error: HTTPException) -> Response:
    """Every HTTP error in one form, with the headers that belong to it (Allow, for one)."""
    kept = {name: value for name, value in error.get_headers() if name.lower() != "content-type"}
    if error.code in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.BAD_REQUEST):
        kept["Connection"] = "close"  # what was not read must not be taken for the next request
    return problem(HTTPStatus(error.code or 500), error.description or "", kept)


def _read_up_to(read: Callable[[int], bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := read(limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
