"""Process files: each long-running process holds a locked file in `data_dir/run`, so that others can find it.

The lock says that the process still runs: the kernel releases it however the process ends. These are POSIX locks,
which a forked child does not inherit. The kernel also reports the process id of the holder, as this process sees it:
0 or less for a process on another host or in another container. The id inside the file is only for people who read it;
the line after it is the address that the process listens on, if it is a server. A worker shows that it responds by the
time at which its file was last changed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from receiver import logs
from receiver.owned_files import make_folder, open_or_create

FOLDER = "run"
DISK_SECONDS = 2.0
"""How long a process waits for the disk before it goes on without its file: a disk that hangs must not keep it from
starting or reloading."""
_held_here: dict[tuple[Path, str, int], _OwnFile] = {}
"""By folder, role and process id."""
_FLOCK = "hhqqi"
"""struct flock of fcntl(2): type, whence, start, length, pid."""


class AlreadyHeld(Exception):
    """Another process holds the file."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        super().__init__(f"held by process {pid}")


@dataclass(frozen=True)
class ProcessFile:
    """A file that a process on this host holds."""

    role: str
    pid: int
    path: Path
    address: str = ""
    """What it listens on, such as 0.0.0.0:5000; empty for a process that is no server."""

    @property
    def silent_for(self) -> float:
        """Seconds since it last showed life. A clock that was set back counts as silence until the next sign."""
        try:
            return abs(time.time() - self.path.stat().st_mtime)
        except FileNotFoundError:  # it has ended
            return float("inf")

    @property
    def is_held(self) -> bool:
        """Whether the same process still holds it. Its id is then not reused."""
        return _holder(self.path) == self.pid


@dataclass
class _OwnFile:
    """The file of this process. It counts once it is locked, even if a full disk takes no content yet."""

    folder: Path
    role: str
    address: str = ""
    descriptor: int = -1
    """-1 while it could not be created."""
    written: str | None = None
    """The address in the file; None while it has no content."""
    disk_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread uses the disk: until a disk that hangs answers."""

    def touch(self) -> None:
        """Create and lock the file, show life, and write its content, as far as that is not done."""
        with self.disk_lock:
            if self.descriptor < 0:
                list(held(self.folder.parent))  # removes the files of processes that were killed
                self.descriptor = _lock(self.folder / f"{self.role}-{secrets.token_hex(4)}.lock", wait=True)
            os.utime(self.descriptor)  # before the content, which a full disk does not take
            if self.written != (address := self.address):
                _write(self.descriptor, *([address] if address else []))
                self.written = address

    def report(self, why: str) -> None:
        failed = "no process file; `storehooks stores add` and `remove` cannot reload this process"
        if self.descriptor >= 0:
            failed = "the process file has no content"
        logs.get("processes").warning(failed, why=why)


def hold(data_dir: Path, role: str, *, address: str = "") -> None:
    """Hold a file of this role until this process ends. Any number of processes may have the same role.

    A process that cannot create the file works all the same, but other processes cannot find it. Called again for the
    same folder it only writes the address: to look at the file would release it.
    """
    folder = data_dir.resolve() / FOLDER
    own = _held_here.setdefault((folder, role, os.getpid()), _OwnFile(folder, role))
    own.address = address or own.address
    thread = threading.Thread(target=_hold, args=(own,), name="process-file", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # a limit of threads
        own.report(str(error))
        return
    thread.join(DISK_SECONDS)
    if thread.is_alive():
        own.report("the disk of data_dir does not answer")


def _hold(own: _OwnFile) -> None:
    try:
        own.touch()
    except OSError as error:
        own.report(str(error))


def show_life(data_dir: Path, role: str) -> None:
    """Let others see by the file of this process that it responds. What a full disk did not take is written now.

    It does not wait: while the disk hangs, others see silence, and the process goes on.
    """
    own = _held_here.get((data_dir.resolve() / FOLDER, role, os.getpid()))
    if own and not own.disk_lock.locked():
        with suppress(RuntimeError):  # a limit of threads: others see silence
            threading.Thread(target=_show_life, args=(own,), name="process-file", daemon=True).start()


def _show_life(own: _OwnFile) -> None:
    with suppress(OSError):  # a disk that is full, or read-only by now; then others see silence
        own.touch()


def hold_alone(data_dir: Path, role: str) -> None:
    """Hold the only file of this role until this process ends. Raises AlreadyHeld where another process holds it."""
    path = data_dir.resolve() / FOLDER / f"{role}.lock"
    try:
        descriptor = _lock(path, wait=False)
    except BlockingIOError:
        raise AlreadyHeld(_holder(path) or 0) from None
    with suppress(OSError):  # a full disk
        _write(descriptor)


def held(data_dir: Path) -> Iterator[ProcessFile]:
    """The files that processes on this host hold now. Files of processes that were killed are removed."""
    for path in sorted((data_dir / FOLDER).glob("*.lock")):
        role, _, _ = path.stem.rpartition("-")
        with suppress(OSError):  # removed meanwhile, or not ours to read
            pid = _holder(path)
            if pid is None and role:
                _remove_unheld(path)
            elif pid is not None and pid > 0:
                yield ProcessFile(role or path.stem, pid, path, _address_in(path))


def web_addresses(data_dir: Path) -> list[str]:
    """What the web processes on this host listen on. Their own environment may differ from this config."""
    return [file.address for file in held(data_dir) if file.address]


def restart_at_bind(address: str, bind: str) -> str:
    """How to make a web process listen at `[receiver] bind`, if it listens at another address."""
    if address.startswith("0.0.0.0:") and not bind.startswith("0.0.0.0:"):  # as $PORT makes it
        return "start `storehooks web` without PORT set"
    return f"restart `storehooks web`: [receiver] bind is {bind} now"


def _lock(path: Path, *, wait: bool) -> int:
    """Create and lock the file, and leave it open. It may be removed before it is locked; then it is created again."""
    make_folder(path.parent)
    while True:
        descriptor = open_or_create(path)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                break
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    atexit.register(_remove_own, path, os.getpid())
    return descriptor


def _write(descriptor: int, *lines: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, "".join(f"{line}\n" for line in (os.getpid(), *lines)).encode(), 0)


def _address_in(path: Path) -> str:
    """Never asked of a file that this process itself holds, like `_holder`."""
    lines = path.read_text(errors="replace").splitlines()
    return lines[1] if len(lines) > 1 else ""


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_own(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child runs its parent's exit functions
        with suppress(OSError):  # a disk that is read-only by now
            path.unlink()


def _remove_unheld(path: Path) -> None:
    """Under a lock, so that no process locks it between the check and the removal."""
    with open(path, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, file.fileno()):  # else its owner has created it again, and holds the new one
            path.unlink()


def _holder(path: Path) -> int | None:
    """The process that holds a file, None if there is none. Never asked of a file that this process itself holds:
    the kernel does not report it, and closing the file here would release it."""
    try:
        with open(path, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else pid
