"""Pages: every record of a listing, page after page, asked for when needed and held one page at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from receiver.contract.event import follow
from receiver.contract.records import Record
from workers.storeapi.catalogue import Catalogue, Operation
from workers.storeapi.errors import UnexpectedResponse

REMEMBERED = 10_000
"""How many ids are kept to drop repeats by: constant memory, and a repeat comes soon or not at all."""

R = TypeVar("R", bound=Record)
Fetch = Callable[[Mapping[str, Any], str], Any]
"""(query, link or "") -> the answer's JSON document."""


class Pages(Generic[R]):
    """Iterate for the records; `pages()` for a list of records at a time; `total` after the first page."""

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
        """How many there are, as the store said last; None where it does not say."""

    def __iter__(self) -> Iterator[R]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[list[R]]:
        """Records by page, as they come; of a page only what was not there before."""
        walk = {"page": self._by_number, "cursor": self._by_cursor, "link": self._by_link, "none": self._once}
        seen = _Recent(REMEMBERED)
        for document in walk[self._operation.paging]():
            yield seen.new_ones([self._make(raw) for raw in self._rows(document)])

    def first_page(self) -> list[R]:
        return next(self.pages(), [])

    # The ways to go on

    def _by_number(self) -> Iterator[Any]:
        """Until as many were passed as there are, or a page is empty. Where it began over, it says so."""
        passed, number, first_before = 0, int(self._query.get(self._paging.page_param, 1)), None
        while True:
            document = self._ask({self._paging.size_param: self._paging.size, self._paging.page_param: number})
            rows = self._rows(document)
            first = rows[0] if rows else None
            if rows and first == first_before:
                self._say_it_does_not_page(self._paging.page_param)
            yield document
            passed, number, first_before = passed + len(rows), number + 1, first
            if not rows or (self.total is not None and passed >= self.total):
                return

    def _by_cursor(self) -> Iterator[Any]:
        cursor: Any = None
        while True:
            at = {} if cursor is None else {self._paging.cursor_param: cursor}
            document = self._ask({self._paging.size_param: self._paging.size, **at})
            following = follow(document, self._paging.next_cursor)
            last = following is None or following == ""
            if last and cursor is None:
                self._check_it_is_all(document)
            yield document
            if last:
                return
            if following == cursor:
                self._say_it_does_not_page(self._paging.cursor_param)
            cursor = following

    def _by_link(self) -> Iterator[Any]:
        document = self._ask({self._paging.size_param: self._paging.size})
        before = ""
        while True:
            link = follow(document, self._paging.next_link)
            last = not isinstance(link, str) or not link
            if last and not before:
                self._check_it_is_all(document)
            yield document
            if last:
                return
            if link == before:
                self._say_it_does_not_page("its next link")
            before = link
            document = self._noted(self._fetch({}, link))

    def _once(self) -> Iterator[Any]:
        document = self._ask({})
        self._check_it_is_all(document)
        yield document

    # What an answer holds

    def _ask(self, place: Mapping[str, Any]) -> Any:
        return self._noted(self._fetch({**place, **self._without_page()}, ""))

    def _without_page(self) -> dict[str, Any]:
        return {name: value for name, value in self._query.items() if name != self._paging.page_param}

    def _noted(self, document: Any) -> Any:
        total = follow(document, self._envelope.total)
        self.total = total if isinstance(total, int) and not isinstance(total, bool) else None
        return document

    def _rows(self, document: Any) -> list[Any]:
        rows = follow(document, self._envelope.data)
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise UnexpectedResponse(
                f"no list of records at {self._envelope.data!r} in the answer; if it stands elsewhere, set "
                '[catalogue.envelope] data = "..."'
            )
        return rows

    def _check_it_is_all(self, document: Any) -> None:
        """A first page that is also the last must hold everything; else the way to the next one is not as assumed."""
        rows = len(self._rows(document))
        if self.total is not None and self.total > rows:
            raise UnexpectedResponse(
                f"the store has {self.total:,} and gave {rows:,}, with nothing that leads to the others; how it pages "
                'is assumed: set [catalogue.paging] style = "page", "cursor" or "link", and where the next one stands'
            )

    def _say_it_does_not_page(self, by: str) -> None:
        raise UnexpectedResponse(
            f"the store gave the same page twice, so it does not go on by {by}; how it pages is assumed: set "
            '[catalogue.paging] style = "page", "cursor", "link" or "none", and the names of its parameters'
        )


class _Recent:
    """The ids that came lately."""

    def __init__(self, most: int) -> None:
        self._ids: OrderedDict[Any, None] = OrderedDict()
        self._most = most

    def new_ones(self, records: list[R]) -> list[R]:
        return [record for record in records if self._is_new(record)]

    def _is_new(self, record: Record) -> bool:
        id_ = record.get(record.field_name("id"))
        if id_ is None or isinstance(id_, list | dict):
            return True
        if id_ in self._ids:
            return False
        self._ids[id_] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True
