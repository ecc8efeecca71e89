"""Reload: have the processes of a config read it again, where it can be known for sure which they are.

`storehooks dev` holds a lock on its data directory, with its process id inside. Other processes are found by their
command line: one of our modules, with this very config file, under this user (root tells all). The signal goes to a
process handle that was opened before the command line was read, so that it can hit nobody else.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from receiver.config import Config

MODULES = {
    "receiver.server.web": "web",
    "workers": "worker",
    "workers.runtime.worker": "worker",
    "workers.runtime.housekeeper": "housekeeper",
}
LOCK = "dev.lock"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True)
class Told:
    """A process that was sent HUP."""

    name: str
    pid: int
    before: frozenset[int] = frozenset()
    """The processes that served for it until then; new ones take their place."""


def reload(config: Config) -> list[Told]:
    """Send HUP to every process of this config on this host; give which."""
    if dev := dev_of(config.data_dir):
        webs = [pid for pid in _children(dev) if config.path and _name_of(pid, config.path) == "web"]
        before = frozenset(child for web in webs for child in _children(web))
        if _signal(dev):
            return [Told("dev", dev, before)]
    return list(_tell_ours(config))


def wait_until_read(told: Iterable[Told], within: float) -> bool:
    """Whether none of the processes that served the old config is left, within so long."""
    until = time.monotonic() + within
    old = {pid for one in told for pid in one.before}
    while old := {pid for pid in old if _lives(pid)}:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def dev_of(data_dir: Path) -> int | None:
    """The `storehooks dev` of a data directory, if one runs now."""
    with suppress(OSError, ValueError), open(data_dir / LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(lock.read())
    return None


def _tell_ours(config: Config) -> Iterator[Told]:
    """Whoever was started for it; what these forked themselves is theirs to tell."""
    if config.path is None:
        return
    for pid in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()):
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                name = _name_of(pid, config.path)
                if name and not _name_of(_parent(pid), config.path):
                    before = frozenset(_children(pid)) if name == "web" else frozenset()
                    signal.pidfd_send_signal(handle, signal.SIGHUP)
                    yield Told(name, pid, before)
            finally:
                os.close(handle)


def _name_of(pid: int, config: Path) -> str:
    """What a process is of this config: web, worker, ...; empty if nothing, or not ours."""
    try:
        if os.getuid() not in (0, Path(f"/proc/{pid}").stat().st_uid):
            return ""
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
    module, rest = module_of(words)
    if "--config" not in rest[:-1]:
        return ""
    given = rest[rest.index("--config") + 1]
    same = (Path(folder) / given).resolve() == config.resolve()
    return MODULES.get(module, "") if same else ""


def module_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module that a Python runs, and its arguments; empty for any other command, though it may name the same."""
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return "", ()
    at = 1
    while at < len(words) - 1 and words[at].startswith("-"):
        if words[at] == "-m":
            return words[at + 1], words[at + 2 :]
        if words[at] == "-c":
            break
        at += 2 if words[at] in ("-W", "-X") else 1
    return "", ()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


def _lives(pid: int) -> bool:
    """A process that has ended and was not buried yet is gone, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _signal(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError:
        return False
    return True
