"""The spool's disk is full or read-only after an outage: deliveries go to the inbox, and the spool's rows too."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.config.values import Bounds
from receiver.delivery.pipeline import open_storage
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.storage import Stored
from receiver.spool import REFUSED_FILE, RESERVED_DISK_BYTES, free_disk_bytes, open_events, open_refusals
from tests.receiver.delivery.test_readiness import delivery_gets, read_only
from tests.receiver.delivery.test_refused_deliveries import refusal, refusals_of
from tests.receiver.spool.test_spool import small_disk, spooled
from tests.support.harness import Server, System, children_of, eventually


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Not a byte is free on this disk."""
    ballast = [disk / "ballast", disk / "more"]
    for file, size in zip(ballast, ("64k", "1"), strict=True):
        subprocess.run(["dd", "if=/dev/zero", f"of={file}", f"bs={size}"], capture_output=True, check=False)
    try:
        yield
    finally:
        for file in ballast:
            file.unlink()


def accepted(system: System) -> int:
    return system.ledger.counters().total["accepted"]


def test_with_a_full_disk_a_store_with_spooled_rows_is_served_by_redis(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk:
        system = make_system(url=own_redis.url, data_dir=disk)
        system.start("web")
        own_redis.kill()
        assert [delivery_gets(system) for _ in range(3)] == [200] * 3
        with filled(disk):
            assert delivery_gets(system) == 503, "neither takes it"
            own_redis.start()
            eventually(lambda: system.http.get("/readyz").json().get("stores_in") == "redis")
            assert [delivery_gets(system) for _ in range(8)] == [200] * 8
            eventually(lambda: accepted(system) == 11, what="the spool's rows are in the inbox, too")
            findings = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
            (found,) = [one for one in findings if one["check"] == "disk" and one["level"] == "fail"]
            assert "0 bytes free" in found["text"]
            assert found["fix"].startswith("free disk space")
        eventually(lambda: spooled(system) == 0, what="the rows are deleted")
        assert [delivery_gets(system) for _ in range(3)] == [200] * 3
        total = system.ledger.counters().total
        assert (total["accepted"], total["duplicates"]) == (14, 0)
        assert "the spool cannot take deliveries" in system.log("web")
        assert "the disk is nearly full" in system.log("web")
        system.close()


def test_with_a_read_only_disk_the_inbox_gets_the_rows_and_new_deliveries(system: System) -> None:
    config, rows = system.config, [system.delivery() for _ in range(3)]
    with closing(open_events(config.data_dir)) as events:
        events.add(rows)
        with read_only(config.data_dir):
            storage, drain = open_storage(config, system.inbox)
            (stored,) = storage.store_all([system.delivery()])
            assert isinstance(stored, Stored)
            assert (stored.status, stored.where) == ("accepted", "redis")
            drain.run_once()
            drain.run_once()
            assert (accepted(system), events.count()) == (4, 3)
            finding = system.run_cli("doctor", "--json").stdout
            assert "the disk of" in finding
            assert "is read-only" in finding
        drain.run_once()
        total = system.ledger.counters().total
        assert (total["accepted"], total["duplicates"], events.count()) == (4, 0, 0)


def test_the_log_says_when_the_disk_takes_deliveries_again_although_none_is_spooled(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk:
        system = make_system(url=own_redis.url, data_dir=disk)
        system.start("web")
        own_redis.kill()
        with filled(disk):
            assert delivery_gets(system) == 503
            own_redis.start()
            eventually(lambda: delivery_gets(system) == 200, what="Redis takes deliveries")
            assert "the spool takes deliveries again" not in system.log("web")
        eventually(lambda: "the spool takes deliveries again" in system.log("web"), what="the end of the outage")
        system.close()


def test_rows_that_could_not_be_deleted_are_not_taken_for_those_of_another_file(system: System) -> None:
    config = system.config
    with closing(open_events(config.data_dir)) as events:
        events.add([system.delivery()])
        with read_only(config.data_dir):
            _, drain = open_storage(config, system.inbox)
            drain.run_once()
            assert accepted(system) == 1
    for file in config.data_dir.glob("spool.sqlite3*"):
        file.unlink()
    with closing(open_events(config.data_dir)) as events:
        one = system.delivery()
        events.add([one, replace(one, event=replace(one.event, id="unsent"))])
        drain.run_once()
        assert (accepted(system), events.count()) == (3, 0)


@pytest.mark.parametrize(("size", "bodies"), [("110m", True), ("60m", False), ("40m", False)])
def test_refused_deliveries_take_nothing_of_the_spools_reserve(tmp_path: Path, size: str, bodies: bool) -> None:
    """Forged ones filled a small disk: while Redis was away, every genuine delivery was answered 503."""
    with small_disk(tmp_path / "disk", size) as disk:
        writer = RefusalLog(disk, Bounds(3600, 64 << 20))
        least = before = free_disk_bytes(disk)
        for _ in range(20):
            for _ in range(4):
                writer.add(refusal(time.time(), size=900_000))
            writer.flush()
            least = min(least, free_disk_bytes(disk))
        writer.close()
        assert least > min(RESERVED_DISK_BYTES, before - (1 << 20))
        with closing(open_refusals(disk)) as refusals:
            assert (refusals.count_with_body() > 0) is bodies


def test_the_file_of_refused_deliveries_may_be_deleted(system: System) -> None:
    """As docs/runbooks/disk-full.md says: after a reload, a new one is used."""
    (web,) = system.start("web")
    file = system.config.data_dir / REFUSED_FILE

    def refuse() -> None:
        assert system.post(system.request(store="north"), "south").status_code == 401

    refuse()
    eventually(lambda: file.exists() and refusals_of(system).count() == 1, what="it is written")
    for one in file.parent.glob(f"{REFUSED_FILE}*"):
        one.unlink(missing_ok=True)
    before = children_of(web.pid)
    web.send(signal.SIGHUP)
    eventually(lambda: not {*before} & {*children_of(web.pid)}, what="the processes that have it open are replaced")
    refuse()
    eventually(lambda: file.exists() and refusals_of(system).count() == 1, what="the new file has it")
