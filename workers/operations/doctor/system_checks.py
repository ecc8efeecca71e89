"""The checks of the installation itself: config, server, memory, disk, spool, public address. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from receiver.config import Config
from receiver.config.values import LOOPBACK
from workers.formatting import clock, counted, size, span
from workers.operations.doctor.facts import Facts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn

OLDEST = (7, 0)
SKEW_SECONDS = 5.0
PRESSED = 0.85
"""Above this part of maxmemory the receiver spools, so that workers can still write."""
SOON = 3 * 86400.0
LEAST_SPAN, LEAST_EVENTS = 600.0, 50
"""Below these the rate of arrival says nothing yet."""
DAY = 86400.0
LEAST_DISK = 32 << 20
"""Below this the spool takes nothing."""
SPOOL_SECONDS = 60.0


# Config


def check_config(facts: Facts) -> Iterator[Finding]:
    config = facts.config
    problems = [*_no_stores(config), *_addresses(config), *_exposed(facts)]
    resolved = sum(len(store.signing_secrets) for store in config.stores.values())
    resolved += sum(bool(store.auth.client_secret.get_secret_value()) for store in config.stores.values())
    resolved += sum(bool(store.auth.token.get_secret_value()) for store in config.stores.values())
    if not problems:
        yield ok("config", f"no unknown keys, {counted(resolved, 'secret')} resolved")
    yield from problems


def _no_stores(config: Config) -> Iterator[Finding]:
    if not config.stores:
        yield fail("config", "no store is configured: every delivery is refused", fix="storehooks stores add NAME")


def _exposed(facts: Facts) -> Iterator[Finding]:
    for file in facts.host.exposed:
        text = f"{file} holds secrets, and others on this machine can read it"
        yield warn("config", text, fix=f"chmod 600 {file}; or env:NAME and file:PATH in it")


def _addresses(config: Config) -> Iterator[Finding]:
    public, host = urlsplit(config.receiver.public_url), config.receiver.bind.rpartition(":")[0].strip("[]")
    where = config.place("receiver", "public_url") or config.path
    if public.hostname not in LOOPBACK:
        if public.scheme != "https":
            yield warn(
                "config",
                f"public_url is {public.scheme}: whoever is on the way can read deliveries and send them again",
                fix=f"https:// in public_url ({where}), and a proxy in front that speaks TLS",
            )
        return
    away = sorted(name for name, one in config.stores.items() if one.base_url and not _is_loopback(one.base_url))
    if away or host not in LOOPBACK:
        why = f"{away[0]} is elsewhere and cannot reach it" if away else f"the receiver listens on {host}"
        yield fail(
            "config",
            f"public_url is {config.receiver.public_url}, this machine only, and {why}",
            fix=f"the address stores send to, in public_url ({where})",
        )


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


# The server


def check_server(facts: Facts) -> Iterator[Finding]:
    server, redis = facts.server, facts.config.redis
    if server.fault:
        start = "start it, or set [redis] url" if redis.url else "`storehooks dev` starts it, or set [redis] url"
        where = facts.config.place("redis", "url")
        yield fail(
            "server",
            f"{server.where} does not answer: {server.fault}",
            "deliveries wait in the spool, and no handler runs" if _spools(facts) else "every delivery is answered 503",
            fix=f"{start}{f' ({where})' if where else ''}",
        )
        return
    problems = [*_too_old(server), *_durability(facts), *_policy(server), *_writable(facts), *_clock(server)]
    if not problems:
        yield ok("server", _describe(server))
    yield from problems


def _spools(facts: Facts) -> bool:
    return facts.config.receiver.spool == "on"


def _describe(server: ServerFacts) -> str:
    kept = f"appendfsync {server.appendfsync or '?'}" if server.appendonly == "yes" else "appendonly no"
    return f"{server.name}, {kept}"


def _too_old(server: ServerFacts) -> Iterator[Finding]:
    if server.version[:2] < OLDEST:
        yield fail("server", f"{server.name} is too old", fix="Redis 7.0 or Valkey 7.2, or later")


def _durability(facts: Facts) -> Iterator[Finding]:
    server, ack = facts.server, facts.config.redis.ack
    place = facts.config.place("redis", "ack")
    if server.appendonly != "yes":
        loses = "a restart of the server loses every event since its last snapshot"
    elif server.appendfsync != "always":
        loses = "a power cut may lose the last second of accepted events"
    else:
        if ack == "replica" and not server.replicas and server.role == "master":
            yield fail(
                "server",
                f'{server.name}, ack = "replica", and no replica is connected: every delivery goes to the spool',
                fix=f'connect one, or ack = "fsync" ({place})',
            )
        return
    asks = "CONFIG SET appendonly yes and CONFIG SET appendfsync always, and both in its config file"
    if not server.appendfsync:
        yield warn(
            "server", f"{_describe(server)}: it does not tell its settings", fix=f"make sure of it there: {asks}"
        )
    elif ack == "stored":
        yield warn("server", _describe(server), loses, fix=asks)
    else:
        yield fail(
            "server",
            f'{_describe(server)}, and ack = "{ack}" ({place}): web and worker refuse to start',
            loses,
            fix=asks,
        )


def _policy(server: ServerFacts) -> Iterator[Finding]:
    fix = "CONFIG SET maxmemory-policy noeviction, and in its config file"
    if server.policy.startswith("allkeys"):
        yield fail(
            "server", f"maxmemory-policy is {server.policy}: it throws events away when memory is short", fix=fix
        )
    elif server.policy.startswith("volatile"):
        yield warn("server", f"maxmemory-policy is {server.policy}: marks against duplicates may go early", fix=fix)


def _writable(facts: Facts) -> Iterator[Finding]:
    server = facts.server
    if server.role != "master":
        where = facts.config.place("redis", "url")
        yield fail("server", f"{server.where} is a replica and takes no writes", fix=f"the primary's address ({where})")
    if server.write_fault:
        yield fail("server", f"{server.name}: {server.write_fault}", fix="look at its log and its disk, now")


def _clock(server: ServerFacts) -> Iterator[Finding]:
    if abs(server.ahead) > SKEW_SECONDS:
        way = "ahead of" if server.ahead > 0 else "behind"
        yield warn(
            "clock",
            f"the server's clock is {span(abs(server.ahead))} {way} this machine's",
            "times of arrival and retention are off by that much",
            fix="run NTP (chrony, systemd-timesyncd) on both",
        )


# Memory


def check_memory(facts: Facts) -> Iterator[Finding]:
    """Where the memory goes at the present rate, until retention takes as much away as comes."""
    if facts.inbox is None:
        return
    server, print_ = facts.server, facts.inbox.footprint
    limit = server.maxmemory or server.machine
    of = f"{size(server.used)} of {size(limit)}" if limit else size(server.used)
    of += "" if server.maxmemory else " (the machine's; no maxmemory is set)"
    fix = "more maxmemory, or a shorter [retention] bodies or records"
    if server.maxmemory and server.used > PRESSED * limit:
        yield fail("memory", f"{of} used: new deliveries go to the spool", fix=fix)
        return
    if print_.seconds < LEAST_SPAN or print_.lately < LEAST_EVENTS:
        yield ok("memory", f"{of}, {counted(print_.events, 'event')}; too few came lately to look ahead")
        return
    yield _outlook(facts, limit, of, fix)


def _outlook(facts: Facts, limit: int, of: str, fix: str) -> Finding:
    assert facts.inbox is not None
    print_ = facts.inbox.footprint
    a_day = print_.lately / print_.seconds * DAY
    growth = a_day * (print_.record + print_.body)
    rate = f"{counted(round(a_day), 'event')} a day of {size(print_.record + print_.body)}"
    most = size_in_the_end(facts, a_day)
    room = PRESSED * limit - facts.server.used
    if most <= PRESSED * limit or growth <= 0:
        return ok("memory", f"{of}; {rate} will fill {size(most)}")
    text = f"{of}; {rate} fill it in {span(room / growth * DAY)}, and want {size(most)} in the end"
    full = "then new deliveries go to the spool" if facts.server.maxmemory else "then the machine is out of memory"
    if room / growth * DAY < SOON:
        return fail("memory", text, full, fix=fix)
    return warn("memory", text, full, fix=fix)


def size_in_the_end(facts: Facts, a_day: float) -> float:
    """What events take once as many go as come."""
    assert facts.inbox is not None
    print_, retention = facts.inbox.footprint, facts.config.retention
    most = retention.events_per_store * max(1, len(facts.config.stores))
    records = min(a_day * max(retention.records, facts.config.receiver.dedupe_window) / DAY, most)
    bodies = min(a_day * retention.bodies / DAY, most)
    return records * print_.record + bodies * print_.body


# This host


def check_disk(facts: Facts) -> Iterator[Finding]:
    host, place = facts.host, facts.config.place("redis", "data_dir") or "[redis] data_dir"
    if not host.writable:
        yield fail("disk", f"{host.data_dir} cannot be written to by this user", fix=f"its owner, or {place}")
    elif host.spool_fault:
        yield fail("disk", f"the spool file in {host.data_dir} cannot be read: {host.spool_fault}", fix=str(place))
    elif _spools(facts) and host.free < LEAST_DISK:
        text = f"{size(host.free)} free at {host.data_dir}: without the server every delivery is answered 503"
        yield fail("disk", text, fix=f"make room, or another {place}")
    elif _spools(facts) and host.free < facts.config.receiver.spool_bytes:
        text = f"{size(host.free)} free at {host.data_dir}, and the spool may take {size(_spool_bytes(facts))}"
        yield warn("disk", text, fix="make room, or a smaller [receiver] spool_bytes")
    else:
        yield ok("disk", f"{size(host.free)} free at {host.data_dir}")


def _spool_bytes(facts: Facts) -> int:
    return facts.config.receiver.spool_bytes


def check_spool(facts: Facts) -> Iterator[Finding]:
    """Deliveries that were answered and are not in the inbox yet."""
    now = facts.now.timestamp()
    if facts.inbox is None:
        if facts.host.spooled:
            text = f"{facts.host.spooled:,} answered deliveries wait on this host for the server"
            yield fail("spool", text, "nothing is lost; they go in by themselves", fix="see server, above")
        return
    for host, spool in sorted(facts.inbox.spools.items()):
        if not spool.count:
            continue
        since = clock(spool.oldest, facts.now)
        if spool.silent(now):
            yield fail(
                "spool",
                f"{host} held {spool.count:,} answered deliveries and is silent since {clock(spool.at, facts.now)}",
                fix=f"start `storehooks web` on {host}; if its disk moved, where that is",
            )
        elif now - spool.oldest > SPOOL_SECONDS:
            text = f"{spool.count:,} answered deliveries wait on {host}, the oldest since {since}"
            yield fail("spool", text, fix=f"the log of `storehooks web` on {host} says why they do not go in")
        else:
            yield warn("spool", f"{spool.count:,} answered deliveries of {host} are on their way in")


# The public address


def check_web(facts: Facts) -> Iterator[Finding]:
    for web in facts.web:
        yield _address(facts, web)


def _address(facts: Facts, web: WebFacts) -> Finding:
    if not web.fault:
        if web.stores_in == "nowhere":
            return fail("public url", f"{web.url} can keep no delivery: all get 503", fix="see server and disk, above")
        if web.stores_in == "spool":
            return warn("public url", f"{web.url} keeps deliveries in the spool now", fix="see server, above")
        return ok("public url", f"{web.url} came back in {web.ms:.0f} ms")
    text = f"{web.url} {web.fault if web.fault.startswith('answered') else f'does not answer: {web.fault}'}"
    if not web.at_home:
        return fail(
            "public url", text, fix=f"start `storehooks web`; nothing of ours is at {facts.config.receiver.bind}"
        )
    where = facts.config.place("receiver", "public_url")
    return fail(
        "public url",
        text,
        f"the web process itself answers at {facts.config.receiver.bind}",
        fix=f"the proxy, DNS or certificate in front of it; or public_url{f' ({where})' if where else ''}",
    )
