"""Repair: the housekeeper checks each store's subscriptions every few minutes and repairs them.

It creates, enables and updates subscriptions. It deletes one only if no handler has wanted it for `prune_after`: a
worker that was deployed without a plugin must not cost a subscription. Before it restores a subscription that the store
has disabled or deleted, it makes sure that our own URL accepts deliveries. Each repair is recorded with its gap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.diagnosis.formatting import span
from receiver.contract.errors import StorehooksError
from receiver.inbox import connect_to
from receiver.inbox.keyring.change_marks import mark_of, subscriptions_in
from receiver.inbox.keyring.host_files import KeyringUnwritable
from receiver.inbox.redis.server_faults import reason_of
from receiver.inbox.subscription_checks import BUSY_MS, CheckResult, Repair, StoreLocked, SubscriptionChecks, Trouble
from workers.subscriptions.apply import ChangeResult, apply_changes
from workers.subscriptions.change_notice import retry_redis
from workers.subscriptions.managed_store import ManagedStore, declared_handlers, is_managed, keyring_of, url_has_changed
from workers.subscriptions.plan import Change, Handlers, Plan
from workers.subscriptions.probe import NoActiveSecret, ProbeFailed, probe

STORES_AT_ONCE = 8
ROUND_EVERY = 1.0
BUSY_ROUND_EVERY = 0.1
DAY = 86400.0
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 4 * 3600.0
RETRY_AFTER = 60.0
"""A store whose check failed is checked again after this time, or after `[subscriptions] check` if that is shorter."""

log = logs.get("subscriptions")


# Decide: pure


@dataclass(frozen=True)
class Choice:
    """The changes that the check makes now, and those it postpones, each with the reason."""

    make: tuple[Change, ...]
    postponed: tuple[tuple[Change, str], ...]


def choose(
    plan: Plan,
    *,
    trouble: Mapping[str, Trouble],
    gone: Callable[[Change], float | None],
    now: float,
    max_repairs_per_day: int,
    prune_after: float,
    known: Collection[str] = (),
) -> Choice:
    """Choose the changes that may be made automatically.

    `gone` returns for how long no handler has wanted a subscription that is to be deleted. `known` are the names that
    had a subscription before.
    """
    make: list[Change] = []
    postponed: list[tuple[Change, str]] = []
    for change in plan.changes:
        why = ""
        if change.action == "delete":
            why = _why_not_delete(gone(change), prune_after, change)
        elif is_repair(change, known):
            why = _why_not_repair(change, trouble.get(change.theirs), now, max_repairs_per_day)
        postponed.append((change, why)) if why else make.append(change)
    return Choice(tuple(make), tuple(postponed))


def _why_not_delete(gone_for: float | None, prune_after: float, change: Change) -> str:
    if gone_for is None:
        return f"{change.reason}; deleted only by `storehooks subscriptions apply`"
    if gone_for < prune_after:
        return f"{change.reason}; deleted in {span(prune_after - gone_for)}, or by `storehooks subscriptions apply`"
    return ""


def known_names(before: CheckResult | None) -> set[str]:
    """The names that had a subscription at the last check, or before the store removed it."""
    return {*before.existing, *before.trouble} if before else set()


def is_repair(change: Change, known: Collection[str]) -> bool:
    """Whether the change restores a subscription; creating a new one is not a repair."""
    return change.action == "enable" or (change.action == "create" and change.theirs in known)


def _why_not_repair(change: Change, trouble: Trouble | None, now: float, max_repairs_per_day: int) -> str:
    state, repair = ("disabled", "enabled") if change.action == "enable" else ("deleted at the store", "created")
    if not max_repairs_per_day:
        return f"{state}; [subscriptions] max_repairs_per_day is 0"
    if trouble is None or now - trouble.first_at > DAY:
        return ""
    if trouble.repairs >= max_repairs_per_day:
        until = span(trouble.first_at + DAY - now)
        return f"{state} again after {trouble.repairs} repairs; the next automatic repair is in {until}"
    if now < trouble.next_at:
        return f"{state} again; {repair} in {span(trouble.next_at - now)}"
    return ""


def trouble_after(
    before: Mapping[str, Trouble], repaired: Iterable[str], now: float, waiting: Mapping[str, str] | None = None
) -> dict[str, Trouble]:
    """The trouble of a store after a check. The pause doubles with each repair; a day after the first repair, the
    count starts anew. `waiting` are the names that were not repaired, with the reason."""
    trouble = {name: replace(one, note="") for name, one in before.items() if one.repairs and now - one.first_at <= DAY}
    for name in repaired:
        old = trouble.get(name)
        repairs = old.repairs + 1 if old else 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (repairs - 1))
        trouble[name] = Trouble(repairs, old.first_at if old else now, now + pause)
    for name, why in (waiting or {}).items():
        trouble[name] = replace(trouble.get(name, Trouble(0, now, now)), note=why)
    return trouble


def check_result(
    plan: Plan,
    results: Sequence[ChangeResult],
    *,
    before: CheckResult | None = None,
    by: str = "check",
    postponed: Iterable[tuple[Change, str]] = (),
    repaired: Iterable[str] = (),
) -> CheckResult:
    """What a check found and did, stored until the next check."""
    if plan.unknown:
        return unknown_result(plan.store, plan.unknown, before=before, by=by)
    now, earlier = time.time(), before.trouble if before else {}
    assert plan.wanted is not None
    made = [result.change for result in results if not result.error]
    deleted = {change.id for change in made if change.action == "delete"}
    existing = (
        *(one.theirs for one in plan.existing if one.id not in deleted),
        *(change.theirs for change in made if change.action == "create"),
    )
    pending = _pending(plan, results, postponed)
    known = known_names(before)
    waiting = {change.theirs: why for change, why in pending if is_repair(change, known)}
    return CheckResult(
        plan.store,
        now,
        by,
        wanted=len(plan.wanted.names),
        existing=tuple(sorted(existing)),
        pending=tuple({"action": change.action, "topic": change.topic, "why": why} for change, why in pending),
        foreign=sum(plan.foreign.values()),
        note=plan.wanted.note,
        trouble=trouble_after(earlier, repaired, now, waiting),
        urls=tuple(sorted({plan.wanted.url, *(one.url for one in (*plan.existing, *plan.earlier))})),
        held_back=plan.held_back,
    )


def unknown_result(store: str, why: str, *, before: CheckResult | None, by: str = "check") -> CheckResult:
    """The result of a check that failed. What was known before stays known."""
    last = before or CheckResult(store, 0.0)
    return CheckResult(
        store, time.time(), by, existing=last.existing, unknown=why, trouble=last.trouble, urls=last.urls
    )


def _pending(
    plan: Plan, results: Sequence[ChangeResult], postponed: Iterable[tuple[Change, str]]
) -> list[tuple[Change, str]]:
    """Every change that was not made, with the reason: it failed, was postponed, or was not tried."""
    pending = [*((result.change, result.error) for result in results if result.error), *postponed]
    handled = {*(change for change, _ in pending), *(result.change for result in results)}
    return pending + [(change, f"not done yet; {change.reason}") for change in plan.changes if change not in handled]


# Repair


def check(config: Config, store: str, redis: Redis, handlers: Handlers, *, hold: Callable[[], None]) -> CheckResult:
    """Check one store, and make the changes that may be made automatically.

    The caller holds `SubscriptionChecks.lock`; `hold` renews that lock.
    """
    checks, managed = SubscriptionChecks(redis), ManagedStore(config, store, redis)
    before = checks.last_results([store]).get(store)
    plan = managed.plan(handlers, locked=True, by_itself=True)
    managed.end_orphaned_secrets(plan, hold=hold)
    known = known_names(before)
    choice = choose(
        plan,
        trouble=before.trouble if before else {},
        gone=lambda change: _gone_for(handlers, change, store),
        now=time.time(),
        max_repairs_per_day=config.subscriptions.max_repairs_per_day,
        prune_after=config.subscriptions.prune_after,
        known=known,
    )
    last = checks.last_deliveries(store)  # before new deliveries can arrive
    choice, probe_ms = _probe_before_repairs(managed, choice, known)
    results = list(apply_changes(managed, choice.make, hold=hold))
    repaired = [result.change for result in results if not result.error and is_repair(result.change, known)]
    for change in repaired:
        last_at = last.get(change.theirs)
        repair = Repair(store, change.topic, change.theirs, change.action, time.time(), last_at, probe_ms)
        retry_redis(partial(checks.record_repair, repair))
        gap = span(repair.gap) if repair.gap is not None else "unknown"
        log.warning("subscription repaired", store=store, topic=change.topic, action=change.action, gap=gap)
    if managed.keyring.seal:
        managed.keyring.remove_ended(store)
    names = [change.theirs for change in repaired]
    return check_result(plan, results, before=before, postponed=choice.postponed, repaired=names)


def _gone_for(handlers: Handlers, change: Change, store: str) -> float | None:
    since = handlers.gone(change.topic, store)
    return None if since is None else time.time() - since.timestamp()


def _probe_before_repairs(managed: ManagedStore, choice: Choice, known: Collection[str]) -> tuple[Choice, float | None]:
    """Postpone repairs unless our own URL accepts a signed event; also returns how long that took.

    Without an active secret nothing can be signed. A subscription is then created all the same: it brings a secret.
    """
    repairs = [change for change in choice.make if is_repair(change, known)]
    if not repairs:
        return choice, None
    try:
        took = probe(managed.with_secrets(), managed.redis, network=managed.config.network)
        return choice, round(took * 1000, 1)
    except ProbeFailed as error:
        log.warning("not repaired: our own URL does not accept a signed event", store=managed.name, why=error.logged)
        held = [change for change in repairs if change.action == "enable" or not isinstance(error, NoActiveSecret)]
        make = tuple(change for change in choice.make if change not in held)
        return Choice(make, (*choice.postponed, *((change, str(error)) for change in held))), None


class SubscriptionCheck:
    """Checks the stores that are due, several at a time, until its process ends. Any number of processes may run it."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._redis = connect_to(config().redis, timeout=max(config().redis.timeout, 2.0))
        self._checks = SubscriptionChecks(self._redis)
        self._busy: set[str] = set()
        self._last_config: Config | None = None
        self._outage = logs.OutageLog(
            log, begins="subscription checks are not possible now", ends="subscription checks are possible again"
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription check", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within: float = 5.0) -> None:
        """Start no more checks, and wait a while for those that run. The next check completes one that is cut off."""
        self._stopping.set()
        deadline = time.monotonic() + within
        self._thread.join(within)
        while self._busy and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        pause = ROUND_EVERY
        while not self._stopping.wait(pause):
            try:
                pause = BUSY_ROUND_EVERY if self.round() else ROUND_EVERY
                self._outage.worked()
            except Exception as error:  # noqa: BLE001  Redis or the disk may fail: the thread goes on
                self._outage.failed(why=reason_of(error))
                pause = ROUND_EVERY

    def round(self) -> int:
        """Start the checks that are due, up to the limit; returns the number of stores being checked."""
        config = self._config()
        stores = [name for name in config.stores if is_managed(config, name)]
        if not stores or not config.subscriptions.check:
            return 0
        if config.secrets.key.get_secret_value():
            with suppress(KeyringUnwritable):  # each check reports it
                keyring_of(config, self._redis).store_pending()
        if config is not self._last_config:
            for store, last in self._checks.last_results(stores).items():
                if url_has_changed(config, last):  # its subscriptions are for a URL that may not answer any more
                    self._checks.check_again_in(store, 0)
            self._last_config = config
        free = STORES_AT_ONCE - len(self._busy)
        due = self._checks.due(stores, every=config.subscriptions.check, most=free) if free else []
        handlers = declared_handlers(self._redis) if due else Handlers()
        for store in due:
            self._busy.add(store)
            checking = threading.Thread(target=self._check_and_reschedule, args=(config, store, handlers), daemon=True)
            try:
                checking.start()
            except RuntimeError:  # a limit of threads
                self._busy.discard(store)
                raise
        return len(self._busy)

    def _check_and_reschedule(self, config: Config, store: str, handlers: Handlers) -> None:
        try:
            again = self._check(config, store, handlers)
            if again is not None:
                self._checks.check_again_in(store, again)
        except RedisError:
            log.info("the next check was not scheduled; it is due when this one's time is over", store=store)
        finally:
            self._busy.discard(store)

    def _require_current(self, config: Config, store: str) -> None:
        """Raise StoreLocked if the config was reloaded: a check under the old one would subscribe a former URL."""
        if self._config() is not config:
            raise StoreLocked(f"{store}: the config was reloaded; its subscriptions are checked again soon")

    def _check(self, config: Config, store: str, handlers: Handlers) -> float | None:
        """Check one store; returns the seconds until its next check, or None if the store was removed."""
        again = config.subscriptions.check
        try:
            with self._checks.lock(store) as extend_lock:
                if store in self._checks.removed():  # after this check was scheduled
                    return None

                def hold() -> None:
                    self._require_current(config, store)
                    extend_lock()

                checked = check(config, store, self._redis, handlers, hold=hold)
                self._require_current(config, store)
                self._checks.store_result(checked)
            return min(again, RETRY_AFTER) if checked.unknown or self._has_left_notice(store) else again
        except StoreLocked:
            return min(again, BUSY_MS / 1000)
        except (StorehooksError, RedisError) as error:  # its message may quote the store, and contain a secret
            log.warning("subscription check failed", store=store, why=type(error).__name__)
            self._store_failure(store, error)
            return min(again, RETRY_AFTER)
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the schedule of the store
            log.error("subscription check failed unexpectedly", store=store, why=type(error).__name__)
            self._store_failure(store, error)
            return min(again, RETRY_AFTER) if self._has_left_notice(store) else again

    def _has_left_notice(self, store: str) -> bool:
        """Whether this check has itself lost a secret, for example with a response: the notice expires in minutes."""
        mark = mark_of(self._redis, store)
        return mark is not None and subscriptions_in(mark) is None

    def _store_failure(self, store: str, error: Exception) -> None:
        """For `doctor` and `subscriptions`, which would go on to show the result of an earlier check."""
        if isinstance(error, RedisError):
            return
        told = str(error) if isinstance(error, KeyringUnwritable) else f"the check failed: {type(error).__name__}"
        with suppress(StoreLocked, RedisError), self._checks.lock(store):  # the next check stores its own result
            if store not in self._checks.removed():
                before = self._checks.last_results([store]).get(store)
                self._checks.store_result(unknown_result(store, told, before=before))
