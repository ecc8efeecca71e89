"""Subscribing: looks at one store, and carries out there what a plan says.

A secret that only the store knows is the danger: from the moment it may be in use until every receiver knows it, a
genuine delivery fits nothing. So receivers are told before (they answer 503 meanwhile, and the store sends again), the
secret is kept on this host's disk as soon as it is seen, and the word is taken back when every receiver has it. A
process that dies in between leaves the word standing: whoever looks next has new secrets made.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.contract.records import Record, RecordError
from receiver.contract.scheme import MAX_LEARNED
from receiver.contract.stores import Store
from receiver.inbox import Ledger, keys
from receiver.inbox.checks import Checks, Occupied
from receiver.inbox.keyring import LIVE_SECONDS, Keyring, Learned, equip, learn, orphaned
from workers.storeapi.build import client_of, for_the_sandbox
from workers.storeapi.client import CALL_SECONDS
from workers.storeapi.errors import ApiError, Denied, NotThere, TokenRefused, Unreachable, is_refusal
from workers.subscriptions import Change, Handlers, Plan, actual, offered, ours_of, plan, remade, wanted, with_gaps

RECEIVERS_WITHIN = LIVE_SECONDS + 3.0
"""A receiver that was killed is forgotten before that."""
PATIENCE = 300.0
"""How long a secret that was learned waits for Redis to come back before its process gives up; its file stays."""
TRY_AGAIN = 0.25
TRIES = 3
T = TypeVar("T")


class ReceiversBehind(StorehooksError):
    """A receiver does not read the keyring, so nothing was changed at the store."""


@dataclass(frozen=True)
class Done:
    """What became of a change."""

    change: Change
    error: str = ""
    fingerprint: str = ""
    """Of a secret that was learned with it."""


def handlers_of(redis: Redis) -> Handlers:
    """What workers have declared, read now."""
    return Handlers(tuple(Ledger(redis).declared()))


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
        self.client = client_of(config, store, redis, timeout=timeout)
        self.keyring = keyring_of(config, redis)
        self._store: Store = config.known_stores[store]
        names = self.client.catalogue.fields.get("webhooks", {})
        self._shows = bool(names.get("secret", "secret"))
        self._lost = False
        """Whether a secret may be in use that nobody has seen."""
        self._away = False
        self._version = 0
        self._hold: Callable[[], None] = _nothing
        self._learned: list[Learned] = []
        """The store's secrets in the keyring, read before anything is done: with a new one in hand, nothing is read."""

    def look(self, handlers: Handlers, *, alone: bool = False) -> Plan:
        """What is to be done. A store that cannot be looked at has a plan that says why."""
        try:
            there = actual(self.client, ours_of(self.config, self.name), self._store.scheme.topics)
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
        found = with_gaps(found, Checks(self.redis).last_deliveries(self.name), time.time())
        return remade(found) if self._was_left(alone) else found

    def _seen_and_configured(self) -> list[str]:
        seen = [name.theirs for name in Ledger(self.redis).names(self.name) if name.theirs]
        return [*seen, *sorted(self._store.scheme.configured)]

    def _was_left(self, alone: bool) -> bool:
        """Whether somebody began to change a secret here, and nobody is at it any more."""
        if not self.redis.hexists(keys.LEARNING, self.name):
            return False
        return alone or not self.redis.exists(keys.CHECK_LOCK + self.name)

    def equipped(self) -> Store:
        """The store with every secret that counts, to sign or verify with."""
        return equip(self._store, self.keyring.of(self.name) if self.keyring.seal else ())

    def end_orphans(self, plan: Plan) -> None:
        """The secrets of subscriptions that are no more at the store end, so that the living ones have room. While
        something is missing the list may be wrong, and they stay for as long as there is room for all."""
        if not self.keyring.seal or plan.unknown:
            return
        self._learned = self.keyring.of(self.name)
        short = sum(one.not_after is None for one in self._learned) > MAX_LEARNED // 2
        if short or not any(change.action == "create" for change in plan.changes):
            ours = {str(one.id) for one in plan.there}
            self._end({one.fingerprint for one in orphaned(self._learned, listed=plan.listed, ours=ours)})

    # Carrying out

    def carry_out(self, changes: Iterable[Change], *, hold: Callable[[], None] | None = None) -> Iterator[Done]:
        """Each change in turn: what needs no secret, what does, what goes. One that fails does not keep the others,
        unless the store is away. `hold` keeps the store ours before each, and raises Occupied when it is not."""
        changes = list(changes)
        self._hold = hold or _nothing
        self._learned = self.keyring.of(self.name) if self.keyring.seal else []
        self._away = False
        gentle = [change for change in changes if change.action in ("enable", "update") and not change.rotate]
        yield from self._each(gentle)
        yield from self._with_secrets([change for change in changes if change.action == "create" or change.rotate])
        yield from self._each([change for change in changes if change.action == "delete"])
        if self.keyring.seal:
            patiently(self.keyring.bring_pending)

    def _each(self, changes: Iterable[Change]) -> Iterator[Done]:
        for change in changes:
            if self._away:
                return
            try:
                patiently(self._hold)
                yield Done(change, fingerprint=self._do(change))
            except (ApiError, RecordError, Occupied) as error:
                self._away = isinstance(error, Unreachable | TokenRefused | Denied | Occupied)
                yield Done(change, error=str(error))

    def _with_secrets(self, changes: list[Change]) -> Iterator[Done]:
        """Changes that may teach us a secret; none of them is begun where it could not be kept."""
        before = {one.fingerprint for one in self._learned}
        done: list[Done] = []
        try:
            if changes and self._shows:
                self._refuse_what_could_not_be_kept(changes)
            with self._under_way(changes, done) if changes and self._shows and self.keyring.seal else nullcontext():
                for one in self._each(changes):
                    done.append(one)
                    yield one
                if changes and all(one.change.rotate and not one.error for one in done) and len(done) == len(changes):
                    self._end(before - {one.fingerprint for one in done})
        except (ConfigError, ReceiversBehind) as error:
            yield from (Done(change, error=str(error)) for change in changes[len(done) :])

    def _refuse_what_could_not_be_kept(self, changes: Iterable[Change]) -> None:
        """Before anything is created: without a key a secret that the store makes would be lost to us."""
        if any(change.rotate for change in changes) or not self._sent_secret(make=False):
            self.keyring.require_key(self.name)

    def unsubscribe(self) -> list[Change]:
        """The changes that end every subscription of ours at the store, of a former URL too."""
        there = actual(self.client, ours_of(self.config, self.name), self._store.scheme.topics)
        return [
            Change("delete", one.topic, one.theirs, "the store is removed", one.id)
            for one in there
            if one.standing != "foreign"
        ]

    def rotate(self) -> list[Change]:
        """The changes that make every secret of the store anew."""
        there = actual(self.client, ours_of(self.config, self.name), self._store.scheme.topics)
        return [
            Change("update", one.topic, one.theirs, "a new secret", one.id, rotate=True)
            for one in there
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
        with suppress(NotThere):  # somebody was faster
            self.client.webhooks.delete(change.id)
        if self.keyring.seal:
            self._keep(self._ending(str(change.id)))

    # Secrets

    def _create(self, change: Change) -> str:
        sent = self._sent_secret(make=True)
        fields = {"secret": sent} if sent else {}
        if not sent:
            self._refuse_one_too_many()
        with self._asking():
            made = self.client.webhooks.create(topic=change.theirs, url=change.url, **fields)
            return self._learn(made, str(made.id), "created")

    def _refuse_one_too_many(self) -> None:
        """With another secret the oldest would not count any more, and its subscription's deliveries be refused."""
        if sum(one.not_after is None for one in self._learned) >= MAX_LEARNED:
            raise ConfigError(
                f"{self.name}: {MAX_LEARNED} of its secrets count, and no more can, so nothing was created; have fewer "
                "topics, or let the API take a secret of ours: [catalogue.webhooks.create] takes"
            )

    def _rotate(self, change: Change) -> str:
        operation = self.client.catalogue.get("webhooks", "rotate_secret")
        if "secret" in operation.body_fields:
            return self._rotate_to_ours(change)
        return self._call(lambda: self._learn_anew(change))

    def _rotate_to_ours(self, change: Change) -> str:
        """Receivers know the new secret before the store does; the old one ends when the store has taken it."""
        fresh = learn(self._store, self._fresh(), origin="rotated", subscription=str(change.id))
        self._keep([fresh])
        try:
            self._wait_for_receivers(self._version)
            self._call(lambda: self.client.call("webhooks", "rotate_secret", change.id, secret=fresh.text))
        except (ApiError, ReceiversBehind):
            if not self._lost:  # it was refused, so it is in use nowhere
                self._learned.remove(fresh)
                self._version = patiently(lambda: self.keyring.drop(self.name, [fresh.fingerprint]))
            raise
        self._keep(self._ending(str(change.id), but=fresh.fingerprint))
        return fresh.fingerprint

    def _learn_anew(self, change: Change) -> str:
        answer = self.client.webhooks.rotate_secret(change.id)
        learned = self._learn(answer, str(change.id), "rotated")
        if not learned:
            raise RecordError(f"rotate_secret at {self.name} answered without a new secret; nothing was learned")
        return learned

    def _call(self, call: Callable[[], T]) -> T:
        """Rotating twice does no harm, so it is tried again; a server that is away is waited for."""
        for left in reversed(range(TRIES)):
            try:
                with self._asking():
                    return patiently(call)
            except Unreachable:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """A call that may change a secret. Until what it gave is kept, the secret in use may be one that nobody has
        seen, however the call ends; only a store that refuses, or was not asked at all, has changed nothing."""
        before, self._lost = self._lost, True
        try:
            yield
        except ApiError as error:
            self._lost = before or not is_refusal(error)
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
        mine = [one for one in self._learned if not one.subscription and one.not_after is None]
        if mine or not make:
            return mine[0].text if mine else "ours"
        fresh = learn(self._store, self._fresh(), origin="made for the store")
        self._keep([fresh])
        self._wait_for_receivers(self._version)  # they know it before the store does
        return fresh.text

    def _fresh(self) -> str:
        scheme, key = self._store.scheme, secrets.token_bytes(24)
        in_base64 = scheme.secret_encoding.startswith("base")
        return scheme.secret_prefix + (base64.b64encode(key).decode() if in_base64 else key.hex())

    def _learn(self, answer: Record, subscription: str, origin: str) -> str:
        """Keep what the answer shows, unless it is known; give its fingerprint, or nothing where it shows none."""
        text = shown_secret(answer)
        if not text or not self._shows:
            return ""
        try:
            one = learn(self._store, text, origin=origin, subscription=subscription)
        except ValueError as error:
            raise RecordError(f"the secret that {self.name} shows does not fit its scheme: {error}") from None
        if self._is_known(one.fingerprint):
            return one.fingerprint
        if self.keyring.seal is None:
            self.client.webhooks.delete(subscription)
            self.keyring.require_key(self.name)
        self._keep([one, *self._ending(subscription, but=one.fingerprint)])
        return one.fingerprint

    def _is_known(self, fingerprint: str) -> bool:
        known = equip(self._store, self._learned).secrets
        return any(one.fingerprint == fingerprint and one.not_after is None for one in known)

    def _ending(self, subscription: str, but: str = "") -> list[Learned]:
        """The subscription's secrets so far: they count for a while, then no more."""
        end = time.time() + self.config.secrets.overlap
        return [
            replace(one, not_after=end)
            for one in self._learned
            if one.subscription == subscription and one.not_after is None and one.fingerprint != but
        ]

    def _end(self, fingerprints: set[str]) -> None:
        """They count for a while, then no more: also one that several subscriptions shared."""
        end = time.time() + self.config.secrets.overlap
        old = [one for one in self._learned if one.fingerprint in fingerprints and one.not_after is None]
        self._keep([replace(one, not_after=end) for one in old])

    def _keep(self, entries: list[Learned]) -> None:
        """On disk at once; in Redis when it answers."""
        if entries:
            new = {one.fingerprint for one in entries}
            self._learned = [*entries, *(one for one in self._learned if one.fingerprint not in new)]
            self._version = patiently(lambda: self.keyring.put(entries))

    @contextmanager
    def _under_way(self, changes: list[Change], done: list[Done]) -> Iterator[None]:
        """The word to the receivers stands until they know every secret. One that somebody left goes when all changes
        have been made: what was lost then has been made anew."""
        left = bool(patiently(lambda: self.redis.hexists(keys.LEARNING, self.name)))
        mark, late = secrets.token_hex(4), list[str]()
        self._lost = False
        self._version = patiently(lambda: self.keyring.begin_learning(self.name, mark))
        try:
            self._wait_for_receivers(self._version)
            yield
            late = patiently(lambda: self.keyring.wait_for_receivers(self._version, within=RECEIVERS_WITHIN))
        finally:
            whole = len(done) == len(changes) and not any(one.error for one in done)
            if not (self._lost or late) and (whole or not left):
                patiently(lambda: self.keyring.end_learning(self.name, mark))

    def _wait_for_receivers(self, version: int) -> None:
        late = patiently(lambda: self.keyring.wait_for_receivers(version, within=RECEIVERS_WITHIN))
        if late:
            raise ReceiversBehind(
                f"{self.name}: {', '.join(late)} has not read the keyring for {RECEIVERS_WITHIN:.0f} s, so the store's "
                "secret was not touched. A receiver that hangs must be stopped first"
            )


def patiently(call: Callable[[], T]) -> T:
    """Do something at Redis, also if it is away for a while: what was learned or done must be written down."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except RedisError:
            if time.monotonic() > until:
                raise
            time.sleep(TRY_AGAIN)


def _nothing() -> None:
    pass


def shown_secret(answer: Record) -> str:
    """The secret in an answer. Stores show it once; afterwards nothing, or stars."""
    value: Any = answer.get(answer.their_name("secret"))
    return value if isinstance(value, str) and value and not set("*…•") & set(value) else ""


def refuse_unmanaged(config: Config, store: str) -> None:
    if not is_managed(config, store):
        raise ConfigError(
            f"{config.place('stores', store)}: stores.{store} has no base_url or no auth, so its subscriptions "
            "cannot be looked at; set both there, or subscribe by hand in the store's own pages. "
            f"{for_the_sandbox(config)}"
        )
