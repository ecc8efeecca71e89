"""Secret changes: creates subscriptions and rotates their secrets without refusing a genuine delivery.

The danger is a secret that only the store knows. From the moment it may be in use until every receiver knows it, the
signature of a genuine delivery matches no known secret. So a change notice is sent to the receivers first: they answer
503 instead of 401, and the store sends again. A new secret is written to this host's disk as soon as it is seen. The
notice is withdrawn when every receiver has the secret. A process that dies in between leaves its notice. The next check
then rotates the secrets again, of all subscriptions of ours. The notice stays for those that it could not rotate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from receiver.contract.records import Record, RecordError
from receiver.inbox.keyring.change_marks import mark_of
from receiver.inbox.keyring.learned_secrets import learned_secret
from receiver.inbox.subscription_checks import LOCK_MS, SubscriptionChecks
from workers.storeapi.errors import ApiError, Unreachable, had_no_effect
from workers.subscriptions.change_notice import (
    ChangeNotice,
    ReceiversBehind,
    require_receivers,
    retry_redis,
    wait_for_receivers,
)
from workers.subscriptions.managed_store import ManagedStore
from workers.subscriptions.plan import Change

TRIES = 3
T = TypeVar("T")


class SecretChanges:
    def __init__(self, store: ManagedStore, hold: Callable[[], None]) -> None:
        self._managed, self._hold = store, hold
        self._name = store.name
        self._webhooks, self._catalogue = store.client.webhooks, store.client.catalogue
        self._keyring, self._secrets = store.keyring, store.secrets
        self._unseen = False
        """Whether the store may use a secret that this process has not seen."""
        self.lost = set[str]()
        """The subscriptions whose secret may have been lost before, and that have got no new one yet."""
        self._notice: ChangeNotice | None = None

    def require_storage(self, changes: Iterable[Change]) -> None:
        """Raise ConfigError if a secret that the store makes could not be stored: it would be lost."""
        if not self._managed.returns_secrets:
            return
        if any(change.rotate for change in changes) or not self._has_secret_to_send():
            self._keyring.require_key(self._name)
            self._keyring.files.require_writable()

    @contextmanager
    def announced(self, *, replaces_lost: bool = False) -> Iterator[None]:
        """Announce the change to the receivers until they know every secret.

        The next check comes when the lock of the store expires, or earlier: if this process is killed, it replaces what
        is lost before the notice expires.

        If another process left a notice, or if all secrets are lost, it stays for the subscriptions that have got no
        new one: those held back, and those whose rotation failed. A later check goes on with them.
        """
        found = retry_redis(lambda: mark_of(self._managed.redis, self._name))
        self.lost = set(self._managed.named_in(found) if not replaces_lost else self._secrets.subscriptions or ())
        self._notice, late = ChangeNotice(self._keyring, self._name), list[str]()
        checks = SubscriptionChecks(self._managed.redis)
        retry_redis(lambda: checks.check_again_in(self._name, LOCK_MS / 1000, or_earlier=True))
        self._secrets.version = self._notice.announce()
        try:
            self._require_receivers()
            yield
            late = wait_for_receivers(self._keyring, self._secrets.version)
        finally:
            self._notice.stop_repeating()
            if not (self._unseen or late):
                self._notice.leave_for(self.lost, found=found)

    def create(self, change: Change) -> str:
        """Create a subscription; returns the fingerprint of its secret, empty if the store shows none."""
        own = self._secret_to_send()
        fields: dict[str, Any] = {"secret": own} if own else {}
        if not own:
            self._secrets.require_room()
        retry_redis(self._hold)  # waiting for receivers may have taken long
        with self._secret_may_change():
            created = self._webhooks.create(topic=change.theirs, url=change.url, **fields)
            self._secrets.add_subscription(str(created.id))
            return self._learn(created, str(created.id), "created")

    def rotate(self, change: Change) -> str:
        """Give a subscription a new secret; returns its fingerprint."""
        if "secret" in self._catalogue.get("webhooks", "rotate_secret").body_fields:
            fingerprint = self._rotate_to_own(change)
        else:
            fingerprint = self._call(lambda: self._rotate_at_store(change))
        self.lost.discard(str(change.id))
        return fingerprint

    def _rotate_to_own(self, change: Change) -> str:
        """With a secret generated here. Receivers know it before the store does; then the old one ends."""
        new = self._secrets.generate("rotated", str(change.id))
        try:
            self._require_receivers()
            self._call(lambda: self._managed.client.call("webhooks", "rotate_secret", change.id, secret=new.text))
        except (ApiError, ReceiversBehind):
            if not self._unseen:  # the store refused it, so it is not in use
                self._secrets.discard(new)
            raise
        self._secrets.end_older(str(change.id), new)
        return new.fingerprint

    def _rotate_at_store(self, change: Change) -> str:
        response = self._webhooks.rotate_secret(change.id)
        fingerprint = self._learn(response, str(change.id), "rotated")
        if not fingerprint:
            raise RecordError(f"rotate_secret at {self._name} returned no new secret, so none was learned")
        return fingerprint

    def _call(self, call: Callable[[], T]) -> T:
        """Call the store, and retry if it is unreachable: a second rotation does no harm. Redis is waited for.

        All of this may take longer than the lock lasts, so it is renewed before each try.
        """
        for left in reversed(range(TRIES)):
            try:
                retry_redis(self._hold)
                with self._secret_may_change():
                    return retry_redis(lambda: self._while_locked(call))
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _while_locked(self, call: Callable[[], T]) -> T:
        self._hold()
        return call()

    @contextmanager
    def _secret_may_change(self) -> Iterator[None]:
        """Around a call that may change a secret. Until its result is stored, the store may use a secret that this
        process has not seen, however the call ends. Only a call that had no effect at the store rules that out."""
        before, self._unseen = self._unseen, True
        if self._notice:
            self._notice.extend()
        try:
            yield
        except ApiError as error:
            self._unseen = before or not had_no_effect(error)
            raise
        self._unseen = before

    def _require_receivers(self) -> None:
        require_receivers(self._keyring, self._name, self._secrets.version)

    # A secret chosen here, where the API accepts one

    def _has_secret_to_send(self) -> bool:
        return self._accepts_secret() and (bool(self._configured_secret()) or self._keyring.seal is not None)

    def _secret_to_send(self) -> str:
        """The newest configured secret, else one generated for the store; empty if the API accepts none."""
        if not self._accepts_secret():
            return ""
        known = self._configured_secret()
        if known or not self._keyring.seal:
            return known
        if shared := self._secrets.shared():
            return shared
        new = self._secrets.generate("made for the store")
        self._require_receivers()  # they know it before the store does
        return new.text

    def _accepts_secret(self) -> bool:
        return self._managed.returns_secrets and "secret" in self._catalogue.get("webhooks", "create").body_fields

    def _configured_secret(self) -> str:
        windows = self._managed.config.stores[self._name].signing_secrets
        return next((window.value.get_secret_value() for window in windows if window.not_after is None), "")

    # A secret chosen by the store

    def _learn(self, response: Record, subscription: str, origin: str) -> str:
        """Store the secret in a response, unless it is known; returns its fingerprint, empty if there is none."""
        text = secret_in(response)
        if not text or not self._managed.returns_secrets:
            return ""
        try:
            secret = learned_secret(self._managed.store, text, origin=origin, subscription=subscription)
        except ValueError as error:
            raise RecordError(f"the secret that {self._name} returned is invalid for its scheme: {error}") from None
        if self._secrets.is_known(secret.fingerprint):
            return secret.fingerprint
        if self._keyring.seal is None:
            self._webhooks.delete(subscription)
            self._keyring.require_key(self._name)
        self._secrets.replace_by(secret)
        return secret.fingerprint


def secret_in(response: Record) -> str:
    """The secret in a response. Stores show it once; later they show nothing, or stars."""
    value: Any = response.get(response.field_name("secret"))
    return value if isinstance(value, str) and value and not set("*…•") & set(value) else ""
