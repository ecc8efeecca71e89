"""Order export: one row in a CSV file for each paid order, however often the order is delivered.

The file itself is the memory. A row is added under a lock, in one write, and is on disk before the run ends; what a
crash left of a row is cut off by the next one. So it does not matter who dies where.
"""

import csv
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from pydantic import BaseModel

from receiver.contract.records import Order, RecordError
from workers import Context, Event, Fail, Router

__version__ = "1.0.0"
HEADINGS = ("order", "paid_at", "total", "customer", "email")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Settings(BaseModel):
    path: str = "orders.csv"
    """Relative paths are below the folder the worker was started in."""


router = Router("order_export", settings=Settings)


class Book:
    """One CSV file. Knows the orders in it, and reads only what others have added since it last looked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._orders: set[str] = set()
        self._read_to = 0

    def add(self, row: tuple[str, ...]) -> bool:
        """Add a row unless its order has one. True if it was added."""
        with self._locked() as file:
            self._catch_up(file)
            if row[0] in self._orders:
                return False
            text = b"" if self._read_to else _line(HEADINGS)
            os.write(file, text + _line(row))
            os.fsync(file)
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)  # and with it the lock

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size < self._read_to:  # somebody took the file away and began another
            self._orders, self._read_to = set(), 0
        new = os.pread(file, size - self._read_to, self._read_to)
        whole = new[: new.rfind(b"\n") + 1]
        if len(whole) < len(new):  # a crash in the middle of a row: it was not promised to anybody
            os.ftruncate(file, self._read_to + len(whole))
        self._orders.update(row[0] for row in csv.reader(io.StringIO(whole.decode())) if row)
        self._read_to += len(whole)


def _line(cells: tuple[str, ...]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def harmless(value: object) -> str:
    """Text as a cell: one line, and nothing a spreadsheet would take for a formula."""
    text = " ".join(str(value).split("\n")).replace("\r", " ").strip()
    return f"'{text}" if text.startswith(FORMULA) else text


def row_of(event: Event) -> tuple[str, ...]:
    order = event.record
    if not isinstance(order, Order):
        raise Fail("this is no order")
    try:
        total: Decimal = order.total
    except RecordError as error:
        raise Fail(f"an order without a total cannot be exported: {error}") from None
    buyer = event.data.get("customer") or {}
    paid_at = (event.occurred_at or event.received_at).isoformat(timespec="seconds")
    name, email = harmless(buyer.get("name") or ""), harmless(buyer.get("email") or "")
    return harmless(order.id), paid_at, f"{total:f}", name, email


@router.startup
def open_the_books(settings: Settings) -> dict[str, Book]:
    return {}


@router.on("order.paid", retries=(10, 60, 300, 3600), timeout=30)
def export(event: Event, ctx: Context[Settings]) -> str:
    path = ctx.settings.path
    book = ctx.resource.setdefault(path, Book(path))
    added = book.add(row_of(event))
    return f"order {event.data['id']} {'exported' if added else 'was exported before'}"
