"""The checks of doctor alone: facts in, findings out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from receiver.config import Config, load
from receiver.inbox import Declaration
from receiver.inbox.queries.activity import Footprint, Heartbeat
from receiver.inbox.queries.events import COUNTED, Counters, SeenName, Spool
from receiver.inbox.subscription_checks import Checked
from receiver.spool import Refusal, RefusedOf, open_refusals
from workers.formatting import clock, counted, size, some, span, waits
from workers.operations.doctor import network_facts, store_checks, system_checks, worker_checks
from workers.operations.doctor.facts import ApiFacts, Facts, HostFacts, InboxFacts, PluginFacts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
GB = 1 << 30
CONFIG = """
[receiver]
public_url = "https://hooks.example.com"
[stores.north]
signing_secrets = ["c2VjcmV0IG9mIG5vcnRo"]
base_url = "https://north.example"
auth = {token = "t"}
[stores.south]
scheme = "woocommerce"
signing_secrets = ["secret of south"]
"""
HANDLER = Declaration(
    "erp.push", "1.0", ("product.stock",), ("*",), details={"plugin": "erp", "file": "/srv/erp.py", "line": 31}
)
SERVER = ServerFacts("10.0.0.5:6379", "", "Redis 7.0.15", (7, 0, 15), "yes", "always", "noeviction", GB, 4 * GB, 8 * GB)
CHECKED = {"north": Checked("north", NOW.timestamp() - 60, wanted=6)}
INBOX = InboxFacts(
    counters=Counters(dict.fromkeys(COUNTED, 0), {}),
    names={},
    last_events={},
    declared=(),
    workers=(Heartbeat("vm-1-2", ("default",), NOW),),
    housekeeper="vm-1-abc",
    paused=frozenset(),
    spools={},
    failed=0,
    retrying=0,
    set_aside=0,
    footprint=Footprint(1000, 1000, 86400, 600, 1400),
    unconfirmed={},
    checked=CHECKED,
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.toml").write_text(CONFIG)
    return load(tmp_path / "config.toml", {})


@pytest.fixture
def facts(config: Config) -> Facts:
    return Facts(
        config=config,
        now=NOW,
        server=SERVER,
        inbox=INBOX,
        plugins=PluginFacts((HANDLER,)),
        host=HostFacts("/srv/data", True, 50 * GB),
        web=(WebFacts("https://hooks.example.com", ms=84, stores_in="redis"),),
        apis={"north": ApiFacts("fine", ms=20, token_left=3060.0), "south": ApiFacts("none")},
    )


def told(findings: Iterable[Finding]) -> list[str]:
    return [f"{one.level} {one.name}: {' / '.join([one.text, *one.more])} -> {one.fix}" for one in findings]


def one(findings: Iterable[Finding]) -> str:
    (only,) = told(findings)
    return only


def with_inbox(facts: Facts, **changes: Any) -> Facts:
    assert facts.inbox is not None
    return replace(facts, inbox=replace(facts.inbox, **changes))


# The server


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "ok server: Redis 7.0.15, appendfsync always"),
        ({"version": (6, 2, 1), "name": "Redis 6.2.1"}, "fail server: Redis 6.2.1 is too old -> Redis 7.0"),
        ({"role": "slave"}, "fail server: 10.0.0.5:6379 is a replica and takes no writes -> the primary's address"),
        ({"write_fault": "its append-only file could not be written"}, "fail server: Redis 7.0.15: its append-only"),
        ({"policy": "volatile-lru"}, "warn server: maxmemory-policy is volatile-lru"),
        ({"appendonly": "no"}, "warn server: Redis 7.0.15, appendonly no / a restart of the server loses every event"),
        ({"appendfsync": "", "appendonly": "yes"}, "warn server: Redis 7.0.15, appendfsync ?: it does not tell"),
        ({"ahead": 9.0}, "warn clock: the server's clock is 9 s ahead of this machine's"),
        ({"ahead": -90.0}, "warn clock: the server's clock is 1 min behind this machine's"),
    ],
)
def test_the_server(facts: Facts, changes: dict[str, Any], says: str) -> None:
    assert one(system_checks.check_server(replace(facts, server=replace(SERVER, **changes)))).startswith(says)


# Memory: 1,000 events a day of 2,000 bytes


@pytest.mark.parametrize(
    ("used", "maxmemory", "a_day", "says"),
    [
        (GB, 4 * GB, 1000, "ok memory: 1 GB of 4 GB; 1,000 events a day of 1.95 kB will fill"),
        (GB, 4 * GB, 10, "ok memory: 1 GB of 4 GB, 1,000 events; too few came lately"),
        (int(3.5 * GB), 4 * GB, 10, "fail memory: 3.5 GB of 4 GB used: new deliveries go to the spool"),
        (GB, 4 * GB, 50_000_000, "fail memory: 1 GB of 4 GB; 50,000,000 events a day"),
        (GB, 4 * GB, 350_000, "warn memory: 1 GB of 4 GB; 350,000 events a day of 1.95 kB fill it in 3 d, and want"),
        (GB, 0, 1000, "ok memory: 1 GB of 8 GB (the machine's; no maxmemory is set); 1,000 events"),
    ],
)
def test_the_memory_outlook(facts: Facts, used: int, maxmemory: int, a_day: int, says: str) -> None:
    retention = facts.config.retention.model_copy(update={"events_per_store": 100_000_000})
    config = facts.config.model_copy(update={"retention": retention})
    looked = with_inbox(
        replace(facts, config=config, server=replace(SERVER, used=used, maxmemory=maxmemory)),
        footprint=Footprint(1000, a_day, 86400, 600, 1400),
    )
    assert one(system_checks.check_memory(looked)).startswith(says)


def test_what_is_kept_in_the_end_is_bounded_by_time_and_number(facts: Facts) -> None:
    assert system_checks.size_in_the_end(facts, 1000) == 1000 * 90 * 600 + 1000 * 7 * 1400
    most = facts.config.retention.events_per_store * 2
    assert system_checks.size_in_the_end(facts, 1e9) == most * 600 + most * 1400


# This host, and the address


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (HostFacts("/srv/data", True, 50 * GB), "ok disk: 50 GB free at /srv/data"),
        (HostFacts("/srv/data", True, 1 << 20), "fail disk: 1 MB free at /srv/data: without the server"),
        (HostFacts("/srv/data", True, 500 << 20), "warn disk: 500 MB free at /srv/data, and the spool may take 1 GB"),
        (HostFacts("/srv/data", False, GB), "fail disk: /srv/data cannot be written to by this user"),
        (HostFacts("/srv/data", True, GB, spool_fault="disk image is malformed"), "fail disk: the spool file in"),
    ],
)
def test_the_disk(facts: Facts, host: HostFacts, says: str) -> None:
    assert one(system_checks.check_disk(replace(facts, host=host))).startswith(says)


def test_the_spool(facts: Facts) -> None:
    now = NOW.timestamp()
    looked = with_inbox(
        facts,
        spools={"a": Spool(0, 0, now), "b": Spool(3, now - 2, now), "c": Spool(5, now - 300, now), "d": Spool(7, 0, 9)},
    )
    levels = [line.split(" are ")[0].split(",")[0] for line in told(system_checks.check_spool(looked))]
    assert levels[0] == "warn spool: 3 answered deliveries of b"
    assert levels[1] == "fail spool: 5 answered deliveries wait on c"
    assert levels[2].startswith("fail spool: d held 7 answered deliveries and is silent since")
    away = replace(facts, inbox=None, host=replace(facts.host, spooled=2))
    assert one(system_checks.check_spool(away)).startswith("fail spool: 2 answered deliveries wait on this host")


@pytest.mark.parametrize(
    ("web", "says"),
    [
        (WebFacts("u", ms=84, stores_in="redis"), "ok public url: u came back in 84 ms"),
        (WebFacts("u", ms=84, stores_in="spool"), "warn public url: u keeps deliveries in the spool now"),
        (WebFacts("u", ms=84, stores_in="nowhere"), "fail public url: u can keep no delivery"),
        (WebFacts("u", "timed out", at_home=True), "fail public url: u does not answer: timed out / the web process"),
        (WebFacts("u", "answered 301, a redirect to x"), "fail public url: u answered 301, a redirect to x -> start"),
    ],
)
def test_the_public_address(facts: Facts, web: WebFacts, says: str) -> None:
    assert one(system_checks.check_web(replace(facts, web=(web,)))).startswith(says)


@pytest.mark.parametrize(
    ("bind", "public", "says"),
    [
        ("127.0.0.1:1", "https://hooks.example.com", "ok config: no unknown keys, 3 secrets resolved"),
        ("127.0.0.1:1", "http://hooks.example.com", "warn config: public_url is http: whoever is on the way"),
        (
            "127.0.0.1:1",
            "http://127.0.0.1:1",
            "fail config: public_url is http://127.0.0.1:1, this machine only, and n",
        ),
    ],
)
def test_the_addresses_of_the_config(facts: Facts, bind: str, public: str, says: str) -> None:
    receiver = facts.config.receiver.model_copy(update={"bind": bind, "public_url": public})
    config = facts.config.model_copy(update={"receiver": receiver})
    assert one(system_checks.check_config(replace(facts, config=config))).startswith(says)


# Behind the queue


def sent(**topics: int) -> dict[str, list[SeenName]]:
    return {"north": [SeenName(name.replace("_", "."), many, NOW) for name, many in topics.items()]}


def test_a_topic_that_nobody_sends_is_named_with_the_nearest_and_its_line(facts: Facts) -> None:
    looked = with_inbox(facts, names=sent(product_updated=4310), workers=())
    line = one(worker_checks.check_handlers(looked))
    assert line == (
        "fail handlers: erp.push wants product.stock, never sent by any store / "
        "nearest: product.updated (4,310 so far) -> /srv/erp.py:31"
    )


def test_a_topic_that_may_still_come_is_only_to_know(facts: Facts) -> None:
    handler = replace(HANDLER, topics=("order.paid", "product.*"))
    looked = replace(with_inbox(facts, names=sent(product_updated=1), workers=()), plugins=PluginFacts((handler,)))
    fine, paid = told(worker_checks.check_handlers(looked))
    assert fine.startswith("ok handlers: 1 handler of erp")
    assert paid.startswith("warn handlers: erp.push wants order.paid, never sent")


def test_workers_that_run_something_else_than_lies_here(facts: Facts) -> None:
    fresh = with_inbox(facts, declared=(HANDLER,))
    assert len(told(worker_checks.check_handlers(fresh))) == 1
    old = with_inbox(facts, declared=(replace(HANDLER, version="0.9"),))
    assert "warn handlers: erp.push is 1.0 here, and workers run 0.9" in told(worker_checks.check_handlers(old))[1]
    absent = with_inbox(facts, declared=())
    assert "erp.push is in this config, and no worker has it" in told(worker_checks.check_handlers(absent))[1]


def test_a_worker_that_is_silent_counts_as_dead_and_a_queue_nobody_serves_is_told(facts: Facts) -> None:
    silent = with_inbox(facts, workers=(Heartbeat("vm-1-2", ("default",), NOW - timedelta(seconds=40)),))
    assert one(worker_checks.check_workers(silent)).startswith("fail workers: none is alive")
    slow = with_inbox(facts, declared=(replace(HANDLER, queue="slow"),))
    assert told(worker_checks.check_workers(slow))[0].startswith(
        "fail workers: nobody serves the queue slow of erp.push"
    )


def test_what_waits_for_a_person(facts: Facts) -> None:
    looked = with_inbox(facts, failed=12, retrying=3988, paused=frozenset({"handler:erp.push"}), set_aside=1)
    failures, paused, aside = told(worker_checks.check_work(looked))
    assert failures == "warn failures: 12 runs failed for good, 3,988 are retried -> storehooks failures"
    assert paused == "warn paused: erp.push is paused; its work waits -> storehooks handlers resume erp.push"
    assert aside.startswith("warn inbox: 1 thing in Redis, not ours")


# Stores


def of_store(facts: Facts, name: str = "north") -> list[str]:
    return [line for line in told(store_checks.check_stores(facts)) if line.split()[1] == f"{name}:"]


def test_a_store_that_is_fine_says_what_is_good_to_know(facts: Facts) -> None:
    looked = with_inbox(facts, last_events={"north": NOW - timedelta(seconds=3)})
    assert of_store(looked) == ["ok north: token 51 min, 6 of 6 subscriptions (1 min ago), last event 3 s ago -> "]
    assert of_store(looked, "south") == ["ok south: no base_url, so its API is not used, nothing came yet -> "]


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (ApiFacts("token", "the token endpoint answered 401"), "fail north: no token: the token endpoint answered 401"),
        (ApiFacts("denied", "answered 403"), "fail north: its API answered 403 -> the rights of the app"),
        (ApiFacts("unreachable", "no answer"), "fail north: its API gives no answer -> base_url ("),
        (ApiFacts("late"), "fail north: its API did not answer in time"),
        (ApiFacts("fine", ahead=600.0), "fail north: its clock is 10 min ahead of ours, and standard-webhooks allows"),
        (ApiFacts("fine", ahead=-60.0), "warn north: its clock is 1 min behind ours"),
    ],
)
def test_what_a_stores_api_says(facts: Facts, api: ApiFacts, says: str) -> None:
    assert of_store(replace(facts, apis={**facts.apis, "north": api}))[0].startswith(says)


@pytest.mark.parametrize(
    ("checked", "says"),
    [
        (None, "warn north: nobody has looked at its subscriptions yet; workers look every 5 min"),
        (Checked("north", NOW.timestamp() - 60, wanted=6), "ok north: token 51 min, 6 of 6 subscriptions"),
        (
            Checked("north", NOW.timestamp() - 7200, wanted=6),
            "warn north: its subscriptions were last looked at 2 h ago",
        ),
        (
            Checked("north", NOW.timestamp(), unknown="answered 404"),
            "fail north: its subscriptions could not be looked at",
        ),
        (
            Checked(
                "north", NOW.timestamp(), wanted=6, left=({"action": "enable", "topic": "order.paid", "why": "x"},)
            ),
            "fail north: 6 subscriptions wanted; not made: enable order.paid -> storehooks subscriptions apply",
        ),
        (
            Checked(
                "north", NOW.timestamp(), wanted=6, left=({"action": "delete", "topic": "order.paid", "why": "x"},)
            ),
            "warn north: 6 subscriptions wanted; not made: delete order.paid -> storehooks subscriptions plan",
        ),
    ],
)
def test_the_subscriptions_of_a_store(facts: Facts, checked: Checked | None, says: str) -> None:
    looked = with_inbox(facts, checked={"north": checked} if checked else {})
    assert of_store(looked)[0].startswith(says)


def test_a_store_that_shows_its_secret_needs_none_in_config(tmp_path: Path, facts: Facts) -> None:
    key = "[secrets]\nkey = 'AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8='\n"
    (tmp_path / "learns.toml").write_text(
        f"{key}[stores.north]\nbase_url = 'https://n.example'\nauth = {{token = 't'}}\n"
    )
    looked = with_inbox(replace(facts, config=load(tmp_path / "learns.toml", {})), checked=CHECKED)
    assert of_store(looked)[0].startswith("fail north: it has no signing secret: none in config, and none was learned")
    assert of_store(with_inbox(looked, learned={"north": 2}))[0].startswith("ok north")


def test_refusals_are_grave_only_while_nothing_is_accepted(facts: Facts) -> None:
    at = (NOW - timedelta(hours=1)).timestamp()
    host = replace(facts.host, refused=(RefusedOf("north", {"signature-mismatch": 212}, 212, at - 9000, at),))
    assert of_store(replace(facts, host=host))[0].startswith("fail north: 212 refused since ")
    since = with_inbox(replace(facts, host=host), last_events={"north": NOW})
    assert of_store(since)[0].startswith("warn north: 212 refused since ")
    ours = replace(host, refused=(RefusedOf("north", {"secret-expired": 2}, 2, at, at),))
    assert of_store(replace(since, host=ours))[0].startswith("fail north: 2 refused since ")


def test_strangers_and_schemes_are_told_once(facts: Facts) -> None:
    host = replace(
        facts.host, refused=(RefusedOf("west", {"unknown-store": 4}, 4, 0, 1), RefusedOf("?", {"x": 2}, 2, 0, 1))
    )
    lines = told(store_checks.check_stores(replace(facts, host=host)))
    assert any(
        line.startswith("warn strangers: 6 deliveries came for stores nobody configured: west") for line in lines
    )
    (scheme,) = [line for line in lines if line.startswith("warn scheme")]
    assert "woocommerce (south): no time is signed" in scheme
    assert "the topic is not signed" in scheme


def test_many_fine_stores_share_a_line(tmp_path: Path, facts: Facts) -> None:
    tables = "".join(f'[stores.s{n:03}]\nsigning_secrets = ["c2VjcmV0IG9mIG5vcnRo"]\n' for n in range(40))
    (tmp_path / "many.toml").write_text(tables)
    config = load(tmp_path / "many.toml", {})
    apis = {name: ApiFacts("none") for name in config.stores}
    assert one(store_checks.check_stores(replace(facts, config=config, apis=apis))) == (
        "ok stores: 40 without a fault: s000, s001, s002, s003 and 36 more -> "
    )


def test_what_is_true_of_many_stores_is_said_once(tmp_path: Path, facts: Facts) -> None:
    lines = ('base_url = "https://x.example"', 'auth = {token = "t"}', 'signing_secrets = ["c2VjcmV0IG9mIG4="]')
    tables = ("\n".join([f"[stores.s{n:03}]", *lines, ""]) for n in range(1000))
    (tmp_path / "many.toml").write_text("".join(tables))
    config = load(tmp_path / "many.toml", {})
    apis = {name: ApiFacts("late" if n < 30 else "unasked") for n, name in enumerate(config.stores)}
    silent, fine, unasked = told(store_checks.check_stores(replace(facts, config=config, apis=apis)))
    assert silent.startswith(
        "fail stores: 30 alike: its API did not answer in time (s000, s001, s002, s003 and 26 more)"
    )
    assert fine.startswith("ok stores: 970 without a fault")
    assert unasked.startswith("warn stores: the APIs of 970 were not asked")


def test_whoever_hangs_is_left_behind_and_nobody_waits_for_him() -> None:
    hangs = threading.Event()
    jobs: dict[str, Callable[[], int]] = {
        f"slow {n}": lambda: int(hangs.wait(30)) for n in range(network_facts.AT_ONCE)
    }
    started = time.monotonic()
    assert network_facts.together({"quick": lambda: 7, "broken": lambda: 1 // 0}, started + 5) == (
        {"quick": 7},
        {"quick", "broken"},
    )
    found, begun = network_facts.together({**jobs, "next": lambda: 1}, started + 0.5)
    hangs.set()
    assert (found, begun) == ({}, set(jobs))
    assert time.monotonic() - started < 3


# What is gathered, and words


def test_refusals_by_store(tmp_path: Path, config: Config) -> None:
    refusals = open_refusals(tmp_path)
    lines = [("north", "", "too-old", b"{}"), ("north", "", "too-old", None), ("?", "west", "unknown-store", b"{}")]
    refusals.add(
        [
            Refusal(1000.0 + at, store, named, reason, 2, "", "", {}, body)
            for at, (store, named, reason, body) in enumerate(lines)
        ],
        bounds=config.receiver.refused,
        now=1000.0,
    )
    north, west = refusals.by_store()
    assert (north.store, dict(north.reasons), north.kept, north.first, north.last) == (
        "north",
        {"too-old": 2},
        1,
        1000.0,
        1001.0,
    )
    assert (west.store, west.many, west.kept) == ("west", 1, 1)


def test_words() -> None:
    assert [counted(many, "run") for many in (0, 1, 3988)] == ["0 runs", "1 run", "3,988 runs"]
    assert [waits(many, "delivery", "deliveries") for many in (1, 2)] == ["1 delivery waits", "2 deliveries wait"]
    assert [span(s) for s in (0.4, 3, 61, 3060, 10260, 86400 * 12)] == [
        "0 s",
        "3 s",
        "1 min",
        "51 min",
        "2 h 51 min",
        "12 d",
    ]
    assert [size(n) for n in (12, 2000, 4 * GB, 500 << 20)] == ["12 bytes", "1.95 kB", "4 GB", "500 MB"]
    assert some(list("abcdef")) == "a, b, c, d and 2 more"
    assert clock(NOW.timestamp() - 86400, NOW).startswith("14 Nov")
