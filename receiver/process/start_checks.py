"""Start checks: what is checked before a process starts, so that the error is one sentence: a free address, and a data
directory that can be written and that no other user can read."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from receiver import logs
from receiver.contract.errors import ConfigError
from receiver.process.disk_try import HANGS, disk_error

_ID = "[0-9a-f]" * 8
OUR_FILES = {
    ".": (
        "spool*.sqlite3*",
        "refused.sqlite3*",
        "keyring.json",
        "keyring-pending.json",
        ".keyring-*",
        "sandbox-*.sqlite3*",
        "known_data",
        "redis.sock",
        "findings.*",
    ),
    "logs": ("server.log", "receiver.log", "worker.log", "sandbox.log", "console.log"),
    "redis": ("temp-*.aof", "temp-*.rdb", "dump.rdb"),
    "redis/appendonlydir": ("appendonly.aof.*", "temp*appendonly.aof.*"),
    "run": ("dev.lock", f"web-{_ID}.lock", f"web-worker-{_ID}.lock", f"worker-{_ID}.lock", f"console-{_ID}.lock"),
}
"""The files in a data directory that are ours, by folder. Any other belongs to the user, and is left alone: the data
directory may be the folder of a project, with its own `logs`."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def require_free_port(bind: str, *, key: str) -> None:
    """Raise ConfigError if a server cannot listen on the address. A socket passed by a service manager is trusted."""
    if os.environ.get("LISTEN_FDS"):
        return
    host, _, port = bind.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            fix = f"set {key} to an address of this host and a port that this user may use"
            if error.errno == errno.EADDRINUSE:
                fix = f"stop what uses it, or set {key}"
            raise ConfigError(f"cannot listen on {bind}: {error.strerror}; {fix}") from None


def require_new_address(bind: str, *, old: str, key: str) -> None:
    """Raise ConfigError if a server that listens at the old address cannot change to this one in a reload: gunicorn
    would end after a few tries."""
    if bind == old:
        return
    if bind.rpartition(":")[2] == old.rpartition(":")[2]:  # the processes that are replaced have the port
        raise ConfigError(f"{key} has changed to {bind}, on the same port: restart to use it, or set another port")
    require_free_port(bind, key=key)


def prepare_data_dir(data_dir: Path, *, set_by: str = "") -> None:
    """Create the data directory, and close it to other users. Raises ConfigError if it cannot be written.

    A service says what decided it: two processes that should share one may have different environments.
    """
    if set_by:
        logs.get("start").info("data directory", path=str(data_dir), set_by=set_by)
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        error = disk_error(data_dir)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"[redis] data_dir: {data_dir} is not a folder; move it away, or set another one") from None
    except OSError as failed:
        error = failed
    if error and error.errno == HANGS:  # deliveries still go to Redis, as with a full disk
        logs.get("start").error("the disk of data_dir does not answer", path=str(data_dir))
        return
    if error and error.errno not in (errno.ENOSPC, errno.EDQUOT):
        is_read_only = error.errno == errno.EROFS
        fix = "make it writable (a mount, or systemd's ReadWritePaths=)" if is_read_only else "change its owner"
        raise ConfigError(
            f"[redis] data_dir: {data_dir} cannot be written: {error.strerror}; {fix}, or set another one"
        )
    closed = [str(path) for path in open_to_others(data_dir) if _close(path, data_dir.resolve())]
    if closed:
        shown = ", ".join(closed[:5]) + (", ..." if closed[5:] else "")
        logs.get("start").warning("other users could read the data directory; they no longer can", closed=shown)


def open_to_others(data_dir: Path) -> Iterator[Path]:
    """The data directory and our files in it, as far as other users may read or change them."""
    data_dir = data_dir.resolve()  # of a symlink, the mode of its target counts
    for path in (data_dir, *_our_files(data_dir, data_dir)):
        try:
            mode = path.lstat().st_mode
        except OSError:  # removed meanwhile
            continue
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            yield path


def _our_files(folder: Path, data_dir: Path) -> Iterator[Path]:
    for path in _entries(folder):
        if _is_ours(path, data_dir):
            yield path
        if path.is_dir() and not path.is_symlink() and str(path.relative_to(data_dir)) in OUR_FILES:
            yield from _our_files(path, data_dir)


def _is_ours(path: Path, data_dir: Path) -> bool:
    """A folder is ours if everything in it is."""
    inside = path.relative_to(data_dir)
    if path.is_dir():
        return str(inside) in OUR_FILES and all(_is_ours(one, data_dir) for one in _entries(path))
    return any(fnmatch(path.name, pattern) for pattern in OUR_FILES[str(inside.parent)])


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # it does not exist yet, or belongs to another user
        return []


def _close(path: Path, data_dir: Path) -> bool:
    """Take all rights from other users, if the file is ours to change. A folder with the user's files stays open."""
    if path == data_dir and not _is_ours(path, data_dir):
        return False
    try:
        path.chmod(path.lstat().st_mode & ~_OTHERS)
    except OSError:  # it belongs to another user, or is gone
        return False
    return True
