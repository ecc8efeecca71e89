"""Server: serves the catalogue over HTTP. Every operation is a route. A request is parsed, executed, and answered in
the envelope. The faults of the API happen here too."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from receiver.contract.errors import ConfigError
from receiver.contract.event import follow
from receiver.contract.record_map import FIELDS, MISSING, RecordMap
from workers.storeapi.catalogue import Operation
from workers.storeapi.sandbox import customers, orders, products, webhooks
from workers.storeapi.sandbox.envelope import enveloped, listed
from workers.storeapi.sandbox.misbehaviour import TWO_GIGABYTES
from workers.storeapi.sandbox.shop import ErrorAnswer, Listing, SandboxCall, Shop
from workers.storeapi.sandbox.state import Json
from workers.storeapi.sandbox.tokens import TokenIssuer

MAX_BODY = 16 << 20
LOG_SIZE = 20_000
_MODULES = {"products": products, "orders": orders, "customers": customers, "webhooks": webhooks}
_FAULTS = (500, 502, 503)

OperationFunction = Callable[[Shop, SandboxCall], Any]


def operation_function(operation: Operation) -> OperationFunction | None:
    """The function that executes an operation; None for an operation added in config."""
    module = _MODULES.get(operation.group)
    return getattr(module, "list_" if operation.name == "list" else operation.name, None)


class SandboxApi:
    """Answers the requests of the store's API."""

    def __init__(self, shop: Shop, tokens: TokenIssuer) -> None:
        self.shop = shop
        self.tokens = tokens
        self.log: deque[tuple[float, str, str, int]] = deque(maxlen=LOG_SIZE)
        """(time, method, path, status) of each request, for tests."""

    def answer(self, operation: Operation, do: OperationFunction, path: Mapping[str, str]) -> Response:
        """The response to one request, logged. A fault of the sandbox may replace it."""
        received = time.time()
        response = self._fault() or self._execute(operation, do, path)
        self.log.append((received, request.method, request.path, response.status_code))
        response.headers["x-request-id"] = f"req-{self.shop.state.increment('requests')}"
        return response

    def _execute(self, operation: Operation, do: OperationFunction, path: Mapping[str, str]) -> Response:
        if not self.tokens.accepts(request.headers.get(self.tokens.header, "")):
            return error(401, "the token is missing, expired or invalid")
        for name, value in self.shop.catalogue.headers.items():
            if request.headers.get(name) != value:
                return error(400, f"the header {name} is missing or wrong")
        try:
            call = self._parse(operation, path)
            return self._once(operation, lambda: do(self.shop, call))
        except ErrorAnswer as answer:
            return error(answer.status, str(answer))

    def _parse(self, operation: Operation, path: Mapping[str, str]) -> SandboxCall:
        numbers = {}
        for name, value in path.items():
            if not value.isascii() or not value.isdigit() or len(value) > 15:
                raise ErrorAnswer(404, f"there is no {name} {value[:40]!r}")
            numbers[name] = int(value)
        body = self._body(operation) if request.method in ("POST", "PUT", "PATCH") else {}
        return SandboxCall(numbers, body)

    def _body(self, operation: Operation) -> Json:
        """The body with storehooks' field names. Raises 422 where a required field is missing."""
        try:
            given = orjson.loads(request.get_data() or b"{}")
        except orjson.JSONDecodeError:
            raise ErrorAnswer(400, "the body is not JSON") from None
        given = follow(given, operation.body)
        if not isinstance(given, dict):
            raise ErrorAnswer(400, "the body must be an object" + (f" at {operation.body}" if operation.body else ""))
        names = self.shop.catalogue.fields.get(operation.group, {})
        record_map = self.shop.catalogue.record_map(operation)
        for field in (operation.rows,) if operation.rows else operation.required:
            if record_map.read(operation.record, field, given) in (MISSING, None):
                raise ErrorAnswer(422, f"{names.get(field, field)} is required")
        mapped = {steps.split(".")[0] for steps in names.values()}
        body = {name: value for name, value in given.items() if name not in mapped}
        for name in names:
            value = record_map.read(operation.record, name, given)
            if value is not MISSING:
                body[name] = _own_lines(record_map, value) if name == "lines" else value
        return body

    def _once(self, operation: Operation, do: Callable[[], Any]) -> Response:
        """Execute it in one transaction. A repeated Idempotency-Key gets the first response again."""
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
            foreign = self.shop.misbehaviour.happens("foreign_link")
            base = self.shop.misbehaviour.text("elsewhere") if foreign else request.host_url.rstrip("/")
            answer = listed(self.shop, operation, result, request.args, f"{base}{request.path}")
        else:
            answer = enveloped(self.shop, operation, result)
        created = request.method == "POST" and operation.name.startswith(("create", "add_", "bulk", "duplicate"))
        body = orjson.dumps(answer.document)
        return Response(body, 201 if created else 200, answer.headers, mimetype="application/json")

    def _fault(self) -> Response | None:
        """The faults that happen before the operation. Returns the faulty response, or None to go on."""
        bad = self.shop.misbehaviour
        if bad.happens("slow"):
            time.sleep(bad.seconds("slow_by"))
        if bad.happens("drop"):
            self.log.append((time.time(), request.method, request.path, 0))
            request.environ["gunicorn.socket"].shutdown(socket.SHUT_RDWR)
        if bad.happens("revoke"):
            token = request.headers.get(self.tokens.header, "").rpartition(" ")[2]
            self.shop.state.execute("DELETE FROM tokens WHERE token = ?", token)
        if bad.happens("too_many"):
            after = bad.number("retry_after")
            return error(429, "rate limit exceeded", {} if after < 0 else {"retry-after": str(after)})
        if bad.happens("fault"):
            return error(_FAULTS[len(self.log) % 3], "internal error")
        if bad.happens("redirect"):
            return Response(status=302, headers={"location": bad.text("elsewhere") + request.path})
        return Response(_endless(), 200, mimetype="application/json") if bad.happens("endless") else None


def _own_lines(record_map: RecordMap, lines: Any) -> Any:
    """The lines of an order with storehooks' field names."""
    if not isinstance(lines, list) or "line" not in record_map.fields:
        return lines
    found = [{name: record_map.read("line", name, line) for name in FIELDS["line"]} for line in lines]
    return [{name: value for name, value in line.items() if value is not MISSING} for line in found]


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps({"error": {"message": message}})
    return Response(body, status, dict(headers or {}), mimetype="application/json")


def _endless() -> Iterator[bytes]:
    part = b" " * (1 << 20)
    for _ in range(TWO_GIGABYTES // len(part)):
        yield part


def create_app(shop: Shop, tokens: TokenIssuer, token_path: str, set_up_shop: Callable[[int | None], None]) -> Flask:
    """The sandbox's web application: the API, its token endpoint, and the controls.

    `set_up_shop` adds the records of a new store to an empty state. Its argument is the number of products, or None for
    the default.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.json.sort_keys = False  # type: ignore[attr-defined]
    api = SandboxApi(shop, tokens)
    for operation in shop.catalogue:
        if do := operation_function(operation):
            _route(app, api, operation, do)
    app.add_url_rule(token_path, "token", lambda: _token(tokens), methods=["POST"])
    _controls(app, api, set_up_shop)
    app.register_error_handler(HTTPException, _http_error)
    return app


def _route(app: Flask, api: SandboxApi, operation: Operation, do: OperationFunction) -> None:
    rule = operation.path.replace("{", "<").replace("}", ">")
    app.add_url_rule(
        rule, operation.full_name, lambda **path: api.answer(operation, do, path), methods=[operation.method]
    )


def _token(tokens: TokenIssuer) -> Response:
    given = request.get_json(silent=True) if request.is_json else None
    form = given if isinstance(given, dict) else request.form.to_dict()
    status, body = tokens.issue(request.headers.get("authorization", ""), form)
    return Response(orjson.dumps(body), status, {"cache-control": "no-store"}, mimetype="application/json")


def _http_error(raised: HTTPException) -> Response:
    response = error(raised.code or 500, raised.name)
    allowed = getattr(raised, "valid_methods", None)
    if allowed:
        response.headers["allow"] = ", ".join(sorted(allowed))
    return response


# The controls: for the person who runs the sandbox; not part of the store's API


def _controls(app: Flask, api: SandboxApi, set_up_shop: Callable[[int | None], None]) -> None:
    shop = api.shop

    @app.before_request
    def refuse_other_hosts() -> Response | None:
        if request.path.startswith("/sandbox") and not _is_from_this_host():
            return error(403, "the controls of the sandbox answer on its own host only")
        return None

    def reset() -> None:
        with shop.state.transaction():
            shop.state.clear()
            shop.misbehaviour.clear()
            api.log.clear()
            set_up_shop(request.args.get("products", type=int))

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
    app.add_url_rule("/sandbox/do/<action>", "act", lambda action: _run_action(actions, action), methods=["POST"])


def _is_from_this_host() -> bool:
    caller, connection = request.remote_addr or "", request.environ.get("gunicorn.socket")
    return ip_address(caller).is_loopback or (connection is not None and connection.getsockname()[0] == caller)


def _place(shop: Shop) -> Response:
    """Insert or replace records, {"order": [{"id": 1001, ...}]}, without sending webhooks."""
    given = request.get_json()
    records = [(kind, record) for kind, group in given.items() for record in group]
    if not all(isinstance(record, dict) and isinstance(record.get("id"), int) for _, record in records):
        return error(422, "each record must be an object with an integer id")
    with shop.state.transaction():
        for kind, record in records:
            shop.state.place(kind, record)
    return _json({"placed": len(records)})


def _misbehave(shop: Shop) -> Response:
    try:
        shop.misbehaviour.set(request.get_json())
    except ConfigError as invalid:
        return error(422, str(invalid))
    return _json(shop.misbehaviour.values)


def _run_action(actions: Mapping[str, Callable[[], None]], action: str) -> Response:
    if action not in actions:
        return error(404, f"unknown action {action}; known: {', '.join(actions)}")
    actions[action]()
    return _json({"done": action})


def _status(api: SandboxApi) -> Json:
    state = api.shop.state
    return {
        "store": api.shop.store.name,
        "products": state.count("product"),
        "orders": state.count("order"),
        "customers": state.count("customer"),
        "subscriptions": sum(one["enabled"] for one in state.all_of("webhook")),
        "events": state.counter("events"),
        "deliveries": dict(state.execute("SELECT state, count(*) FROM webhook_outbox GROUP BY state")),
        "requests": state.counter("requests"),
        "token_requests": state.counter("token requests"),
        "reloads": api.shop.reloads,
        "misbehave": api.shop.misbehaviour.values,
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), mimetype="application/json")
