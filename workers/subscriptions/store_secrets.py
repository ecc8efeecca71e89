"""Store secrets: what the keyring holds of one store while its subscriptions are changed, and when each secret ends.

They are read before anything is done: with a new secret in hand nothing is read, only kept, on this host's disk first.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Set
from dataclasses import replace

from receiver.contract.errors import ConfigError
from receiver.contract.signing.signatures import MAX_LEARNED
from receiver.contract.stores import Store
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import LearnedSecret, learned_secret, orphaned, with_learned_secrets
from workers.subscriptions.change_notice import patiently, refuse_behind


class StoreSecrets:
    """One store's learned secrets, as one process has them in hand. Without a key there are none."""

    def __init__(self, keyring: Keyring, store: Store, *, overlap: float) -> None:
        self._keyring, self._store, self._overlap = keyring, store, overlap
        self._learned: list[LearnedSecret] = []
        self._ours: set[str] | None = None
        """The ids of what is ours at the store, since somebody looked."""
        self.version = 0
        """Of the keyring, after the last change made here."""

    def read(self) -> None:
        self._learned = self._keyring.secrets_of(self._store.name) if self._keyring.seal else []

    @property
    def fingerprints(self) -> set[str]:
        return {one.fingerprint for one in self._learned}

    @property
    def _counting(self) -> list[LearnedSecret]:
        return [one for one in self._learned if one.not_after is None]

    def is_known(self, fingerprint: str) -> bool:
        known = with_learned_secrets(self._store, self._learned).secrets
        return any(one.fingerprint == fingerprint and one.not_after is None for one in known)

    # New ones

    def fresh(self, origin: str, subscription: str = "") -> LearnedSecret:
        """A secret of our own making, kept; a subscription's, or for all that the store will have."""
        scheme, key = self._store.scheme, secrets.token_bytes(24)
        coded = base64.b64encode(key).decode() if scheme.secret_encoding.startswith("base") else key.hex()
        one = learned_secret(self._store, scheme.secret_prefix + coded, origin=origin, subscription=subscription)
        self.keep([one])
        return one

    def for_all(self) -> str:
        """The secret we made for all of the store's subscriptions; empty if none was made yet."""
        return next((one.text for one in self._counting if not one.subscription), "")

    def learned(self, one: LearnedSecret) -> None:
        """A secret that the store has shown takes the place of its subscription's old one."""
        self.keep([one, *self._ending(one.subscription, but=one.fingerprint)])

    def keep(self, entries: list[LearnedSecret]) -> None:
        """On disk at once; in Redis when it answers."""
        if entries:
            new = {one.fingerprint for one in entries}
            self._learned = [*entries, *(one for one in self._learned if one.fingerprint not in new)]
            self.version = patiently(lambda: self._keyring.store(entries))

    def drop(self, one: LearnedSecret) -> None:
        """One that is in use nowhere."""
        self._learned.remove(one)
        self.version = patiently(lambda: self._keyring.remove(self._store.name, [one.fingerprint]))

    def refuse_one_too_many(self) -> None:
        """With another secret the oldest would not count any more, and its subscription's deliveries be refused."""
        if len(self._counting) >= MAX_LEARNED:
            raise ConfigError(
                f"{self._store.name}: {MAX_LEARNED} of its secrets count, and no more can, so nothing was created; "
                "have fewer topics, or let the API take a secret of ours: [catalogue.webhooks.create] takes"
            )

    def wait_for_receivers(self) -> None:
        refuse_behind(self._keyring, self._store.name, self.version)

    # Ends: a secret counts for a while, then no more

    def subscribed(self, ids: Set[str]) -> None:
        """What is ours at the store, now."""
        self._ours = set(ids)

    def came(self, subscription: str) -> None:
        if self._ours is not None:
            self._ours.add(subscription)

    def went(self, subscription: str) -> None:
        """The subscription is no more, and its secrets end."""
        if self._ours is not None:
            self._ours.discard(subscription)
        self.keep(self._ending(subscription))

    def end_older(self, subscription: str, newest: LearnedSecret) -> None:
        self.keep(self._ending(subscription, but=newest.fingerprint))

    def end(self, fingerprints: Set[str]) -> None:
        """Also one that several subscriptions shared."""
        self.keep([self._with_end(one) for one in self._counting if one.fingerprint in fingerprints])

    def end_orphans(self, *, listed: Set[str], ours: Set[str], something_is_missing: bool) -> None:
        """The secrets of subscriptions that are no more at the store end, so that the living ones have room. While
        something is missing the list may be wrong, and they stay for as long as there is room for all."""
        self.read()
        if len(self._counting) > MAX_LEARNED // 2 or not something_is_missing:
            self.end({one.fingerprint for one in orphaned(self._learned, listed=listed, ours=ours)})

    def _ending(self, subscription: str, but: str = "") -> list[LearnedSecret]:
        """The subscription's secrets so far. None that others may be signed with, since a store may have one secret for
        several: it shows it again, and we know it by the first of them."""
        if self._may_be_shared(subscription):
            return []
        mine = [one for one in self._counting if one.subscription == subscription and one.fingerprint != but]
        return [self._with_end(one) for one in mine]

    def _may_be_shared(self, subscription: str) -> bool:
        """Whether another of ours has no secret of its own."""
        own = {one.subscription for one in self._counting}
        return self._ours is None or not self._ours <= own | {subscription}

    def _with_end(self, one: LearnedSecret) -> LearnedSecret:
        return replace(one, not_after=time.time() + self._overlap)
