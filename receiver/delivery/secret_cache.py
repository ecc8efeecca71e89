"""Secret cache: the secrets that may verify each store's deliveries now, as one web process knows them.

No request ever waits for it or costs a call to Redis. A thread checks the keyring's version twice a second; requests
read what it found. Without `[secrets] key` there is no keyring, and the secrets are those of config.

`may_be_incomplete` is true while a secret may exist that this process does not know: the keyring cannot be read, or a
store's secret is being changed. Then every refusal is answered 503, for every store and reason, known or unknown. If
only some were, the difference would reveal which stores exist.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.stores import Store
from receiver.inbox.redis.server_faults import reason_of

if TYPE_CHECKING:
    from receiver.inbox.keyring.keyring import Keyring, KeyringState

REFRESH_EVERY = 0.5
CONFIRM_EVERY = 4.0
STALE_SECONDS = 6.0
"""After this time without a refresh, the cache may have missed a change. A process that changes a secret waits twice as
long for this one to confirm it."""
GRACE_SECONDS = 3.0
"""`may_be_incomplete` stays true for this long after the secrets are complete again. A request that was verified with
the old secrets just before may read it only now, and must be answered 503."""

log = logs.get("secrets")


class SecretCache:
    def __init__(self, config: Config, client: Redis) -> None:
        self._configured_stores = config.known_stores
        self._stores: Mapping[str, Store] = dict(self._configured_stores)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._keyring = _open_keyring(config, client)
        self._version = -1
        self._versions: dict[str, int] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._stamp: tuple[int, ...] = ()
        self._changing: dict[str, tuple[str, float]] = {}
        """Store: the mark of a change in progress, and until when the cache waits for it."""
        self._is_read = self._keyring is None
        self._is_copied = True
        """This host's copy is what was read last."""
        self._copy_failed = False
        self._complete_at = self._refreshed_at = 0.0
        self._confirmed_at = 0.0
        self._outage = logs.OutageLog(
            log, begins="the keyring cannot be read; using this host's copy", ends="the keyring can be read again"
        )

    # For requests

    def with_current_secrets(self, store: Store) -> Store:
        """The store with every secret that is valid now."""
        return self._stores.get(store.name, store)

    @property
    def may_be_incomplete(self) -> bool:
        """Whether a signature that matches no secret now may match one soon."""
        if self._keyring is None:
            return False
        now = time.monotonic()
        if not self._is_read or now < self._complete_at or now - self._refreshed_at > STALE_SECONDS:
            return True
        return any(now < until for _, until in self._changing.values())

    # Refreshing

    def start(self) -> None:
        """Refresh once, so that the first request finds every secret; then twice a second, in a thread."""
        if self._keyring is None:
            return
        self.refresh()
        threading.Thread(target=self._refresh_forever, name="secrets", daemon=True).start()
        atexit.register(self._leave)

    def _refresh_forever(self) -> None:
        pause = threading.Event()
        while not pause.wait(REFRESH_EVERY):
            self.refresh()

    def refresh(self) -> None:
        """Read changes of the keyring and confirm that they were read. Without Redis, read this host's files."""
        assert self._keyring is not None
        began = time.monotonic()
        try:
            changed = self._read_redis(self._keyring)
            self._write_copy(self._keyring)
            self._rebuild_stores(self._keyring, changed)
            if changed or time.monotonic() - self._confirmed_at > CONFIRM_EVERY:
                self._keyring.receivers.confirm(self._name, self._version)
                self._keyring.files.remove_leftovers()
                self._confirmed_at = time.monotonic()
            if self._refreshed_at and began - self._refreshed_at > STALE_SECONDS:
                self._complete_at = time.monotonic() + GRACE_SECONDS  # some requests were checked with old secrets
            self._is_read, self._refreshed_at = True, began
            self._outage.worked()
        except Exception as error:  # noqa: BLE001  damaged records in Redis must neither end the thread nor prevent a start
            self._outage.failed(why=reason_of(error))
            self._is_read = False
            # secrets learned meanwhile may come late
            self._complete_at = time.monotonic() + REFRESH_EVERY + GRACE_SECONDS
            self._rebuild_stores(self._keyring, False)

    def _read_redis(self, keyring: Keyring) -> bool:
        """Read the secrets that changed; return whether any did."""
        version = keyring.version()
        if version == self._version:
            return False
        if version < max(self._version, keyring.files.copy()[0]):
            log.error("the keyring in Redis is older than this host's copy; restoring it from the copy")
            keyring.restore()
        state = keyring.state()
        stores = [name for name, at in state.versions.items() if self._versions.get(name) != at]
        self._sealed |= keyring.sealed([name for name in stores if name in self._configured_stores])
        self._versions.update(state.versions)
        self._update_changing(state)
        self._version, self._is_copied = state.version, False
        return True

    def _write_copy(self, keyring: Keyring) -> None:
        """Only a start without Redis needs the copy, so a host that cannot write it goes on."""
        if self._is_copied:
            return
        try:
            keyring.files.write_copy(self._version, self._sealed)
            self._is_copied, self._copy_failed = True, False
        except OSError as error:  # tried again at every refresh
            if not self._copy_failed:
                log.error("this host's copy of the keyring cannot be written", why=type(error).__name__)
            self._copy_failed = True

    def _update_changing(self, state: KeyringState) -> None:
        from receiver.inbox.keyring.change_marks import is_waited_for
        from receiver.inbox.keyring.keyring import CHANGE_SECONDS

        now = time.monotonic()
        changing = {
            store: (mark, min(until, now + GRACE_SECONDS))
            for store, (mark, until) in self._changing.items()
            if until > now
        }
        for store, mark in state.changing.items():
            if not is_waited_for(mark):
                continue
            before = self._changing.get(store)
            changing[store] = before if before and before[0] == mark else (mark, now + CHANGE_SECONDS)
        self._changing = changing

    def _rebuild_stores(self, keyring: Keyring, changed: bool) -> None:
        """Rebuild the stores with their secrets, if any changed in Redis (`changed`) or in this host's files.

        The files have secrets that another process of this host has learned and that are not in Redis yet. While the
        keyring cannot be read, the host's copy of it is used too.
        """
        from receiver.inbox.keyring.host_files import merge
        from receiver.inbox.keyring.learned_secrets import with_learned_secrets

        stamp = keyring.files.stamp()
        if changed or stamp != self._stamp:
            found = merge(keyring.files.everything(), self._sealed) if not self._is_read else self._sealed
            found = merge(found, keyring.files.pending())
            self._stores = {
                name: with_learned_secrets(store, keyring.open(found[name], name)) if found.get(name) else store
                for name, store in self._configured_stores.items()
            }
            self._stamp = stamp

    def _leave(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            assert self._keyring is not None
            self._keyring.receivers.forget(self._name)


def _open_keyring(config: Config, client: Redis) -> Keyring | None:
    """Imported only where it is used, because the cipher takes a while to import."""
    key = config.secrets.key.get_secret_value()
    if not key:
        return None
    from receiver.inbox.keyring.keyring import Keyring

    return Keyring(client, config.data_dir, key)
