"""The console's Flask application: every request passes the gate, the login and, if it changes something, the form's
token; errors are a sentence."""

from __future__ import annotations

import hmac
import re
import secrets
import sqlite3
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, abort, g, make_response, redirect, render_template, request, url_for
from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from receiver import __version__, logs
from receiver.config import Config
from receiver.contract.errors import NotFound, StorehooksError
from receiver.contract.sender_address import TrustedProxies
from receiver.inbox import connect_to
from receiver.inbox.audit_trail import in_words
from workers.console import (
    actions,
    bulk_view,
    composer_view,
    events_view,
    failures_view,
    login_view,
    metrics_view,
    overview_view,
    refused_view,
    rehearsal_view,
    resend_view,
    system_view,
)
from workers.console.access import Access, allowed_origins, form_token
from workers.console.gate import Gate
from workers.console.page_data import Console, OpenHistories, age, console, end_request, milliseconds, time_tag
from workers.console.patient_worker import MAX_FORM_BYTES
from workers.console.visible_text import as_sentence, breakable, finalize
from workers.history.past_events import HistoryError

REDIS_SECONDS = 5.0
MAX_VISITOR_BYTES = 4 << 10
"""Of a form or of an address's query, without a login: a password and the page to go to. A form as large as an operator
may send can take a second of the processor to read."""
MAX_NEXT = 1_000
"""Characters of the page to go to after a login. Proxies refuse answers with long headers."""
PUBLIC = ("static", "login.form", "login.log_in", "login.spend_link", "metrics.page")
"""Endpoints that need no login; the metrics have a token of their own."""
FOR_VIEWERS = ("login.log_out", *PUBLIC)
"""The only POSTs that a viewer may send."""
VIEWS = (
    overview_view,
    events_view,
    failures_view,
    bulk_view,
    refused_view,
    composer_view,
    system_view,
    actions,
    resend_view,
    rehearsal_view,
    login_view,
    metrics_view,
)

log = logs.get("console")


def create_app(config: Config) -> Flask:
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = MAX_FORM_BYTES
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 3600
    app.jinja_options = {"autoescape": True, "finalize": finalize, "trim_blocks": True, "lstrip_blocks": True}
    client = connect_to(config.redis, timeout=max(config.redis.timeout, REDIS_SECONDS))
    access, histories = Access(config.console, client), OpenHistories(config, client)
    proxies = TrustedProxies(config.receiver.trusted_proxies)
    app.extensions["console"] = Console(config, client, access, histories, proxies)
    app.jinja_env.filters |= {"when": time_tag, "age": age, "ms": milliseconds}
    app.jinja_env.filters |= {"sentence": as_sentence, "in_words": in_words, "breakable": breakable}
    for view in VIEWS:
        app.register_blueprint(view.pages)
    app.before_request(_admit)
    app.after_request(_finish)
    app.teardown_request(end_request)
    app.context_processor(_for_every_page)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _error)
    app.wsgi_app = Gate(app.wsgi_app, allowed_origins(config.console), config.console.address)  # type: ignore[method-assign]
    return app


def cookie_name() -> str:
    """Consoles on other ports of the same host have cookies of other names."""
    return f"storehooks_{console().config.console.bind.rpartition(':')[2]}"


def _own_cookie() -> str:
    """Without reading the others, of which a visitor may send thousands."""
    found = re.search(rf"(?:^|; *){cookie_name()}=([\w-]*)", request.headers.get("Cookie", ""), re.ASCII)
    return found[1] if found else ""


def _admit() -> AnyResponse | None:
    """Refuse what is not allowed, before anything is changed, and before a large form is read."""
    if request.method not in ("GET", "HEAD", "POST"):
        abort(405)
    g.role, g.cookie = None, _own_cookie()
    if request.endpoint == "static":
        return None
    if request.method == "POST":
        _require_own_origin()
    g.role = console().access.role_of(g.cookie)
    if g.role is None:
        request.max_content_length = MAX_VISITOR_BYTES
        if len(request.query_string) > MAX_VISITOR_BYTES:
            abort(414, "This address is too long for a visitor. Log in, and load it again.")
    if g.role is None and request.endpoint not in PUBLIC:
        if request.method == "POST":
            abort(403, "You are not logged in, or your session has ended.")
        there = request.full_path.rstrip("?")
        return redirect(url_for("login.form", next=there if len(there) <= MAX_NEXT else None), 303)
    if request.method == "POST":
        _require_token()
    if request.method == "POST" and g.role == "viewer" and request.endpoint not in FOR_VIEWERS:
        abort(403, "You are logged in for looking only.")
    return None


def _require_own_origin() -> None:
    if request.headers.get("Origin", "") != request.environ["console.origin"]:
        abort(403, "This request does not come from a page of the console.")


def _require_token() -> None:
    """A form must come from a page of ours, which has the token of this browser."""
    token = request.form.get("token", "")
    if not g.cookie or not hmac.compare_digest(token.encode(), form_token(g.cookie).encode()):
        abort(403, "The form is too old. Load the page again and repeat it.")


def _finish(response: Response) -> Response:
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    if getattr(g, "new_cookie", None) is not None:
        settings = console().config.console
        response.set_cookie(
            cookie_name(),
            g.new_cookie,
            path=urlsplit(settings.address).path or "/",
            secure=request.is_secure,  # at a loopback name, HTTP: not every browser keeps a Secure cookie of it
            httponly=True,
            samesite="Lax",
        )
    return response


def _for_every_page() -> dict[str, Any]:
    if not g.get("cookie") and g.get("new_cookie") is None:
        g.new_cookie = secrets.token_urlsafe(32)  # for the token of the login form; it opens nothing
    cookie = g.get("new_cookie") or g.get("cookie", "")
    return {"role": g.get("role"), "token": form_token(cookie), "version": __version__, "damaged": g.get("damaged", {})}


# Errors: a sentence, never a traceback


def _http_error(error: HTTPException) -> Response:
    return _error_page(error.code or 500, error.description or error.name)


def _error(error: Exception) -> Response:
    match error:
        case NotFound():
            return _error_page(404, str(error))
        case HistoryError():
            return _error_page(503, f"The history cannot be read: {error}")
        case StorehooksError():
            return _error_page(400, str(error))
        case RedisError():
            return _error_page(503, "Redis does not answer, or refuses the command. `storehooks doctor` says why.")
        case sqlite3.Error() | OSError():
            return _error_page(503, "A file of this host cannot be read. `storehooks doctor` says why.")
    log.error("console request failed", exc_info=error, endpoint=request.endpoint)
    return _error_page(500, "The console failed to answer. The cause is in its log.")


def _error_page(status: int, sentence: str) -> Response:
    title = {
        400: "Not understood",
        403: "Refused",
        404: "Not found",
        405: "Refused",
        413: "Too large",
        414: "Too large",
    }
    page = render_template("error.html", title=title.get(status, "Not available"), sentence=sentence)
    return make_response(page, status)
