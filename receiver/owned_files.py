"""Owned files: what root creates in a data directory belongs to the owner of its folder, so that services can use it.

The folder may belong to an unprivileged user, who could place a link there. So root follows none where it creates a
file, and gives away only what it has created itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def copy_owner(descriptor: int, like: Path | int) -> None:
    """Let an open file belong to the owner and the group of another one."""
    status = os.stat(like)
    with suppress(OSError):  # only root may, and only where the ids exist; any other writer is the reader as well
        os.fchown(descriptor, status.st_uid, status.st_gid)


def create_file(path: Path) -> int:
    """Create a file that only its owner can read, and open it. Raises FileExistsError, also for a link."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        descriptor = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        copy_owner(descriptor, folder)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(folder)
    return descriptor


def open_or_create(path: Path) -> int:
    """Open a file for reading and writing, or create it. Raises OSError for a link."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with suppress(FileExistsError):  # another process was faster
            return create_file(path)


def make_folder(path: Path, *, like: Path | None = None) -> None:
    """Create a folder, unless it exists: one that only its owner can read, or with owner and mode of another folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        copy_owner(descriptor, like or path.parent)
        if like is not None:
            os.fchmod(descriptor, like.stat().st_mode & 0o777)
    finally:
        os.close(descriptor)
