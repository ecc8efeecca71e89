"""Pages: the records of a listing. Pages are requested when they are needed, and one is in memory at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from receiver.contract.event import follow
from receiver.contract.records import Record
from workers.storeapi.catalogue import Catalogue, Operation
from workers.storeapi.errors import UnexpectedResponse

RECENT_IDS = 10_000
"""Number of ids remembered to drop repeated records: memory stays constant, and repeats come soon or not at all."""

R = TypeVar("R", bound=Record)
Fetch = Callable[[Mapping[str, Any], str], Any]
"""(query, link or "") -> the JSON document of the response."""


class Pages(Generic[R]):
    """Iterate over it for the records; `pages()` gives a list of records per page; `total` is set by the first page."""

    def __init__(
        self, fetch: Fetch, make: Callable[[Any], R], operation: Operation, catalogue: Catalogue, query: dict[str, Any]
    ) -> None:
        self._fetch = fetch
        self._make = make
        self._operation = operation
        self._envelope = catalogue.envelope
        self._paging = catalogue.paging
        self._query = query
        self.total: int | None = None
        """Number of records that the store reported last; None where it reports none."""

    def __iter__(self) -> Iterator[R]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[list[R]]:
        """The records of each page, without those that came before."""
        walk = {"page": self._by_number, "cursor": self._by_cursor, "link": self._by_link, "none": self._single_page}
        seen = _RecentIds(RECENT_IDS)
        for document in walk[self._operation.paging]():
            yield seen.without_repeats([self._make(raw) for raw in self._rows(document)])

    def first_page(self) -> list[R]:
        return next(self.pages(), [])

    # The paging styles

    def _by_number(self) -> Iterator[Any]:
        """Ends when the total is reached, or at an empty page. Raises where the store repeats a page."""
        passed, number, first_before = 0, int(self._query.get(self._paging.page_param, 1)), None
        while True:
            document = self._fetch_page({self._paging.size_param: self._paging.size, self._paging.page_param: number})
            rows = self._rows(document)
            first = rows[0] if rows else None
            if rows and first == first_before:
                self._raise_repeated_page(self._paging.page_param)
            yield document
            passed, number, first_before = passed + len(rows), number + 1, first
            if not rows or (self.total is not None and passed >= self.total):
                return

    def _by_cursor(self) -> Iterator[Any]:
        cursor: Any = None
        while True:
            at = {} if cursor is None else {self._paging.cursor_param: cursor}
            document = self._fetch_page({self._paging.size_param: self._paging.size, **at})
            following = follow(document, self._paging.next_cursor)
            last = following is None or following == ""
            if last and cursor is None:
                self._check_complete(document)
            yield document
            if last:
                return
            if following == cursor:
                self._raise_repeated_page(self._paging.cursor_param)
            cursor = following

    def _by_link(self) -> Iterator[Any]:
        document = self._fetch_page({self._paging.size_param: self._paging.size})
        before = ""
        while True:
            link = follow(document, self._paging.next_link)
            last = not isinstance(link, str) or not link
            if last and not before:
                self._check_complete(document)
            yield document
            if last:
                return
            if link == before:
                self._raise_repeated_page("the next link")
            before = link
            document = self._with_total(self._fetch({}, link))

    def _single_page(self) -> Iterator[Any]:
        document = self._fetch_page({})
        self._check_complete(document)
        yield document

    # Reading a response

    def _fetch_page(self, position: Mapping[str, Any]) -> Any:
        given = {name: value for name, value in self._query.items() if name != self._paging.page_param}
        return self._with_total(self._fetch({**position, **given}, ""))

    def _with_total(self, document: Any) -> Any:
        total = follow(document, self._envelope.total)
        self.total = total if isinstance(total, int) and not isinstance(total, bool) else None
        return document

    def _rows(self, document: Any) -> list[Any]:
        rows = follow(document, self._envelope.data)
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise UnexpectedResponse(
                f"the response has no list of records at {self._envelope.data!r}; if the list is elsewhere, set "
                '[catalogue.envelope] data = "..."'
            )
        return rows

    def _check_complete(self, document: Any) -> None:
        """A first page that is also the last must hold every record. Otherwise the store pages in another way."""
        rows = len(self._rows(document))
        if self.total is not None and self.total > rows:
            raise UnexpectedResponse(
                f"the store reports {self.total:,} records but returned {rows:,}, and no next page; the paging style "
                'is assumed: set [catalogue.paging] style = "page", "cursor" or "link", and next_cursor or next_link'
            )

    def _raise_repeated_page(self, by: str) -> None:
        raise UnexpectedResponse(
            f"the store returned the same page twice, so it does not page by {by}; the paging style is assumed: set "
            '[catalogue.paging] style = "page", "cursor", "link" or "none", and the names of the parameters'
        )


class _RecentIds:
    """The ids of the last records; drops the records that repeat one."""

    def __init__(self, limit: int) -> None:
        self._ids: OrderedDict[Any, None] = OrderedDict()
        self._limit = limit

    def without_repeats(self, records: list[R]) -> list[R]:
        return [record for record in records if self._is_new(record)]

    def _is_new(self, record: Record) -> bool:
        id_ = record.get(record.field_name("id"))
        if id_ is None or isinstance(id_, list | dict):
            return True
        if id_ in self._ids:
            return False
        self._ids[id_] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True
