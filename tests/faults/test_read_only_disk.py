"""A disk that became read-only after an error of its file system, while the receiver runs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from receiver.process.process_files import held
from tests.support.harness import Server, System, eventually
from tests.support.mounted_disk import mounted_disk, run
from workers.cli.run import SILENT_SECONDS


@contextmanager
def failing_disk(image: Path, folder: Path) -> Iterator[Callable[[], None]]:
    """A file system at this place, and a function that lets it fail."""
    with mounted_disk(image, folder, options="loop,errors=remount-ro"):
        device = Path(run("findmnt", "-n", "-o", "SOURCE", str(folder))).name
        yield lambda: Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1") and None


@pytest.mark.full
def test_a_disk_that_became_read_only_is_named_and_stops_nothing_else(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """Newer kernels do not show it in the mount's flags, so doctor said ok. Each process ended with a traceback."""
    system = make_system(url=own_redis.url)
    with failing_disk(system.folder / "image", system.config.data_dir) as fail:
        (web, _) = system.start("web", "supervisor")
        eventually(lambda: system.run_cli("worker", "--check").returncode == 0)
        (file,) = (one for one in held(system.config.data_dir) if one.role == "worker")
        fail()
        event = system.deliver()
        assert system.settled(event) == "settled"
        eventually(lambda: file.silent_for > SILENT_SECONDS, within=2 * SILENT_SECONDS)
        check = system.run_cli("worker", "--check")
        assert (check.returncode, "not checked" in check.stderr) == (0, True), "a restart would stop all handling"
        assert "data is read-only" in (said := system.run_cli("doctor").stdout), said
        web.stop()
        assert "Traceback" not in system.log("web")
        system.close()


@pytest.mark.full
def test_a_spool_on_a_disk_that_became_read_only_is_not_taken_for_a_damaged_one(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """The disk allows to open its files for writing, and refuses each write."""
    system = make_system(url=own_redis.url)
    with failing_disk(system.folder / "image", system.config.data_dir) as fail:
        (web,) = system.start("web")
        own_redis.kill()
        assert [system.post(system.request()).status_code for _ in range(3)] == [200] * 3
        fail()
        assert system.post(system.request()).status_code == 503
        own_redis.start()
        eventually(lambda: system.ledger.counters().total["accepted"] == 3, what="the rows are in the inbox")
        eventually(lambda: "cannot be deleted" in system.log("web"))
        web.stop()
        assert "damaged" not in system.log("web")
        system.close()
