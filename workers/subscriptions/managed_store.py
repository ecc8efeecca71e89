"""Managed store: one store whose API can be used, with its client and keyring; it plans changes and makes none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.records import RecordError
from receiver.contract.stores import Store
from receiver.inbox import EventQueries, keys
from receiver.inbox.keyring.change_marks import mark_of, owner_in, subscriptions_in
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import with_learned_secrets
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from workers.storeapi.client import CALL_SECONDS
from workers.storeapi.configured_client import client_for_store, sandbox_hint
from workers.storeapi.errors import ApiError
from workers.subscriptions.callback_urls import callback_urls
from workers.subscriptions.plan import (
    Change,
    Existing,
    Handlers,
    Plan,
    list_subscriptions,
    make_plan,
    offered_topics,
    wanted_topics,
    with_gaps,
    with_new_secrets,
)
from workers.subscriptions.store_secrets import StoreSecrets


def declared_handlers(redis: Redis) -> Handlers:
    return Handlers(tuple(EventQueries(redis).declared()))


def is_managed(config: Config, store: str) -> bool:
    """Whether a store's subscriptions can be managed: it has an API, and there are credentials for it."""
    given = config.stores[store]
    return bool(given.base_url and (given.auth.client_id or given.auth.token.get_secret_value()))


def require_managed(config: Config, store: str) -> None:
    if not is_managed(config, store):
        raise ConfigError(
            f"{config.place('stores', store)}: stores.{store} has no base_url or no auth, so its subscriptions "
            "cannot be managed; set both there, or subscribe by hand in the store's own admin pages. "
            f"{sandbox_hint(config)}"
        )


def url_has_changed(config: Config, last: CheckResult) -> bool:
    """Whether the store's callback URL is another one than at its last check."""
    return bool(last.urls) and config.known_stores[last.store].url not in last.urls


def keyring_of(config: Config, redis: Redis) -> Keyring:
    return Keyring(redis, config.data_dir, config.secrets.key.get_secret_value())


class ManagedStore:
    def __init__(self, config: Config, store: str, redis: Redis, *, timeout: float = CALL_SECONDS) -> None:
        self.config, self.name = config, store
        self.redis = redis
        self.client = client_for_store(config, store, redis, timeout=timeout)
        self.keyring = keyring_of(config, redis)
        self.store: Store = config.known_stores[store]
        self.secrets = StoreSecrets(self.keyring, self.store, overlap=config.secrets.overlap)

    @property
    def returns_secrets(self) -> bool:
        """Whether the store's API has a field for a subscription's secret."""
        names = self.client.catalogue.fields.get("webhooks", {})
        return bool(names.get("secret", "secret"))

    def plan(self, handlers: Handlers, *, locked: bool = False, by_itself: bool = False) -> Plan:
        """The changes to make. If the store's API fails, the plan has no changes and says why.

        `locked` says that the caller holds the lock of the store's subscriptions. `by_itself`: no person has asked for
        it. Then secrets that are not known here stay: another installation with this URL may know them.
        """
        try:
            existing = self.subscriptions()
            offer = offered_topics(self.client, self._seen_and_configured)
        except (ApiError, RecordError) as error:
            return Plan(self.name, unknown=str(error))
        wanted = wanted_topics(
            self.store,
            handlers.present,
            offer,
            subscribe=self.config.stores[self.name].subscribe,
            known=handlers.known,
            existing=[one.theirs for one in existing if one.is_ours],
        )
        found = make_plan(wanted, existing, gone=lambda topic: handlers.gone(topic, self.name))
        found = with_gaps(found, SubscriptionChecks(self.redis).last_deliveries(self.name), time.time())
        is_abandoned = locked or not self.redis.exists(keys.CHECK_LOCK + self.name)
        notice = mark_of(self.redis, self.name) if is_abandoned else None
        if not by_itself and self.knows_no_secret():
            lost, why = frozenset(self.secrets.subscriptions or ()), "the old one is not known here"
        else:
            lost, why = self.named_in(notice), "a process ended while it changed the old one"
        return with_new_secrets(replace(found, lost=lost, notice=notice), why)

    def subscriptions(self) -> list[Existing]:
        """Every subscription at the store, ours and others'."""
        checks = SubscriptionChecks(self.redis)
        last = checks.last_results([self.name]).get(self.name)
        earlier, replaced = last.urls if last else (), checks.replaced_public_urls()
        urls = callback_urls(self.config, self.name, replaced=replaced, earlier=earlier)
        existing = list_subscriptions(self.client, urls, self.store.scheme.topics)
        self.secrets.subscriptions = {str(one.id) for one in existing if one.ownership != "foreign"}
        return existing

    def _seen_and_configured(self) -> list[str]:
        seen = [name.theirs for name in EventQueries(self.redis).event_names(self.name) if name.theirs]
        return [*seen, *sorted(self.store.scheme.configured)]

    def named_in(self, mark: str | None) -> frozenset[str]:
        """The ids of the subscriptions whose secret may be lost, by the notice that another process has left."""
        if mark is None:
            return frozenset()
        named = subscriptions_in(mark)
        return frozenset(self.secrets.subscriptions or ()) if named is None else named

    def knows_no_secret(self) -> bool:
        """Whether every delivery is refused: the subscriptions exist, and what signs them was lost, or never learned. A
        secret under another [secrets] key is not lost."""
        if self.store.secrets or not (self.returns_secrets and self.keyring.seal):
            return False
        return not (self.keyring.sealed([self.name])[self.name] or self.keyring.files.everything().get(self.name))

    def unsubscribe_changes(self) -> list[Change]:
        """The changes that delete every subscription of ours at the store, those of a former URL included."""
        return [
            Change("delete", one.topic, one.theirs, "the store is removed", one.id)
            for one in self.subscriptions()
            if one.is_ours
        ]

    def rotate_changes(self) -> list[Change]:
        """The changes that give each of our subscriptions a new secret."""
        return [
            Change("update", one.topic, one.theirs, "a new secret", one.id, rotate=True)
            for one in self.subscriptions()
            if one.is_ours
        ]

    def held_back(self) -> list[Existing]:
        """The subscriptions that a rotation leaves out: whether they are ours is not known."""
        return [one for one in self.subscriptions() if one.ownership == "earlier"]

    def with_secrets(self) -> Store:
        """The store with all its secrets, configured and learned, to sign or verify with."""
        return with_learned_secrets(self.store, self.keyring.secrets_of(self.name) if self.keyring.seal else ())

    def end_orphaned_secrets(self, plan: Plan, *, hold: Callable[[], None]) -> None:
        """End the secrets of subscriptions that the plan no longer found at the store, and withdraw a notice that is
        only for such.

        `hold` makes sure first that the lock is still held: a subscription that another process has created since
        the plan would count as orphaned.
        """
        if self.keyring.seal and not plan.unknown:
            hold()
            missing = any(change.action == "create" for change in plan.changes)
            self.secrets.end_orphans(
                listed=plan.listed,
                ours={str(one.id) for one in (*plan.existing, *plan.earlier)},
                subscriptions_are_missing=missing,
            )
            if plan.notice and not missing and plan.lost.isdisjoint(plan.listed):
                self.keyring.withdraw_change(self.name, owner_in(plan.notice))
