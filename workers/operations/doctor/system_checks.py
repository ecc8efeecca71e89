"""Checks of the installation: config, server, disk, spool, public URLs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlsplit

from receiver.config import Config
from receiver.config.values import LOOPBACK, is_loopback
from receiver.contract.diagnosis.formatting import clock, counted, size, span
from receiver.inbox.redis.connecting import OLDEST_VERSION
from receiver.inbox.redis.server_state import is_nearly_full
from receiver.process.process_files import restart_at_bind
from receiver.spool import NEEDED_DISK_BYTES, REFUSED_FILE, RESERVED_DISK_BYTES
from workers.operations.doctor.data_checks import changed_data
from workers.operations.doctor.facts import Facts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.operations.host_spools import Host, accepted

MAX_SERVER_SKEW_SECONDS = 5.0
LONGER = "run with a longer timeout: --timeout 1m"
WITHOUT_SERVER = "if the server is unreachable, every delivery is answered 503"
REFUSAL_FIXES = {
    "NOREPLICAS": "connect the replicas that its min-replicas-to-write requires, or lower that setting",
    "MISCONF": "check the server's log and its disk now",
}
REPLAYS_WITHOUT_ACL = {"Redis": (8, 6), "Valkey": (9, 1, 2)}
"""From these versions on, scripts' writes are replayed whatever `default` may do: Redis' notes of 8.6 list the fix
(#14545). Of Valkey (#3984) 9.1.2 was tried; which releases of older lines have the fix is unknown."""
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
        yield ok("config", f"no unknown keys, {counted(resolved, 'secret')} of stores resolved")
    yield from problems


def _no_stores(config: Config) -> Iterator[Finding]:
    if not config.stores:
        yield fail("config", "no store is configured: every delivery is refused", fix="storehooks stores add NAME")


def _exposed_files(facts: Facts) -> Iterator[Finding]:
    for file in facts.host.exposed:
        text = f"{file} contains secrets and is readable by all users of this machine"
        yield warn("config", text, fix=f"chmod o= {file}, or replace the secrets by env:NAME or file:PATH")


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
    remote = sorted(name for name, store in config.stores.items() if store.base_url and not is_loopback(store.base_url))
    if remote or host not in LOOPBACK:
        why = f"the store {remote[0]} cannot reach it" if remote else f"the receiver listens on {host}"
        yield fail(
            "config",
            f"public_url {config.receiver.public_url} is a loopback address, and {why}",
            fix=f"set public_url to the address that stores send to ({where})",
        )


# The server


def check_server(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if server.fault:
        fix = f"{server.fault.fix}{_at(facts.config, 'redis', 'url')}"
        yield fail("server", server.fault.text, _effect_of_fault(facts), fix=fix)
        return
    problems = [*_version(server), *_durability(facts), *_eviction(server), *_writes(facts), *_slow_link(facts)]
    problems += [*_replay(server), *_clock_skew(server), *changed_data(facts)]
    if not problems:
        yield ok("server", f"{_describe(server)}, answers in {server.round_trip * 1000:.0f} ms")
    yield from problems


def _effect_of_fault(facts: Facts) -> str:
    """For this host. Others may reach the server."""
    fault, said = facts.server.fault, facts.web_stores_in
    usable = "spool" in said or (_uses_spool(facts) and facts.host.takes_deliveries and "nowhere" not in said)
    web = "stores deliveries in the spool" if usable else "answers every delivery with 503"
    if fault and fault.only_workers:
        return f"workers do not start, so do not restart them; those that run {fault.only_workers}"
    if fault and not fault.temporary:
        start = "web and worker do not start on this host, so do not restart them"
        return f"{start}; {fault.running or f'a web process that runs already {web}'}"
    if fault and "redis" in said:
        return "new connections from this host fail; the public URL stores deliveries in Redis, perhaps at another host"
    return f"`storehooks web` on this host {web}, and its workers begin no run"


def _blocking_row(facts: Facts) -> str:
    """The row that says why the inbox takes no delivery now; empty if none does."""
    server = facts.server
    no_replica = facts.config.redis.ack == "replica" and not server.replicas
    if server.fault or no_replica or any(_writes(facts)) or server.round_trip >= facts.config.redis.timeout:
        return "server"
    return "memory" if is_nearly_full(server.used_memory, server.maxmemory) else ""


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
            missing, cure = "no replica is connected", "connect a replica"
            if server.silent_replicas:
                missing, cure = "no connected replica answers", "restart the replica, check its network"
            yield fail(
                "server",
                f'{server.name}, ack = "replica", and {missing}: every delivery goes to the spool',
                fix=f'{cure}, or set ack = "fsync"{place}',
            )
        return
    wrong = ["appendonly yes"] * (server.appendonly != "yes" or not server.appendfsync)
    wrong += ["appendfsync always"] * (server.appendfsync != "always")
    fix = f"{' and '.join(f'CONFIG SET {one}' for one in wrong)}, and the same in its config file"
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


def _replay(server: ServerFacts) -> Iterator[Finding]:
    """A restart that loses what scripts wrote, even with appendfsync always."""
    product, _, version = server.name.partition(" ")
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if not server.default_denied or server.appendonly != "yes" or numbers >= REPLAYS_WITHOUT_ACL[product]:
        return
    level, may = (fail, "loses") if product == "Redis" else (warn, "may lose")
    yield level(
        "server",
        f"{server.name} replays its append-only file as the user default, which may not write our keys: "
        f"a restart {may} every event since the last rewrite of that file",
        f"it says: {server.default_denied}",
        fix="ACL SETUSER default ~* &* +@all, and the same in its config or ACL file (it may stay off); if events are "
        "missing since a restart, restart it with these rights before it rewrites the file",
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
    elif server.refusal:
        fix = REFUSAL_FIXES.get(server.refusal.partition(" ")[0], "see the server's log")
        yield fail("server", f"{server.name} refuses writes: {server.refusal}", _effect_of_fault(facts), fix=fix)
    elif server.write_fault:
        yield fail("server", f"{server.name}: {server.write_fault}", fix="check the server's log and its disk now")


def _slow_link(facts: Facts) -> Iterator[Finding]:
    round_trip, timeout = facts.server.round_trip, facts.config.redis.timeout
    took, limit = f"{round_trip * 1000:.0f} ms", f"[redis] timeout is {timeout * 1000:.0f} ms"
    text = f"a round trip to {facts.server.address} takes {took}, and {limit}"
    fix = "check the network between this host and the server, or raise timeout"
    fix += _at(facts.config, "redis", "timeout")
    if round_trip >= timeout:
        yield fail("server", f"{text}; the inbox was not read", _effect_of_fault(facts), fix=fix)
    elif round_trip > timeout / 2:
        yield warn("server", text, f"when it takes longer, {_effect_of_fault(facts)}", fix=fix)


def _clock_skew(server: ServerFacts) -> Iterator[Finding]:
    if abs(server.clock_ahead) > MAX_SERVER_SKEW_SECONDS:
        way = "ahead of" if server.clock_ahead > 0 else "behind"
        yield warn(
            "clock",
            f"the server's clock is {span(abs(server.clock_ahead))} {way} this machine's",
            "arrival times and retention are wrong by that much",
            fix="run NTP (chrony, systemd-timesyncd) on both machines",
        )


# Disk and spool


def _unseen(facts: Facts) -> str:
    """What a nearly full or read-only disk hides."""
    if not facts.config.receiver.refused or (facts.host.free >= NEEDED_DISK_BYTES and not facts.host.read_only):
        return ""
    return "new refused deliveries are not stored, and then the checks of stores do not show them yet"


def check_disk(facts: Facts) -> Iterator[Finding]:
    host, place = facts.host, f"[redis] data_dir{_at(facts.config, 'redis', 'data_dir')}"
    if host.open_to_others:
        first, more = host.open_to_others[-1], len(host.open_to_others) - 1
        text = f"other users of this machine can open {first}{f' and {more} more' if more else ''}"
        fix = f"chmod go= {shlex.join(host.open_to_others)}, or set {place} to a folder that only storehooks uses"
        yield warn("disk", text, "it contains payloads of stores or secrets", fix=fix)
    if host.refused_fault:
        text = f"refused deliveries cannot be read: {host.refused_fault}"
        fix = f"check the owner of {REFUSED_FILE} and the disk; `storehooks web` sets a damaged file aside"
        if host.read_only or host.free < RESERVED_DISK_BYTES:
            fix = "mount it writable" if host.read_only else "free disk space"
        yield warn("disk", text, "no event is missing: they were not accepted", fix=fix)
    if host.hangs:
        text = f"the disk of {host.data_dir} does not answer: without the server, every delivery is answered 503"
        unseen = "the spool and refused deliveries were not looked at"
        yield fail("disk", text, unseen, fix="see the kernel's log, or the server that the disk is mounted from")
    elif host.read_only:
        text = f"the disk of {host.data_dir} is read-only: {WITHOUT_SERVER}"
        yield fail("disk", text, _unseen(facts), fix="mount it writable; the kernel's log says why it is read-only")
    elif not host.writable:
        yield fail("disk", f"{host.data_dir} is not writable for this user", fix=f"change its owner, or {place}")
    elif _uses_spool(facts) and host.free < RESERVED_DISK_BYTES:
        text = f"{size(host.free)} free at {host.data_dir}: {WITHOUT_SERVER}"
        yield fail("disk", text, _unseen(facts), fix=f"free disk space, or change {place}")
    elif _uses_spool(facts) and not host.takes_deliveries:
        few = host.has_few_files
        room = f"room for {counted(host.free_files or 0, 'more file')}" if few else f"no new file ({host.write_fault})"
        is_open = "spool" in facts.web_stores_in
        later = "`storehooks web` uses the spool that it has open; do not restart it" if is_open else WITHOUT_SERVER
        text = f"{room} at {host.data_dir}: {later}"
        fix = f"delete files on its disk (`df -i` shows how many it may have), or change {place}"
        yield fail("disk", text, _unseen(facts), fix=fix if few else f"check its disk and quota, or change {place}")
    elif host.spool_fault:
        text = f"a file of the spool in {host.data_dir} is not readable: {host.spool_fault}"
        fix = (
            "check its owner and the disk; do not remove it, because it may contain accepted deliveries. If its name "
            "is spool-damaged-..., what can be read of it is in the inbox: move it away, or delete it"
        )
        yield fail("disk", text, fix=fix)
    else:
        yield _free_space(facts)


def _free_space(facts: Facts) -> Finding:
    text, unseen = f"{size(facts.host.free)} free at {facts.host.data_dir}", _unseen(facts)
    needed = facts.config.receiver.spool_bytes
    if _uses_spool(facts) and facts.host.free < needed:
        text = f"{text}, and the spool may need {size(needed)}"
        return warn("disk", text, unseen, fix="free disk space, or lower [receiver] spool_bytes")
    return warn("disk", text, unseen, fix="free disk space") if unseen else ok("disk", text)


def check_spool(facts: Facts) -> Iterator[Finding]:
    """Deliveries that were accepted into the spool and are not in the inbox yet."""
    if facts.inbox is None:
        if facts.host.spooled:
            text = f"{accepted(facts.host.spooled)} in the spool of this host, waiting for the server"
            more = "none of them is lost; they are stored when this host reaches the server again"
            yield fail("spool", text, more, fix="see server above")
        return
    for host in facts.inbox.hosts:
        if host.state == "silent" and facts.server.refusal:
            yield _unreported_host(host, facts.now)
        else:
            yield from _spool_of(host, facts.now, _blocking_row(facts))


def _spool_of(host: Host, now: datetime, blocking_row: str) -> Iterator[Finding]:
    if host.state == "silent":
        yield _silent_host(host, now)
    elif host.spooled is None:
        text = f"{host.name} cannot read all of its spool, so it is unknown what waits there"
        yield fail("spool", text, fix=f"see the log of `storehooks web` on {host.name} for the cause")
    elif host.spooled and host.state == "stopped":
        text = f"{accepted(host.spooled)} in the spool of {host.name}, where `storehooks web` is not running"
        yield fail("spool", text, fix=f"start `storehooks web` on {host.name}, or where its data directory is now")
    elif host.spooled and (blocking_row or (now - (host.oldest or now)).total_seconds() > DRAIN_SECONDS):
        since = f", the oldest since {clock(host.oldest, now)}" if host.oldest else ""
        text = f"{accepted(host.spooled)} in the spool of {host.name}{since}"
        log = f"the log of `storehooks web` on {host.name} for the cause"
        yield fail("spool", text, fix=f"see {f'{blocking_row} above' if blocking_row else log}")
    elif host.spooled:
        text = f"{accepted(host.spooled)} in the spool of {host.name}, to be drained"
        yield warn("spool", text, fix="none, if the number falls; otherwise see the log of `storehooks web` there")


def _unreported_host(host: Host, now: datetime) -> Finding:
    since = f" since {clock(host.seen, now)}" if host.seen else ""
    text = f"{host.name} may well be receiving; its reports cannot be written{since}"
    return warn("spool", text, f"its spool has {accepted(host.spooled)}", fix="see server above")


def _silent_host(host: Host, now: datetime) -> Finding:
    since, is_counted = clock(host.seen, now) if host.seen else "", host.spooled is not None
    if not since:
        text = f"the last report of {host.name} cannot be read; it is damaged, or of another version of storehooks"
    elif is_counted:
        text = f"`storehooks web` runs on {host.name}, and has not reported since {since}"
    else:
        text = f"{host.name} is silent since {since}: it is cut off from the server, or not running"
    if is_counted:
        fix = "check its connection to the server; if its log is silent too, it hangs: restart it"
        return fail("spool", text, f"its spool has {accepted(host.spooled)}", fix=fix)
    effect = f"its spool had {accepted(host.reported)} then, and may have more that exist only there"
    fix = "check its connection to the server; start `storehooks web` on it if it is not running; "
    return fail("spool", text, effect, fix=f"{fix}or run `storehooks hosts forget {host.name}` if the machine is gone")


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
    only = "; only programs on this machine can reach it" if is_loopback(web.url) else ""
    return ok("public url", f"{web.url} answered in {web.ms:.0f} ms{only}")


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
    more = f"the web process itself answers at {web.answers_at}, not at [receiver] bind {bind}"
    fix = f"set {public_url} to the address that stores send to; or {restart_at_bind(web.answers_at, bind)}"
    return fail("public url", text, more, fix=fix)
