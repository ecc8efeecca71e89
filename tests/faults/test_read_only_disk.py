"""A disk that became read-only after an error of its file system, while the receiver runs on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.harness import Server, System


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def failing_disk(image: Path, folder: Path) -> Iterator[Callable[[], None]]:
    """A file system at this place, and a function that lets it fail."""
    run("truncate", "-s", "1500M", str(image))
    run("mkfs.ext4", "-q", "-F", str(image))
    folder.mkdir(mode=0o700, exist_ok=True)
    run("mount", "-o", "loop,errors=remount-ro", str(image), str(folder))
    try:
        device = Path(run("findmnt", "-n", "-o", "SOURCE", str(folder))).name
        yield lambda: Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1") and None
    finally:
        run("umount", "-l", str(folder))


@pytest.mark.full
def test_a_disk_that_became_read_only_is_named_and_stops_nothing_else(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """Newer kernels do not show it in the mount's flags, so doctor said ok. Each process ended with a traceback."""
    system = make_system(url=own_redis.url)
    with failing_disk(system.folder / "image", system.config.data_dir) as fail:
        (web,) = system.start("web")
        fail()
        system.deliver()
        assert "data is read-only" in (said := system.run_cli("doctor").stdout), said
        web.stop()
        assert "Traceback" not in system.log("web")
        system.close()
