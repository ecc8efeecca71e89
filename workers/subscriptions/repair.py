"""Upkeep: the workers' own look at each store's subscriptions, every few minutes, and the mending of what has gone.

It creates, enables and updates. It deletes only what no handler has wanted for `prune_after`: a worker that was
deployed without a plugin must not cost a subscription. Before it brings one back that the store had switched off or
deleted, it makes sure that our own URL takes deliveries; whatever it mends is written down with the gap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import connect_to
from receiver.inbox.subscription_checks import BUSY_MS, Checked, Occupied, Repair, SubscriptionChecks, Trouble
from workers.subscriptions.apply import Done, Subscriber, handlers_of, is_managed, keyring_of
from workers.subscriptions.change_notice import patiently
from workers.subscriptions.plan import Change, Handlers, Plan, in_words
from workers.subscriptions.probe import NothingToSign, ProbeFailed, probe

AT_ONCE = 8
ROUND_EVERY = 1.0
BUSY_ROUND_EVERY = 0.1
A_DAY = 86400.0
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 4 * 3600.0
SOON = 60.0
"""A store that could not be looked at is tried again after so long, if that is sooner."""

log = logs.get("upkeep")


# Deciding: pure


@dataclass(frozen=True)
class Choice:
    """Which changes the check makes now, and which it leaves, each with why."""

    make: tuple[Change, ...]
    left: tuple[tuple[Change, str], ...]


def choose(
    plan: Plan,
    *,
    trouble: Mapping[str, Trouble],
    gone: Callable[[Change], float | None],
    now: float,
    max_repairs_per_day: int,
    prune_after: float,
    were: Collection[str] = (),
) -> Choice:
    """What may be done without a person. `gone` says for how long no handler has wanted what is to be deleted,
    `were` which names had been there."""
    make: list[Change] = []
    left: list[tuple[Change, str]] = []
    for change in plan.changes:
        why = ""
        if change.action == "delete":
            why = _why_not_delete(gone(change), prune_after, change)
        elif is_heal(change, were):
            why = _why_not_heal(change, trouble.get(change.theirs), now, max_repairs_per_day)
        left.append((change, why)) if why else make.append(change)
    return Choice(tuple(make), tuple(left))


def _why_not_delete(gone_for: float | None, prune_after: float, change: Change) -> str:
    if gone_for is None:
        return f"{change.reason}; deleted only by `storehooks subscriptions apply`"
    if gone_for < prune_after:
        return f"{change.reason}; deleted in {in_words(prune_after - gone_for)}, or by `storehooks subscriptions apply`"
    return ""


def were_there(before: Checked | None) -> set[str]:
    """The names that were subscribed, now or before they went."""
    return {*before.there, *before.trouble} if before else set()


def is_heal(change: Change, were: Collection[str]) -> bool:
    """Whether something had been there and has gone; a subscription that is new is no heal."""
    return change.action == "enable" or (change.action == "create" and change.theirs in were)


def _why_not_heal(change: Change, trouble: Trouble | None, now: float, max_repairs_per_day: int) -> str:
    gone, back = ("disabled", "enabled") if change.action == "enable" else ("deleted at the store", "created")
    if not max_repairs_per_day:
        return f"{gone}; [subscriptions] max_repairs_per_day is 0"
    if trouble is None or now - trouble.first_at > A_DAY:
        return ""
    if trouble.heals >= max_repairs_per_day:
        until = in_words(trouble.first_at + A_DAY - now)
        return f"{gone} again after {trouble.heals} heals; the check leaves it for {until}"
    if now < trouble.next_at:
        return f"{gone} again; {back} in {in_words(trouble.next_at - now)}"
    return ""


def troubled(
    before: Mapping[str, Trouble], healed: Iterable[str], now: float, waiting: Mapping[str, str] | None = None
) -> dict[str, Trouble]:
    """The trouble of a store after a look: pauses grow with each heal; a day after the first it is forgotten. What
    waits to be healed is kept with why."""
    kept = {name: replace(one, note="") for name, one in before.items() if one.heals and now - one.first_at <= A_DAY}
    for name in healed:
        old = kept.get(name)
        many = old.heals + 1 if old else 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (many - 1))
        kept[name] = Trouble(many, old.first_at if old else now, now + pause)
    for name, why in (waiting or {}).items():
        kept[name] = replace(kept.get(name, Trouble(0, now, now)), note=why)
    return kept


def summary_of(
    plan: Plan,
    done: Sequence[Done],
    *,
    before: Checked | None = None,
    by: str = "check",
    left: Iterable[tuple[Change, str]] = (),
    healed: Iterable[str] = (),
) -> Checked:
    """What a look found and left, to be kept until the next one."""
    now, earlier = time.time(), before.trouble if before else {}
    if plan.unknown:
        there = before.there if before else ()
        return Checked(plan.store, now, by, there=there, unknown=plan.unknown, trouble=earlier)
    assert plan.wanted is not None
    made = [one.change for one in done if not one.error]
    deleted = {change.id for change in made if change.action == "delete"}
    there = (
        *(one.theirs for one in plan.there if one.id not in deleted),
        *(change.theirs for change in made if change.action == "create"),
    )
    undone = _undone(plan, done, left)
    were = were_there(before)
    waiting = {one.theirs: why for one, why in undone if is_heal(one, were)}
    return Checked(
        plan.store,
        now,
        by,
        wanted=len(plan.wanted.names),
        there=tuple(sorted(there)),
        left=tuple({"action": one.action, "topic": one.topic, "why": why} for one, why in undone),
        foreign=sum(plan.foreign.values()),
        note=plan.wanted.note,
        trouble=troubled(earlier, healed, now, waiting),
    )


def _undone(plan: Plan, done: Sequence[Done], left: Iterable[tuple[Change, str]]) -> list[tuple[Change, str]]:
    """Every change that was not made, with why: it failed, was left, or its turn did not come."""
    found = [*((one.change, one.error) for one in done if one.error), *left]
    told = {*(change for change, _ in found), *(one.change for one in done)}
    return found + [(change, f"not done yet; {change.reason}") for change in plan.changes if change not in told]


# Doing


def check(config: Config, store: str, redis: Redis, handlers: Handlers, *, hold: Callable[[], None]) -> Checked:
    """Look at one store and mend what may be mended. The caller holds `Checks.alone`, and gives what keeps it so."""
    checks, subscriber = SubscriptionChecks(redis), Subscriber(config, store, redis)
    before = checks.last([store]).get(store)
    plan = subscriber.look(handlers, alone=True)
    subscriber.end_orphans(plan, hold=hold)
    were = were_there(before)
    choice = choose(
        plan,
        trouble=before.trouble if before else {},
        gone=lambda change: _gone_for(handlers, change, store),
        now=time.time(),
        max_repairs_per_day=config.subscriptions.max_repairs_per_day,
        prune_after=config.subscriptions.prune_after,
        were=were,
    )
    last = checks.last_deliveries(store)  # before anything new can come
    choice, took = _probed(subscriber, choice, were)
    done = list(subscriber.carry_out(choice.make, hold=hold))
    healed = [one.change for one in done if not one.error and is_heal(one.change, were)]
    for change in healed:
        heal = Repair(store, change.topic, change.theirs, change.action, time.time(), last.get(change.theirs), took)
        patiently(partial(checks.healed, heal))
        gap = in_words(heal.gap) if heal.gap is not None else "unknown"
        log.warning("a subscription was mended", store=store, topic=change.topic, action=change.action, gap=gap)
    if subscriber.keyring.seal:
        subscriber.keyring.remove_ended(store)
    return summary_of(plan, done, before=before, left=choice.left, healed=[change.theirs for change in healed])


def _gone_for(handlers: Handlers, change: Change, store: str) -> float | None:
    since = handlers.gone(change.topic, store)
    return None if since is None else time.time() - since.timestamp()


def _probed(subscriber: Subscriber, choice: Choice, were: Collection[str]) -> tuple[Choice, float | None]:
    """What the store switched off or deleted comes back only when our own URL takes a signed event. Where no secret
    counts any more nothing can be signed; what is created then brings one."""
    heals = [change for change in choice.make if is_heal(change, were)]
    if not heals:
        return choice, None
    try:
        return choice, round(probe(subscriber.equipped(), subscriber.redis) * 1000, 1)
    except ProbeFailed as error:
        log.warning("not mended: our own URL does not take a signed event", store=subscriber.name, why=str(error))
        held = [change for change in heals if change.action == "enable" or not isinstance(error, NothingToSign)]
        make = tuple(change for change in choice.make if change not in held)
        return Choice(make, (*choice.left, *((change, str(error)) for change in held))), None


class SubscriptionCheck:
    """Takes stores whose turn it is, a few at a time, for as long as its process lives. Any number may run."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._redis = connect_to(config().redis, timeout=max(config().redis.timeout, 2.0))
        self._checks = SubscriptionChecks(self._redis)
        self._busy: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within: float = 5.0) -> None:
        """Take no more; what is under way may end, for a while. What is cut off is done by the next look."""
        self._stopping.set()
        until = time.monotonic() + within
        self._thread.join(within)
        while self._busy and time.monotonic() < until:
            time.sleep(0.05)

    def _run(self) -> None:
        pause = ROUND_EVERY
        while not self._stopping.wait(pause):
            try:
                pause = BUSY_ROUND_EVERY if self.round() else ROUND_EVERY
            except Exception as error:  # noqa: BLE001  the server or the disk is away: the thread goes on
                log.info("no look at subscriptions now", why=repr(error)[:200])
                pause = ROUND_EVERY

    def round(self) -> int:
        """Begin with what is due, as far as there is room; gives how many stores are being looked at."""
        config = self._config()
        stores = [name for name in config.stores if is_managed(config, name)]
        if not stores or not config.subscriptions.check:
            return 0
        if config.secrets.key.get_secret_value():
            keyring_of(config, self._redis).store_pending()
        room = AT_ONCE - len(self._busy)
        due = self._checks.due(stores, every=config.subscriptions.check, most=room) if room else []
        handlers = handlers_of(self._redis) if due else Handlers()
        for store in due:
            self._busy.add(store)
            threading.Thread(target=self._look_at, args=(config, store, handlers), daemon=True).start()
        return len(self._busy)

    def _look_at(self, config: Config, store: str, handlers: Handlers) -> None:
        """One store, whatever happens; its next turn is set in the end."""
        try:
            again = self._looked(config, store, handlers)
            if again is not None:
                self._checks.next_at(store, again)
        except RedisError:
            log.info("the next look was not set; it comes when this one's time is over", store=store)
        finally:
            self._busy.discard(store)

    def _looked(self, config: Config, store: str, handlers: Handlers) -> float | None:
        """Look; gives after how long to look again, or None for a store that was removed."""
        again = config.subscriptions.check
        try:
            with self._checks.alone(store) as hold:
                if store in self._checks.removed():  # since its turn was given to us
                    return None
                checked = check(config, store, self._redis, handlers, hold=hold)
                self._checks.found(checked)
            return min(again, SOON) if checked.unknown else again
        except Occupied:
            return min(again, BUSY_MS / 1000)
        except (StorehooksError, RedisError) as error:  # its words may be the store's, and name a secret
            log.warning("the subscriptions were not looked at", store=store, why=type(error).__name__)
            return min(again, SOON)
        except Exception as error:  # noqa: BLE001  a store that answers nonsense must not end the thread's turn
            log.error("the look at a store's subscriptions broke", store=store, why=type(error).__name__)
            return again
