"""A file of the spool is damaged: deliveries go to a new one, and only rows that were destroyed are missing."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import Stored
from receiver.inbox.keys import host_of
from receiver.spool import EVENTS_FILE, EVENTS_FORMAT, events_files, kept_files, open_events, set_aside
from receiver.spool.database import PAGE
from tests.support.harness import Server, System, eventually, kill_with_children

MANY = 60


def overwrite(file: Path, at: int, size: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(os.urandom(size))


def rows_without_journal(file: Path) -> int:
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as opened, suppress(sqlite3.Error):
        return int(opened.execute("SELECT count(*) FROM event").fetchone()[0])
    return 0  # it is being written


def write_journal_to(file: Path) -> None:
    """After this, damage to the file is not hidden by pages of its journal. SQLite returns (busy, ...)."""
    with closing(sqlite3.connect(file)) as opened:
        eventually(lambda: opened.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))


def middle(file: Path) -> int:
    return file.stat().st_size // 2 // PAGE * PAGE


DAMAGES: dict[str, tuple[Callable[[Path], None], int]] = {
    "garbage header": (lambda file: overwrite(file, 0, 100), 0),
    "garbage first page": (lambda file: overwrite(file, 0, PAGE), 0),
    "garbage page": (lambda file: overwrite(file, middle(file), PAGE), 5),
    "truncated": (lambda file: os.truncate(file, file.stat().st_size * 3 // 4), MANY // 2),
}
"""What is done to the file, and how many rows it destroys at most."""


def accepted(system: System) -> set[str]:
    return {event.id for event in system.ledger.events(limit=1000)}


def findings(system: System, *checks: str) -> list[str]:
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [one["text"] for one in found if one["check"] in checks and one["level"] == "fail"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_drained(
    make_system: Callable[..., System], own_redis: Server, name: str
) -> None:
    damage, destroyed = DAMAGES[name]
    system = make_system(url=own_redis.url)
    file = system.config.data_dir / EVENTS_FILE
    (web,) = system.start("web")
    own_redis.kill()
    ids = [system.deliver(data={"id": number}) for number in range(MANY)]
    kill_with_children(web)
    write_journal_to(file)
    damage(file)
    system.processes.clear()
    system.start("web")
    ids.append(eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json()["id"]))
    own_redis.start()
    eventually(lambda: system.http.get("/readyz").json().get("stores_in") == "redis")
    ids.append(system.deliver())
    eventually(lambda: kept_files(file.parent), 20, what="the damaged file is kept")
    eventually(lambda: ids[-2] in accepted(system), what="the new file is drained")
    missing = [one for one in ids if one not in accepted(system)]
    assert len(missing) <= destroyed
    total = system.ledger.counters().total
    assert (total["accepted"], total["duplicates"]) == (len(ids) - len(missing), 0)


def test_commands_say_that_a_file_is_damaged_until_it_is_moved_away(make_system: Callable[..., System]) -> None:
    system, other = make_system(), make_system()
    file = system.config.data_dir / EVENTS_FILE
    file.write_bytes(b"not a database" * 1000)
    system.start("web")
    eventually(lambda: kept_files(file.parent))
    assert system.http.get("/readyz").json()["spooled"] is None
    for host in (system, other):
        assert json.loads(host.run_cli("stats", "--json").stdout)["spooled"] == "unknown"
        (listed,) = json.loads(host.run_cli("hosts", "--json").stdout)
        assert (listed["state"], listed["spooled"]) == ("receiving", "unknown")
        assert any("cannot read all of its spool" in text for text in findings(host, "spool"))
    assert any("spool-damaged-" in text for text in findings(system, "disk"))
    assert "the file is kept" in system.log("web")

    for kept in file.parent.glob("spool-damaged-*"):
        kept.unlink()
    eventually(lambda: [one.count for one in other.ledger.spools().values()] == [0])
    assert json.loads(other.run_cli("stats", "--json").stdout)["spooled"] == 0
    assert findings(system, "disk", "spool") == []


def test_a_file_that_is_damaged_while_it_is_used_does_not_stop_the_receiver(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    file = system.config.data_dir / EVENTS_FILE
    system.start("web")
    own_redis.kill()
    ids = [system.deliver() for _ in range(MANY)]
    eventually(lambda: rows_without_journal(file) == MANY)
    overwrite(file, middle(file), PAGE)
    ids.append(eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json()["id"]))
    own_redis.start()
    eventually(lambda: len(set(ids) - accepted(system)) <= 5, what="rows of one page are missing")
    eventually(lambda: system.http.get("/readyz").json().get("stores_in") == "redis")
    assert system.deliver() in accepted(system)


def test_a_damaged_journal_costs_only_the_deliveries_of_its_last_moments(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    file = system.config.data_dir / EVENTS_FILE
    (web,) = system.start("web")
    own_redis.kill()
    before = [system.deliver() for _ in range(10)]
    eventually(lambda: rows_without_journal(file) == 10, what="the journal was written to the file")
    system.deliver()
    kill_with_children(web)
    overwrite(Path(f"{file}-wal"), 0, 1000)
    system.processes.clear()
    system.start("web")
    last = system.deliver()
    own_redis.start()
    eventually(lambda: {*before, last} <= accepted(system))


def rewrite(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as opened:
        opened.execute(statement)


def restore_dump(file: Path, version: int) -> None:
    with closing(sqlite3.connect(file)) as opened:
        statements = "\n".join(opened.iterdump())
    file.unlink()
    with closing(sqlite3.connect(file)) as restored:
        restored.executescript(f"{statements} PRAGMA user_version = {version};")


REWRITES: dict[str, Callable[[Path], None]] = {
    "vacuum": lambda file: rewrite(file, "VACUUM"),
    "analyze": lambda file: rewrite(file, "ANALYZE"),
    "dump": lambda file: restore_dump(file, EVENTS_FORMAT.number),
    "dump without a number": lambda file: restore_dump(file, 0),
}


@pytest.mark.parametrize("name", REWRITES)
def test_an_intact_file_that_a_person_has_rewritten_is_drained_as_it_is(system: System, name: str) -> None:
    given = [system.delivery(data={"id": number}) for number in range(MANY)]
    with closing(open_events(system.config.data_dir)) as events:
        events.add(given)
    REWRITES[name](system.config.data_dir / EVENTS_FILE)
    storage, drain = open_storage(system.config, system.inbox)
    (added,) = storage.spool_all([late := system.delivery()])
    assert isinstance(added, Stored)
    drain.run_once()
    assert accepted(system) == {one.event.id for one in (*given, late)}
    assert [*events_files(system.config.data_dir), *kept_files(system.config.data_dir)] == [
        system.config.data_dir / EVENTS_FILE
    ]


@pytest.mark.parametrize("name", REWRITES)
def test_rows_of_a_rewritten_file_are_drained_after_damage(system: System, name: str) -> None:
    given = [system.delivery(data={"id": number}) for number in range(MANY)]
    file = system.config.data_dir / EVENTS_FILE
    with closing(open_events(file.parent)) as events:
        events.add(given)
    REWRITES[name](file)
    content = file.read_bytes()
    set_aside(file)  # as for damage anywhere
    open_storage(system.config, system.inbox)[1].run_once()
    assert accepted(system) == {one.event.id for one in given}
    (kept,) = kept_files(file.parent)
    assert kept.read_bytes() == content


def test_a_first_page_that_is_replaced_is_kept(system: System) -> None:
    file = system.config.data_dir / EVENTS_FILE
    with closing(open_events(file.parent)) as events:
        events.add([system.delivery()])
    overwrite(file, 0, PAGE)
    content = file.read_bytes()
    set_aside(file)
    open_storage(system.config, system.inbox)[1].run_once()
    assert len(accepted(system)) == 1
    (kept,) = kept_files(file.parent)
    first_page = Path(f"{kept}-page1")
    assert (first_page.read_bytes(), first_page.stat().st_mode & 0o777) == (content[:PAGE], 0o600)
    assert kept.read_bytes()[PAGE:] == content[PAGE:]


def test_hosts_and_doctor_agree_about_a_damaged_file_without_rows(system: System) -> None:
    file = system.config.data_dir / EVENTS_FILE
    open_events(file.parent).close()
    system.inbox.publish_spool(host_of(file.parent), 0, 0.0)
    overwrite(file, 0, PAGE)
    (listed,) = json.loads(system.run_cli("hosts", "--json").stdout)
    assert listed["spooled"] == "unknown"
    assert len(findings(system, "disk", "spool")) == 2
