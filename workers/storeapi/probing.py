"""Probing: calls the operations that only read, and proposes corrections of the catalogue from what the store answers.

Only safe GETs are sent, at most a few dozen. A proposal is tried before it is made: the next requests use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from receiver.config import Config
from receiver.config.catalogue_settings import CatalogueSettings
from receiver.contract.event import follow
from receiver.contract.record_map import MISSING
from workers.storeapi.catalogue import Operation, corrected, total_at
from workers.storeapi.client import Client
from workers.storeapi.errors import AccessDenied, ApiError, Blocked, ResourceNotFound, UnexpectedResponse
from workers.storeapi.pages import ApiReply, Pages, next_in_header
from workers.storeapi.response_shapes import entries, lists_in, one_line, record_in

PREFIXES = (
    *("", "/api", "/api/v1", "/api/v2", "/api/v3", "/v1", "/v2", "/v3", "/rest", "/rest/v1", "/rest/V1"),
    *("/wp-json/wc/v3", "/admin", "/api/rest"),
)
GROUPS = {
    "products": ("products", "product", "items", "catalog/products"),
    "orders": ("orders", "order"),
    "customers": ("customers", "customer", "users"),
    "webhooks": ("webhooks", "hooks", "webhook", "subscriptions", "webhook_endpoints"),
}
SIZE_PARAMS = ("per_page", "limit", "page_size", "pageSize", "_limit", "size", "count")
PAGE_PARAMS = ("page", "_page", "p", "page_number", "pageNumber", "currentPage")
OFFSET_PARAMS = ("offset", "skip", "start", "_start", "from")
CURSOR_PARAMS = ("cursor", "after", "page_token", "pageToken", "starting_after", "next")
TOTAL_HEADERS = ("x-total-count", "x-total", "x-wp-total", "total-count", "x-pagination-total-count")
FIELD_NAMES = {
    "id": ("_id", "uuid", "ID"),
    "name": ("title", "full_name", "display_name", "label"),
    "price": ("unit_price", "regular_price", "amount"),
    "stock": ("stock_quantity", "inventory_level", "inventory", "quantity"),
    "status": ("state", "financial_status", "order_status"),
    "total": ("total_price", "grand_total", "total_amount", "total_inc_tax", "amount"),
    "lines": ("line_items", "lineItems", "items", "products"),
    "email": ("email_address", "mail"),
    "topic": ("event", "scope", "event_type", "type"),
    "url": ("address", "destination", "delivery_url", "callback_url", "target_url", "endpoint"),
    "enabled": ("is_active", "active", "status"),
}
_TOTAL_KEY = re.compile(r"total(_?(count|items|results|records))?|count", re.IGNORECASE)
_NEXT_KEY = re.compile(r"next.*|after|end_?cursor|cursor", re.IGNORECASE)
_FEW = 2
"""Number of records asked for while paging is tried."""


@dataclass(frozen=True)
class Correction:
    """One line of config: the table below the store's catalogue, key and value, and what the store answered."""

    table: str
    key: str
    value: Any
    saw: str


class Prober:
    """Probes one store. `run` returns each operation with its result; `corrections` has what is proposed."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client = client
        self._config = config
        self._catalogue = client.catalogue
        self.corrections: list[Correction] = []

    def run(self) -> list[tuple[Operation, str]]:
        for group in GROUPS:
            listing = self._client.catalogue.operations.get(f"{group}.list")
            if listing is None:
                continue
            try:
                self._correct_group(group)
            except ApiError:
                continue  # its result is shown with those of all operations
        return list(results(self._client))

    def toml(self) -> str:
        """The corrections as config, each with what the store answered."""
        tables: dict[str, list[str]] = {}
        for one in self.corrections:
            tables.setdefault(one.table, []).append(f"{one.key} = {_toml(one.value)}  # {one.saw}")
        where = f"stores.{self._client.store}.catalogue"
        return "\n".join(
            f"[{where}{f'.{table}' if table else ''}]\n" + "\n".join(lines) + "\n"
            for table, lines in sorted(tables.items())
        )

    def _propose(self, table: str, key: str, value: Any, saw: str) -> None:
        """Add a correction, and use it from here on."""
        self.corrections.append(Correction(table, key, value, saw))
        settings: dict[str, Any] = {}
        for one in self.corrections:
            into = settings
            for step in one.table.split(".") if one.table else ():
                into = into.setdefault(step, {})
            into[one.key] = one.value
        key_path = ("stores", self._client.store, "catalogue")
        self._client.catalogue = corrected(
            self._catalogue, CatalogueSettings.model_validate(settings), self._config, key_path
        )

    def _list(self, group: str) -> Operation:
        return self._client.catalogue.get(group, "list")

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> ApiReply:
        return self._client.request("GET", path, query=query)

    def _correct_group(self, group: str) -> None:
        reply = self._find_path(group)
        if reply is None:
            return
        rows = self._correct_list(group, reply)
        if rows:
            self._correct_fields(group, rows[0])
            self._correct_paging(group, reply)
            self._correct_record(group, rows[0])

    # Paths

    def _find_path(self, group: str) -> ApiReply | None:
        """The reply of the listing, at its own path or at another one that is proposed."""
        operation = self._list(group)
        try:
            return self._get(operation.path)
        except ResourceNotFound as error:
            first = f"{operation.path} answered {error.status}"
        catalogue = self._client.catalogue
        prefixes = PREFIXES if group == "products" else (catalogue.prefix,)
        for prefix in prefixes:
            for name in GROUPS[group][:1] if len(prefixes) > 1 else GROUPS[group]:
                for suffix in ("", ".json"):
                    reply = self._try_path(f"{prefix}/{name}{suffix}")
                    if reply is not None:
                        self._propose_paths(group, prefix, name, suffix, first)
                        return reply
        return None

    def _try_path(self, path: str) -> ApiReply | None:
        try:
            reply = self._get(path)
        except (ResourceNotFound, AccessDenied, UnexpectedResponse, Blocked):  # a redirect: a page for people
            return None
        return reply if next(lists_in(reply.document), None) is not None or reply.document == [] else None

    def _propose_paths(self, group: str, prefix: str, name: str, suffix: str, first: str) -> None:
        if prefix != self._client.catalogue.prefix:
            self._propose("", "prefix", prefix, f"{prefix}/{name}{suffix} answered 200, and {first}")
        if (name, suffix) == (group, ""):
            return
        for operation in [one for one in self._client.catalogue if one.group == group and one.below_prefix]:
            path = re.sub(rf"^{group}\b", name, operation.below_prefix) + suffix
            saw = f"{prefix}/{path} answered 200" if operation.name == "list" else f"like {group}.list, not tried"
            self._propose(operation.full_name, "path", path, saw)

    # Envelopes

    def _correct_list(self, group: str, reply: ApiReply) -> list[Any]:
        """The records of the reply; proposes where the list is, and where each record and the total are."""
        envelope = self._client.catalogue.envelope_of(self._list(group))
        path, found = envelope.data, follow(reply.document, envelope.data)
        if not isinstance(found, list):
            path = next(lists_in(reply.document), path)
            found = follow(reply.document, path)
            if not isinstance(found, list):
                return []
            self._propose(self._table(group, path), "data", path, f"{len(found)} records there")
        if not all(isinstance(row, Mapping) for row in found):
            return []
        item = envelope.item
        inner = next((key for key, _ in entries(found[0], "")), "") if found and len(found[0]) == 1 else ""
        if inner and not item and isinstance(found[0][inner], Mapping):
            item = inner
            self._propose(self._table(group, inner), "item", inner, "each item has only this key")
        if total_at(reply.document, reply.headers, envelope.total) is None:
            total = next(_totals(reply, len(found)), None)
            if total is not None and self._counts_all(group, total, reply):
                shown = total_at(reply.document, reply.headers, total)
                self._propose(self._table(group, total), "total", total, f"{shown} there")
        return [row for row in (follow(row, item) for row in found) if isinstance(row, Mapping)]

    def _counts_all(self, group: str, path: str, reply: ApiReply) -> bool:
        """Whether the number at a path stays the same while a page has fewer records."""
        try:
            fewer = self._get(self._list(group).path, dict.fromkeys(SIZE_PARAMS, 1))
        except ApiError:
            return True
        return total_at(fewer.document, fewer.headers, path) == total_at(reply.document, reply.headers, path)

    def _table(self, group: str, path: str) -> str:
        """The table of a path: that of the operation if the path has the group's name."""
        return f"{group}.list" if any(name.rstrip("s") in path for name in GROUPS[group]) else "envelope"

    def _correct_record(self, group: str, row: Any) -> None:
        catalogue = self._client.catalogue
        operation = catalogue.get(group, "get")
        id_ = catalogue.record_map(operation).read(operation.record, "id", row)
        if not isinstance(id_, int | str) or isinstance(id_, bool):
            return
        reply = self._get(operation.fill({operation.parameters[0]: str(id_)}))
        path = record_in(reply.document)
        if path is None or isinstance(follow(reply.document, catalogue.envelope_of(operation).data), Mapping):
            return
        saw = f"GET {operation.path} has the record there" if path else f"GET {operation.path} is the record itself"
        if path and group.rstrip("s") in path:
            for name in ("get", "create", "update"):
                self._propose(f"{group}.{name}", "data", path, saw if name == "get" else "like get, not tried")
        elif not any(one.key == "record" for one in self.corrections):
            self._propose("envelope", "record", path, saw)

    def _correct_fields(self, group: str, row: Mapping[str, Any]) -> None:
        catalogue = self._client.catalogue
        record_map, kind = catalogue.record_map(self._list(group)), self._list(group).record
        missing = [name for name in catalogue.fields[group] if record_map.read(kind, name, row) is MISSING]
        found = {name: next((one for one in FIELD_NAMES.get(name, ()) if one in row), "") for name in missing}
        fields = {name: theirs for name, theirs in found.items() if theirs}
        if fields:
            self._propose(group, "fields", fields, f"a record has {one_line(', '.join(list(row)[:20]))}")

    def _correct_paging(self, group: str, reply: ApiReply) -> None:
        """Propose how the store pages, if two pages cannot be read as configured. One group decides for all."""
        trial = PagingTrial(self._client, group)
        if (
            len(trial.rows(reply)) <= _FEW
            or any(one.table == "paging" for one in self.corrections)
            or trial.pages_work()
        ):
            return
        size = trial.size_param()
        if size != self._client.catalogue.paging.size_param:
            saw = f"{size}={_FEW} returned {_FEW} records" if size else "no known parameter limits the records"
            self._propose("paging", "size_param", size, saw)
        for key, value, saw in next(trial.styles({size: _FEW} if size else {}), []):
            self._propose("paging", key, value, saw)


class PagingTrial:
    """Requests a listing in different ways, to find out how the store pages."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._listing = client.catalogue.get(group, "list")

    def pages_work(self) -> bool:
        """Whether two pages can be read as the catalogue says."""
        size = self._client.catalogue.paging.size_param
        query = {size: _FEW} if size else {}
        pages = self._client.call(self._listing.group, self._listing.name, query=query).pages()
        try:
            return len(next(pages, [])) == _FEW and bool(next(pages, []))
        except UnexpectedResponse:
            return False

    def size_param(self) -> str:
        return next((name for name in SIZE_PARAMS if len(self._keys({name: _FEW})) == _FEW), "")

    def rows(self, reply: ApiReply) -> list[Any]:
        found = follow(reply.document, self._client.catalogue.envelope_of(self._listing).data)
        return found if isinstance(found, list) else []

    def styles(self, few: dict[str, Any]) -> Iterator[list[tuple[str, Any, str]]]:
        """The styles that fit, the surest first: lines of config, each with what was seen. `few` limits the records."""
        first = self._client.request("GET", self._listing.path, query={**self._listing.params, **few})
        keys = [str(row) for row in self.rows(first)]
        if next_in_header(first.headers.get("link", "")):
            yield [("style", "header", 'the Link header has rel="next"')]
        for path, value in _next_values(first.document):
            yield from self._by_next(path, value, few, keys)
        for name in PAGE_PARAMS:
            for number in (1, 0):
                same = self._keys({**few, name: number}) == keys
                if same and self._differs({**few, name: number + 1}, keys):
                    yield [
                        ("style", "page", f"{name}={number + 1} returned other records than {name}={number}"),
                        ("page_param", name, "as above"),
                        ("first_page", number, f"{name}={number} is the first page"),
                    ]
        for name in OFFSET_PARAMS:
            second = self._keys({**few, name: 1})
            if second and second[:1] == keys[1:2]:
                saw = f"{name}=1 begins at the second record"
                yield [("style", "offset", saw), ("offset_param", name, "as above")]

    def _by_next(
        self, path: str, value: Any, few: dict[str, Any], keys: Sequence[str]
    ) -> Iterator[list[tuple[str, Any, str]]]:
        if isinstance(value, str) and (value.startswith(("/", "?")) or "://" in value):
            yield [("style", "link", "a link to the next page"), ("next_link", path, "it is there")]
            return
        for name in CURSOR_PARAMS:
            if self._differs({**few, name: value}, keys):
                yield [
                    ("style", "cursor", f"{name}={one_line(value, limit=60)} returned other records"),
                    ("cursor_param", name, "as above"),
                    ("next_cursor", path, "the cursor is there"),
                ]

    def _differs(self, query: dict[str, Any], keys: Sequence[str]) -> bool:
        found = self._keys(query)
        return bool(found) and not any(one in keys for one in found)

    def _keys(self, query: dict[str, Any]) -> list[str]:
        """The records of a query, to compare them; none if the store refuses it."""
        try:
            reply = self._client.request("GET", self._listing.path, query={**self._listing.params, **query})
        except ApiError:
            return []
        return [str(row) for row in self.rows(reply)]


def results(client: Client) -> Iterator[tuple[Operation, str]]:
    """Try every GET that needs no id, or an id that a listing returns."""
    ids: dict[str, Any] = {}
    safe = [one for one in client.catalogue if one.method == "GET"]
    for operation in sorted(safe, key=lambda one: len(one.parameters)):
        if len(operation.parameters) > 1 or (operation.parameters and "import" in operation.name):
            yield operation, "not tried: it needs an id that no listing returns"
        elif operation.parameters and operation.group not in ids:
            yield operation, "not tried: the store has no record to try it with"
        else:
            yield operation, _try(client, operation, ids)


def _try(client: Client, operation: Operation, ids: dict[str, Any]) -> str:
    path = [ids[operation.group]] if operation.parameters else []
    try:
        answer = client.call(operation.group, operation.name, *path)
        if isinstance(answer, Pages):
            records = answer.first_page()
            if records and operation.name == "list":
                ids[operation.group] = records[0].id
    except ResourceNotFound as error:
        return f"not there: {error.status}; set [stores.{client.store}.catalogue.{operation.full_name}] path"
    except ApiError as error:
        return f"unknown: {error.reason.splitlines()[0]}"
    except LookupError as error:
        return f"unknown: {error}"
    return "confirmed"


def _totals(reply: ApiReply, rows: int) -> Iterator[str]:
    """The paths of numbers that may be the total: at least the number of records in the reply."""
    named = [path for path, _ in _values(reply.document) if _TOTAL_KEY.fullmatch(path.rpartition(".")[2])]
    for path in (*named, *(f"header:{name}" for name in TOTAL_HEADERS)):
        total = total_at(reply.document, reply.headers, path)
        if total is not None and total >= rows:
            yield path


def _next_values(document: Any) -> Iterator[tuple[str, Any]]:
    for path, value in _values(document):
        is_value = isinstance(value, str | int) and not isinstance(value, bool)
        if is_value and value and _NEXT_KEY.fullmatch(path.rpartition(".")[2]):
            yield path, value


def _values(document: Any, above: str = "", depth: int = 3) -> Iterator[tuple[str, Any]]:
    """The fields of an object and of the objects in it, each with its path."""
    for path, value in entries(document, above) if isinstance(document, Mapping) and depth else ():
        yield path, value
        yield from _values(value, path, depth - 1)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(given)}" for name, given in value.items()) + " }"
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(one if one.isprintable() and one not in '"\\' else f"\\u{ord(one):04x}" for one in value) + '"'
