"""Client: the store's API as Python. For handlers, for commands, and on its own:

    from storehooks.api import Client

    client = Client("https://shop.example", token="...")
    for product in client.products.list():
        print(product.name, product.price)

The client builds a call from the catalogue and reads the response as records. transport/call_sender.py sends it.
Every error is an `ApiError` (see errors.py).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from redis import Redis

from receiver.config.settings import NetworkSettings
from receiver.contract.event import follow
from receiver.contract.records import Record, as_json, make
from workers.storeapi import exact_json
from workers.storeapi.call_counts import CallCounts
from workers.storeapi.catalogue import Catalogue, Operation, bundled_catalogue, total_at
from workers.storeapi.confirmations import Confirmations
from workers.storeapi.error_advice import error_for, store_words
from workers.storeapi.errors import ApiError, ForeignOrigin, UnexpectedResponse
from workers.storeapi.groups import Customers, Id, Orders, Products, Webhooks
from workers.storeapi.pages import ApiReply, Fetch, Pages
from workers.storeapi.response_shapes import one_line, record_in
from workers.storeapi.transport.auth import ClientCredentials, Credentials, StaticToken, TokenSource
from workers.storeapi.transport.call_sender import BEARER, ApiCall, CallLimit, CallSender, TokenHeader
from workers.storeapi.transport.guard import AllowedPrivate
from workers.storeapi.transport.http import HttpSession, check_url, has_dot_segments, origin_of
from workers.storeapi.transport.network import DIRECT
from workers.storeapi.transport.rate_limit import ALL_STORES, LocalRateLimiter, SharedRateLimiter
from workers.storeapi.writes import WriteWatcher, kind_of, writes_in

CALL_SECONDS = 60.0


class Client:
    """One store's API. Threads may share a client; a forked process opens its own connections."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        token_header: TokenHeader = BEARER,
        auth: Credentials | None = None,
        store: str = "",
        catalogue: Catalogue | None = None,
        redis: Redis | None = None,
        rate_limit: float = 0.0,
        overall_rate: float = 0.0,
        allow_private: AllowedPrivate = False,
        timeout: float = CALL_SECONDS,
        max_response: int = 32 << 20,
        network: NetworkSettings = DIRECT,
        watcher: WriteWatcher | None = None,
    ) -> None:
        check_url(base_url, allow_private)
        self.store = store or origin_of(base_url)[1]
        self.catalogue = catalogue or bundled_catalogue()
        self._base = base_url.rstrip("/")
        self._timeout = timeout
        self._watcher = watcher
        http = HttpSession(allow_private, max_response, network)
        self._tokens: TokenSource = StaticToken(token)
        if auth is not None and not token:
            self._tokens = ClientCredentials(auth, http, redis=redis, store=self.store)
        self._sender = CallSender(
            self.store,
            http,
            self._tokens,
            token_header=token_header,
            store_limit=_store_limit(redis, self.store, rate_limit),
            overall_limit=_overall_limit(redis, overall_rate),
            count=CallCounts(redis, self.store).add,
        )
        self.confirmations = Confirmations(redis, self.store)
        self._proven: set[str] = set()
        self.products, self.orders = Products(self), Orders(self)
        self.customers, self.webhooks = Customers(self), Webhooks(self)

    def __repr__(self) -> str:
        return f"Client({self._base!r}, store={self.store!r})"

    def has_operation(self, group: str, name: str) -> bool:
        return f"{group}.{name}" in self.catalogue.operations

    def call(
        self,
        group: str,
        name: str,
        /,
        *path: Id,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
        timeout: float | None = None,
        **fields: Any,
    ) -> Any:
        """Call an operation of the catalogue. Returns its record, its Pages, or None, as the catalogue says."""
        operation = self.catalogue.get(group, name)
        named = _resource_named(operation, path, fields)
        target, fields = self._fill_path(operation, path, fields)
        query = {**operation.params, **(query or {}), **self._pop_query_fields(operation, fields)}
        if operation.returns == "many" and operation.method == "GET":
            return self._pages(operation, target, query, timeout)
        content = self._content(operation, body, fields)
        send = partial(self._send_operation, operation, target, query, content, idempotency_key, timeout)
        reply = send() if operation.method == "GET" else self._send_watched(operation, named, content, send)
        if operation.returns == "many":
            return self._pages_of(operation, lambda *_: reply, {})
        return None if operation.returns == "none" else self._record(operation, reply)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retry_safe: bool | None = None,
        timeout: float | None = None,
    ) -> ApiReply:
        """Send any other request to the store. `path` is relative to the store's base URL and cannot leave it."""
        if has_dot_segments(path.partition("?")[0]):
            raise ForeignOrigin(
                "the path has a . or .. segment; the token is sent only to the store's base_url", store=self.store
            )
        safe = method in ("GET", "PUT", "DELETE") if retry_safe is None else retry_safe
        content = None if body is None else exact_json.dumps_for_store(body)
        until = time.monotonic() + (timeout or self._timeout)
        sent = {**self.catalogue.headers, **{name.lower(): value for name, value in (headers or {}).items()}}
        call = ApiCall(method, self._url(path, query), sent, content, safe, until, f"{method} {path}")
        return self._send(call, None)

    # Building a call

    def _fill_path(
        self, operation: Operation, path: tuple[Id, ...], fields: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """The path with its parameters, which are given in order or by name; and the remaining keywords."""
        names = operation.parameters
        values = dict(zip(names, path, strict=False))
        values |= {name: fields[name] for name in names if name in fields and name not in values}
        if len(path) > len(names) or set(names) - set(values):
            expected = f"path parameters: {', '.join(names)}" if names else "no path parameters"
            raise ApiError(f"expects {expected}", operation=operation.full_name)
        left = {name: value for name, value in fields.items() if name not in names}
        return operation.fill({name: _segment(value) for name, value in values.items()}), left

    def _pop_query_fields(self, operation: Operation, fields: dict[str, Any]) -> dict[str, Any]:
        """Remove the keywords that belong in the URL, and return them: those in the catalogue's `query`, and all
        keywords of a call without a body."""
        no_body = operation.method in ("GET", "DELETE")
        return {name: fields.pop(name) for name in list(fields) if no_body or name in operation.query}

    def _content(self, operation: Operation, body: Any, fields: Mapping[str, Any]) -> bytes | None:
        if body is None and not fields and operation.method in ("GET", "DELETE"):
            return None
        record_map, currency = self.catalogue.record_map(operation), str(fields.get("currency", ""))
        sent: Any = {}
        for name, value in fields.items():
            if name == operation.rows:
                sent[name] = [_row(row) for row in value]
            else:
                given = [record_map.shape("line", line) for line in value] if name == "lines" else as_json(value)
                sent = record_map.write(sent, operation.record, name, given, currency)
        if body is not None:
            sent = as_json(body) if not sent else {**as_json(body), **sent}
        return exact_json.dumps_for_store({operation.body: sent} if operation.body else sent)

    def _url(self, path: str, query: Mapping[str, Any] | None) -> str:
        url = path if path.startswith(self._base + "/") else self._base + "/" + path.lstrip("/")
        if "://" in path and not path.startswith(self._base + "/"):
            raise ForeignOrigin(
                "the URL is not at the store's base_url; the token is sent only to the store", store=self.store
            )
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(given, doseq=True)}" if given else url

    def _checked_link(self, path: str, link: str) -> str:
        """The URL of a next link. Raises ForeignOrigin where it leaves the store: the token must not go there."""
        try:
            target = urlsplit(urljoin(self._base + path, link))
            elsewhere = origin_of(target.geturl()) != origin_of(self._base)
        except ValueError:
            reason = "the link to the next page is not a valid URL; the token is sent only to the store"
            raise ForeignOrigin(reason, store=self.store) from None
        same = urlunsplit((*urlsplit(self._base)[:2], target.path, target.query, ""))
        if elsewhere or not same.startswith(self._base + "/") or has_dot_segments(target.path):
            raise ForeignOrigin(
                f"the link to the next page leads to {one_line(target.hostname, limit=100)}"
                f"{'' if elsewhere else ', outside of base_url'}; "
                "the token is sent only to the store",
                store=self.store,
            )
        return same

    # Sending it

    def _send_operation(
        self,
        operation: Operation,
        path: str,
        query: Mapping[str, Any],
        content: bytes | None,
        key: str = "",
        timeout: float | None = None,
    ) -> ApiReply:
        self.confirmations.record_try(operation)
        headers = dict(self.catalogue.headers)
        if operation.idempotency_key or key:
            headers["idempotency-key"] = key or secrets.token_hex(16)
        until = time.monotonic() + (timeout or self._timeout)
        url, safe = self._url(path, query), operation.retry_safe
        call = ApiCall(operation.method, url, headers, content, safe, until, operation.full_name)
        return self._send(call, operation)

    def _send_watched(
        self, operation: Operation, named: str, content: bytes | None, send: Callable[[], ApiReply]
    ) -> ApiReply:
        """Send a write, and notify the watcher before and after it."""
        if self._watcher is None:
            return send()
        with self._watcher.watch(kind_of(operation, self.catalogue), named) as answered:
            reply = send()
            sent = exact_json.loads(content) if content else {}
            answered(writes_in(operation, self.catalogue, named, sent, reply.data, resent=reply.resent))
        return reply

    def _send(self, call: ApiCall, operation: Operation | None) -> ApiReply:
        response = self._sender.send(
            call, lambda failed: error_for(failed, operation, self.catalogue, self.confirmations)
        )
        if operation:
            self.confirmations.confirm(operation)
        if not response.content.strip():
            return ApiReply(response.status, response.headers, None, None, None, response.resent)
        try:
            document = exact_json.loads(response.content)
        except ValueError:
            words = store_words(response, "")
            reason = f"answered {response.status} with a body that is not JSON" + (f": {words}" if words else "")
            raise UnexpectedResponse(reason, store=self.store, operation=call.name) from None
        envelope = self.catalogue.envelope_of(operation) if operation else self.catalogue.envelope
        total = total_at(document, response.headers, envelope.total)
        data = follow(document, envelope.data)
        return ApiReply(response.status, response.headers, document, data, total, response.resent)

    # Reading the reply

    def _pages(self, operation: Operation, path: str, query: Mapping[str, Any], timeout: float | None) -> Pages[Record]:
        def fetch(more: Mapping[str, Any], link: str) -> ApiReply:
            if link:
                return self._send_operation(operation, self._checked_link(path, link), {}, None, "", timeout)
            return self._send_operation(operation, path, {**query, **more}, None, "", timeout)

        return self._pages_of(operation, fetch, dict(query))

    def _pages_of(self, operation: Operation, fetch: Fetch, query: dict[str, Any]) -> Pages[Record]:
        make, proven = self._record_maker(operation), self._proven
        return Pages(fetch, make, operation, self.catalogue, query, store=self.store, proven=proven)

    def _record_maker(self, operation: Operation) -> Callable[[Any], Record]:
        hint = f"[stores.{self.store}.catalogue.{operation.group}] fields"
        record_map = self.catalogue.record_map(operation)
        return lambda raw: make(operation.record, raw, record_map, hint)

    def _record(self, operation: Operation, reply: ApiReply) -> Record:
        """The record in a reply; a list of one record counts as that record."""
        data = reply.data[0] if isinstance(reply.data, list) and len(reply.data) == 1 else reply.data
        if not isinstance(data, Mapping):
            where, found = self.catalogue.envelope_of(operation).data, record_in(reply.document)
            raise UnexpectedResponse(
                f"the response has no record {f'at {where!r}' if where else 'but something else'}; if the record is "
                f"elsewhere, set\n[stores.{self.store}.catalogue.{operation.full_name}]\n"
                f'data = "{"..." if found is None else found}"',
                store=self.store,
                operation=operation.full_name,
            )
        return self._record_maker(operation)(data)


def _store_limit(redis: Redis | None, store: str, rate: float) -> CallLimit:
    limiter = SharedRateLimiter(redis, store, rate) if redis else LocalRateLimiter(rate)
    return CallLimit("the store's rate limit", limiter, evenly=bool(rate))


def _overall_limit(redis: Redis | None, rate: float) -> CallLimit | None:
    """The limit of the calls to all stores. Processes share it through Redis; without Redis there is none. Calls to
    many hosts arrive less evenly than calls to one, so a tenth of the rate stays unused."""
    if redis is None or not rate:
        return None
    limiter = SharedRateLimiter(redis, ALL_STORES, rate * 0.9)
    return CallLimit("the rate limit of all stores' APIs together", limiter, evenly=True)


def _resource_named(operation: Operation, path: tuple[Id, ...], fields: Mapping[str, Any]) -> str:
    """The id of the resource that a call's path names: its first parameter. Empty if there is none."""
    names = operation.parameters
    return str(path[0] if path else fields.get(names[0], "")) if names else ""


def _segment(value: Id) -> str:
    """A path parameter, escaped as one segment: no value can change the rest of the path."""
    text = quote(str(value), safe="")
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def _row(row: Any) -> Any:
    plain = as_json(row)
    return {name: as_json(value) for name, value in plain.items()} if isinstance(plain, Mapping) else plain
