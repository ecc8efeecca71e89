"""The public Flask app: routes, limits and status codes. Reads a delivery, verifies it, stores it, answers.

Law of this room: the edge. Only the web server imports it; it never loads plugin code.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, HTTPException, RequestEntityTooLarge

from receiver.contract.signing.sources import query_fields
from receiver.delivery.admission import BodyTooLong, BodyUnreadable, IncomingDelivery, read_body
from receiver.delivery.answers import Answer, json_answer, problem, unavailable
from receiver.delivery.pipeline import DeliveryPipeline


def create_app(pipeline: DeliveryPipeline, *, max_body: int) -> Flask:
    views = Views(pipeline, max_body)
    app = Flask("receiver", static_folder=None)
    app.url_map.merge_slashes = False  # a webhook is never answered with a redirect
    app.add_url_rule("/webhooks", view_func=views.deliver, methods=["POST"])
    app.add_url_rule("/webhooks/<store>", view_func=views.deliver, methods=["POST"])
    app.add_url_rule("/healthz", view_func=healthz)
    app.add_url_rule("/readyz", view_func=views.readyz)
    app.register_error_handler(HTTPException, error_response)
    return app


class Views:
    def __init__(self, pipeline: DeliveryPipeline, max_body: int) -> None:
        self._admission = pipeline.admission
        self._storage = pipeline.storage
        self._max_body = max_body

    def deliver(self, store: str = "") -> Response:
        """Accept or refuse one delivery, sent to a store's own URL or to the common URL, where it names its store."""
        admitted = self._admission.admit(self._read_delivery(store))
        if isinstance(admitted, Answer):
            return as_response(admitted)
        (stored,) = self._storage.store_all([admitted])
        return as_response(self._admission.answer(admitted, stored))

    def readyz(self) -> Response:
        """Whether a delivery can be stored now, and where. With `?strict=1` only Redis counts, and not the spool."""
        ready = self._storage.readiness()
        if ready is not None and ready.stores_in != "redis" and request.args.get("strict") == "1":
            return as_response(unavailable("Redis cannot store a delivery now; the spool can."))
        if ready is None:
            return as_response(unavailable("Neither Redis nor the spool can store a delivery."))
        return as_response(json_answer({"status": "ready", **ready._asdict()}))

    def _read_delivery(self, store: str) -> IncomingDelivery:
        environ = request.environ
        now = time.time()
        try:
            body = read_body(environ["wsgi.input"].read, environ.get("CONTENT_LENGTH") or "", self._max_body)
        except BodyTooLong:
            raise RequestEntityTooLarge from None
        except BodyUnreadable as error:
            raise BadRequest(str(error)) from None
        return IncomingDelivery(store, headers_in(environ), body, request.remote_addr or "", now)


def healthz() -> Response:
    """Whether the process is alive. Depends on nothing else."""
    return as_response(json_answer({"status": "alive"}))


def headers_in(environ: dict[str, Any]) -> dict[str, str]:
    """The request's headers and query fields under their names, as `receiver.contract` reads them."""
    found = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if content_type := environ.get("CONTENT_TYPE"):
        found["content-type"] = content_type
    return found | query_fields(environ.get("QUERY_STRING", ""))


def as_response(answer: Answer) -> Response:
    return Response(answer.body, status=answer.status, headers=list(answer.headers), content_type=answer.content_type)


def error_response(error: HTTPException) -> Response:
    """Every HTTP error as problem+json, with the headers that belong to it (such as Allow)."""
    headers = [(name, value) for name, value in error.get_headers() if name.lower() != "content-type"]
    return as_response(problem(HTTPStatus(error.code or 500), error.description or "", *headers))
