"""Applies changes to the subscriptions of one store. The caller holds `SubscriptionChecks.lock` for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from receiver.contract.errors import ConfigError
from receiver.contract.records import RecordError
from receiver.inbox.subscription_checks import StoreLocked
from workers.storeapi.errors import AccessDenied, ApiError, ResourceNotFound, TokenRefused, Unreachable
from workers.subscriptions.change_notice import ReceiversBehind, retry_redis
from workers.subscriptions.managed_store import ManagedStore
from workers.subscriptions.plan import Change
from workers.subscriptions.secret_changes import SecretChanges


@dataclass(frozen=True)
class ChangeResult:
    change: Change
    error: str = ""
    fingerprint: str = ""
    """Of the secret that was learned with it."""


def apply_changes(
    store: ManagedStore, changes: Iterable[Change], *, hold: Callable[[], None] | None = None
) -> Iterator[ChangeResult]:
    """Make each change: first those without a secret, then those with one, then deletions.

    A change that fails does not stop the others, unless the store cannot be used at all. `hold` renews the lock of the
    store's subscriptions before each call, and raises StoreLocked when the lock is lost.
    """
    return _Application(store, hold or (lambda: None)).run(list(changes))


class _Application:
    def __init__(self, store: ManagedStore, hold: Callable[[], None]) -> None:
        self._store, self._hold = store, hold
        self._secret_changes = SecretChanges(store, hold)
        self._stopped = False
        """The store cannot be used, so the remaining changes are not tried."""

    def run(self, changes: list[Change]) -> Iterator[ChangeResult]:
        self._store.secrets.load()
        plain = [change for change in changes if change.action in ("enable", "update") and not change.rotate]
        yield from self._each(plain)
        yield from self._with_secrets([change for change in changes if change.action == "create" or change.rotate])
        yield from self._each([change for change in changes if change.action == "delete"])
        if self._store.keyring.seal:
            retry_redis(self._store.keyring.store_pending)

    def _each(self, changes: Iterable[Change]) -> Iterator[ChangeResult]:
        for change in changes:
            if self._stopped:
                return
            try:
                retry_redis(self._hold)
                yield ChangeResult(change, fingerprint=self._make(change))
            except (ApiError, RecordError, StoreLocked) as error:
                self._stopped = isinstance(error, Unreachable | TokenRefused | AccessDenied | StoreLocked)
                yield ChangeResult(change, error=str(error))

    def _with_secrets(self, changes: list[Change]) -> Iterator[ChangeResult]:
        """Changes that may bring a new secret. None of them begins if the secret could not be stored."""
        if not changes:
            return
        secrets, before = self._store.secrets, self._store.secrets.fingerprints
        results: list[ChangeResult] = []
        announce = self._store.returns_secrets and self._store.keyring.seal is not None
        replaces_lost = announce and any(change.rotate for change in changes) and self._store.knows_no_secret()
        try:
            self._secret_changes.require_storage(changes)
            announced = self._secret_changes.announced(replaces_lost=replaces_lost)
            with announced if announce else nullcontext():
                for result in self._each(changes):
                    results.append(result)
                    yield result
                if _all_rotated(changes, results) and not self._secret_changes.lost:
                    new = {result.fingerprint for result in results}
                    secrets.end_replaced(before - new, rotated={str(change.id) for change in changes})
        except (ConfigError, ReceiversBehind) as error:
            yield from (ChangeResult(change, error=str(error)) for change in changes[len(results) :])

    def _make(self, change: Change) -> str:
        """Make one change at the store; returns the fingerprint of a secret that was learned with it."""
        webhooks = self._store.client.webhooks
        match change.action:
            case "create":
                return self._secret_changes.create(change)
            case "update" if change.rotate:
                return self._secret_changes.rotate(change)
            case "enable":
                webhooks.update(change.id, enabled=True)
            case "update":
                webhooks.update(change.id, url=change.url, enabled=True)
            case "delete":
                with suppress(ResourceNotFound):  # it is deleted already
                    webhooks.delete(change.id)
                self._store.secrets.remove_subscription(str(change.id))
        return ""


def _all_rotated(changes: list[Change], results: list[ChangeResult]) -> bool:
    return len(results) == len(changes) and all(result.change.rotate and not result.error for result in results)
