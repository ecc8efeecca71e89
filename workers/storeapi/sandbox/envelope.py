"""Envelope: puts records into the store's envelope, with the store's field names, a page at a time.

All paging styles are served at once: page number, offset, cursor, next link and Link header. The query selects one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from receiver.contract.record_map import FIELDS, RecordMap, set_at
from workers.storeapi.catalogue import Operation
from workers.storeapi.sandbox.shop import ErrorAnswer, Listing, Shop
from workers.storeapi.sandbox.state import Json

MAX_PAGE_SIZE = 1000


@dataclass
class ApiAnswer:
    """The document of a response and its headers."""

    document: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def put(self, path: str, value: Any) -> None:
        """Put a value where the catalogue says. The whole document is put first; then only headers can be added."""
        if path.startswith("header:"):
            if value is not None:
                self.headers[path.removeprefix("header:")] = str(value)
        elif not path or isinstance(self.document, dict):
            self.document = set_at(self.document, path.split(".") if path else [], value)


def enveloped(shop: Shop, operation: Operation, result: Any) -> ApiAnswer:
    """A record, or a list that is not paged."""
    envelope, record_map = shop.catalogue.envelope_of(operation), shop.catalogue.record_map(operation)
    answer = ApiAnswer()
    if isinstance(result, list):
        answer.put(envelope.data, [_item(record_map, operation, record, envelope.item) for record in result])
        _put_total(answer, envelope.total, len(result))
    else:
        answer.put(envelope.data, _with_store_names(record_map, operation, result))
    return answer


def listed(shop: Shop, operation: Operation, listing: Listing, query: Mapping[str, str], address: str) -> ApiAnswer:
    """A page of records, with the cursor and the link of the next page, and with the faults of listings."""
    paging, envelope, bad = shop.catalogue.paging, shop.catalogue.envelope_of(operation), shop.misbehaviour
    size = min(_number(query, paging.size_param, paging.size), MAX_PAGE_SIZE)
    total = shop.state.count(listing.kind, listing.parent)
    at, following = _position(shop, listing, query, size)
    if bad.happens("repeated_page"):
        at = max(0, at - size)
    newest_first = query.get("sort") == "-id"
    found = shop.state.page(listing.kind, listing.parent, offset=at, limit=size, newest_first=newest_first)
    more = bool(found) and at + size < total
    cursor = str(found[-1]["id"]) if more and not newest_first else None
    link = f"{address}?{urlencode({**query, **following, paging.size_param: size})}" if more else None
    if bad.happens("short_page"):
        found = found[: len(found) // 2]
    answer, record_map = ApiAnswer(), shop.catalogue.record_map(operation)
    answer.put(envelope.data, [_item(record_map, operation, listing.show(one), envelope.item) for one in found])
    _put_total(answer, envelope.total, total - size if bad.happens("changing_total") else total)
    answer.put(paging.next_cursor, cursor)
    answer.put(paging.next_link, link)
    if link:
        answer.headers["link"] = f'<{link}>; rel="next"'
    return answer


def _put_total(answer: ApiAnswer, path: str, total: int) -> None:
    if path:
        answer.put(path, total)


def _position(shop: Shop, listing: Listing, query: Mapping[str, str], size: int) -> tuple[int, dict[str, Any]]:
    """The number of records before the page, and the query parameter of the next page."""
    paging = shop.catalogue.paging
    if query.get(paging.cursor_param):
        after = _number(query, paging.cursor_param, 0)
        return shop.state.count(listing.kind, listing.parent, until=after), {}
    if query.get(paging.offset_param):
        at = _number(query, paging.offset_param, 0, least=0)
        return at, {paging.offset_param: at + size}
    page = _number(query, paging.page_param, paging.first_page, least=paging.first_page)
    return (page - paging.first_page) * size, {paging.page_param: page + 1}


def _number(query: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) < 10**12:
        raise ErrorAnswer(422, f"{name} must be a number of at least {least}")
    return int(text)


def _has_own_names(record_map: RecordMap) -> bool:
    """Whether the store's names are storehooks' own, as in the built-in catalogue."""
    names = [one for table in record_map.fields.values() for one in table.items()]
    return record_map.money == "major" and all(name == path for name, path in names)


def _item(record_map: RecordMap, operation: Operation, record: Json, path: str) -> Json:
    shaped = _with_store_names(record_map, operation, record)
    return dict(set_at({}, path.split("."), shaped)) if path else shaped


def _with_store_names(record_map: RecordMap, operation: Operation, record: Json) -> Json:
    if _has_own_names(record_map):
        return record
    kind = operation.record
    standard = {name: value for name, value in record.items() if name in FIELDS.get(kind, ())}
    shaped: Any = record_map.shape(kind, standard)
    for name, value in record.items():
        if name not in standard:
            shaped = record_map.write(shaped, kind, name, value)
    return dict(shaped)
