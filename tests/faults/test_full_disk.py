"""A full disk, where the Redis server and this host's files are, and the command that frees space on it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from redis.exceptions import RedisError

from receiver.config.values import Bounds
from receiver.spool import Refusal, open_refusals
from tests.support.harness import Server, System, eventually, own_server
from tests.support.mounted_disk import small_disk

STORED = 3000
"""Deleting all of these in one transaction needs a longer write-ahead log than writing them in many did."""


def refuse_writes(server: Server, disk: Path) -> None:
    """Fill the disk until the server answers MISCONF, and then to its last page."""
    eventually(lambda: _refuses_on(disk, server), what="the server notices the full disk")
    _fill(disk)


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)


def _refuses_on(disk: Path, server: Server) -> bool:
    _fill(disk)
    try:
        server.client.set("other", "x" * 5000)
    except RedisError as error:
        return "MISCONF" in str(error)
    return False


def test_refused_deliveries_are_dropped_although_redis_refuses_the_audit_record(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """The command ended at that record, and what would have freed space stayed."""
    with small_disk(tmp_path / "disk", "32m") as disk, own_server(disk, "--appendfsync", "everysec") as server:
        system = make_system(url=server.url, data_dir=disk)
        with closing(open_refusals(disk)) as refusals:  # open, as a web process has it
            body = b"x" * 2000
            one = Refusal(time.time(), "north", "north", "signature-mismatch", 2000, "8bd246", "203.0.113.9", {}, body)
            for _ in range(STORED // 100):
                refusals.add([one] * 100, bounds=Bounds(3600, 64 << 20), now=time.time())
            with closing(sqlite3.connect(disk / "refused.sqlite3")) as db:
                db.execute("PRAGMA wal_checkpoint")  # else that of the deletion would need space
            refuse_writes(server, disk)
            dropped = system.run_cli("refused", "drop", "--all", "--yes")
            assert dropped.stdout == f"{STORED:,} refused deliveries deleted\n", dropped.stderr
            assert "not recorded in the audit trail: MISCONF" in dropped.stderr
            assert dropped.returncode == 0
            assert refusals.count() == refusals.count_with_body() == 0
        system.close()


def test_doctor_says_that_a_disk_with_free_space_has_no_room_for_files(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    """It said "ok disk 3 GB free" while each delivery was answered 503."""
    with small_disk(tmp_path / "disk", "1g", files=140) as disk:
        system = make_system(url=own_redis.url, data_dir=disk)
        system.start("web")
        (before,) = disk_findings(system)
        assert before == ("warn", "free disk space, or lower [receiver] spool_bytes"), "the disk of the test is small"
        with suppress(OSError):
            for number in range(200):
                (disk / f"cache-{number}").touch()
        own_redis.kill()
        assert system.post(system.request("order.paid")).status_code == 503
        ((level, fix),) = disk_findings(system)
        assert (level, "df -i" in fix) == ("fail", True)
        system.close()


def disk_findings(system: System) -> list[tuple[str, str]]:
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [(one["level"], one["fix"]) for one in found if one["check"] == "disk"]
