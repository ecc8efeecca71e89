"""Subscribing: looks at one store, and carries out there what a plan says.

A secret that only the store knows is the danger: from the moment it may be in use until every receiver knows it, a
genuine delivery fits nothing. So receivers are told before (they answer 503 meanwhile, and the store sends again), the
secret is kept on this host's disk as soon as it is seen, and the word is taken back when every receiver has it. A
process that dies in between leaves the word standing: whoever looks next has new secrets made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.records import Record, RecordError
from receiver.contract.stores import Store
from receiver.inbox import EventQueries, keys
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret, with_learned_secrets
from receiver.inbox.subscription_checks import Occupied, SubscriptionChecks
from workers.storeapi.client import CALL_SECONDS
from workers.storeapi.configured_client import client_for_store, sandbox_hint
from workers.storeapi.errors import AccessDenied, ApiError, ResourceNotFound, TokenRefused, Unreachable, had_no_effect
from workers.subscriptions.change_notice import ChangeNotice, ReceiversBehind, patiently, wait_for_receivers
from workers.subscriptions.plan import (
    Change,
    Handlers,
    Plan,
    There,
    actual,
    offered,
    ours_of,
    plan,
    remade,
    wanted,
    with_gaps,
)
from workers.subscriptions.store_secrets import StoreSecrets

TRIES = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """What became of a change."""

    change: Change
    error: str = ""
    fingerprint: str = ""
    """Of a secret that was learned with it."""


def handlers_of(redis: Redis) -> Handlers:
    """What workers have declared, read now."""
    return Handlers(tuple(EventQueries(redis).declared()))


def is_managed(config: Config, store: str) -> bool:
    """Whether we can look at a store: it has an API, and we may ask it."""
    given = config.stores[store]
    return bool(given.base_url and (given.auth.client_id or given.auth.token.get_secret_value()))


def keyring_of(config: Config, redis: Redis) -> Keyring:
    return Keyring(redis, config.data_dir, config.secrets.key.get_secret_value())


class Subscriber:
    """One store's subscriptions. Whoever changes them holds `Checks.alone` meanwhile."""

    def __init__(self, config: Config, store: str, redis: Redis, *, timeout: float = CALL_SECONDS) -> None:
        self.config, self.name = config, store
        self.redis = redis
        self.client = client_for_store(config, store, redis, timeout=timeout)
        self.keyring = keyring_of(config, redis)
        self._store: Store = config.known_stores[store]
        names = self.client.catalogue.fields.get("webhooks", {})
        self._shows = bool(names.get("secret", "secret"))
        self._lost = False
        """Whether a secret may be in use that nobody has seen."""
        self._away = False
        self._hold: Callable[[], None] = _nothing
        self._word: ChangeNotice | None = None
        self._secrets = StoreSecrets(self.keyring, self._store, overlap=config.secrets.overlap)

    def look(self, handlers: Handlers, *, alone: bool = False) -> Plan:
        """What is to be done. A store that cannot be looked at has a plan that says why."""
        try:
            there = self._actual()
            offer = offered(self.client, self._seen_and_configured)
        except (ApiError, RecordError) as error:
            return Plan(self.name, unknown=str(error))
        want = wanted(
            self._store,
            handlers.present,
            offer,
            subscribe=self.config.stores[self.name].subscribe,
            known=handlers.known,
            there=[one.theirs for one in there if one.standing != "foreign"],
        )
        found = plan(want, there, gone=lambda topic: handlers.gone(topic, self.name))
        found = with_gaps(found, SubscriptionChecks(self.redis).last_deliveries(self.name), time.time())
        return remade(found) if self._was_left(alone) else found

    def _actual(self) -> list[There]:
        there = actual(self.client, ours_of(self.config, self.name), self._store.scheme.topics)
        self._secrets.subscribed({str(one.id) for one in there if one.standing != "foreign"})
        return there

    def _seen_and_configured(self) -> list[str]:
        seen = [name.theirs for name in EventQueries(self.redis).names(self.name) if name.theirs]
        return [*seen, *sorted(self._store.scheme.configured)]

    def _was_left(self, alone: bool) -> bool:
        """Whether somebody began to change a secret here, and nobody is at it any more."""
        if not self.redis.hexists(keys.CHANGING_SECRETS, self.name):
            return False
        return alone or not self.redis.exists(keys.CHECK_LOCK + self.name)

    def equipped(self) -> Store:
        """The store with every secret that counts, to sign or verify with."""
        return with_learned_secrets(self._store, self.keyring.secrets_of(self.name) if self.keyring.seal else ())

    def end_orphans(self, plan: Plan, *, hold: Callable[[], None]) -> None:
        """The secrets of subscriptions that the plan did not find at the store any more. One that somebody else has
        made since would be among them."""
        if self.keyring.seal and not plan.unknown:
            hold()
            self._secrets.end_orphans(
                listed=plan.listed,
                ours={str(one.id) for one in plan.there},
                something_is_missing=any(change.action == "create" for change in plan.changes),
            )

    # Carrying out

    def carry_out(self, changes: Iterable[Change], *, hold: Callable[[], None] | None = None) -> Iterator[Done]:
        """Each change in turn: what needs no secret, what does, what goes. One that fails does not keep the others,
        unless the store is away. `hold` keeps the store ours before each call, and raises Occupied when it is not."""
        changes = list(changes)
        self._hold = hold or _nothing
        self._secrets.read()
        self._away = False
        gentle = [change for change in changes if change.action in ("enable", "update") and not change.rotate]
        yield from self._each(gentle)
        yield from self._with_secrets([change for change in changes if change.action == "create" or change.rotate])
        yield from self._each([change for change in changes if change.action == "delete"])
        if self.keyring.seal:
            patiently(self.keyring.store_pending)

    def _each(self, changes: Iterable[Change]) -> Iterator[Done]:
        for change in changes:
            if self._away:
                return
            try:
                patiently(self._hold)
                yield Done(change, fingerprint=self._do(change))
            except (ApiError, RecordError, Occupied) as error:
                self._away = isinstance(error, Unreachable | TokenRefused | AccessDenied | Occupied)
                yield Done(change, error=str(error))

    def _with_secrets(self, changes: list[Change]) -> Iterator[Done]:
        """Changes that may teach us a secret; none of them is begun where it could not be kept."""
        before = self._secrets.fingerprints
        done: list[Done] = []
        try:
            if changes and self._shows:
                self._refuse_what_could_not_be_kept(changes)
            with self._under_way(changes, done) if changes and self._shows and self.keyring.seal else nullcontext():
                for one in self._each(changes):
                    done.append(one)
                    yield one
                if changes and all(one.change.rotate and not one.error for one in done) and len(done) == len(changes):
                    self._secrets.end(before - {one.fingerprint for one in done})
        except (ConfigError, ReceiversBehind) as error:
            yield from (Done(change, error=str(error)) for change in changes[len(done) :])

    def _refuse_what_could_not_be_kept(self, changes: Iterable[Change]) -> None:
        """Before anything is created: without a key a secret that the store makes would be lost to us."""
        if any(change.rotate for change in changes) or not self._sent_secret(make=False):
            self.keyring.require_key(self.name)

    def unsubscribe(self) -> list[Change]:
        """The changes that end every subscription of ours at the store, of a former URL too."""
        return [
            Change("delete", one.topic, one.theirs, "the store is removed", one.id)
            for one in self._actual()
            if one.standing != "foreign"
        ]

    def rotate(self) -> list[Change]:
        """The changes that make every secret of the store anew."""
        return [
            Change("update", one.topic, one.theirs, "a new secret", one.id, rotate=True)
            for one in self._actual()
            if one.standing == "current"
        ]

    def _do(self, change: Change) -> str:
        hooks = self.client.webhooks
        match change.action:
            case "create":
                return self._create(change)
            case "update" if change.rotate:
                return self._rotate(change)
            case "enable":
                hooks.update(change.id, enabled=True)
            case "update":
                hooks.update(change.id, url=change.url, enabled=True)
            case "delete":
                self._delete(change)
        return ""

    def _delete(self, change: Change) -> None:
        with suppress(ResourceNotFound):  # somebody was faster
            self.client.webhooks.delete(change.id)
        self._secrets.went(str(change.id))

    # Secrets

    def _create(self, change: Change) -> str:
        sent = self._sent_secret(make=True)
        fields = {"secret": sent} if sent else {}
        if not sent:
            self._secrets.refuse_one_too_many()
        patiently(self._hold)  # receivers may have been waited for
        with self._asking():
            made = self.client.webhooks.create(topic=change.theirs, url=change.url, **fields)
            self._secrets.came(str(made.id))
            return self._learn(made, str(made.id), "created")

    def _rotate(self, change: Change) -> str:
        operation = self.client.catalogue.get("webhooks", "rotate_secret")
        if "secret" in operation.body_fields:
            return self._rotate_to_ours(change)
        return self._call(lambda: self._learn_anew(change))

    def _rotate_to_ours(self, change: Change) -> str:
        """Receivers know the new secret before the store does; the old one ends when the store has taken it."""
        fresh = self._secrets.fresh("rotated", str(change.id))
        try:
            self._secrets.wait_for_receivers()
            self._call(lambda: self.client.call("webhooks", "rotate_secret", change.id, secret=fresh.text))
        except (ApiError, ReceiversBehind):
            if not self._lost:  # it was refused, so it is in use nowhere
                self._secrets.drop(fresh)
            raise
        self._secrets.end_older(str(change.id), fresh)
        return fresh.fingerprint

    def _learn_anew(self, change: Change) -> str:
        answer = self.client.webhooks.rotate_secret(change.id)
        learned = self._learn(answer, str(change.id), "rotated")
        if not learned:
            raise RecordError(f"rotate_secret at {self.name} answered without a new secret; nothing was learned")
        return learned

    def _call(self, call: Callable[[], T]) -> T:
        """Rotating twice does no harm, so it is tried again; a server that is away is waited for. All that may take
        longer than the store stays ours, so that is made sure of before each try."""
        for left in reversed(range(TRIES)):
            try:
                patiently(self._hold)
                with self._asking():
                    return patiently(lambda: self._while_ours(call))
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _while_ours(self, call: Callable[[], T]) -> T:
        self._hold()
        return call()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """A call that may change a secret. Until what it gave is kept, the secret in use may be one that nobody has
        seen, however the call ends; only a store that refuses, or was not asked at all, has changed nothing."""
        before, self._lost = self._lost, True
        if self._word:
            self._word.go_on()
        try:
            yield
        except ApiError as error:
            self._lost = before or not had_no_effect(error)
            raise
        self._lost = before

    def _sent_secret(self, *, make: bool) -> str:
        """The secret we choose, where the API takes one: config's newest, else one of our own. Else empty."""
        if "secret" not in self.client.catalogue.get("webhooks", "create").body_fields or not self._shows:
            return ""
        for window in self.config.stores[self.name].signing_secrets:
            if window.not_after is None:
                return window.value.get_secret_value()
        if not self.keyring.seal:
            return ""
        if (ours := self._secrets.for_all()) or not make:
            return ours or "ours"
        fresh = self._secrets.fresh("made for the store")
        self._secrets.wait_for_receivers()  # they know it before the store does
        return fresh.text

    def _learn(self, answer: Record, subscription: str, origin: str) -> str:
        """Keep what the answer shows, unless it is known; give its fingerprint, or nothing where it shows none."""
        text = shown_secret(answer)
        if not text or not self._shows:
            return ""
        try:
            one = learned_secret(self._store, text, origin=origin, subscription=subscription)
        except ValueError as error:
            raise RecordError(f"the secret that {self.name} shows does not fit its scheme: {error}") from None
        if self._secrets.is_known(one.fingerprint):
            return one.fingerprint
        if self.keyring.seal is None:
            self.client.webhooks.delete(subscription)
            self.keyring.require_key(self.name)
        self._secrets.learned(one)
        return one.fingerprint

    @contextmanager
    def _under_way(self, changes: list[Change], done: list[Done]) -> Iterator[None]:
        """The word to the receivers stands until they know every secret. One that somebody left goes when all changes
        have been made: what was lost then has been made anew."""
        left = bool(patiently(lambda: self.redis.hexists(keys.CHANGING_SECRETS, self.name)))
        self._word, late = ChangeNotice(self.keyring, self.name), list[str]()
        self._lost = False
        self._secrets.version = self._word.give()
        try:
            self._secrets.wait_for_receivers()
            yield
            late = wait_for_receivers(self.keyring, self._secrets.version)
        finally:
            self._word.leave()
            whole = len(done) == len(changes) and not any(one.error for one in done)
            if not (self._lost or late) and (whole or not left):
                self._word.take_back()


def _nothing() -> None:
    pass


def shown_secret(answer: Record) -> str:
    """The secret in an answer. Stores show it once; afterwards nothing, or stars."""
    value: Any = answer.get(answer.field_name("secret"))
    return value if isinstance(value, str) and value and not set("*…•") & set(value) else ""


def refuse_unmanaged(config: Config, store: str) -> None:
    if not is_managed(config, store):
        raise ConfigError(
            f"{config.place('stores', store)}: stores.{store} has no base_url or no auth, so its subscriptions "
            "cannot be looked at; set both there, or subscribe by hand in the store's own pages. "
            f"{sandbox_hint(config)}"
        )
