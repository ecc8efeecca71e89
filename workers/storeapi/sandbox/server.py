"""Server: the catalogue over HTTP. Every operation of it is a route; a request is understood, done, and put into
the envelope. Misbehaviour happens here too, before and after."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from receiver.contract.errors import ConfigError
from workers.storeapi.catalogue import Operation
from workers.storeapi.sandbox import customers, orders, products, webhooks
from workers.storeapi.sandbox.envelope import enveloped, listed
from workers.storeapi.sandbox.misbehaviour import TWO_GIGABYTES
from workers.storeapi.sandbox.shop import Listing, Problem, SandboxCall, Shop
from workers.storeapi.sandbox.state import Json
from workers.storeapi.sandbox.tokens import Tokens

MAX_BODY = 16 << 20
LOGGED = 20_000
_MODULES = {"products": products, "orders": orders, "customers": customers, "webhooks": webhooks}
_FAULTS = (500, 502, 503)

Do = Callable[[Shop, SandboxCall], Any]


def does(operation: Operation) -> Do | None:
    """The function that does an operation; those that config added have none."""
    module = _MODULES.get(operation.group)
    return getattr(module, "list_" if operation.name == "list" else operation.name, None)


class Api:
    """The shop as a web application."""

    def __init__(self, shop: Shop, tokens: Tokens) -> None:
        self.shop = shop
        self.tokens = tokens
        self.log: deque[tuple[float, str, str, int]] = deque(maxlen=LOGGED)
        """When, method, path, status: what tests measure."""

    def answer(self, operation: Operation, do: Do, path: Mapping[str, str]) -> Response:
        """One request of the API, from its token to its answer."""
        came = time.time()
        response = self._misbehave() or self._answer(operation, do, path)
        self.log.append((came, request.method, request.path, response.status_code))
        response.headers["x-request-id"] = f"req-{self.shop.state.add('requests')}"
        return response

    def _answer(self, operation: Operation, do: Do, path: Mapping[str, str]) -> Response:
        if not self.tokens.accepts(request.headers.get("authorization", "")):
            return error(401, "the token is missing, has ended, or was never good")
        try:
            call = self._understand(operation, path)
            return self._once(operation, lambda: do(self.shop, call))
        except Problem as problem:
            return error(problem.status, str(problem))

    def _understand(self, operation: Operation, path: Mapping[str, str]) -> SandboxCall:
        numbers = {}
        for name, value in path.items():
            if not value.isascii() or not value.isdigit() or len(value) > 15:
                raise Problem(404, f"there is no {name} {value[:40]!r}")
            numbers[name] = int(value)
        body = self._body(operation) if request.method in ("POST", "PUT", "PATCH") else {}
        return SandboxCall(operation, numbers, request.args.to_dict(), body)

    def _body(self, operation: Operation) -> Json:
        """The body by our names; what is needed must be there by theirs."""
        names = self.shop.catalogue.fields.get(operation.group, {})
        try:
            given = orjson.loads(request.get_data() or b"{}")
        except orjson.JSONDecodeError:
            raise Problem(400, "the body is not JSON") from None
        if not isinstance(given, dict):
            raise Problem(400, "the body is an object")
        for needed in (operation.rows,) if operation.rows else operation.required:
            if given.get(names.get(needed, needed)) is None:
                raise Problem(422, f"{names.get(needed, needed)} is required")
        ours = {theirs: name for name, theirs in names.items()}
        return {ours.get(str(name), str(name)): value for name, value in given.items()}

    def _once(self, operation: Operation, do: Callable[[], Any]) -> Response:
        """Do it in one transaction; under an Idempotency-Key that was seen before, give the answer of that time."""
        key = request.headers.get("idempotency-key", "")
        if not key or request.method != "POST":
            with self.shop.state.transaction():
                return self._respond(operation, do())
        name = f"{request.path}|{key}"
        with self.shop.state.transaction():
            for status, body in self.shop.state.execute("SELECT status, body FROM once WHERE key = ?", name):
                return Response(body, status, mimetype="application/json")
            response = self._respond(operation, do())
            values = (name, response.status_code, response.get_data())
            self.shop.state.execute("INSERT INTO once VALUES (?, ?, ?)", *values)
            return response

    def _respond(self, operation: Operation, result: Any) -> Response:
        if result is None:
            return Response(status=204)
        if isinstance(result, Listing):
            elsewhere = self.shop.pathologies.strikes("foreign_link")
            base = self.shop.pathologies.text("elsewhere") if elsewhere else request.host_url.rstrip("/")
            found = listed(self.shop, operation, result, request.args, f"{base}{request.path}")
        else:
            found = enveloped(self.shop, operation, result)
        created = request.method == "POST" and operation.name.startswith(("create", "add_", "bulk", "duplicate"))
        return Response(orjson.dumps(found), 201 if created else 200, mimetype="application/json")

    # Misbehaviour

    def _misbehave(self) -> Response | None:
        """What strikes before anything is done."""
        bad = self.shop.pathologies
        if bad.strikes("slow"):
            time.sleep(bad.seconds("slow_by"))
        if bad.strikes("drop"):
            self.log.append((time.time(), request.method, request.path, 0))
            request.environ["gunicorn.socket"].shutdown(socket.SHUT_RDWR)
        if bad.strikes("revoke"):
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            self.shop.state.execute("DELETE FROM tokens WHERE token = ?", token)
        if bad.strikes("too_many"):
            after = bad.number("retry_after")
            return error(429, "too many calls", {} if after < 0 else {"retry-after": str(after)})
        if bad.strikes("fault"):
            return error(_FAULTS[len(self.log) % 3], "something went wrong here")
        if bad.strikes("redirect"):
            return Response(status=302, headers={"location": bad.text("elsewhere") + request.path})
        return Response(_endless(), 200, mimetype="application/json") if bad.strikes("endless") else None


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps({"error": {"message": message}})
    return Response(body, status, dict(headers or {}), mimetype="application/json")


def _endless() -> Iterator[bytes]:
    part = b" " * (1 << 20)
    for _ in range(TWO_GIGABYTES // len(part)):
        yield part


def create_app(shop: Shop, tokens: Tokens, token_path: str, open_shop: Callable[[int | None], None]) -> Flask:
    """The sandbox's web application: the API, its token endpoint, and the controls.

    `open_shop` puts into an empty state what a new store has; so many products, where it is told.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.json.sort_keys = False  # type: ignore[attr-defined]
    api = Api(shop, tokens)
    for operation in shop.catalogue:
        if do := does(operation):
            _route(app, api, operation, do)
    app.add_url_rule(token_path, "token", lambda: _token(tokens), methods=["POST"])
    _controls(app, api, open_shop)
    app.register_error_handler(HTTPException, _http_error)
    return app


def _route(app: Flask, api: Api, operation: Operation, do: Do) -> None:
    rule = operation.path.replace("{", "<").replace("}", ">")
    app.add_url_rule(
        rule, operation.full_name, lambda **path: api.answer(operation, do, path), methods=[operation.method]
    )


def _token(tokens: Tokens) -> Response:
    status, body = tokens.issue(request.headers.get("authorization", ""), request.form.to_dict())
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, mimetype="application/json")


def _http_error(problem: HTTPException) -> Response:
    response = error(problem.code or 500, problem.name)
    allowed = getattr(problem, "valid_methods", None)
    if allowed:
        response.headers["allow"] = ", ".join(sorted(allowed))
    return response


# The controls: not part of the API, for whoever runs the sandbox


def _controls(app: Flask, api: Api, open_shop: Callable[[int | None], None]) -> None:
    shop = api.shop

    def reset() -> None:
        with shop.state.transaction():
            shop.state.clear()
            shop.pathologies.clear()
            api.log.clear()
            open_shop(request.args.get("products", type=int))

    actions: dict[str, Callable[[], None]] = {
        "reset": reset,
        "rotate-secret": shop.rotate_all,
        "disable-subscriptions": shop.disable_all,
        "delete-subscriptions": shop.delete_all,
        "revoke-tokens": shop.revoke_tokens,
    }

    app.add_url_rule("/sandbox", "status", lambda: _json(_status(api)))
    app.add_url_rule("/sandbox/log", "log", lambda: _json(list(api.log)))
    app.add_url_rule("/sandbox/records", "records", lambda: _json(shop.state.records()))
    app.add_url_rule("/sandbox/records", "place", lambda: _place(shop), methods=["PUT"])
    app.add_url_rule("/sandbox/misbehave", "misbehave", lambda: _misbehave(shop), methods=["PUT"])
    app.add_url_rule("/sandbox/do/<action>", "act", lambda action: _act(actions, action), methods=["POST"])


def _place(shop: Shop) -> Response:
    """{"order": [{"id": 1001, ...}]}: these records are there from now on, and nobody is told."""
    given = request.get_json()
    every = [(kind, one) for kind, many in given.items() for one in many]
    if not all(isinstance(one, dict) and isinstance(one.get("id"), int) for _, one in every):
        return error(422, "each record is an object with a whole number for its id")
    with shop.state.transaction():
        for kind, one in every:
            shop.state.place(kind, one)
    return _json({"placed": len(every)})


def _misbehave(shop: Shop) -> Response:
    try:
        shop.pathologies.set(request.get_json())
    except ConfigError as problem:
        return error(422, str(problem))
    return _json(shop.pathologies.values)


def _act(actions: Mapping[str, Callable[[], None]], action: str) -> Response:
    if action not in actions:
        return error(404, f"there is no action {action}; there are {', '.join(actions)}")
    actions[action]()
    return _json({"done": action})


def _status(api: Api) -> Json:
    state = api.shop.state
    return {
        "store": api.shop.store.name,
        "products": state.count("product"),
        "orders": state.count("order"),
        "customers": state.count("customer"),
        "subscriptions": len([one for one in state.every("webhook") if one["enabled"]]),
        "events": state.number("events"),
        "deliveries": dict(state.execute("SELECT state, count(*) FROM outbox GROUP BY state")),
        "requests": state.number("requests"),
        "token_requests": state.number("token requests"),
        "misbehave": api.shop.pathologies.values,
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), mimetype="application/json")
