"""One bit of the spool's file is damaged, anywhere: only the row that it hits may be missing; deliveries are taken."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from receiver.contract.intake import Delivery
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.delivery.drain import SpoolDrain
from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import Stored
from receiver.inbox import keys
from receiver.spool import (
    EVENTS_FILE,
    EVENTS_FORMAT,
    SpooledEvents,
    events_files,
    kept_files,
    open_damaged,
    open_events,
    set_aside,
)
from receiver.spool.database import BUSY_SECONDS, PAGE, open_file
from tests.support.harness import System, eventually

ROWS = 40


def deliveries(system: System) -> list[Delivery]:
    sizes = [6000 if number % 7 == 0 else 50 for number in range(ROWS)]
    return [
        system.delivery(data={"id": number, "pad": "y" * size}, store="north" if number % 3 else "south")
        for number, size in enumerate(sizes)
    ]


def spool(system: System, given: list[Delivery]) -> Path:
    with closing(open_events(system.config.data_dir)) as events:
        events.add(given)
    return system.config.data_dir / EVENTS_FILE


def flip(file: Path, content: bytes, place: int, bit: int) -> None:
    for other in file.parent.glob("spool*"):
        other.unlink()
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    file.write_bytes(damaged)


class Map:
    """Which rows of the table a byte of its file belongs to, by SQLite's file format."""

    def __init__(self, content: bytes, root: int) -> None:
        self._content = content
        self._rows: dict[int, set[int]] = {}
        """The rows that need a page; in a leaf, only those whose cells are not hit."""
        self._cells: dict[int, list[tuple[int, int, int]]] = {}
        self.numbers = self._walk(root)

    def hit(self, place: int) -> set[int]:
        page = place // PAGE + 1
        own = {number for start, end, number in self._cells.get(page, ()) if start <= place < end}
        return own or self._rows.get(page, set())

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._content[at : at + size])

    def _varint(self, at: int) -> tuple[int, int]:
        value = 0
        while True:
            byte = self._content[at]
            value, at = value << 7 | byte & 0x7F, at + 1
            if byte < 0x80:
                return value, at

    def _walk(self, page: int) -> set[int]:
        start = (page - 1) * PAGE
        count = self._number(start + 3, 2)
        if self._content[start] == 5:
            cells = [start + self._number(start + 12 + 2 * place, 2) for place in range(count)]
            children = [self._number(cell, 4) for cell in cells] + [self._number(start + 8, 4)]
            found = set().union(*(self._walk(child) for child in children))
        else:
            found = {self._leaf(page, start + self._number(start + 8 + 2 * place, 2)) for place in range(count)}
        self._rows.setdefault(page, set()).update(found)
        return found

    def _leaf(self, page: int, cell: int) -> int:
        size, at = self._varint(cell)
        number, at = self._varint(at)
        local = size
        if size > PAGE - 35:
            least = (PAGE - 12) * 32 // 255 - 23
            local = least + (size - least) % (PAGE - 4)
            local = local if local <= PAGE - 35 else least
            following = self._number(at + local, 4)
            while following:
                self._rows.setdefault(following, set()).add(number)
                following = self._number((following - 1) * PAGE, 4)
        self._cells.setdefault(page, []).append((cell, at + local + (4 if local < size else 0), number))
        return number


def run(drain: SpoolDrain, system: System) -> None:
    """As the thread does."""
    for _ in range(4):
        try:
            drain.run_once()
        except sqlite3.Error as error:
            BoundedSpool.reopen(drain._spool, error)
    assert system.client.ping()


def places(content: bytes, area: str, count: int) -> Iterator[tuple[int, int]]:
    generator = random.Random(area)
    if area == "header":
        yield from ((place, bit) for place in (18, 19, 28, 36, 47, 63, 67, 95) for bit in (0, 1, 2, 7))
        return
    for _ in range(count):
        yield generator.randrange(PAGE if area == "first page" else len(content)), generator.randrange(8)


@pytest.mark.parametrize("area", ["anywhere", "first page", "header"])
@pytest.mark.parametrize("count", [4, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_one_damaged_bit_costs_only_the_row_that_it_hits(system: System, area: str, count: int) -> None:
    given = deliveries(system)
    file = spool(system, given)
    content = file.read_bytes()
    with closing(sqlite3.connect(file)) as opened:
        (root,) = opened.execute("SELECT rootpage FROM sqlite_master WHERE name = 'event'").fetchone()
    pages = Map(content, root)
    assert pages.numbers == set(range(1, ROWS + 1))
    problems = []
    for place, bit in places(content, area, count):
        flip(file, content, place, bit)
        system.client.flushall()
        storage, drain = open_storage(system.config, system.inbox)
        late = system.delivery(data={"id": "late"})
        answers = [storage.spool_all([late])[0] for _ in range(2)]
        run(drain, system)
        missing = {n for n, one in enumerate(given, 1) if not system.client.exists(keys.EVENT + one.event.id)}
        taken = isinstance(answers[-1], Stored) and system.client.exists(keys.EVENT + late.event.id)
        if missing - pages.hit(place) or not taken:
            problems.append((place, bit, sorted(missing), sorted(pages.hit(place)), answers[-1]))
    assert problems == []


@pytest.mark.full
def test_a_first_row_with_a_damaged_time_stops_neither_the_drain_nor_a_command(system: System) -> None:
    given = deliveries(system)
    for value in ("'x'", "x'00'", "1e300", str(2**62)):
        for file in system.config.data_dir.glob("spool*"):
            file.unlink()
        file = spool(system, given)
        with closing(sqlite3.connect(file, isolation_level=None)) as opened:
            opened.execute(f"UPDATE event SET at = {value}, uptime = {value}, store = {value} WHERE number = 1")
        for command in (("hosts", "list"), ("stats",), ("doctor", "--json")):
            done = system.run_cli(*command)
            assert "Traceback" not in done.stderr, done.stderr
        system.client.flushall()
        run(open_storage(system.config, system.inbox)[1], system)
        assert sum(system.client.exists(keys.EVENT + one.event.id) for one in given) == ROWS, value


def test_a_host_with_a_damaged_first_row_drains_what_it_answers(system: System) -> None:
    file = spool(system, given := deliveries(system))
    with closing(sqlite3.connect(file, isolation_level=None)) as opened:
        opened.execute("UPDATE event SET at = 'x' WHERE number = 1")
    system.start("web")
    ids = [*(one.event.id for one in given), *(system.deliver(data={"id": number}) for number in range(3))]
    eventually(lambda: all(system.client.exists(keys.EVENT + one) for one in ids))


def test_a_row_that_is_not_found_by_its_id_is_moved_once(system: System) -> None:
    file = spool(system, [first := system.delivery(), system.delivery()])
    with closing(sqlite3.connect(file, isolation_level=None)) as opened:
        opened.execute("UPDATE event SET id = 'other' WHERE id = ?", (first.event.id,))  # its content has the true one
    _, drain = open_storage(system.config, system.inbox)
    assert [drain.drain(), drain.drain()] == [2, 0]
    drain.run_once()
    assert len(kept_files(file.parent)) == 1
    assert system.ledger.counters().total["accepted"] == 2


def test_a_row_that_is_in_the_inbox_and_cannot_be_deleted_does_not_count_as_spooled(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    spool(system, [system.delivery(), system.delivery()])
    monkeypatch.setattr(SpooledEvents, "delete", refuse)
    _, drain = open_storage(system.config, system.inbox)
    for _ in range(2):
        drain.run_once()
    assert system.ledger.counters().total["accepted"] == 2
    assert [(one.count, one.oldest) for one in system.ledger.spools().values()] == [(0, None)]


def test_a_disk_that_damages_every_file_gets_no_new_one_at_each_error(system: System) -> None:
    storage, _ = open_storage(system.config, system.inbox)
    for _ in range(5):
        for file in events_files(system.config.data_dir) or [system.config.data_dir / EVENTS_FILE]:
            file.write_bytes(b"not a database" * 1000)
        storage.spool_all([system.delivery()])
    assert len(events_files(system.config.data_dir)) == 2


@pytest.mark.timed
def test_a_delivery_does_not_wait_for_the_drain_of_a_damaged_file(system: System) -> None:
    """It began when there was no other file, and its row is found."""
    file = spool(system, [system.delivery()])
    with open_damaged(file) as events:
        assert len(events.oldest(10)) == 1
        set_aside(file)
        adding = threading.Thread(target=spool_to, args=(file, late := system.delivery()))
        began = time.monotonic()
        adding.start()
        adding.join()
        assert time.monotonic() - began < BUSY_SECONDS
        events.lock()
        (row,) = events.oldest(10)
    assert row.id == late.event.id


def spool_to(file: Path, delivery: Delivery) -> None:
    with closing(open_file(file, EVENTS_FORMAT)) as opened:
        SpooledEvents(opened).add([delivery])


def test_commands_end_without_a_traceback_whatever_bit_is_damaged(system: System) -> None:
    file = spool(system, deliveries(system))
    content = file.read_bytes()
    for place in (content.index(b"about BLOB"), content.index(b"checksum INTEGER"), 63, 100, 2 * PAGE):
        flip(file, content, place, 7)
        done = system.run_cli("doctor", "--json")
        assert "Traceback" not in done.stderr, done.stderr
        assert json.loads(done.stdout)["findings"]
