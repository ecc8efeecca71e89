"""The public endpoint: read bytes within limits, let them in, keep them, answer.

Law of this room: the edge. Nothing imports it but the web server; it never loads plugin code.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, HTTPException, RequestEntityTooLarge

from receiver.config import Config, load_from_environment
from receiver.delivery.admission import Admission, BodyTooLong, BodyUnreadable, IncomingDelivery, read_body
from receiver.delivery.answers import Answer, problem, told, unavailable
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.delivery.storage import DeliveryStorage
from receiver.inbox import Inbox, connect_to
from receiver.inbox.refusal_counts import RefusalCounts


def create_app(config: Config | None = None) -> Flask:
    """The WSGI app. Call it in the process that serves: it opens connections when first used."""
    config = config or load_from_environment()
    client = connect_to(config.redis, timeout=config.redis.timeout)
    keeper = RefusalLog(config.data_dir, config.receiver.refused)
    keeping = DeliveryStorage(config, Inbox(client))
    keeping.start()
    locksmith = SecretCache(config, client)
    locksmith.start()
    door = Admission(config.known_stores, RefusalCounts(client), keeper, locksmith)
    views = Views(door, keeping, config.receiver.max_body)

    app = Flask("receiver", static_folder=None)
    app.extensions["door"], app.extensions["keeping"] = door, keeping  # for a server that keeps in groups
    app.url_map.merge_slashes = False  # a redirect is no answer to a webhook
    app.add_url_rule("/webhooks", view_func=views.deliver, methods=["POST"])
    app.add_url_rule("/webhooks/<store>", view_func=views.deliver, methods=["POST"])
    app.add_url_rule("/healthz", view_func=healthz)
    app.add_url_rule("/readyz", view_func=views.readyz)
    app.register_error_handler(HTTPException, explain_refusal)
    return app


class Views:
    def __init__(self, door: Admission, keeping: DeliveryStorage, max_body: int) -> None:
        self._door = door
        self._keeping = keeping
        self._max_body = max_body

    def deliver(self, store: str = "") -> Response:
        """One delivery: to a store's own URL, or to the URL of all, where it says itself which store it is of."""
        judged = self._door.judge(self._arrival(store))
        if isinstance(judged, Answer):
            return as_response(judged)
        (kept,) = self._keeping.keep_all([judged])
        return as_response(self._door.answer(judged, kept))

    def readyz(self) -> Response:
        """Can it keep an event now, and where?"""
        ready = self._keeping.ready()
        if ready is None:
            return as_response(unavailable("Neither Redis nor the spool can take a delivery."))
        where, spooled = ready
        since = self._keeping.waiting_since()
        return as_response(told({"status": "ready", "stores_in": where, "spooled": spooled, "waiting_since": since}))

    def _arrival(self, store: str) -> IncomingDelivery:
        environ = request.environ
        now = time.time()
        try:
            body = read_body(environ["wsgi.input"].read, environ.get("CONTENT_LENGTH") or "", self._max_body)
        except BodyTooLong:
            raise RequestEntityTooLarge from None
        except BodyUnreadable as error:
            raise BadRequest(str(error)) from None
        return IncomingDelivery(store, lower_case_headers(environ), body, request.remote_addr or "", now)


def healthz() -> Response:
    """Alive; depends on nothing."""
    return as_response(told({"status": "alive"}))


def lower_case_headers(environ: dict[str, Any]) -> dict[str, str]:
    """The request's headers under their lower-case names, as the contract wants them."""
    found = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if content_type := environ.get("CONTENT_TYPE"):
        found["content-type"] = content_type
    return found


def as_response(answer: Answer) -> Response:
    return Response(answer.body, status=answer.status, headers=list(answer.headers), content_type=answer.content_type)


def explain_refusal(error: HTTPException) -> Response:
    """Every HTTP error in one form, with the headers that belong to it (Allow, for one)."""
    kept = [(name, value) for name, value in error.get_headers() if name.lower() != "content-type"]
    return as_response(problem(HTTPStatus(error.code or 500), error.description or "", *kept))
