"""Metrics: the page that Prometheus reads, with a bearer token of its own."""

from __future__ import annotations

import hmac

from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from workers.console.page_data import console, reader
from workers.operations.metrics import MetricsCollector, as_text

pages = Blueprint("metrics", __name__)
HOW = "Set [console] metrics_token, and send it as `Authorization: Bearer TOKEN`."


@pages.get("/metrics")
def page() -> Response:
    token = console().config.console.metrics_token.get_secret_value()
    if not token:
        return Response(f"No metrics without a token. {HOW}\n", 404, mimetype="text/plain")
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        return Response(f"Wrong token. {HOW}\n", 401, {"WWW-Authenticate": "Bearer"}, mimetype="text/plain")
    text = as_text(MetricsCollector(console().config, reader()))
    return Response(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)
