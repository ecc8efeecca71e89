"""Order export: one row in a CSV file for each paid order, even if the order is delivered several times.

The file itself records which orders are exported. A row is added under a lock, in one write, and is on disk before the
run ends. The next run removes a partial row that a crash has left. So a process may be killed at any point.
"""

import csv
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from pydantic import BaseModel

from storehooks import Context, Event, Fail, Router
from storehooks.records import Order, RecordError

__version__ = "1.0.0"
HEADINGS = ("order", "paid_at", "total", "customer", "email")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Settings(BaseModel):
    path: str = "orders.csv"
    """A relative path starts at the working directory of the worker."""


router = Router("order_export", settings=Settings)


class ExportFile:
    """One CSV file and the orders in it. It reads only the rows that were added since the last read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._orders: set[str] = set()
        self._read_to = 0

    def add(self, row: tuple[str, ...]) -> bool:
        """Add a row unless its order already has one. Return True if it was added."""
        with self._locked() as file:
            self._read_new_rows(file)
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
            os.close(file)  # this also releases the lock

    def _read_new_rows(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size < self._read_to:  # the file was replaced by another one
            self._orders, self._read_to = set(), 0
        new = os.pread(file, size - self._read_to, self._read_to)
        complete = new[: new.rfind(b"\n") + 1]
        if len(complete) < len(new):  # a partial row after a crash: its run has not ended and will be repeated
            os.ftruncate(file, self._read_to + len(complete))
        self._orders.update(row[0] for row in csv.reader(io.StringIO(complete.decode())) if row)
        self._read_to += len(complete)


def _line(cells: tuple[str, ...]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def escape_cell(value: object) -> str:
    """The text of a cell on one line, quoted if a spreadsheet would read it as a formula."""
    text = " ".join(str(value).split("\n")).replace("\r", " ").strip()
    return f"'{text}" if text.startswith(FORMULA) else text


def row_of(event: Event) -> tuple[str, ...]:
    order = event.record
    if not isinstance(order, Order):
        raise Fail("not an order")
    try:
        total: Decimal = order.total
    except RecordError as error:
        raise Fail(f"an order without a total cannot be exported: {error}") from None
    buyer = event.data.get("customer") or {}
    paid_at = (event.occurred_at or event.received_at).isoformat(timespec="seconds")
    name, email = escape_cell(buyer.get("name") or ""), escape_cell(buyer.get("email") or "")
    return escape_cell(order.id), paid_at, f"{total:f}", name, email


@router.startup
def create_files(settings: Settings) -> dict[str, ExportFile]:
    return {}


@router.on("order.paid", retries=(10, 60, 300, 3600), timeout=30)
def export(event: Event, ctx: Context[Settings]) -> str:
    path = ctx.settings.path
    file = ctx.resource.setdefault(path, ExportFile(path))
    added = file.add(row_of(event))
    return f"order {event.data['id']} {'exported' if added else 'was already exported'}"
