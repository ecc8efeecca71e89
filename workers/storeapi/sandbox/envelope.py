"""Answers: records in the store's envelope and by the store's names, a page at a time. Three ways of paging are
served at once: by number, by cursor, and by link; the query says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from workers.storeapi.catalogue import Operation
from workers.storeapi.sandbox.shop import Listing, Problem, Shop
from workers.storeapi.sandbox.state import Json

LARGEST_PAGE = 1000


def enveloped(shop: Shop, operation: Operation, result: Any) -> Json:
    """A record, or a list of them that is not paged."""
    names = shop.catalogue.fields.get(operation.group, {})
    document: Json = {}
    if isinstance(result, list):
        _put(document, shop.catalogue.envelope.total, len(result))
        result = [_by_their_names(one, names) for one in result]
    else:
        result = _by_their_names(result, names)
    _put(document, shop.catalogue.envelope.data, result)
    return document


def listed(shop: Shop, operation: Operation, listing: Listing, query: Mapping[str, str], address: str) -> Json:
    """A page of records, with what leads to the next one."""
    paging, envelope = shop.catalogue.paging, shop.catalogue.envelope
    size = min(_number(query, paging.size_param, paging.size), LARGEST_PAGE)
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
    _put(document, envelope.data, [_by_their_names(listing.show(one), names) for one in found])
    _put(document, envelope.total, total)
    return document


def _after_cursor(shop: Shop, listing: Listing, query: Mapping[str, str], size: int, document: Json) -> list[Json]:
    """Records after the one the cursor names: what is added meanwhile comes at the end, and nothing shifts."""
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
        raise Problem(422, f"{name} is a number from 1")
    return int(text)


def _by_their_names(record: Json, names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in record.items()}


def _put(document: Json, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for step in above:
        document = document.setdefault(step, {})
    document[last] = value
