"""Owned files: what root creates in a data directory belongs to the owner of its folder, so that services can use it.

The folder may belong to an unprivileged user, who could place a link there. So root follows none where it creates a
file, and gives away only what it has created itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def copy_owner(descriptor: int, like: Path) -> None:
    """Let an open file belong to the owner and the group of another one."""
    status = like.stat()
    with suppress(PermissionError):  # only root may change the owner; any other writer is the reader as well
        os.fchown(descriptor, status.st_uid, status.st_gid)


def create_file(path: Path) -> int:
    """Create a file that only its owner can read, and open it. Raises FileExistsError, also for a link."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    copy_owner(descriptor, path.parent)
    return descriptor


def open_or_create(path: Path) -> int:
    """Open a file for reading and writing, or create it. Raises OSError for a link."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with suppress(FileExistsError):  # another process was faster
            return create_file(path)


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can read, unless it exists."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        copy_owner(descriptor, path.parent)
    finally:
        os.close(descriptor)
