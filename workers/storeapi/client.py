"""Client: the store's API as Python. Usable in a handler, in a command, and on its own:

    from workers.storeapi import Client

    client = Client("https://shop.example", token="...")
    for product in client.products.list():
        print(product.name, product.price)

Every call passes the store's gate, carries the shared token, is tried again where that is safe, and ends by its
deadline. Every error is an `ApiError` (see errors.py).
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from redis import Redis

from receiver.contract.event import follow
from receiver.contract.records import Record, as_json, make
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation, bundled_catalogue
from workers.storeapi.confirmations import Confirmations
from workers.storeapi.error_advice import error_for
from workers.storeapi.errors import AccessDenied, ApiError, ForeignOrigin, RateLimited, UnexpectedResponse, Unreachable
from workers.storeapi.groups import Customers, Id, OperationGroup, Orders, Products, Webhooks
from workers.storeapi.pages import Pages
from workers.storeapi.transport.auth import ClientCredentials, Credentials, StaticToken, TokenSource
from workers.storeapi.transport.guard import Allowed
from workers.storeapi.transport.http import HttpResponse, HttpSession, check_url, origin_of
from workers.storeapi.transport.rate_limit import ALL_STORES, SLACK, Gate, LocalGate, SharedGate
from workers.storeapi.transport.retry import FAULTS, backoff, is_fault, retry_after

CALL_SECONDS = 60.0
PLACES = 5
"""How many places of the rate limit a call may miss before it goes anyhow."""


@dataclass(frozen=True)
class ApiCall:
    """One call, ready to be sent, perhaps more than once."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes | None
    retry_safe: bool
    until: float
    name: str
    operation: Operation | None = None


@dataclass(frozen=True)
class ApiReply:
    """What the store answered: the JSON document, and what the envelope says of it."""

    status: int
    headers: Mapping[str, str]
    document: Any
    data: Any
    total: int | None = None


@dataclass
class _Tries:
    """What has happened to a call so far."""

    faults: int = 0
    refusals: int = 0
    refused_token: str = field(default="", repr=False)


class Client:
    """One store's API. Threads may share it; a forked process gets connections of its own by itself."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        auth: Credentials | None = None,
        store: str = "",
        catalogue: Catalogue | None = None,
        redis: Redis | None = None,
        rate_limit: float = 0.0,
        overall_rate: float = 0.0,
        allow_private: Allowed = False,
        timeout: float = CALL_SECONDS,
        max_answer: int = 32 << 20,
    ) -> None:
        check_url(base_url, allow_private)
        self.store = store or origin_of(base_url)[1]
        self.catalogue = catalogue or bundled_catalogue()
        self._base = base_url.rstrip("/")
        self._timeout = timeout
        self._wire = HttpSession(allow_private, max_answer)
        self._auth: TokenSource = StaticToken(token)
        if auth is not None and not token:
            self._auth = ClientCredentials(auth, self._wire, redis=redis, store=self.store)
        self._evenly = bool(rate_limit)
        self._gate: Gate = SharedGate(redis, self.store, rate_limit) if redis else LocalGate(rate_limit)
        self._overall = _overall_gate(redis, overall_rate)
        self.confirmations = Confirmations(redis, self.store)
        self.products, self.orders = Products(self), Orders(self)
        self.customers, self.webhooks = Customers(self), Webhooks(self)

    def __repr__(self) -> str:
        return f"Client({self._base!r}, store={self.store!r})"

    def group(self, name: str) -> OperationGroup:
        """A group by its name; also one that config added."""
        known = {group.name: group for group in (self.products, self.orders, self.customers, self.webhooks)}
        return known.get(name) or OperationGroup(self, name)

    def has(self, group: str, name: str) -> bool:
        return f"{group}.{name}" in self.catalogue.operations

    # Calls by the catalogue

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
        """Do an operation: give its record, its Pages, or None, as the catalogue says."""
        operation = self.catalogue.get(group, name)
        target, fields = self._target(operation, path, fields)
        query = {**(query or {}), **self._taken_for_query(operation, fields)}
        if operation.gives == "many" and operation.method == "GET":
            return self._pages(operation, target, query, timeout)
        content = self._content(operation, body, fields)
        reply = self._do(operation, target, query, content, idempotency_key, timeout)
        if operation.gives == "many":
            return Pages(lambda *_: reply.document, self._maker(operation), operation, self.catalogue, {})
        return None if operation.gives == "none" else self._one(operation, reply)

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
        """Anything else of the store's API: `path` is relative to the store, and stays there."""
        safe = method in ("GET", "PUT", "DELETE") if retry_safe is None else retry_safe
        content = None if body is None else exact_json.dumps(body)
        until = time.monotonic() + (timeout or self._timeout)
        call = ApiCall(method, self._url(path, query), dict(headers or {}), content, safe, until, f"{method} {path}")
        return self._perform(call)

    def _target(self, operation: Operation, path: tuple[Id, ...], fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The path with its parameters, which were given in order or by name; and the keywords that are left."""
        names = operation.parameters
        values = dict(zip(names, path, strict=False))
        values |= {name: fields[name] for name in names if name in fields and name not in values}
        if len(path) > len(names) or set(names) - set(values):
            raise ApiError(f"give {', '.join(names) or 'no path parameter'}", operation=operation.full_name)
        left = {name: value for name, value in fields.items() if name not in names}
        return operation.fill({name: _segment(value) for name, value in values.items()}), left

    def _taken_for_query(self, operation: Operation, fields: dict[str, Any]) -> dict[str, Any]:
        """Takes those keywords that go into the URL: the catalogue's, and all of a call that has no body."""
        bodiless = operation.method in ("GET", "DELETE")
        return {name: fields.pop(name) for name in list(fields) if bodiless or name in operation.query}

    def _content(self, operation: Operation, body: Any, fields: Mapping[str, Any]) -> bytes | None:
        if body is None and not fields and operation.method in ("GET", "DELETE"):
            return None
        names = self.catalogue.fields.get(operation.group, {})
        told = {names.get(name, name): as_json(value) for name, value in fields.items()}
        if operation.rows in told:
            told[operation.rows] = [_row(row) for row in told[operation.rows]]
        if body is not None:
            told = as_json(body) if not told else {**as_json(body), **told}
        return exact_json.dumps(told)

    def _do(
        self,
        operation: Operation,
        path: str,
        query: Mapping[str, Any],
        content: bytes | None,
        key: str = "",
        timeout: float | None = None,
    ) -> ApiReply:
        self.confirmations.tried(operation)
        headers = {}
        if operation.idempotency_key or key:
            headers["idempotency-key"] = key or secrets.token_hex(16)
        until = time.monotonic() + (timeout or self._timeout)
        url = self._url(path, query)
        call = ApiCall(
            operation.method, url, headers, content, operation.retry_safe, until, operation.full_name, operation
        )
        return self._perform(call)

    def _pages(self, operation: Operation, path: str, query: Mapping[str, Any], timeout: float | None) -> Pages[Record]:
        def fetch(more: Mapping[str, Any], link: str) -> Any:
            if link:
                return self._do(operation, self._on_origin(path, link), {}, None, "", timeout).document
            return self._do(operation, path, {**query, **more}, None, "", timeout).document

        return Pages(fetch, self._maker(operation), operation, self.catalogue, dict(query))

    def _maker(self, operation: Operation) -> Any:
        names = self.catalogue.fields.get(operation.group, {})
        hint = f"[stores.{self.store}.catalogue.{operation.group}] fields"
        return lambda raw: make(operation.record, raw, names, hint)

    def _one(self, operation: Operation, reply: ApiReply) -> Record:
        """The record of an answer; a list of one is one."""
        data = reply.data[0] if isinstance(reply.data, list) and len(reply.data) == 1 else reply.data
        if not isinstance(data, Mapping):
            raise UnexpectedResponse(
                f"no record at {self.catalogue.envelope.data!r} in the answer; if it stands elsewhere, set "
                '[catalogue.envelope] data = "..."',
                store=self.store,
                operation=operation.full_name,
            )
        record: Record = self._maker(operation)(data)
        return record

    # Sending

    def _url(self, path: str, query: Mapping[str, Any] | None) -> str:
        url = path if path.startswith(self._base + "/") else self._base + "/" + path.lstrip("/")
        if "://" in path and not path.startswith(self._base + "/"):
            raise ForeignOrigin("the address is not the store's, and the token is only for the store", store=self.store)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(given, doseq=True)}" if given else url

    def _on_origin(self, path: str, link: str) -> str:
        """A next link, if it stays where the token may go."""
        target = urlsplit(urljoin(self._base + path, link))
        same = urlunsplit((*urlsplit(self._base)[:2], target.path, target.query, ""))
        if origin_of(target.geturl()) != origin_of(self._base) or not same.startswith(self._base + "/"):
            raise ForeignOrigin(
                f"the link to the next page leads to {target.hostname}, and the token is only for the store",
                store=self.store,
            )
        return same

    def _perform(self, call: ApiCall) -> ApiReply:
        """Send until it is answered, or until it is not worth it any more."""
        tries = _Tries()
        self._wire.warm_up()
        try:
            while True:
                token = self._auth.bearer(refused=tries.refused_token, until=call.until)
                self._take_a_place(call)  # last: whoever waits for a token must not leave with all the others
                try:
                    answer = self._send(call, token)
                except Unreachable as error:
                    self._pause_after_loss(call, tries, error)
                    continue
                if answer.status < 300:
                    return self._reply(call, answer)
                self._pause_after_refusal(call, tries, answer, token)
        except ApiError as error:
            raise error.about(store=self.store, operation=call.name) from None

    def _take_a_place(self, call: ApiCall) -> None:
        """At the store's own gate, then at the one of all stores: that is the limit somebody else counts too."""
        self._pass(self._gate, call, "the store's rate limit", evenly=self._evenly)
        if self._overall is not None:
            self._pass(self._overall, call, "the rate limit of all stores' APIs together", evenly=True)

    def _pass(self, gate: Gate, call: ApiCall, limit: str, *, evenly: bool) -> None:
        """Wait for our turn. On a busy machine we may wake when it is over: then for another."""
        for _ in range(PLACES):
            asked = time.monotonic()
            wait = gate.place(call.until - asked)
            if wait < 0:
                raise RateLimited(
                    f"{limit} leaves no place for {-wait:.1f} s, longer than this call may take",
                    status=429,
                    retry_after=-wait,
                )
            if wait:
                time.sleep(wait if evenly else wait * random.uniform(1.0, 1.1))  # noqa: S311  not all at once
            if not evenly or time.monotonic() - asked - wait < SLACK:
                return

    def _send(self, call: ApiCall, token: str) -> HttpResponse:
        headers = {"accept": "application/json", "user-agent": "storehooks", **call.headers}
        headers["authorization"] = f"Bearer {token}"
        if call.content is not None:
            headers["content-type"] = "application/json"
        return self._wire.send(call.method, call.url, headers=headers, content=call.content, until=call.until)

    def _pause_after_loss(self, call: ApiCall, tries: _Tries, error: Unreachable) -> None:
        """No answer. Another try is safe if the store cannot have it, or does not mind having it twice."""
        tries.faults += 1
        pause = backoff(tries.faults - 1)
        late = time.monotonic() + pause >= call.until
        if late or tries.faults >= FAULTS or (error.sent and not call.retry_safe):
            raise error
        time.sleep(pause)

    def _pause_after_refusal(self, call: ApiCall, tries: _Tries, answer: HttpResponse, token: str) -> None:
        """An error. Raises it, or returns when the call is to be sent again."""
        error = error_for(answer, call.operation, self.catalogue, self.confirmations)
        if isinstance(error, AccessDenied) and answer.status == 401 and not tries.refused_token:
            tries.refused_token = token  # it may have ended, or been revoked; nothing was done with it
            return
        after = retry_after(answer.headers.get("retry-after"))
        if answer.status == 429:
            pause = after or backoff(tries.refusals)
            tries.refusals += 1
        elif is_fault(answer.status) and call.retry_safe and tries.faults + 1 < FAULTS:
            pause = max(backoff(tries.faults), after or 0.0)
            tries.faults += 1
        else:
            raise error
        error.retry_after = pause if after is None else after
        if time.monotonic() + pause >= call.until:
            raise error
        if answer.status == 429 and after != 0:
            self._gate.hold(pause)  # for every process: the store has had enough of all of us
        else:
            time.sleep(pause)  # "Retry-After: 0" is for this call alone; a store that repeats it is not hammered

    def _reply(self, call: ApiCall, answer: HttpResponse) -> ApiReply:
        if call.operation:
            self.confirmations.add(call.operation)
        if not answer.content.strip():
            return ApiReply(answer.status, answer.headers, None, None)
        try:
            document = exact_json.loads(answer.content)
        except ValueError:
            raise UnexpectedResponse(f"answered {answer.status} with something that is not JSON") from None
        envelope = self.catalogue.envelope
        data, total = follow(document, envelope.data), follow(document, envelope.total)
        return ApiReply(answer.status, answer.headers, document, data, total if isinstance(total, int) else None)


def _overall_gate(redis: Redis | None, rate: float) -> Gate | None:
    """One for all stores; only processes that share a server share it. Calls to many hosts arrive the less evenly, so
    a tenth of the rate is left unused."""
    return SharedGate(redis, ALL_STORES, rate * 0.9) if redis and rate else None


def _segment(value: Id) -> str:
    """A path parameter as one segment: whatever it holds, it cannot lead elsewhere."""
    text = quote(str(value), safe="")
    return text.replace(".", "%2E") if set(text) <= {"."} else text


def _row(row: Any) -> Any:
    plain = as_json(row)
    return {name: as_json(value) for name, value in plain.items()} if isinstance(plain, Mapping) else plain
