"""The locksmith: which secrets a store's deliveries may fit now, as one web process knows it.

Law of this room: no request ever waits for it or costs the server a call. A thread looks at the keyring's version
twice a second; requests read what it has found. Without `[secrets] key` there is nothing to look at, and config is all.

`unsure` is true while a secret may exist that this process does not know: the keyring cannot be read, or a store's
secret is under way. Then every refusal is answered 503, whatever its store and reason, known or unknown: if only some
were, the difference would tell a stranger which stores there are.
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

if TYPE_CHECKING:
    from receiver.inbox.keyring.keyring import Keyring, KeyringState

LOOK_EVERY = 0.5
CONFIRM_EVERY = 4.0
STALE = 6.0
"""After so long without a look we may have missed a word. Whoever changes a secret waits for us twice as long."""
GRACE = 3.0
"""A delivery that was judged by the old secrets may ask a moment later whether we are sure."""

log = logs.get("locksmith")


class SecretCache:
    def __init__(self, config: Config, client: Redis) -> None:
        self._config = config.known_stores
        self._stores: Mapping[str, Store] = dict(self._config)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._ring = _keyring(config, client)
        self._version = -1
        self._versions: dict[str, int] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._stamp: tuple[int, ...] = ()
        self._learning: dict[str, tuple[str, float]] = {}
        """Store: the mark of what is under way, and until when we wait for it."""
        self._read = self._ring is None
        self._copied = True
        """This host's copy is what we have read."""
        self._complained = False
        self._sure_at = self._looked_at = 0.0
        self._confirmed_at = 0.0

    # What a request asks

    def equipped(self, known: Store | None) -> Store | None:
        """The store with every secret that counts now."""
        return self._stores.get(known.name, known) if known is not None else None

    @property
    def unsure(self) -> bool:
        """Whether a signature that fits nothing may fit soon."""
        if self._ring is None:
            return False
        now = time.monotonic()
        if not self._read or now < self._sure_at or now - self._looked_at > STALE:
            return True
        return any(now < until for _, until in self._learning.values())

    # Looking

    def start(self) -> None:
        """Look once, so that the first request finds everything; then twice a second, in a thread."""
        if self._ring is None:
            return
        self.look()
        threading.Thread(target=self._look_for_ever, name="locksmith", daemon=True).start()
        atexit.register(self._leave)

    def _look_for_ever(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        """Read what has changed, and say that it was read. Without Redis: what this host's files hold."""
        assert self._ring is not None
        began = time.monotonic()
        try:
            changed = self._look_at_redis(self._ring)
            self._write_copy(self._ring)
            self._look_at_files(self._ring, changed)
            self._confirm(self._ring, changed)
            if self._looked_at and began - self._looked_at > STALE:
                self._sure_at = time.monotonic() + GRACE  # somebody was judged by what we knew before
            self._read, self._looked_at = True, began
        except Exception as error:  # noqa: BLE001  debris in Redis must neither end the thread nor keep us from starting
            if self._read or not self._stamp:
                log.warning("the keyring cannot be read; this host's copy serves", why=type(error).__name__)
            self._read = False
            self._sure_at = time.monotonic() + LOOK_EVERY + GRACE  # what was learned meanwhile may come late
            self._look_at_files(self._ring, False)

    def _look_at_redis(self, ring: Keyring) -> bool:
        version = ring.version()
        if version == self._version:
            return False
        if version < max(self._version, ring.files.copy()[0]):
            log.error("the keyring in Redis is older than this host's copy; it is given the copy again")
            ring.restore()
        state = ring.state()
        stores = [name for name, at in state.versions.items() if self._versions.get(name) != at]
        self._sealed |= ring.sealed([name for name in stores if name in self._config])
        self._versions.update(state.versions)
        self._note_learning(state)
        self._version, self._copied = state.version, False
        return True

    def _write_copy(self, ring: Keyring) -> None:
        """A host that cannot write it still learns; it only would not know after a start without Redis."""
        if self._copied:
            return
        try:
            ring.files.write_copy(self._version, self._sealed)
            self._copied, self._complained = True, False
        except OSError as error:  # tried again with every look
            if not self._complained:
                log.error("this host's copy of the keyring cannot be written", why=type(error).__name__)
            self._complained = True

    def _note_learning(self, state: KeyringState) -> None:
        from receiver.inbox.keyring.keyring import CHANGE_SECONDS

        now = time.monotonic()
        kept = {
            store: (mark, min(until, now + GRACE)) for store, (mark, until) in self._learning.items() if until > now
        }
        for store, mark in state.changing.items():
            before = self._learning.get(store)
            kept[store] = before if before and before[0] == mark else (mark, now + CHANGE_SECONDS)
        self._learning = kept

    def _look_at_files(self, ring: Keyring, changed: bool) -> None:
        """Another process of this host may have learned something that Redis does not hold yet."""
        from receiver.inbox.keyring.host_files import merge
        from receiver.inbox.keyring.learned_secrets import with_learned_secrets

        stamp = ring.files.stamp()
        if changed or stamp != self._stamp:
            found = merge(ring.files.everything(), self._sealed) if not self._read else self._sealed
            found = merge(found, ring.files.pending())
            self._stores = {
                name: with_learned_secrets(store, ring.open(found[name], name)) if found.get(name) else store
                for name, store in self._config.items()
            }
            self._stamp = stamp

    def _confirm(self, ring: Keyring, changed: bool) -> None:
        if changed or time.monotonic() - self._confirmed_at > CONFIRM_EVERY:
            ring.receivers.confirm(self._name, self._version)
            self._confirmed_at = time.monotonic()

    def _leave(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            assert self._ring is not None
            self._ring.receivers.forget(self._name)


def _keyring(config: Config, client: Redis) -> Keyring | None:
    """Loaded only where it is used: the cipher takes a while to import."""
    key = config.secrets.key.get_secret_value()
    if not key:
        return None
    from receiver.inbox.keyring.keyring import Keyring

    return Keyring(client, config.data_dir, key)
