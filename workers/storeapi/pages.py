"""Pages: the records of a listing. Pages are requested when they are needed, and one is in memory at a time.

A listing is complete or an error. The number of records is compared with the total that the store reports. A store that
reports no total is asked once in another way whether it pages as the catalogue says.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from receiver.contract.event import follow
from receiver.contract.record_map import MISSING
from receiver.contract.records import Record
from workers.storeapi.catalogue import Catalogue, Operation, value_at
from workers.storeapi.errors import UnexpectedResponse
from workers.storeapi.response_shapes import lists_in

RECENT_IDS = 10_000
"""Number of ids remembered to drop repeated records: memory stays constant, and repeats come soon or not at all."""

_LINK = re.compile(r'<([^<>]*)>((?:\s*;\s*[\w*-]+\s*(?:=\s*(?:"[^"]*"|[^\s,;"]*))?)*)')
_REL = re.compile(r';\s*rel\s*=\s*"?([^";]*)', re.IGNORECASE)
_STYLES = 'style = "..."  # page, offset, cursor, link, header or none'
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class ApiReply:
    """A response: its JSON document, and the data and total that the envelope holds."""

    status: int
    headers: Mapping[str, str]
    document: Any
    data: Any
    total: int | None = None
    resent: bool = False


Fetch = Callable[[Mapping[str, Any], str], ApiReply]
"""(query, link or "") -> the reply."""


class _Position(NamedTuple):
    """Where a page begins: a query parameter, or a link."""

    query: Mapping[str, Any]
    link: str = ""


class Pages(Generic[R]):
    """Iterate over it for the records; `pages()` gives a list of records per page; `total` is set by the first page."""

    def __init__(
        self,
        fetch: Fetch,
        make: Callable[[Any], R],
        operation: Operation,
        catalogue: Catalogue,
        query: dict[str, Any],
        *,
        store: str,
        proven: set[str],
    ) -> None:
        """`proven` has the operations whose paging is known to be as the catalogue says; a walk may add its own."""
        self._fetch = fetch
        self._make = make
        self._operation = operation
        self._envelope = catalogue.envelope_of(operation)
        self._record_map = catalogue.record_map(operation)
        self._paging = catalogue.paging
        self._query = query
        self._store = store
        self._proven = proven
        self._style = operation.paging
        params = {"page": "page_param", "offset": "offset_param", "cursor": "cursor_param"}
        self._param: str = getattr(self._paging, params[self._style]) if self._style in params else ""
        self.total: int | None = None
        """Number of records that the store reported last; None where it reports none."""

    def __iter__(self) -> Iterator[R]:
        for page in self.pages():
            yield from page

    def first_page(self) -> list[R]:
        return next(self.pages(), [])

    def pages(self) -> Iterator[list[R]]:
        """The records of each page, without those that came before."""
        walk, position = _Walk(), self._first_position()
        from_start = self._param not in self._query
        while True:
            reply = self._request(position)
            rows = self._rows(reply)
            new = walk.add(rows, [self._id(row) for row in rows], reply.total)
            self.total = reply.total
            self._check_progress(walk, rows, new)
            following = self._following(position, reply, rows, walk)
            if from_start and walk.pages == 1 and self.total is None and self._operation.full_name not in self._proven:
                self._prove_style(rows, following)
            if from_start and following is None:
                self._check_complete(walk)
            yield [self._make(row) for row in new]
            if following is None:
                return
            if walk.pages >= self._paging.max_pages:
                raise self._error(
                    f"the listing has more than {walk.pages:,} pages; if the store has that many records",
                    f"max_pages = {walk.pages * 10}",
                )
            position = following

    # The paging styles

    def _first_position(self) -> _Position:
        first = {"page": self._paging.first_page, "offset": 0}.get(self._style)
        if self._param in self._query:
            given = self._query[self._param]
            return _Position({self._param: given if first is None else int(given)})
        return _Position({} if first is None else {self._param: first})

    def _following(self, position: _Position, reply: ApiReply, rows: Sequence[Any], walk: _Walk) -> _Position | None:
        """The position of the next page; None at the end."""
        if self._style in ("page", "offset"):
            # An empty page after a full one is the end, or a page that the store could not fill: the next one tells.
            is_end = not rows and (self.total is not None or walk.pages == 1 or walk.short_page)
            if is_end or self._has_all(rows, walk):
                return None
            step = 1 if self._style == "page" else len(rows) or walk.first_length
            return _Position({self._param: position.query[self._param] + step})
        following = self._next(reply)
        if following is not None and following in (position.link, position.query.get(self._param)):
            raise self._repeated_page()
        if following is None or self._style == "cursor":
            return None if following is None else _Position({self._param: following})
        return _Position({}, following)

    def _has_all(self, rows: Sequence[Any], walk: _Walk) -> bool:
        """Whether the total is reached. A full first page with that total may be a count of the page, so that the next
        page is requested too. The store's own limit of a page may be lower than ours; it is a round number."""
        if self.total is None or walk.passed < self.total:
            return False
        return not (walk.pages == 1 and len(rows) == self.total and (self.total >= self._size or self.total % 5 == 0))

    def _next(self, reply: ApiReply) -> Any:
        """The cursor or the link of the next page; None if there is none."""
        if self._style in ("cursor", "link"):
            path = self._paging.next_cursor if self._style == "cursor" else self._paging.next_link
            found = value_at(reply.document, reply.headers, path)
            is_next = isinstance(found, str) or (self._style == "cursor" and isinstance(found, int))
            return found if is_next and found != "" and not isinstance(found, bool) else None
        return next_in_header(reply.headers.get("link", "")) or None if self._style == "header" else None

    # Whether it is complete

    def _check_progress(self, walk: _Walk, rows: Sequence[Any], new: Sequence[Any]) -> None:
        """Raise where the store repeats a page, and where records may have moved to a page that was read before."""
        if walk.repeats or (rows and not new):
            raise self._repeated_page()
        if self._style in ("page", "offset") and self.total is not None and self.total < walk.highest_total:
            raise self._error(
                f"the number of records fell from {walk.highest_total:,} to {self.total:,} during the listing, so "
                "records may have moved to a page that was read before; list again. If the store has another style of "
                "paging",
                _STYLES,
            )
        short = walk.short_page if self._style == "page" else walk.empty_page
        if self._style in ("page", "offset") and self.total is None and short and rows:
            raise self._error(
                f"page {short} has fewer records than the first one, and there are pages after it, so "
                "records may be missing; list again. If the store has another style of paging",
                _STYLES,
            )

    def _check_complete(self, walk: _Walk) -> None:
        """At the end, compare the number of records with the totals. Records may have been added or deleted since the
        first page, but no listing has less than both totals."""
        totals = [one for one in (walk.first_total, self.total) if one is not None]
        if not totals:
            return
        total = totals[-1]
        if self._style in ("page", "offset") and walk.new > total:
            raise self._error(
                f"the store reports {total:,} records but returned {walk.new:,}; if the number of all records is "
                "elsewhere",
                'total = "..."  # or "" if the store reports none',
                table="envelope",
            )
        if walk.new < min(totals) or (self._style in ("page", "offset") and walk.passed < total):
            again = walk.passed - walk.new
            repeats = f" ({again:,} of them with an id that came before)" if again else ""
            end = ", and no next page" if self._style not in ("page", "offset") else ""
            raise self._error(
                f"the store reports {total:,} records but returned {walk.passed:,}{repeats}{end}; if the store "
                "has another style of paging, other parameters, or counts pages from 0",
                f"{_STYLES}\n{self._own_keys()}",
            )

    def _prove_style(self, rows: Sequence[Any], following: _Position | None) -> None:
        """The store reports no total, so that a wrong style could end the listing early. Ask in another way, once."""
        if self._style == "page" or (self._style == "offset" and not rows):
            if self._first_id(_Position({})) != self._id_at(rows, 0):
                first = 1 - self._paging.first_page
                raise self._error(
                    f"the first page is not the one without {self._param}; if the store counts pages from {first}, or "
                    "has another style of paging",
                    f"first_page = {first}" if self._style == "page" else f"{_STYLES}\n{self._own_keys()}",
                )
        elif self._style == "offset" and len(rows) > 1:
            if self._first_id(_Position({self._param: 1})) != self._id_at(rows, 1):
                raise self._error(
                    f"{self._param}=1 does not begin at the second record; if the store has another style of paging",
                    f"{_STYLES}\n{self._own_keys()}",
                )
        elif self._style in ("cursor", "link", "header") and following is None and len(rows) > 1:
            size = self._paging.size_param
            if size and self._next(self._request(_Position({size: 1}))) is None:
                raise self._error(
                    f"{size}=1 returned no next page, so {len(rows):,} records may not be all; if the store has "
                    "another style of paging, or returns all records at once",
                    f"{_STYLES}\n{self._own_keys()}",
                )
        self._proven.add(self._operation.full_name)

    def _first_id(self, position: _Position) -> Any:
        return self._id_at(self._rows(self._request(position)), 0)

    def _id_at(self, rows: Sequence[Any], at: int) -> Any:
        """The id of a record, the whole record if it has none, or None if there is no record."""
        if at >= len(rows):
            return None
        found = self._id(rows[at])
        return rows[at] if found is None else found

    def _own_keys(self) -> str:
        """The keys of this style."""
        keys = {
            "page": 'page_param = "..."\nfirst_page = 0',
            "offset": 'offset_param = "..."',
            "cursor": 'cursor_param = "..."\nnext_cursor = "..."',
            "link": 'next_link = "..."',
        }
        return keys.get(self._style, "").strip()

    # Requests and replies

    @property
    def _size(self) -> int:
        return int(self._query.get(self._paging.size_param, self._paging.size))

    def _request(self, position: _Position) -> ApiReply:
        if position.link or self._style == "none":
            return self._fetch({}, position.link)
        size = {self._paging.size_param: self._size} if self._paging.size_param else {}
        return self._fetch({**size, **position.query}, "")

    def _rows(self, reply: ApiReply) -> list[Any]:
        """The records as the store sent them. A list that is null is empty, and so is 204 No Content."""
        if reply.status == 204:
            return []
        path = self._envelope.data
        found = follow(reply.document, path)
        above, _, key = path.rpartition(".")
        around = follow(reply.document, above)
        has_error = self._envelope.error and follow(reply.document, self._envelope.error)
        if found is None and isinstance(around, Mapping) and key in around and not has_error:
            return []
        rows = [follow(row, self._envelope.item) for row in found] if isinstance(found, list) else [None]
        if not all(isinstance(row, Mapping) for row in rows):
            item = f", each at {self._envelope.item!r}" if self._envelope.item else ""
            raise self._error(
                f"the response has no list of records{f' at {path!r}' if path else ''}{item}; if the list is elsewhere",
                f'data = "{next(lists_in(reply.document), "...")}"',
                table="envelope",
            )
        return rows

    def _id(self, row: Any) -> Any:
        """The id of a record; None if it has none that can be compared."""
        found = self._record_map.read(self._operation.record, "id", row)
        return None if found is MISSING or isinstance(found, list | dict) else found

    def _repeated_page(self) -> UnexpectedResponse:
        by = {"link": "the next link", "header": "the Link header"}.get(self._style, self._param)
        return self._error(
            f"the store returned the same page twice, so it does not page by {by}; if the store has another style of "
            "paging, other parameters, or returns all records at once",
            f"{_STYLES}\n{self._own_keys()}",
        )

    def _error(self, reason: str, lines: str, *, table: str = "paging") -> UnexpectedResponse:
        text = f"{reason}, set\n[stores.{self._store}.catalogue.{table}]\n{lines.strip()}"
        return UnexpectedResponse(text, store=self._store, operation=self._operation.full_name)


def next_in_header(value: str) -> str:
    """The URL with rel="next" in a Link header (RFC 8288); empty if it has none."""
    for url, parameters in _LINK.findall(value):
        rel = _REL.search(parameters)
        if rel and "next" in rel[1].lower().split():
            return str(url)
    return ""


class _Walk:
    """What a listing has read so far. Remembers the ids of the last records, to drop the records that repeat one."""

    def __init__(self) -> None:
        self.pages = 0
        self.passed = 0
        """Number of records on all pages."""
        self.new = 0
        """Number of them whose id did not come before."""
        self.first_total: int | None = None
        self.highest_total = 0
        self.short_page = 0
        """The page that had fewer records than the first one, if it is not the last page so far."""
        self.empty_page = 0
        """The page that had none, if it is not the last page so far."""
        self.repeats = False
        self.first_length = self._length = 0
        self._rows_without_id: list[Any] = []
        self._ids: OrderedDict[Any, None] = OrderedDict()

    def add(self, rows: list[Any], ids: list[Any], total: int | None) -> list[Any]:
        """Add a page; return its records that did not come before."""
        if self.pages == 0:
            self.first_total, self.first_length = total, len(rows)
        elif self._length < self.first_length:
            self.short_page = self.short_page or self.pages
            self.empty_page = self.empty_page or (0 if self._length else self.pages)
        self.highest_total, self._length = max(self.highest_total, total or 0), len(rows)
        new = [row for row, id_ in zip(rows, ids, strict=True) if self._is_new(id_)]
        without_id = [row for row, id_ in zip(rows, ids, strict=True) if id_ is None]
        self.repeats = bool(without_id) and without_id == self._rows_without_id
        self._rows_without_id = without_id
        self.pages, self.passed, self.new = self.pages + 1, self.passed + len(rows), self.new + len(new)
        return new

    def _is_new(self, id_: Any) -> bool:
        if id_ is None:
            return True
        if id_ in self._ids:
            return False
        self._ids[id_] = None
        if len(self._ids) > RECENT_IDS:
            self._ids.popitem(last=False)
        return True
