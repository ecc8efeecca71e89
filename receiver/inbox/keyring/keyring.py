"""The keyring: the signing secrets learned from stores, sealed, in Redis and in a file on each host.

`learned_secrets` seals them. The file (`host_files`) lets a receiver that starts without Redis verify deliveries.

Every change increments the keyring's version. Receivers read the version twice a second and confirm the one they have
read (`receiver_versions`), so a process that changes a secret can wait until every receiver knows it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from receiver.config.values import sealing_key
from receiver.contract.errors import ConfigError
from receiver.inbox import keys
from receiver.inbox.keyring.host_files import Entry, KeyringFiles, Sealed, merge
from receiver.inbox.keyring.learned_secrets import LearnedSecret, Seal
from receiver.inbox.keyring.receiver_versions import ReceiverVersions
from receiver.inbox.redis import script_runner

ENDED_KEPT = 7 * 86400.0
"""Seconds for which an ended secret is kept, so that `verify` can report that it would have matched."""
CHANGE_SECONDS = 300.0
"""How long an announced change of a secret counts. Each receiver measures from when it first saw the announcement. If
its process is killed, a check replaces what is lost before that is over: once the lock of the store has expired."""


@dataclass(frozen=True)
class KeyringState:
    """The part of the keyring that receivers poll. The version is read first: a later change is read next time."""

    version: int
    versions: Mapping[str, int]
    """For each store with learned secrets: the version of its last change."""
    changing: Mapping[str, str]
    """Stores whose secret is being changed, each with the mark of the announcement."""


class Keyring:
    """The keyring of this deployment. Without a key it is empty and stores nothing."""

    def __init__(self, client: Redis, data_dir: Path, key: str) -> None:
        self.client = client
        self.files = KeyringFiles(data_dir)
        self.receivers = ReceiverVersions(client)
        self.seal = Seal(sealing_key(key)) if key else None

    # Reading

    def state(self) -> KeyringState:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.get(keys.KEYRING_VERSION)
        pipeline.hgetall(keys.SECRET_VERSIONS)
        pipeline.hgetall(keys.CHANGING_SECRETS)
        version, versions, changing = pipeline.execute()
        return KeyringState(
            int(version or 0),
            {name.decode(): int(value) for name, value in versions.items()},
            {name.decode(): value.decode() for name, value in changing.items()},
        )

    def version(self) -> int:
        """The version alone, which receivers read twice a second."""
        return int(self.client.get(keys.KEYRING_VERSION) or 0)

    def sealed(self, stores: Sequence[str]) -> Sealed:
        """The sealed secrets of these stores in Redis. Entries that are not text are damaged and left out."""
        pipeline = self.client.pipeline(transaction=False)
        for store in stores:
            pipeline.hgetall(keys.SECRETS + store)
        replies = pipeline.execute() if stores else []
        return {
            store: {mark.decode(): blob for mark, blob in entries.items() if _is_text(mark) and _is_text(blob)}
            for store, entries in zip(stores, replies, strict=True)
        }

    def open(self, sealed: Mapping[str, bytes], store: str) -> list[LearnedSecret]:
        return self.seal.open_all(sealed, store) if self.seal else []

    def secrets_of(self, store: str) -> list[LearnedSecret]:
        """A store's learned secrets from Redis and from this host's pending file, the newest first."""
        merged = merge(self.sealed([store]), self.files.pending()).get(store, {})
        return sorted(self.open(merged, store), key=lambda one: -one.learned_at)

    # Changing

    def require_key(self, store: str) -> Seal:
        """Check for the key before calling a store's API in a way that returns a new secret."""
        if self.seal is None:
            raise ConfigError(
                f"{store} would return a signing secret, and there is no key to store it under; set [secrets] key = "
                '"env:KEYRING_KEY" to 32 random bytes (`openssl rand -base64 32`), the same for every process'
            )
        return self.seal

    def store(self, entries: Sequence[LearnedSecret]) -> int:
        """Store secrets, first in this host's file, then in Redis. Returns the version that includes them.

        They stay in the file until `store_pending` finds that every receiver has read them.
        """
        if not entries:
            return self.version()
        seal = self.require_key(entries[0].store)
        blobs = [(one.store, one.fingerprint, seal.close(one)) for one in entries]
        self.files.add_pending(blobs)
        return self._write(blobs)

    def store_pending(self) -> int:
        """Write to Redis what was learned during an outage, and remove from the file what every receiver has read.

        Returns the number of secrets written. A secret stays in the file until all receivers have it, because Redis
        may fail again before they read it there.
        """
        pending = self._genuine(self.files.pending())
        if not pending:
            return 0
        there = self.sealed(sorted({store for store, _, _ in pending}))
        wanted = merge(there, self.files.pending())
        missing = [one for one in pending if wanted[one[0]].get(one[1]) == one[2] != there[one[0]].get(one[1])]
        if missing:
            self._write(missing)
        changed: Any = self.client.hmget(keys.SECRET_VERSIONS, list(there))
        if not self.receivers.behind(max(int(version or 0) for version in changed)):
            self.files.forget_pending(pending)
        return len(missing)

    def restore(self) -> int:
        """Write this host's copy to a Redis that has lost its data, by a failover or because it is another server."""
        version, sealed = self.files.copy()
        return self._write(self._genuine(sealed), at_least=version)

    def _genuine(self, sealed: Sealed) -> list[Entry]:
        """The entries that our key opens and whose fingerprint is right. Damaged ones are not copied further."""
        entries = [(store, mark, blob) for store, blobs in sealed.items() for mark, blob in blobs.items()]
        return [entry for entry in entries if self._is_genuine(*entry)]

    def _is_genuine(self, store: str, mark: str, blob: bytes) -> bool:
        return any(one.fingerprint == mark for one in self.open({mark: blob}, store))

    def _write(self, entries: Sequence[Entry], *, at_least: int = 0) -> int:
        return self._change("put", entries, at_least)

    def _change(self, action: str, entries: Iterable[tuple[str, str, bytes | str]], at_least: int = 0) -> int:
        parts = [part for entry in entries for part in entry]
        version = script_runner.run_one(self.client, "keyring", action, at_least, *parts)
        return int(version)

    def remove(self, store: str, fingerprints: Iterable[str]) -> int:
        """Remove secrets. Returns the version without them."""
        fingerprints = set(fingerprints)
        self.files.remove_pending(store, fingerprints)
        return self._change("remove", ((store, mark, "") for mark in fingerprints))

    def remove_ended(self, store: str) -> int:
        """Remove secrets that ended longer ago than ENDED_KEPT. Returns their number."""
        old = time.time() - ENDED_KEPT
        ended = [one.fingerprint for one in self.secrets_of(store) if one.not_after is not None and one.not_after < old]
        if ended:
            self.remove(store, ended)
        return len(ended)

    # A secret that is being changed

    def announce_change(self, store: str, mark: str = "", *, again: bool = False) -> int:
        """Announce to receivers that a secret of the store may change now. Returns the version with the announcement.

        `mark` is new each time, as `change_marks.py` says. With `again`, an announcement of another owner is
        left in place: its owner repeats it.
        """
        return self._change("announce", [(store, mark or secrets.token_hex(4), "again" if again else "")])

    def withdraw_change(self, store: str, mark: str = "") -> int:
        """Withdraw the announcement. With a mark, only that owner's: another owner may have announced since."""
        return self._change("withdraw", [(store, mark, "")])


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
