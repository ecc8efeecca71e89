"""Gather: facts from the server, the plugins and this host's disk. It judges nothing."""

from __future__ import annotations

import os
import sqlite3
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from receiver.config import SANDBOX_SECRET, Config
from receiver.contract.errors import DeliveryRefused, PluginError
from receiver.contract.stores import Store
from receiver.inbox import Administration, EventQueries, FailureQueries, Inbox, connect_to
from receiver.inbox.keyring.learned_secrets import with_local_secrets
from receiver.inbox.queries.activity import ActivityQueries
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.redis.connecting import describe
from receiver.inbox.subscription_checks import SubscriptionChecks
from receiver.spool import FILE, Refusals, RefusedOf, look_at_refusals, open_events
from workers.operations.doctor.facts import HostFacts, InboxFacts, PluginFacts, ServerFacts
from workers.operations.release import ReleaseCheck as Again
from workers.plugins.loading import ValidationProcess
from workers.storeapi.confirmations import unconfirmed_operations
from workers.subscriptions.apply import keyring_of

SERVER_SECONDS = 2.0
HOUSEKEEPER_SECONDS = 1.5
"""One that died is followed by another within this time."""
LOOK_AT = 20
"""So many of a store's refused deliveries are judged again."""
STORES_LOOKED_AT = 50
PUBLIC = (SANDBOX_SECRET, "sandbox-secret")


def client_for(config: Config) -> Redis:
    return connect_to(config.redis, timeout=SERVER_SECONDS)


# The server


def server_facts(client: Redis) -> ServerFacts:
    where = describe(client)
    try:
        before = time.time()
        seconds, micros = client.time()
        ahead = seconds + micros / 1e6 - (before + time.time()) / 2
        info: Mapping[str, Any] = client.info()
        told = {name: _setting(client, name) for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    except RedisError as error:
        return ServerFacts(where, fault=str(error) or type(error).__name__)
    version, valkey = str(info.get("redis_version", "0")), info.get("valkey_version")
    return ServerFacts(
        where=where,
        name=f"Valkey {valkey}" if valkey else f"Redis {version}",
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        appendonly=told["appendonly"] or ("yes" if info.get("aof_enabled") else ""),
        appendfsync=told["appendfsync"],
        policy=told["maxmemory-policy"] or str(info.get("maxmemory_policy", "")),
        used=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        machine=int(info.get("total_system_memory", 0)),
        role=str(info.get("role", "master")),
        replicas=int(info.get("connected_slaves", 0)),
        write_fault=_write_fault(info),
        ahead=ahead,
    )


def _setting(client: Redis, name: str) -> str:
    """Empty where the server will not tell, as hosted ones do."""
    try:
        return str(client.config_get(name).get(name, ""))
    except ResponseError:
        return ""


def _write_fault(info: Mapping[str, Any]) -> str:
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        return "its append-only file could not be written"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "its last snapshot failed, and by default it refuses writes then"
    return "it is still loading its data" if info.get("loading") else ""


# The inbox


def inbox_facts(client: Redis, config: Config) -> InboxFacts:
    inbox, ledger, pulse = Inbox(client), EventQueries(client), ActivityQueries(client)
    groups = FailureQueries(client).groups()
    return InboxFacts(
        counters=ledger.counters(),
        names={store: ledger.names(store) for store in config.stores},
        last_events=pulse.last_events(config.stores),
        declared=inbox.declarations().handlers,
        absent=HandlerQueries(client).absent(),
        workers=tuple(pulse.workers()),
        housekeeper=_housekeeper(pulse),
        paused=frozenset(Administration(client).paused()),
        spools=ledger.spools(),
        failed=sum(group.failed for group in groups),
        retrying=sum(group.retrying for group in groups),
        set_aside=pulse.set_aside(),
        footprint=pulse.footprint(),
        unconfirmed=unconfirmed_operations(client, config.stores),
        checked=SubscriptionChecks(client).last(list(config.stores)),
        removed=frozenset(SubscriptionChecks(client).removed()),
        learned={store: len(found) for store, found in keyring_of(config, client).sealed(list(config.stores)).items()},
    )


def _housekeeper(pulse: ActivityQueries) -> str:
    deadline = time.monotonic() + HOUSEKEEPER_SECONDS
    while not (found := pulse.housekeeper()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


# The plugins


def plugin_facts(judge: ValidationProcess, until: float) -> PluginFacts:
    """The verdict of a judge that was started before; one that takes too long is given up."""
    try:
        return PluginFacts(tuple(judge.verdict(within=max(0.0, until - time.monotonic()))))
    except PluginError as error:
        return PluginFacts(fault=str(error))


# The disk


def host_facts(config: Config) -> HostFacts:
    folder = config.data_dir
    there = _nearest_folder(folder)
    disk = os.statvfs(there)
    writable = os.access(there, os.W_OK | os.X_OK)
    facts = HostFacts(str(folder), writable, disk.f_bavail * disk.f_frsize, exposed=tuple(_exposed(config)))
    if not (folder / FILE).exists():
        return facts
    try:
        refusals = look_at_refusals(folder)
        refused = tuple(refusals.by_store())
        fitting = {one.store: _fitting(config, refusals, one) for one in refused[:STORES_LOOKED_AT]}
        return replace(facts, refused=refused, fitting=fitting, spooled=_spooled(folder))
    except (sqlite3.Error, OSError) as error:
        return replace(facts, spool_fault=str(error))


def _exposed(config: Config) -> Iterator[str]:
    keys = [("secrets", "key"), ("redis", "url"), ("redis", "sentinel_password")]
    places = [config.place(*key) for key in (*(("stores", name) for name in config.stores), *keys)]
    for file in sorted({place.source for place in places if place and place.line}):
        path = Path(file)
        with suppress(OSError, ValueError):  # gone, or changed, since it was loaded
            if path.stat().st_mode & 0o044 and any(_secrets_in(tomllib.loads(path.read_text()))):
                yield file


def _secrets_in(data: Mapping[str, Any]) -> Iterator[str]:
    """Secrets that stand in the file itself; the sandbox's are everybody's."""
    redis = data.get("redis", {})
    for value in (data.get("secrets", {}).get("key"), redis.get("sentinel_password"), _password_in(redis.get("url"))):
        if value and not str(value).startswith(("env:", "file:")):
            yield value
    for store in data.get("stores", {}).values():
        given = [one.get("value") if isinstance(one, dict) else one for one in store.get("signing_secrets", ())]
        auth = store.get("auth", {})
        for value in (*given, auth.get("client_secret"), auth.get("token")):
            if value and not str(value).startswith(("env:", "file:")) and value not in PUBLIC:
                yield value


def _password_in(url: Any) -> str | None:
    return urlsplit(url).password if isinstance(url, str) else None


def _nearest_folder(folder: Path) -> Path:
    """The data directory, or where it would be made."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def _spooled(folder: Path) -> int:
    events = open_events(folder)
    try:
        return events.count()
    finally:
        events.close()


def _known_stores(config: Config) -> Mapping[str, Store]:
    """With what this host has learned from them."""
    key = config.secrets.key.get_secret_value()
    return with_local_secrets(config.known_stores, config.data_dir, key) if key else config.known_stores


def _fitting(config: Config, refusals: Refusals, of: RefusedOf) -> tuple[int, int]:
    """How many of the newest refused deliveries were looked at, and how many of them fit by now."""
    again, looked, fit = Again(config, _known_stores(config)), 0, 0
    for line in refusals.newest(store=of.store, limit=LOOK_AT):
        whole = refusals.get(line.id) if line.kept else None
        if whole is None or whole.name != of.store:
            continue
        looked += 1
        try:
            again.judge(whole)
            fit += 1
        except DeliveryRefused:
            pass
    return looked, fit
