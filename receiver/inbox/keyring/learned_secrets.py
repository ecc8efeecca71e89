"""Learned secrets: signing secrets that a store has shown or that were made for it, and how they are sealed.

A secret is sealed with AES-GCM under `[secrets] key`. Its metadata (store, fingerprint, origin, end) is authenticated
with it, so write access to Redis or to a host's file is not enough to read a secret or to forge one. One attack
remains: to put back an older sealed copy, such as one from before an end was set.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from receiver.config.values import sealing_key
from receiver.contract.signing.signatures import MAX_ENDED, MAX_LEARNED, Scheme, Secret
from receiver.contract.stores import Store
from receiver.inbox.keyring.host_files import KeyringFiles


class CannotUnseal(Exception):
    """A sealed secret that this key does not open."""


@dataclass(frozen=True)
class LearnedSecret:
    """A secret of a store, as the store writes it, and its metadata."""

    store: str
    text: str = field(repr=False)
    fingerprint: str
    origin: str
    """How it was learned: `created 2026-11-15`, `rotated 2026-11-15`."""
    learned_at: float
    subscription: str = ""
    not_after: float | None = None

    def as_secret(self, scheme: Scheme) -> Secret:
        end = datetime.fromtimestamp(self.not_after, UTC) if self.not_after is not None else None
        return Secret(key=scheme.key_of(self.text), origin=f"keyring, {self.origin}", not_after=end)


def learned_secret(
    store: Store, text: str, *, origin: str, subscription: str = "", now: float | None = None
) -> LearnedSecret:
    """A secret that a store returned, or that was generated for it. ValueError if its scheme cannot use it."""
    now = time.time() if now is None else now
    fingerprint = Secret(key=store.scheme.key_of(text)).fingerprint
    dated = f"{origin} {datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    return LearnedSecret(store.name, text, fingerprint, dated, now, subscription)


class Seal:
    """Seals and opens secrets under one key."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def close(self, one: LearnedSecret) -> bytes:
        metadata = {name: value for name, value in asdict(one).items() if name != "text"}
        nonce = secrets.token_bytes(12)
        box = self._cipher.encrypt(nonce, one.text.encode(), _authenticated(metadata))
        return orjson.dumps({**metadata, "box": base64.b64encode(nonce + box).decode()})

    def open(self, blob: bytes) -> LearnedSecret:
        try:
            metadata = orjson.loads(blob)
            box = base64.b64decode(metadata.pop("box"))
            text = self._cipher.decrypt(box[:12], box[12:], _authenticated(metadata)).decode()
            return LearnedSecret(text=text, **metadata)
        except (InvalidTag, ValueError, KeyError, TypeError, AttributeError):
            raise CannotUnseal("sealed under another key, or modified") from None

    def open_all(self, sealed: Mapping[str, bytes], store: str) -> list[LearnedSecret]:
        """A store's secrets. Entries that this key does not open, or that belong to another store, are left out."""
        opened = []
        for blob in sealed.values():
            try:
                one = self.open(blob)
            except CannotUnseal:
                continue
            if one.store == store:
                opened.append(one)
        return opened


def count_valid(sealed: Mapping[str, bytes], now: float) -> int:
    """How many have not ended, whichever key they are sealed under."""
    return sum(_is_valid(blob, now) for blob in sealed.values())


def _is_valid(blob: bytes, now: float) -> bool:
    try:
        end = orjson.loads(blob)["not_after"]
        return end is None or end > now
    except (ValueError, KeyError, TypeError):
        return False  # damaged


def _authenticated(metadata: Mapping[str, Any]) -> bytes:
    return orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS)


def with_learned_secrets(store: Store, learned: Iterable[LearnedSecret]) -> Store:
    """The store with its learned secrets: first those without an end, the newest first, then those of the config, then
    those with an end, the latest end first. So one that ended long ago never displaces one in its overlap."""
    newest = sorted(learned, key=lambda one: -one.learned_at)
    active = [one for one in newest if one.not_after is None]
    ended = sorted((one for one in newest if one.not_after is not None), key=lambda one: -(one.not_after or 0.0))
    added, seen = [], {secret.key for secret in store.secrets}
    for one in (*active[:MAX_LEARNED], *ended[:MAX_ENDED]):
        try:
            secret = one.as_secret(store.scheme)
        except ValueError:  # the scheme was changed since
            continue
        if secret.key not in seen:
            seen.add(secret.key)
            added.append(secret)
    live = [secret for secret in added if secret.not_after is None]
    return replace(store, secrets=(*live, *store.secrets, *added[len(live) :]))


def orphaned(learned: Iterable[LearnedSecret], *, listed: Set[str], ours: Set[str]) -> list[LearnedSecret]:
    """The live secrets of subscriptions that the store no longer lists. Empty while one of our subscriptions has no
    secret of its own, because it may share one of these."""
    live = [one for one in learned if one.not_after is None and one.subscription]
    if not ours <= {one.subscription for one in live}:
        return []
    return [one for one in live if one.subscription not in listed]


def with_local_secrets(stores: Mapping[str, Store], data_dir: Path, key: str) -> dict[str, Store]:
    """The stores with the secrets in this host's files, for commands that run without a server."""
    seal, sealed = Seal(sealing_key(key)), KeyringFiles(data_dir).everything()
    return {
        name: with_learned_secrets(store, seal.open_all(sealed.get(name, {}), name)) for name, store in stores.items()
    }
