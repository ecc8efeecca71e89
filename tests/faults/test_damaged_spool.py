"""A file of the spool is damaged: deliveries go to a new one, and only rows that were destroyed are missing."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from receiver.spool import EVENTS_FILE, kept_files
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
    sqlite3.connect(file).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
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
