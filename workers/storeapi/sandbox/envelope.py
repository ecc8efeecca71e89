"""Envelope: puts records into the store's envelope, with the store's field names, a page at a time.

Three paging styles are served at once, by page number, cursor and link; the query selects one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from workers.storeapi.catalogue import Operation
from workers.storeapi.sandbox.shop import ErrorAnswer, Listing, Shop
from workers.storeapi.sandbox.state import Json

MAX_PAGE_SIZE = 1000


def enveloped(shop: Shop, operation: Operation, result: Any) -> Json:
    """The document of a record, or of a list that is not paged."""
    names = shop.catalogue.fields.get(operation.group, {})
    document: Json = {}
    if isinstance(result, list):
        _put(document, shop.catalogue.envelope.total, len(result))
        result = [_with_store_names(record, names) for record in result]
    else:
        result = _with_store_names(result, names)
    _put(document, shop.catalogue.envelope.data, result)
    return document


def listed(shop: Shop, operation: Operation, listing: Listing, query: Mapping[str, str], address: str) -> Json:
    """The document of a page of records, with the cursor and the link of the next page."""
    paging, envelope = shop.catalogue.paging, shop.catalogue.envelope
    size = min(_number(query, paging.size_param, paging.size), MAX_PAGE_SIZE)
    document: Json = {}
    total = shop.state.count(listing.kind, listing.parent)
    newest_first = query.get("sort") == "-id"
    if query.get(paging.cursor_param):
        found = _after_cursor(shop, listing, query, size, document)
    else:
        page = _number(query, paging.page_param, 1)
        found = shop.state.page(
            listing.kind, listing.parent, offset=(page - 1) * size, limit=size, newest_first=newest_first
        )
        more = page * size < total
        following = {**query, paging.page_param: page + 1, paging.size_param: size}
        _put(document, paging.next_link, f"{address}?{urlencode(following)}" if more else None)
        if not newest_first:
            _put(document, paging.next_cursor, str(found[-1]["id"]) if more and found else None)
    names = shop.catalogue.fields.get(operation.group, {})
    _put(document, envelope.data, [_with_store_names(listing.show(record), names) for record in found])
    _put(document, envelope.total, total)
    return document


def _after_cursor(shop: Shop, listing: Listing, query: Mapping[str, str], size: int, document: Json) -> list[Json]:
    """Records after the one that the cursor names: new records come at the end, and no record moves to another page."""
    paging = shop.catalogue.paging
    after = _number(query, paging.cursor_param, 0)
    found = shop.state.after(listing.kind, listing.parent, id_=after, limit=size + 1)
    more = len(found) > size
    _put(document, paging.next_cursor, str(found[size - 1]["id"]) if more else None)
    return found[:size]


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**12:
        raise ErrorAnswer(422, f"{name} must be a number of at least 1")
    return int(text)


def _with_store_names(record: Json, names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in record.items()}


def _put(document: Json, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for step in above:
        document = document.setdefault(step, {})
    document[last] = value
