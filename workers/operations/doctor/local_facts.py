"""Facts from the Redis server, the plugins and this host's disk."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from receiver.config import SANDBOX_SECRET, Config
from receiver.contract.errors import PluginError
from receiver.inbox import Administration, EventQueries, FailureQueries, Inbox, connect_to, keys
from receiver.inbox.alert_store import AlertStore
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.keyring.learned_secrets import count_valid
from receiver.inbox.known_data import data_notices
from receiver.inbox.own_writes import suspected_loops
from receiver.inbox.queries.damage import PartialReader
from receiver.inbox.queries.damaged_keys import find_damaged_keys
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import DAY, HealthQueries
from receiver.inbox.redis.connecting import OLDEST_VERSION, default_user_denied, missing_right, server_ms
from receiver.inbox.redis.server_faults import describe, fault_of_error
from receiver.inbox.redis.server_state import read_state
from receiver.inbox.subscription_checks import SubscriptionChecks
from receiver.process.disk_try import HANGS, disk_error
from receiver.process.start_checks import open_to_others
from receiver.spool import Refusals, StoreRefusals, open_existing_refusals
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryElsewhere, HistoryError
from workers.operations.doctor.facts import HostFacts, InboxFacts, PluginFacts, ServerFacts
from workers.operations.host_spools import find_hosts, is_web_running, read_spool, write_refusal
from workers.operations.release import ReleaseCheck, sent_again
from workers.plugins.validation_process import ValidationProcess
from workers.processes import wait_for_exit
from workers.storeapi.confirmations import unconfirmed_operations
from workers.subscriptions.managed_store import keyring_of

SERVER_SECONDS = 2.0
READERS = 16
"""Threads that read the inbox. One after the other would take dozens of round trips."""
UNMOVED_SECONDS = 900.0
"""A settled event that is in Redis for this much longer than `[history] after` counts as not moved."""
HOUSEKEEPER_SECONDS = 1.5
"""Within this time another housekeeper takes over from one that died."""
REVERIFIED_PER_STORE = 20
"""Maximum number of a store's refused deliveries that are verified again."""
REVERIFIED_STORES = 50
SANDBOX_SECRETS = (SANDBOX_SECRET, "sandbox-secret")
"""Published with the product, so a file that contains them exposes nothing."""
_SAID_OTHERWISE = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of a disk for which there are other facts."""


def client_for(config: Config) -> Redis:
    return connect_to(config.redis, timeout=SERVER_SECONDS)


# The server


def server_facts(client: Redis) -> ServerFacts:
    address = describe(client)
    try:
        round_trip, ahead = min(_round_trip(client) for _ in range(3))  # the first one also connects
        state, refusal = read_state(client), ""
        if not state.fault and state.version[:2] >= OLDEST_VERSION:  # an old one lacks commands, too
            state = replace(state, fault=missing_right(client, works=True))
            refusal = "" if state.fault else write_refusal(client)
        return ServerFacts(
            address=address,
            clock_ahead=ahead,
            round_trip=round_trip,
            refusal=refusal,
            default_denied=default_user_denied(client),
            **vars(state),
        )
    except RedisError as error:
        return ServerFacts(address=address, fault=fault_of_error(error, client))


def _round_trip(client: Redis) -> tuple[float, float]:
    """Seconds from a command to its answer, and by how many the server's clock is ahead."""
    before = time.time()
    at, after = server_ms(client) / 1000, time.time()
    return after - before, at - (before + after) / 2


# The inbox


def inbox_facts(client: PartialReader, config: Config) -> InboxFacts:
    """A damaged key is read as if it did not exist, and is a fact of its own."""
    events, activity, handlers = EventQueries(client), HealthQueries(client), HandlerQueries(client)
    checks, stores = SubscriptionChecks(client), list(config.stores)
    with ThreadPoolExecutor(READERS) as readers:
        ask = readers.submit
        counters = ask(events.counters)
        has_history, after = config.history_url != "off", config.history.after
        recent = min(DAY, after) if has_history else DAY  # those that settled before may have left Redis
        footprint = ask(lambda: activity.footprint(counters.result().stores, recent=recent))
        history = HistoryMoves(client)
        moves, unmoved = ask(history.report), ask(history.waiting, age=after + UNMOVED_SECONDS)
        elsewhere = ask(_history_elsewhere, client, config)
        housekeeper, workers = ask(_housekeeper, activity), ask(activity.workers)
        notices, loops = ask(data_notices, client), ask(suspected_loops, client)
        alerts = ask(AlertStore(client).firing)
        failures = FailureQueries(client)
        groups, hosts = ask(lambda: list(failures.every_group())), ask(find_hosts, config, client)
        ending = ask(failures.ending, kept=config.failures_kept)
        stopped = ask(lambda: failures.stopped_keys(groups.result()))
        declared = ask(Inbox(client).declarations)
        running, absent, busy = ask(handlers.running_versions), ask(handlers.absent), ask(handlers.busy_limits)
        other_workers, quarantined = ask(activity.other_workers), ask(activity.quarantined)
        last_events, paused = ask(activity.last_events, stores), ask(Administration(client).paused)
        checked, removed = ask(checks.last_results, stores), ask(checks.removed)
        unconfirmed = ask(unconfirmed_operations, client, config.stores)
        learned = ask(keyring_of(config, client).sealed, stores)
        topic_names = dict(zip(stores, readers.map(events.event_names, stores), strict=True))
    return InboxFacts(
        counters=counters.result(),
        topic_names=topic_names,
        last_events=last_events.result(),
        declared=declared.result().handlers,
        running=running.result(),
        absent=absent.result(),
        busy=busy.result(),
        alerts=tuple(alerts.result()),
        workers=tuple(workers.result()),
        other_workers=tuple(other_workers.result()),
        housekeeper=housekeeper.result(),
        paused=frozenset(paused.result()),
        hosts=tuple(hosts.result()),
        data_notices=notices.result(),
        failed=sum(group.failed for group in groups.result()),
        unreadable=sum(group.failed for group in groups.result() if group.handler == keys.INTAKE),
        ending=ending.result(),
        retrying=sum(group.retrying for group in groups.result()),
        quarantined=quarantined.result(),
        loops=tuple(loops.result()),
        stopped=tuple(stopped.result()),
        footprint=footprint.result(),
        unconfirmed=unconfirmed.result(),
        checked=checked.result(),
        removed=frozenset(removed.result()),
        learned={store: count_valid(secrets, time.time()) for store, secrets in learned.result().items()},
        moves=moves.result() if has_history else None,
        unmoved=unmoved.result() if has_history else 0,
        history_elsewhere=elsewhere.result(),
        damaged=tuple(find_damaged_keys(client, config.stores)),  # last: it also returns what the others have found
    )


def _history_elsewhere(client: PartialReader, config: Config) -> str:
    """Only SQLite's files belong to one host. Any other fault is the mover's to report: it may be this user's alone."""
    try:
        if config.history_url == "sqlite" and (history := open_history(config, client)):
            history.events(())
    except HistoryError as error:
        return str(error) if isinstance(error, HistoryElsewhere) else ""
    return ""


def _housekeeper(activity: HealthQueries) -> str:
    deadline = time.monotonic() + HOUSEKEEPER_SECONDS
    while not (name := activity.housekeeper()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return name


# The plugins


def plugin_facts(validation: ValidationProcess, deadline: float) -> PluginFacts:
    """The result of a validation process that was started before. At the deadline it is abandoned."""
    if not wait_for_exit(validation.fileno(), max(0.0, deadline - time.monotonic())):
        validation.kill()
        return PluginFacts(is_late=True)
    try:
        found = validation.result()
        return PluginFacts(tuple(found.handlers), left_out=found.left_out)
    except PluginError as error:
        return PluginFacts(fault=str(error))


# The disk


def host_facts(config: Config, last_events: Mapping[str, datetime], client: Redis | None) -> HostFacts:
    """`client` is None if the inbox cannot be read."""
    folder = config.data_dir
    error = disk_error(folder)
    if error and error.errno == HANGS:  # nothing below would be answered; web may well run
        return HostFacts(str(folder), writable=True, free=0, hangs=True, web_runs=True)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if error and error.errno == errno.ENOENT:  # no data directory yet
        error = disk_error(existing)
    disk = os.statvfs(existing)
    facts = HostFacts(
        str(folder),
        os.access(existing, os.W_OK | os.X_OK),
        disk.f_bavail * disk.f_frsize,
        disk.f_favail if disk.f_files else None,
        (error.strerror or str(error)) if error and error.errno not in _SAID_OTHERWISE else "",
        # By a write: the flags of the mount do not show a disk that became read-only after an error.
        read_only=error is not None and error.errno == errno.EROFS,
        exposed=tuple(_exposed(config)),
        open_to_others=tuple(map(str, open_to_others(folder))),
        web_runs=is_web_running(folder),
        history_files=len(list((folder / "history").glob("*.sqlite"))),
    )
    try:
        refusals = open_existing_refusals(folder)
        besides = _sent_again(config, refusals, client) if client else set()
        refused = tuple(refusals.by_store(besides=besides))
        now_valid = {of.store: _now_valid(config, refusals, of, besides) for of in refused[:REVERIFIED_STORES]}
        after = refused_after(refusals, config.stores, last_events, besides)
        facts = replace(facts, refused=refused, now_valid=now_valid, refused_after=after)
    except (sqlite3.Error, OSError) as error:
        facts = replace(facts, refused_fault=str(error))
    try:
        return replace(facts, spooled=read_spool(folder)[0])
    except (sqlite3.Error, OSError) as error:
        return replace(facts, spool_fault=str(error))


def _sent_again(config: Config, refusals: Refusals, client: Redis) -> set[int]:
    try:
        return sent_again(refusals, ReleaseCheck(config), Inbox(client))
    except RedisError:  # then all are reported
        return set()


def refused_after(
    refusals: Refusals, stores: Iterable[str], last_events: Mapping[str, datetime], besides: Iterable[int] = ()
) -> dict[str, tuple[int, float]]:
    last = {store: at.timestamp() for store, at in last_events.items()}
    return {store: refusals.after(store, last.get(store, 0.0), besides=besides) for store in stores}


def _exposed(config: Config) -> Iterator[str]:
    keys = [("secrets", "key"), ("redis", "url"), ("redis", "sentinel_password"), ("history", "url")]
    places = [config.place(*key) for key in (*(("stores", name) for name in config.stores), *keys)]
    for file in sorted({place.source for place in places if place and place.line}):
        path = Path(file)
        with suppress(OSError, ValueError):  # removed or changed since it was loaded
            if path.stat().st_mode & 0o004 and any(_secrets_in(tomllib.loads(path.read_text()))):
                yield file


def _secrets_in(data: Mapping[str, Any]) -> Iterator[str]:
    """Secrets that are written in the file itself, apart from the sandbox's."""
    redis = data.get("redis", {})
    urls = [data.get(table, {}).get("url") for table in ("redis", "history")]
    passwords = (urlsplit(url).password for url in urls if isinstance(url, str))
    for value in (data.get("secrets", {}).get("key"), redis.get("sentinel_password"), *passwords):
        if value and not str(value).startswith(("env:", "file:")):
            yield value
    for store in data.get("stores", {}).values():
        signing = [item.get("value") if isinstance(item, dict) else item for item in store.get("signing_secrets", ())]
        auth = store.get("auth", {})
        for value in (*signing, auth.get("client_secret"), auth.get("token")):
            if value and not str(value).startswith(("env:", "file:")) and value not in SANDBOX_SECRETS:
                yield value


def _now_valid(config: Config, refusals: Refusals, of: StoreRefusals, besides: set[int]) -> tuple[int, int]:
    """How many of the newest refused deliveries were verified again, and how many are valid by now."""
    release_check = ReleaseCheck(config)
    newest = refusals.newest(store=of.store, limit=REVERIFIED_PER_STORE + len(besides))
    lines = [line.id for line in newest if line.id not in besides][:REVERIFIED_PER_STORE]
    stored = [one for one in map(refusals.get, lines) if one and one.has_body and one.name == of.store]
    return len(stored), sum(map(release_check.is_valid, stored))
