"""A file system of a test's own, which can fail or hang. Only root can mount one; elsewhere the test is skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

THAWED_AFTER = 60
"""Seconds. A disk that hangs for ever could not be unmounted, so it ends also if the test is killed."""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def mounted_disk(image: Path, folder: Path, *, size: str = "1500M", options: str = "loop") -> Iterator[Path]:
    run("truncate", "-s", size, str(image))
    run("mkfs.ext4", "-q", "-F", str(image))
    folder.mkdir(mode=0o700, exist_ok=True)
    run("mount", "-o", options, str(image), str(folder))
    try:
        folder.chmod(0o700)
        yield folder
    finally:
        run("umount", "-l", str(folder))


@contextmanager
def small_disk(folder: Path, size: str, *, files: int = 0) -> Iterator[Path]:
    """One in memory, to fill; with room for a number of files, if it is given."""
    folder.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700,nr_inodes={files}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """Until the end, no write of the file system returns."""
    thaw = f"sleep {THAWED_AFTER}; exec fsfreeze --unfreeze {folder}"
    guard = subprocess.Popen(["sh", "-c", thaw], stderr=subprocess.DEVNULL, start_new_session=True)
    run("fsfreeze", "--freeze", str(folder))
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)
        guard.kill()
        guard.wait()
