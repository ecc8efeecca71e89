"""The keyring: signing secrets that were learned from stores, sealed; in Redis, and on each host in a file.

A secret is sealed with AES-GCM under `[secrets] key`. What is said of it beside (store, fingerprint, origin, end) is
bound to it: whoever can write to Redis or to the file can neither read a secret nor make one count that never did. One
thing is left to them: to put back an older sealed copy that they have kept, such as one from before an end was set.
The file (keyfiles.py) is there so that a receiver which starts without Redis knows them too.

A change makes the version grow. Receivers look at the version twice a second and say which one they have read, so that
whoever changes a secret can wait until every receiver knows.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from redis import Redis

from receiver.config.values import sealing_key
from receiver.contract.errors import ConfigError
from receiver.contract.signing.signatures import MAX_LEARNED, Scheme, Secret
from receiver.contract.stores import Store
from receiver.inbox import keys
from receiver.inbox.keyring.host_files import Entry, KeyringFiles, Sealed, merge
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.script_runner import ScriptCall

ENDED_KEPT = 7 * 86400.0
LIVE_SECONDS = 12.0
"""A receiver that has said nothing for so long is not waited for."""
LEARNING_SECONDS = 60.0
"""How long a store's secret may be under way; each receiver counts from when it first saw it."""


class Unsealable(Exception):
    """A sealed secret that this key does not open."""


@dataclass(frozen=True)
class Learned:
    """A secret of a store, as the store wrote it, and what is known of it."""

    store: str
    text: str = field(repr=False)
    fingerprint: str
    origin: str
    """`created 2026-11-15`, `rotated 2026-11-15`: how it was learned."""
    learned_at: float
    subscription: str = ""
    not_after: float | None = None

    def as_secret(self, scheme: Scheme) -> Secret:
        end = datetime.fromtimestamp(self.not_after, UTC) if self.not_after is not None else None
        return Secret(key=scheme.key_of(self.text), origin=f"keyring, {self.origin}", not_after=end)


def learn(store: Store, text: str, *, origin: str, subscription: str = "", now: float | None = None) -> Learned:
    """A secret that a store has shown us, or that we made for it. ValueError if its scheme cannot use it."""
    now = time.time() if now is None else now
    mark = Secret(key=store.scheme.key_of(text)).fingerprint
    told = f"{origin} {datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    return Learned(store.name, text, mark, told, now, subscription)


class Seal:
    """Seals and opens, under one key."""

    def __init__(self, key: bytes) -> None:
        self._box = AESGCM(key)

    def close(self, one: Learned) -> bytes:
        about = {name: value for name, value in asdict(one).items() if name != "text"}
        nonce = secrets.token_bytes(12)
        box = self._box.encrypt(nonce, one.text.encode(), _bound(about))
        return orjson.dumps({**about, "box": base64.b64encode(nonce + box).decode()})

    def open(self, blob: bytes) -> Learned:
        try:
            about = orjson.loads(blob)
            box = base64.b64decode(about.pop("box"))
            text = self._box.decrypt(box[:12], box[12:], _bound(about)).decode()
            return Learned(text=text, **about)
        except (InvalidTag, ValueError, KeyError, TypeError, AttributeError):
            raise Unsealable("sealed under another key, or changed by somebody") from None

    def open_all(self, sealed: Mapping[str, bytes], store: str) -> list[Learned]:
        """A store's secrets; what this key does not open, or is another store's, is left out."""
        found = []
        for blob in sealed.values():
            try:
                one = self.open(blob)
            except Unsealable:
                continue
            if one.store == store:
                found.append(one)
        return found


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bound(about: Mapping[str, Any]) -> bytes:
    return orjson.dumps(about, option=orjson.OPT_SORT_KEYS)


def equip(store: Store, learned: Iterable[Learned]) -> Store:
    """The store with its learned secrets: those without an end before config's, the newest first; then the others."""
    chosen = sorted(learned, key=lambda one: (one.not_after is not None, -one.learned_at))[:MAX_LEARNED]
    mine, seen = [], {secret.key for secret in store.secrets}
    for one in chosen:
        try:
            secret = one.as_secret(store.scheme)
        except ValueError:  # the scheme was changed since
            continue
        if secret.key not in seen:
            seen.add(secret.key)
            mine.append(secret)
    live = [secret for secret in mine if secret.not_after is None]
    return replace(store, secrets=(*live, *store.secrets, *mine[len(live) :]))


def orphaned(learned: Iterable[Learned], *, listed: Set[str], ours: Set[str]) -> list[Learned]:
    """The secrets that count and are of a subscription which the store does not list any more. None while one of ours
    has no secret of its own: it may share one of these."""
    live = [one for one in learned if one.not_after is None and one.subscription]
    if not ours <= {one.subscription for one in live}:
        return []
    return [one for one in live if one.subscription not in listed]


def learned_here(stores: Mapping[str, Store], data_dir: Path, key: str) -> dict[str, Store]:
    """The stores with what this host's files hold: for whoever has no server to ask."""
    seal, found = Seal(sealing_key(key)), KeyringFiles(data_dir).everything()
    return {name: equip(store, seal.open_all(found.get(name, {}), name)) for name, store in stores.items()}


@dataclass(frozen=True)
class KeyringState:
    """What a receiver needs to know, read in one moment."""

    version: int
    versions: Mapping[str, int]
    """Of each store that has learned secrets: the version of its last change."""
    learning: Mapping[str, str]
    """Stores whose secret is under way, each with a mark that is new each time."""


class Keyring:
    """The keyring of this deployment. Without a key it holds nothing and takes nothing."""

    def __init__(self, client: Redis, data_dir: Path, key: str) -> None:
        self.client = client
        self.files = KeyringFiles(data_dir)
        self.seal = Seal(sealing_key(key)) if key else None

    # Reading

    def state(self) -> KeyringState:
        pipeline = self.client.pipeline(transaction=True)
        pipeline.get(keys.RING_VERSION)
        pipeline.hgetall(keys.RING_VERSIONS)
        pipeline.hgetall(keys.LEARNING)
        version, versions, learning = pipeline.execute()
        return KeyringState(
            int(version or 0),
            {name.decode(): int(value) for name, value in versions.items()},
            {name.decode(): value.decode() for name, value in learning.items()},
        )

    def version(self) -> int:
        """The version alone: what is asked twice a second."""
        return int(self.client.get(keys.RING_VERSION) or 0)

    def sealed(self, stores: Sequence[str]) -> Sealed:
        """What Redis holds of some stores. What is not even text is nobody's secret, and is left out."""
        pipeline = self.client.pipeline(transaction=False)
        for store in stores:
            pipeline.hgetall(keys.RING + store)
        replies = pipeline.execute() if stores else []
        return {
            store: {mark.decode(): blob for mark, blob in found.items() if _is_text(mark) and _is_text(blob)}
            for store, found in zip(stores, replies, strict=True)
        }

    def opened(self, sealed: Mapping[str, bytes], store: str) -> list[Learned]:
        return self.seal.open_all(sealed, store) if self.seal else []

    def of(self, store: str) -> list[Learned]:
        """A store's learned secrets, the newest first: from Redis, and what is pending here."""
        merged = merge(self.sealed([store]), self.files.pending()).get(store, {})
        return sorted(self.opened(merged, store), key=lambda one: -one.learned_at)

    # Changing

    def require_key(self, store: str) -> Seal:
        """Before anything is done at a store that would teach us a secret."""
        if self.seal is None:
            raise ConfigError(
                f"{store} would show a signing secret, and there is no key to keep it under; set [secrets] key = "
                '"env:KEYRING_KEY" to 32 random bytes (`openssl rand -base64 32`), the same for every process'
            )
        return self.seal

    def put(self, entries: Sequence[Learned]) -> int:
        """Keep secrets: at once in this host's file, then in Redis. Gives the version that has them.

        They stay in the file until `bring_pending` finds that every receiver knows them.
        """
        if not entries:
            return self.version()
        seal = self.require_key(entries[0].store)
        blobs = [(one.store, one.fingerprint, seal.close(one)) for one in entries]
        self.files.add_pending(blobs)
        return self._write(blobs)

    def bring_pending(self) -> int:
        """Give Redis what was learned while it was away, and forget what every receiver knows; gives how many were
        brought. If Redis went away before the receivers had read a secret there, they still find it in the file."""
        pending = self._genuine(self.files.pending())
        if not pending:
            return 0
        there = self.sealed(sorted({store for store, _, _ in pending}))
        wanted = merge(there, self.files.pending())
        missing = [one for one in pending if wanted[one[0]].get(one[1]) == one[2] != there[one[0]].get(one[1])]
        if missing:
            self._write(missing)
        changed: Any = self.client.hmget(keys.RING_VERSIONS, list(there))
        if not self.behind(max(int(version or 0) for version in changed)):
            self.files.forget_pending(pending)
        return len(missing)

    def restore(self) -> int:
        """Redis has lost what it had: a failover, another server. Give it this host's copy again."""
        version, found = self.files.copy()
        return self._write(self._genuine(found), at_least=version)

    def _genuine(self, sealed: Sealed) -> list[Entry]:
        """What our key opens and stands under its own mark; debris is not spread."""
        entries = [(store, mark, blob) for store, blobs in sealed.items() for mark, blob in blobs.items()]
        return [entry for entry in entries if self._is_genuine(*entry)]

    def _is_genuine(self, store: str, mark: str, blob: bytes) -> bool:
        return any(one.fingerprint == mark for one in self.opened({mark: blob}, store))

    def _write(self, entries: Sequence[Entry], *, at_least: int = 0) -> int:
        return self._change("put", entries, at_least)

    def _change(self, what: str, entries: Iterable[tuple[str, str, bytes | str]], at_least: int = 0) -> int:
        parts = [part for entry in entries for part in entry]
        (version,) = script_runner.run(self.client, [ScriptCall("ring", [what, at_least, *parts])])
        return int(version)

    def drop(self, store: str, fingerprints: Iterable[str]) -> int:
        """Forget secrets; gives the version without them."""
        fingerprints = set(fingerprints)
        self.files.drop_pending(store, fingerprints)
        return self._change("drop", ((store, mark, "") for mark in fingerprints))

    def tidy(self, store: str) -> int:
        """Forget secrets that ended long ago. Until then `verify` can say that one of them would have fitted."""
        old = time.time() - ENDED_KEPT
        ended = [one.fingerprint for one in self.of(store) if one.not_after is not None and one.not_after < old]
        if ended:
            self.drop(store, ended)
        return len(ended)

    # A secret that is under way

    def begin_learning(self, store: str, mark: str = "", *, again: bool = False) -> int:
        """Say that a secret of the store may change now; gives the version that says so. `mark` is new each time: up
        to a dot whose it is, then which. Said again, it leaves another's alone: that one is told of by its owner."""
        return self._change("learn", [(store, mark or secrets.token_hex(4), "again" if again else "")])

    def end_learning(self, store: str, mark: str = "") -> int:
        """Take the word back; with a mark only if it is that owner's: somebody else may have begun since."""
        return self._change("learnt", [(store, mark, "")])

    # Who has read what

    def confirm(self, receiver: str, version: int) -> None:
        """Said by each receiver, when it has read a version and every few seconds."""
        script_runner.run(self.client, [ScriptCall("confirm", [receiver, version])])

    def leave(self, receiver: str) -> None:
        self.client.hdel(keys.RECEIVERS, receiver)

    def behind(self, version: int) -> list[str]:
        """The live receivers that have not read this version yet."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.time()
        pipeline.hgetall(keys.RECEIVERS)
        (seconds, _), found = pipeline.execute()
        late, silent = [], []
        for name, value in found.items():
            has, at = value.split(b" ")
            if int(at) / 1000 < seconds - LIVE_SECONDS:
                silent.append(name)
            elif int(has) < version:
                late.append(name.decode())
        if silent:
            self.client.hdel(keys.RECEIVERS, *silent)
        return late

    def wait_for_receivers(self, version: int, *, within: float = 8.0) -> list[str]:
        """Until every live receiver has read a version; gives those that have not in time."""
        until = time.monotonic() + within
        while (late := self.behind(version)) and time.monotonic() < until:
            time.sleep(0.05)
        return late
