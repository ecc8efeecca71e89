"""The keyring's two files on a host. Everything in them is sealed; see learned_secrets.py.

data_dir/keyring.json            a copy of the keyring in Redis, written by receivers; one can start from it
data_dir/keyring-pending.json    secrets learned on this host that Redis or a receiver may not have yet
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from receiver.contract.errors import ConfigError
from receiver.owned_files import copy_owner, open_or_create

COPY = "keyring.json"
PENDING = "keyring-pending.json"
LEFTOVER_SECONDS = 3600.0
"""A temporary file of this age belongs to a process that was ended while it wrote. A disk may hang for minutes."""

Sealed = dict[str, dict[str, bytes]]
"""Store -> fingerprint -> the sealed secret."""
Entry = tuple[str, str, bytes]
"""Store, fingerprint and the sealed secret."""


class KeyringUnwritable(ConfigError):
    """A file of the keyring cannot be written, so no secret can be learned."""

    def __init__(self, file: Path, error: OSError) -> None:
        fix = f"run the command as the owner of {file.parent}, or change the owner"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free space on its disk"
        elif error.filename == str(file):
            fix = f"as root: chown -h --reference={file.parent} {file}"
        super().__init__(f"the keyring cannot be written: {file}: {error.strerror}; {fix}")


def merge(first: Sealed, second: Sealed) -> Sealed:
    """Both together. Where they differ the second wins, but an end that was set is never removed."""
    merged = {store: dict(blobs) for store, blobs in first.items()}
    for store, blobs in second.items():
        entries = merged.setdefault(store, {})
        for mark, blob in blobs.items():
            if not (mark in entries and _has_end(entries[mark]) and not _has_end(blob)):
                entries[mark] = blob
    return merged


def _has_end(blob: bytes) -> bool:
    try:
        return orjson.loads(blob)["not_after"] is not None
    except (ValueError, KeyError, TypeError):
        return False


class KeyringFiles:
    """The two files of a host. Each is replaced as a whole, by renaming, and readable only by its owner."""

    def __init__(self, data_dir: Path) -> None:
        self.copy_file, self.pending_file = data_dir / COPY, data_dir / PENDING

    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever another process has written one of the files."""
        return tuple(_changed(file) for file in (self.copy_file, self.pending_file))

    def everything(self) -> Sealed:
        return merge(self.copy()[1], self.pending())

    def copy(self) -> tuple[int, Sealed]:
        """The version and the content of the keyring when it was last read from Redis."""
        return _read(self.copy_file)

    def pending(self) -> Sealed:
        return _read(self.pending_file)[1]

    def remove_leftovers(self) -> None:
        """Receivers call it from time to time: a leftover may hold a secret that was deleted since then."""
        remove_leftovers(self.copy_file, self.pending_file)

    def write_copy(self, version: int, sealed: Sealed) -> None:
        _write(self.copy_file, sealed, version)

    def require_writable(self) -> None:
        """Raise KeyringUnwritable if a secret could not be stored. Called before a store makes one."""
        self.add_pending(())

    def add_pending(self, entries: Iterable[Entry]) -> None:
        with self._locked():
            found = self.pending()
            for store, mark, blob in entries:
                found.setdefault(store, {})[mark] = blob
            _write(self.pending_file, found)

    def forget_pending(self, entries: Iterable[Entry]) -> None:
        """Remove entries that every receiver has. One that was sealed again since then stays."""
        known = {(store, mark): blob for store, mark, blob in entries}
        self._filter_pending(lambda store, mark, blob: known.get((store, mark)) != blob)

    def remove_pending(self, store: str, marks: Collection[str]) -> None:
        self._filter_pending(lambda of, mark, _: of != store or mark not in marks)

    def _filter_pending(self, keeps: Callable[[str, str, bytes], bool]) -> None:
        if not self.pending_file.exists():
            return
        with self._locked():
            found = self.pending()
            left = {
                store: {mark: blob for mark, blob in blobs.items() if keeps(store, mark, blob)}
                for store, blobs in found.items()
            }
            if any(left.values()):
                _write(self.pending_file, left)
            else:
                self.pending_file.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.pending_file.with_suffix(".lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(open_or_create(path)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):  # one that may not be read is not empty, and must not be replaced
                    open(self.pending_file, "rb").close()
                yield
        except OSError as error:
            raise KeyringUnwritable(path if error.filename == str(path) else self.pending_file, error) from error


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _read(file: Path) -> tuple[int, Sealed]:
    """The content of a file. A missing or damaged file counts as empty and is written again."""
    try:
        found = orjson.loads(file.read_bytes())
        stores = found["stores"].items()
        return int(found["version"]), {
            store: {k: blob.encode() for k, blob in blobs.items()} for store, blobs in stores
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return 0, {}


def _write(file: Path, sealed: Sealed, version: int = 0) -> None:
    stores = {store: {k: blob.decode() for k, blob in blobs.items()} for store, blobs in sealed.items() if blobs}
    remove_leftovers(file)
    replace_file(file, orjson.dumps({"version": version, "stores": stores}))


def replace_file(file: Path, content: bytes) -> None:
    """Write a file as a whole, readable only by its owner: for root, the owner of its folder."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")  # 0600
    try:
        with os.fdopen(descriptor, "wb") as new:
            copy_owner(descriptor, file.parent)
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_leftovers(*files: Path) -> None:
    """Remove the temporary files that `replace_file` made for these files of one folder, in processes that were ended
    meanwhile. Only for files of data_dir: in a folder of the user's, a file of such a name may be the user's own."""
    stems = "|".join(re.escape(file.stem) for file in files)
    made = re.compile(rf"\.(?:{stems})-[a-z0-9_]{{8}}")  # as mkstemp names them
    with suppress(OSError), os.scandir(files[0].parent) as found:
        for one in found:
            if made.fullmatch(one.name) and one.is_file(follow_symlinks=False):
                with suppress(OSError):  # removed by another process, or not ours
                    if time.time() - one.stat(follow_symlinks=False).st_mtime > LEFTOVER_SECONDS:
                        os.unlink(one.path)
