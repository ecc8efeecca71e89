"""Checks of the installation: config, server, memory, disk, spool, public URLs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlsplit

from receiver.config import Config
from receiver.config.values import LOOPBACK
from receiver.inbox.redis.connecting import OLDEST_VERSION
from receiver.inbox.redis.server_faults import ServerFault
from workers.formatting import clock, counted, size, span
from workers.operations.doctor.facts import Facts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.operations.host_spools import Host

MAX_SERVER_SKEW_SECONDS = 5.0
HIGH_MEMORY = 0.85
"""Above this fraction of maxmemory the receiver spools, so that workers can still write."""
DAY = 86400.0
SOON = 3 * DAY
MINIMUM_SPAN, MINIMUM_EVENTS = 600.0, 50
"""With a shorter history or fewer events there is no forecast."""
MINIMUM_FREE_DISK = 32 << 20
"""With less free space the spool stores nothing."""
LONGER = "run with a longer timeout: --timeout 1m"
DRAIN_SECONDS = 60.0
"""Within this time the spool normally drains."""


def _at(config: Config, *key: str) -> str:
    """Where a value is set, in brackets; empty if it is a default."""
    place = config.place(*key)
    return f" ({place})" if place else ""


# Config


def check_config(facts: Facts) -> Iterator[Finding]:
    config = facts.config
    problems = [*_no_stores(config), *_public_url(config), *_exposed_files(facts)]
    resolved = sum(len(store.signing_secrets) for store in config.stores.values())
    resolved += sum(bool(store.auth.client_secret.get_secret_value()) for store in config.stores.values())
    resolved += sum(bool(store.auth.token.get_secret_value()) for store in config.stores.values())
    if not problems:
        yield ok("config", f"no unknown keys, {counted(resolved, 'secret')} resolved")
    yield from problems


def _no_stores(config: Config) -> Iterator[Finding]:
    if not config.stores:
        yield fail("config", "no store is configured: every delivery is refused", fix="storehooks stores add NAME")


def _exposed_files(facts: Facts) -> Iterator[Finding]:
    for file in facts.host.exposed:
        text = f"{file} contains secrets and is readable by other users of this machine"
        yield warn("config", text, fix=f"chmod 600 {file}, or replace the secrets by env:NAME or file:PATH")


def _public_url(config: Config) -> Iterator[Finding]:
    public, host = urlsplit(config.receiver.public_url), config.receiver.bind.rpartition(":")[0].strip("[]")
    where = config.place("receiver", "public_url") or config.path
    if public.hostname not in LOOPBACK:
        if public.scheme != "https":
            yield warn(
                "config",
                f"public_url is {public.scheme}: deliveries can be read and replayed on the network",
                fix=f"put a TLS proxy in front and set public_url to https:// ({where})",
            )
        return
    remote = sorted(
        name for name, store in config.stores.items() if store.base_url and not _is_loopback(store.base_url)
    )
    if remote or host not in LOOPBACK:
        why = f"the store {remote[0]} cannot reach it" if remote else f"the receiver listens on {host}"
        yield fail(
            "config",
            f"public_url {config.receiver.public_url} is a loopback address, and {why}",
            fix=f"set public_url to the address that stores send to ({where})",
        )


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


# The server


def check_server(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if server.fault:
        fix = f"{server.fault.fix}{_at(facts.config, 'redis', 'url')}"
        yield fail("server", server.fault.text, _effect_of(server.fault, facts), fix=fix)
        return
    problems = [*_version(server), *_durability(facts), *_eviction(server), *_writes(facts), *_clock_skew(server)]
    if not problems:
        yield ok("server", _describe(server))
    yield from problems


def _effect_of(fault: ServerFault, facts: Facts) -> str:
    if fault.only_workers:
        return "workers do not start, so do not restart them; those that run find new events late"
    if not _uses_spool(facts):
        return "every delivery is answered 503"
    if not fault.temporary:
        effect = "a web process that runs already stores deliveries in the spool"
        return f"web and worker do not start, so do not restart them; {effect}"
    return "deliveries wait in the spool, and no handler runs"


def _blocking_row(facts: Facts) -> str:
    """The row that says why the inbox takes no delivery now; empty if none does."""
    server = facts.server
    no_replica = facts.config.redis.ack == "replica" and not server.replicas
    if server.fault or no_replica or any(_writes(facts)):
        return "server"
    return "memory" if _is_nearly_full(server) else ""


def _uses_spool(facts: Facts) -> bool:
    return facts.config.receiver.spool == "on"


def _describe(server: ServerFacts) -> str:
    durability = f"appendfsync {server.appendfsync or '?'}" if server.appendonly == "yes" else "appendonly no"
    return f"{server.name}, {durability}"


def _version(server: ServerFacts) -> Iterator[Finding]:
    if server.version[:2] < OLDEST_VERSION:
        yield fail("server", f"{server.name} is too old", fix="upgrade to Redis 7.0 or Valkey 7.2, or later")


def _durability(facts: Facts) -> Iterator[Finding]:
    server, ack = facts.server, facts.config.redis.ack
    place = _at(facts.config, "redis", "ack")
    if server.appendonly != "yes":
        risk = "a restart of the server loses every event since its last snapshot"
    elif server.appendfsync != "always":
        risk = "a power cut may lose the last second of accepted events"
    else:
        if ack == "replica" and not server.replicas and server.role == "master":
            yield fail(
                "server",
                f'{server.name}, ack = "replica", and no replica is connected: every delivery goes to the spool',
                fix=f'connect a replica, or set ack = "fsync"{place}',
            )
        return
    fix = "CONFIG SET appendonly yes and CONFIG SET appendfsync always, and the same in its config file"
    if not server.appendfsync:
        text = f"{_describe(server)}: the server does not allow reading its settings"
        yield warn("server", text, fix=f"check at the provider that both are set: {fix}")
    elif ack == "stored":
        yield warn("server", _describe(server), risk, fix=fix)
    else:
        yield fail(
            "server",
            f'{_describe(server)}, and ack = "{ack}"{place}: web and worker refuse to start',
            risk,
            fix=fix,
        )


def _eviction(server: ServerFacts) -> Iterator[Finding]:
    policy = server.maxmemory_policy
    fix = "CONFIG SET maxmemory-policy noeviction, and the same in its config file"
    if policy.startswith("allkeys"):
        yield fail("server", f"maxmemory-policy is {policy}: the server deletes events when memory is short", fix=fix)
    elif policy.startswith("volatile"):
        yield warn("server", f"maxmemory-policy is {policy}: duplicate marks may be deleted too early", fix=fix)


def _writes(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if server.role != "master":
        text = f"{server.address} is a replica and refuses writes"
        yield fail("server", text, fix=f"set the primary's address{_at(facts.config, 'redis', 'url')}")
    if server.write_fault:
        yield fail("server", f"{server.name}: {server.write_fault}", fix="check the server's log and its disk now")


def _clock_skew(server: ServerFacts) -> Iterator[Finding]:
    if abs(server.clock_ahead) > MAX_SERVER_SKEW_SECONDS:
        way = "ahead of" if server.clock_ahead > 0 else "behind"
        yield warn(
            "clock",
            f"the server's clock is {span(abs(server.clock_ahead))} {way} this machine's",
            "arrival times and retention are wrong by that much",
            fix="run NTP (chrony, systemd-timesyncd) on both machines",
        )


# Memory


def check_memory(facts: Facts) -> Iterator[Finding]:
    """Memory in use, and a forecast for the current rate of events and the configured retention."""
    if facts.inbox is None:
        return
    server, footprint = facts.server, facts.inbox.footprint
    limit = server.maxmemory or server.machine_memory
    usage = f"{size(server.used_memory)} of {size(limit)}" if limit else size(server.used_memory)
    usage += "" if server.maxmemory else " (the machine's memory; maxmemory is not set)"
    if _is_nearly_full(server):
        yield fail("memory", f"{usage} used: new deliveries go to the spool", fix=_less_memory(facts))
        return
    if footprint.seconds < MINIMUM_SPAN or sum(footprint.lately.values()) < MINIMUM_EVENTS:
        yield ok("memory", f"{usage}, {counted(footprint.events, 'event')}; too few recent events for a forecast")
        return
    yield _forecast(facts, limit, usage)


def _is_nearly_full(server: ServerFacts) -> bool:
    return bool(server.maxmemory) and server.used_memory > HIGH_MEMORY * server.maxmemory


def _forecast(facts: Facts, limit: int, usage: str) -> Finding:
    assert facts.inbox is not None
    footprint = facts.inbox.footprint
    events_per_day = sum(footprint.lately.values()) / footprint.seconds * DAY
    each = footprint.record + footprint.body + footprint.once
    rate = f"{counted(round(events_per_day), 'event')} a day of {size(each)}"
    final = final_size(facts)
    if final <= HIGH_MEMORY * limit:
        return ok("memory", f"{usage}; {rate} will need {size(final)}")
    full_in = max(0.0, HIGH_MEMORY * limit - facts.server.used_memory) / (events_per_day * each) * DAY
    text = f"{usage}; {rate} will fill it in {span(full_in)} and need {size(final)} in the end"
    effect = "then new deliveries go to the spool" if facts.server.maxmemory else "then the machine is out of memory"
    level = fail if full_in < SOON else warn
    return level("memory", text, effect, fix=_less_memory(facts))


def final_size(facts: Facts) -> float:
    """Bytes that events need once retention removes as many as arrive.

    No record is removed inside the duplicate window, not even above `events_per_store`; failures are not counted.
    """
    assert facts.inbox is not None
    footprint, retention, window = facts.inbox.footprint, facts.config.retention, facts.config.receiver.dedupe_retention
    total = 0.0
    for events in footprint.lately.values():
        rate = events / footprint.seconds
        records = max(rate * window, min(rate * retention.records, retention.events_per_store))
        bodies, marks = min(rate * retention.bodies, records), min(rate * retention.once, records)
        total += records * footprint.record + bodies * footprint.body + marks * footprint.once
    return total


def _less_memory(facts: Facts) -> str:
    receiver = facts.config.receiver
    keys = "[receiver] dedupe_window" + (" plus spool_age" if _uses_spool(facts) else "")
    kept = f"no record is removed before {span(receiver.dedupe_retention)}, which is {keys}"
    return f"raise maxmemory, or shorten [retention] bodies or records; {kept}"


# Disk and spool


def check_disk(facts: Facts) -> Iterator[Finding]:
    host, place = facts.host, f"[redis] data_dir{_at(facts.config, 'redis', 'data_dir')}"
    if host.open_to_others:
        first, more = host.open_to_others[-1], len(host.open_to_others) - 1
        text = f"other users of this machine can open {first}{f' and {more} more' if more else ''}"
        fix = f"chmod go= {shlex.join(host.open_to_others)}, or set {place} to a folder that only storehooks uses"
        yield warn("disk", text, "it contains payloads of stores or secrets", fix=fix)
    if host.read_only:
        text = f"the disk of {host.data_dir} is read-only: if the server is unreachable, every delivery is answered 503"
        yield fail("disk", text, fix="mount it writable; the kernel's log says why it is read-only")
    elif not host.writable:
        yield fail("disk", f"{host.data_dir} is not writable for this user", fix=f"change its owner, or {place}")
    elif _uses_spool(facts) and host.free < MINIMUM_FREE_DISK:
        text = (
            f"{size(host.free)} free at {host.data_dir}: if the server is unreachable, every delivery is answered 503"
        )
        yield fail("disk", text, fix=f"free disk space, or change {place}")
    elif host.spool_fault:
        text = f"a file of the spool in {host.data_dir} is not readable: {host.spool_fault}"
        fix = (
            "check its owner and the disk; do not remove it, because it may contain accepted deliveries. If its name "
            "says that it is damaged, recover them with `sqlite3 FILE .recover`, and move it away"
        )
        yield fail("disk", text, fix=fix)
    elif _uses_spool(facts) and host.free < facts.config.receiver.spool_bytes:
        limit = size(facts.config.receiver.spool_bytes)
        text = f"{size(host.free)} free at {host.data_dir}, and the spool may need {limit}"
        yield warn("disk", text, fix="free disk space, or lower [receiver] spool_bytes")
    else:
        yield ok("disk", f"{size(host.free)} free at {host.data_dir}")


def check_spool(facts: Facts) -> Iterator[Finding]:
    """Deliveries that were accepted into the spool and are not in the inbox yet."""
    if facts.inbox is None:
        if facts.host.spooled:
            text = f"{_accepted(facts.host.spooled)} in the spool of this host, waiting for the server"
            yield fail(
                "spool", text, "nothing is lost; they are stored when the server is back", fix="see server above"
            )
        return
    for host in facts.inbox.hosts:
        yield from _spool_of(host, facts.now, _blocking_row(facts))


def _spool_of(host: Host, now: datetime, blocking_row: str) -> Iterator[Finding]:
    if host.state == "silent":
        yield _silent_host(host, now)
    elif host.spooled is None:
        text = f"{host.name} cannot read all of its spool, so it is unknown what waits there"
        yield fail("spool", text, fix=f"see the log of `storehooks web` on {host.name} for the cause")
    elif host.spooled and host.state == "stopped":
        text = f"{_accepted(host.spooled)} in the spool of {host.name}, where `storehooks web` is not running"
        yield fail("spool", text, fix=f"start `storehooks web` on {host.name}, or where its data directory is now")
    elif host.spooled and (blocking_row or (now - (host.oldest or now)).total_seconds() > DRAIN_SECONDS):
        since = f", the oldest since {clock(host.oldest, now)}" if host.oldest else ""
        text = f"{_accepted(host.spooled)} in the spool of {host.name}{since}"
        log = f"the log of `storehooks web` on {host.name} for the cause"
        yield fail("spool", text, fix=f"see {f'{blocking_row} above' if blocking_row else log}")
    elif host.spooled:
        yield warn("spool", f"the spool of {host.name} is draining {_accepted(host.spooled)}")


def _silent_host(host: Host, now: datetime) -> Finding:
    unreadable = f"the last report of {host.name} cannot be read; it is damaged, or of another version of storehooks"
    since = clock(host.seen, now) if host.seen else ""
    if host.spooled is not None:
        text = f"`storehooks web` runs on {host.name}, and has not reported since {since}" if since else unreadable
        fix = "check its connection to the server; if its log is silent too, it hangs: restart it"
        return fail("spool", text, f"its spool has {_accepted(host.spooled)}", fix=fix)
    text = (
        f"{host.name} is silent since {since}: it is cut off from the server, or not running" if since else unreadable
    )
    had = "an unknown number of accepted deliveries" if host.reported is None else _accepted(host.reported)
    effect = f"its spool had {had} then, and may have more that exist only there"
    fix = "check its connection to the server; start `storehooks web` on it if it is not running; "
    return fail("spool", text, effect, fix=f"{fix}or run `storehooks hosts forget {host.name}` if the machine is gone")


def _accepted(count: int) -> str:
    return counted(count, "accepted delivery", "accepted deliveries")


# The public URLs


def check_public_urls(facts: Facts) -> Iterator[Finding]:
    for web in facts.web:
        if not web.asked:
            text = f"{web.url} was not requested: out of time"
            yield warn("public url", text, fix=LONGER)
        else:
            yield _unusable_url(facts, web) if web.fault else _usable_url(facts, web)


def _usable_url(facts: Facts, web: WebFacts) -> Finding:
    row = _blocking_row(facts)
    if web.stores_in == "nowhere":
        fix = f"see {row or 'server'} and disk above"
        return fail("public url", f"{web.url} cannot store deliveries: all get 503", fix=fix)
    if web.stores_in == "spool":
        fix = f"see {row} above" if row else "see the log of `storehooks web` for the cause"
        return warn("public url", f"{web.url} stores deliveries in the spool now", fix=fix)
    return ok("public url", f"{web.url} answered in {web.ms:.0f} ms")


def _unusable_url(facts: Facts, web: WebFacts) -> Finding:
    text = f"{web.url} {web.fault if web.fault.startswith('answered') else f'does not answer: {web.fault}'}"
    bind = facts.config.receiver.bind
    if web.answers_at is None:
        return fail("public url", text, fix=LONGER)
    if not web.answers_at:
        fix = f"start `storehooks web`: it does not answer at {bind} either"
        if facts.server.fault and not facts.server.fault.temporary:
            fix = f"see server above; then {fix}"
        if facts.host.web_runs:
            fix = f"`storehooks web` runs, and does not answer at {bind} either: see its log; --timeout waits longer"
        return fail("public url", text, fix=fix)
    public_url = f"public_url{_at(facts.config, 'receiver', 'public_url')}"
    if web.answers_at == bind:
        fix = f"check the proxy, DNS or certificate in front of it, or {public_url}"
        return fail("public url", text, f"the web process itself answers at {bind}", fix=fix)
    fix = f"set {public_url} to the address that stores send to; or start `storehooks web` without PORT set"
    return fail(
        "public url",
        text,
        f"the web process itself answers at {web.answers_at}, not at [receiver] bind {bind}",
        fix=fix,
    )
