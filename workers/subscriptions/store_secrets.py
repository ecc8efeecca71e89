"""Store secrets: the learned secrets of one store while its subscriptions are changed, and when each of them ends.

They are loaded before anything is changed. Once a new secret is known, nothing is read any more, only written: to this
host's disk first, then to Redis.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Set
from dataclasses import replace

from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import encode_secret
from receiver.contract.signing.signatures import MAX_LEARNED
from receiver.contract.stores import Store
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import LearnedSecret, learned_secret, orphaned, with_learned_secrets
from workers.subscriptions.change_notice import retry_redis


class StoreSecrets:
    """One store's learned secrets, as this process knows them. Without `[secrets] key` there are none."""

    def __init__(self, keyring: Keyring, store: Store, *, overlap: float) -> None:
        self._keyring, self._store, self._overlap = keyring, store, overlap
        self._learned: list[LearnedSecret] = []
        self.subscriptions: set[str] | None = None
        """The ids of our subscriptions at the store, and of those held back, which may be ours. None until they were
        listed."""
        self.version = 0
        """Of the keyring, after the last change made here."""

    def load(self) -> None:
        self._learned = self._keyring.secrets_of(self._store.name) if self._keyring.seal else []

    @property
    def fingerprints(self) -> set[str]:
        return {secret.fingerprint for secret in self._learned}

    @property
    def _active(self) -> list[LearnedSecret]:
        return [secret for secret in self._learned if secret.not_after is None]

    def is_known(self, fingerprint: str) -> bool:
        """Whether an active secret, configured or learned, has this fingerprint."""
        known = with_learned_secrets(self._store, self._learned).secrets
        return any(secret.fingerprint == fingerprint and secret.not_after is None for secret in known)

    # New secrets

    def generate(self, origin: str, subscription: str = "") -> LearnedSecret:
        """Make a new secret and store it: for one subscription, or for all that the store will have."""
        text = encode_secret(self._store.scheme, secrets.token_bytes(24))
        new = learned_secret(self._store, text, origin=origin, subscription=subscription)
        self._write([new])
        return new

    def shared(self) -> str:
        """The secret that was generated for all of the store's subscriptions; empty if there is none yet."""
        return next((secret.text for secret in self._active if not secret.subscription), "")

    def replace_by(self, new: LearnedSecret) -> None:
        """Store a secret that the store has returned; the older ones of its subscription end."""
        self._write([new, *self._ending(new.subscription, but=new.fingerprint)])

    def _write(self, entries: list[LearnedSecret]) -> None:
        """To disk at once, and to Redis as soon as it answers."""
        if entries:
            new = {secret.fingerprint for secret in entries}
            self._learned = [*entries, *(secret for secret in self._learned if secret.fingerprint not in new)]
            self.version = retry_redis(lambda: self._keyring.store(entries))

    def discard(self, secret: LearnedSecret) -> None:
        """Remove a secret that is not in use."""
        self._learned.remove(secret)
        self.version = retry_redis(lambda: self._keyring.remove(self._store.name, [secret.fingerprint]))

    def require_room(self) -> None:
        """Raise ConfigError if one more secret would displace the oldest: its subscription's deliveries would be
        refused."""
        if len(self._active) >= MAX_LEARNED:
            raise ConfigError(
                f"{self._store.name}: {MAX_LEARNED} secrets are active, which is the maximum, so nothing was created; "
                "subscribe to fewer topics, or let the API accept our secret: [catalogue.webhooks.create] optional"
            )

    # Ends: an old secret stays valid for the overlap

    def add_subscription(self, subscription: str) -> None:
        if self.subscriptions is not None:
            self.subscriptions.add(subscription)

    def remove_subscription(self, subscription: str) -> None:
        """The subscription is deleted, so its secrets end."""
        if self.subscriptions is not None:
            self.subscriptions.discard(subscription)
        self._write(self._ending(subscription))

    def end_older(self, subscription: str, newest: LearnedSecret) -> None:
        self._write(self._ending(subscription, but=newest.fingerprint))

    def end_replaced(self, fingerprints: Set[str], *, rotated: Set[str]) -> None:
        """After these subscriptions got new secrets, end those of the old ones that no other subscription may use:
        their own, and shared ones if each other subscription has its own."""
        if self._may_be_shared(*rotated):
            return
        replaced = {secret.fingerprint for secret in self._active if secret.subscription in {"", *rotated}}
        self.end(replaced & fingerprints)

    def end(self, fingerprints: Set[str]) -> None:
        self._write([self._with_end(secret) for secret in self._active if secret.fingerprint in fingerprints])

    def end_orphans(self, *, listed: Set[str], ours: Set[str], subscriptions_are_missing: bool) -> None:
        """End the secrets of subscriptions that the store no longer lists, to make room for others.

        While subscriptions are missing, the store's list may be wrong. Then orphaned secrets stay active as long as
        there is enough room.
        """
        self.load()
        if len(self._active) > MAX_LEARNED // 2 or not subscriptions_are_missing:
            self.end({secret.fingerprint for secret in orphaned(self._learned, listed=listed, ours=ours)})

    def _ending(self, subscription: str, but: str = "") -> list[LearnedSecret]:
        """The subscription's active secrets, each with an end; none if others may be signed with them.

        A store may use one secret for several subscriptions. It then returns the same secret for each, and the keyring
        has it under the first of them.
        """
        if self._may_be_shared(subscription):
            return []
        own = [secret for secret in self._active if secret.subscription == subscription and secret.fingerprint != but]
        return [self._with_end(secret) for secret in own]

    def _may_be_shared(self, *subscriptions: str) -> bool:
        """Whether a subscription other than these has no secret of its own, so that it may use one of theirs."""
        own = {secret.subscription for secret in self._active}
        return self.subscriptions is None or not self.subscriptions <= own.union(subscriptions)

    def _with_end(self, secret: LearnedSecret) -> LearnedSecret:
        return replace(secret, not_after=time.time() + self._overlap)
