"""The checks of doctor as pure functions: facts in, findings out."""

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
from receiver.config.values import Bounds
from receiver.contract.diagnosis.formatting import clock, counted, exact_span, size, some, span, waits
from receiver.inbox import Declaration
from receiver.inbox.alert_store import Alert
from receiver.inbox.history_moves import MoveReport
from receiver.inbox.known_data import DataChange, DataNotice
from receiver.inbox.queries.events import COUNTED, Counters, EventName
from receiver.inbox.queries.failures import EndingFailures
from receiver.inbox.queries.handlers import AbsentHandler
from receiver.inbox.queries.health import Footprint, Heartbeat
from receiver.inbox.redis.server_faults import ServerFault
from receiver.inbox.subscription_checks import CheckResult
from receiver.spool import Refusal, StoreRefusals, open_refusals
from workers.operations.doctor import (
    data_checks,
    handler_checks,
    local_facts,
    network_facts,
    store_checks,
    system_checks,
    worker_checks,
)
from workers.operations.doctor.facts import (
    ApiFacts,
    ApiState,
    Facts,
    HostFacts,
    InboxFacts,
    PluginFacts,
    ServerFacts,
    WebFacts,
)
from workers.operations.doctor.findings import Finding
from workers.operations.host_spools import Host

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
GB = 1 << 30
CONFIG = """
[receiver]
public_url = "https://hooks.example.com"
[history]
url = "off"
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
SERVER = ServerFacts(
    address="10.0.0.5:6379",
    name="Redis 7.0.15",
    version=(7, 0, 15),
    appendonly="yes",
    appendfsync="always",
    maxmemory_policy="noeviction",
    used_memory=GB,
    maxmemory=4 * GB,
    machine_memory=8 * GB,
)
CHECKED = {"north": CheckResult("north", NOW.timestamp() - 60, wanted=6)}
INBOX = InboxFacts(
    counters=Counters(dict.fromkeys(COUNTED, 0), {}),
    topic_names={},
    last_events={},
    declared=(),
    running={},
    workers=(Heartbeat("vm-1-2", ("default",), NOW),),
    housekeeper="vm-1-abc",
    paused=frozenset(),
    hosts=(),
    failed=0,
    retrying=0,
    quarantined=(0, []),
    footprint=Footprint(1000, {"north": 1000}, 86400, 600, 1400),
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
        apis={"north": ApiFacts("fine", ms=20, token_seconds_left=3060.0), "south": ApiFacts("none")},
    )


def as_lines(findings: Iterable[Finding]) -> list[str]:
    return [
        f"{finding.level} {finding.name}: {' / '.join([finding.text, *finding.more])} -> {finding.fix}"
        for finding in findings
    ]


def only_line(findings: Iterable[Finding]) -> str:
    (line,) = as_lines(findings)
    return line


def with_inbox(facts: Facts, **changes: Any) -> Facts:
    assert facts.inbox is not None
    return replace(facts, inbox=replace(facts.inbox, **changes))


# The server


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "ok server: Redis 7.0.15, appendfsync always"),
        ({"version": (6, 2, 1), "name": "Redis 6.2.1"}, "fail server: Redis 6.2.1 is too old -> upgrade to Redis 7.0"),
        ({"role": "slave"}, "fail server: 10.0.0.5:6379 is a replica and refuses writes -> set the primary's address"),
        ({"write_fault": "it could not write its append-only file"}, "fail server: Redis 7.0.15: it could not write"),
        ({"maxmemory_policy": "volatile-lru"}, "warn server: maxmemory-policy is volatile-lru"),
        ({"appendonly": "no"}, "warn server: Redis 7.0.15, appendonly no / a restart of the server loses every event"),
        (
            {"appendfsync": "", "appendonly": "yes"},
            "warn server: Redis 7.0.15, appendfsync ?: the server does not allow",
        ),
        ({"round_trip": 0.25}, "ok server: Redis 7.0.15, appendfsync always, answers in 250 ms"),
        (
            {"round_trip": 0.26},
            "warn server: a round trip to 10.0.0.5:6379 takes 260 ms, and [redis] timeout is 500 ms / when it takes "
            "longer, `storehooks web` on this host stores deliveries in the spool, and its workers",
        ),
        ({"round_trip": 0.5}, "fail server: a round trip to 10.0.0.5:6379 takes 500 ms, and [redis] timeout is 500 ms"),
        (
            {"default_denied": "no 'del'"},
            "fail server: Redis 7.0.15 replays its append-only file as the user default, which may not write our keys: "
            "a restart loses every event since the last rewrite of that file / it says: no 'del' -> ACL SETUSER",
        ),
        ({"default_denied": "no 'del'", "name": "Valkey 8.1.3"}, "warn server: Valkey 8.1.3 replays"),
        ({"default_denied": "no 'del'", "name": "Redis 8.6.0"}, "ok server: Redis 8.6.0"),
        ({"default_denied": "no 'del'", "name": "Valkey 9.1.2"}, "ok server: Valkey 9.1.2"),
        ({"default_denied": "no 'del'", "appendonly": "no"}, "warn server: Redis 7.0.15, appendonly no"),
        ({"clock_ahead": 9.0}, "warn clock: the server's clock is 9 s ahead of this machine's"),
        ({"clock_ahead": -90.0}, "warn clock: the server's clock is 1 min behind this machine's"),
    ],
)
def test_server_findings(facts: Facts, changes: dict[str, Any], says: str) -> None:
    assert only_line(system_checks.check_server(replace(facts, server=replace(SERVER, **changes)))).startswith(says)


def test_other_data_says_which_events_are_open_in_that_server(facts: Facts) -> None:
    """After the right url is set, no worker finds them any more."""
    counts = {**dict.fromkeys(COUNTED, 0), "open": 3}
    noticed = {"shop-1:/srv/data": DataNotice("1", DataChange.OTHER, NOW.timestamp() * 1000)}
    found = with_inbox(facts, data_notices=noticed, counters=Counters(counts, {"north": counts}))
    line = only_line(system_checks.check_server(found))
    assert "/ 3 events accepted in this server are not handled yet: if it is the wrong one, or before" in line
    assert "keep a worker" not in only_line(system_checks.check_server(with_inbox(facts, data_notices=noticed)))


def test_a_link_that_is_only_slow_is_not_why_deliveries_are_in_the_spool(facts: Facts) -> None:
    slow = replace(facts, server=replace(SERVER, round_trip=0.3))
    public = replace(slow, web=(WebFacts("https://hooks.example.com", ms=84, stores_in="spool"),))
    assert only_line(system_checks.check_public_urls(public)).endswith(
        "-> see the log of `storehooks web` for the cause"
    )


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"appendfsync": "everysec"}, "-> CONFIG SET appendfsync always, and the same in its config file"),
        ({"appendonly": "no"}, "-> CONFIG SET appendonly yes, and the same in its config file"),
        ({"appendonly": "no", "appendfsync": "no"}, "-> CONFIG SET appendonly yes and CONFIG SET appendfsync always,"),
        ({"appendfsync": ""}, "both are set: CONFIG SET appendonly yes and CONFIG SET appendfsync always,"),
    ],
)
def test_only_a_setting_that_is_wrong_is_to_be_set(facts: Facts, changes: dict[str, Any], fix: str) -> None:
    assert fix in only_line(system_checks.check_server(replace(facts, server=replace(SERVER, **changes))))


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("NOREPLICAS Not enough good replicas to write", "connect the replicas"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "check the server's log and its disk"),
        ("ERR something new", "see the server's log"),
    ],
)
def test_a_server_that_refuses_writes_is_a_failure_with_its_own_words(facts: Facts, said: str, fix: str) -> None:
    refusing = replace(SERVER, refusal=said, write_fault="it could not write its append-only file")
    line = only_line(system_checks.check_server(replace(facts, server=refusing)))
    assert line.startswith(f"fail server: Redis 7.0.15 refuses writes: {said} / `storehooks web` on this host stores")
    assert f"-> {fix}" in line


@pytest.mark.parametrize(
    ("worker_ahead", "server_ahead", "says"),
    [
        (-18.0, 0.0, "18 s behind"),
        (-10_800.0, 0.0, "3 h behind"),
        (10_800.0, 0.0, "3 h ahead of"),
        (-3.0, 0.0, ""),
        (-3600.0, 3600.0, ""),  # only the server's clock is wrong
        (0.0, 3600.0, "1 h ahead of"),
    ],
)
def test_a_worker_whose_clock_is_wrong_is_running(
    facts: Facts, worker_ahead: float, server_ahead: float, says: str
) -> None:
    """It counted as dead, since its heartbeat has its own time."""
    beats = tuple(Heartbeat(f"vm-{n}-2", ("default",), NOW, clock_ahead=worker_ahead) for n in (1, 2))
    given = replace(facts, server=replace(SERVER, clock_ahead=server_ahead))
    *clocks, running = as_lines(worker_checks.check_workers(with_inbox(given, workers=beats)))
    assert running.startswith("ok workers: 2 running on 1 host")
    assert len(clocks) == bool(says)
    assert all(f"warn clock: the clock of the worker on vm is {says} this machine's" in line for line in clocks)


@pytest.mark.parametrize(("left", "level"), [(0, "fail"), (1, "warn")])
def test_a_worker_that_cannot_start_child_processes_is_a_problem(facts: Facts, left: int, level: str) -> None:
    """It was called running while no run began."""
    beat = Heartbeat("vm-1-2", ("default",), NOW, child_processes=left, start_fault="Too many open files")
    found, _ = as_lines(worker_checks.check_workers(with_inbox(facts, workers=(beat,))))
    assert found.startswith(f"{level} workers: a worker on vm cannot start child processes: Too many open files")


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"accepted": 1, "altered": 4}, "fail north: 4 deliveries had the delivery id, topic, resource and time"),
        ({"accepted": 90, "altered": 4}, "warn north: 4 deliveries had the delivery id, topic, resource and time"),
        ({"accepted": 5, "conflicts": 4}, "warn north: 4 of 5 events have the delivery id of an earlier one"),
        ({"accepted": 40, "conflicts": 4}, "warn north: 4 of 40 events have the delivery id of an earlier one"),
        ({"accepted": 41, "conflicts": 4}, ""),
        ({"accepted": 9}, ""),
        ({}, ""),
    ],
)
def test_reused_delivery_ids(facts: Facts, counts: dict[str, int], says: str) -> None:
    every = {**dict.fromkeys(COUNTED, 0), **counts}
    changed = with_inbox(facts, counters=Counters(every, {"north": every}))
    found = [line for line in as_lines(store_checks.check_stores(changed)) if "another body" in line]
    assert len(found) == bool(says)
    for line in found:
        assert line.startswith(says)
        assert "in [schemes.my-standard-webhooks]" in line


# Memory: 1,000 events a day of 2,000 bytes


@pytest.mark.parametrize(
    ("used", "maxmemory", "events_per_day", "says"),
    [
        (GB, 4 * GB, 1000, "ok memory: 1 GB of 4 GB; 1,000 events a day of 1.95 kB, measured over 1 d, will need"),
        (GB, 4 * GB, 10, "ok memory: 1 GB of 4 GB, 1,000 events; too few recent events"),
        (int(3.5 * GB), 4 * GB, 10, "fail memory: 3.5 GB of 4 GB used: new deliveries go to the spool"),
        (GB, 4 * GB, 50_000_000, "fail memory: 1 GB of 4 GB; 50,000,000 events a day"),
        (
            GB,
            4 * GB,
            350_000,
            "warn memory: 1 GB of 4 GB; 350,000 events a day of 1.95 kB, measured over 1 d, will fill it in 3 d",
        ),
        (GB, 0, 1000, "ok memory: 1 GB of 8 GB (the machine's memory; maxmemory is not set); 1,000 events"),
    ],
)
def test_the_memory_forecast(facts: Facts, used: int, maxmemory: int, events_per_day: int, says: str) -> None:
    retention = facts.config.retention.model_copy(update={"events_per_store": 100_000_000})
    config = facts.config.model_copy(update={"retention": retention})
    changed = with_inbox(
        replace(facts, config=config, server=replace(SERVER, used_memory=used, maxmemory=maxmemory)),
        footprint=Footprint(1000, {"north": events_per_day}, 86400, 600, 1400),
    )
    assert only_line(data_checks.check_memory(changed)).startswith(says)


def test_without_maxmemory_it_is_not_to_be_raised(facts: Facts) -> None:
    changed = with_inbox(facts, footprint=Footprint(1, {"north": 50_000_000}, 86400, 600, 1400))
    line = only_line(data_checks.check_memory(replace(changed, server=replace(SERVER, maxmemory=0))))
    assert (
        "then the machine is out of memory -> give the machine more memory, set [history] url, or shorten [retention]"
        in line
    )


DAYS_OF_DUPLICATES = 10
"""dedupe_window, 7 days, plus spool_age, 3 days."""


@pytest.mark.parametrize(
    ("lately", "records", "bodies"),
    [
        ({"north": 1_000}, 90 * 1_000, 7 * 1_000),  # all of [retention] records
        ({"north": 50_000}, 1_000_000, 7 * 50_000),  # events_per_store
        ({"north": 50_000, "south": 10}, 1_000_000 + 90 * 10, 7 * 50_010),  # which is not shared
        ({"north": 1_000_000}, DAYS_OF_DUPLICATES * 1_000_000, 7 * 1_000_000),  # but never inside the duplicate window
        ({"north": 0}, 0, 0),
    ],
)
def test_the_final_size_is_what_retention_leaves(
    facts: Facts, lately: dict[str, int], records: int, bodies: int
) -> None:
    changed = with_inbox(facts, footprint=Footprint(1, lately, 86400, 600, 1400, once=200))
    assert data_checks.final_size(changed) == pytest.approx(records * (600 + 200) + bodies * 1400)


def test_the_fix_for_memory_says_that_records_outlast_the_duplicate_window(facts: Facts) -> None:
    changed = with_inbox(facts, footprint=Footprint(1, {"north": 50_000_000}, 86400, 600, 1400))
    assert only_line(data_checks.check_memory(changed)).endswith(
        "no record is removed before 10 d, which is [receiver] dedupe_window plus spool_age"
    )


# The history


def with_history(facts: Facts, **inbox: Any) -> Facts:
    settings = facts.config.history.model_copy(update={"url": "sqlite"})
    return with_inbox(replace(facts, config=facts.config.model_copy(update={"history": settings})), **inbox)


def test_with_a_history_only_marks_stay_in_redis(facts: Facts) -> None:
    changed = with_history(facts, footprint=Footprint(1, {"north": 24_000}, 86400, 600, 1400, once=200))
    expected = 1_000 * (600 + 1400 + 200) + DAYS_OF_DUPLICATES * 24_000 * 190
    assert data_checks.final_size(changed) == pytest.approx(expected)
    changed = with_history(facts, footprint=Footprint(1, {"north": 50_000_000}, 86400, 600, 1400))
    assert only_line(data_checks.check_memory(changed)).endswith(
        "raise maxmemory, or shorten [history] after or [receiver] dedupe_window"
    )


@pytest.mark.parametrize(
    ("moves", "maxmemory", "counts", "level"),
    [
        (MoveReport(), 4 * GB, {}, "warn"),
        (MoveReport(), 4 * GB, {"open": 100_000}, "warn"),
        (MoveReport(), 4 * GB, {"open": 1_000_000}, "fail"),  # 2 GB of 3 GB
        (MoveReport(), 4 * GB, {"failed": 1_000_000}, "fail"),
        (MoveReport(left=1_000_000), 4 * GB, {}, "fail"),
        (MoveReport(fault="the disk is full"), 4 * GB, {}, "fail"),
        (None, 4 * GB, {}, "fail"),
        (MoveReport(), 0, {}, "fail"),  # then the history does not know when memory is short
    ],
)
def test_a_history_that_takes_events_early_keeps_memory_from_being_full(
    facts: Facts, moves: MoveReport | None, maxmemory: int, counts: dict[str, int], level: str
) -> None:
    """A forecast of 4 minutes was wrong for as long as anyone looked."""
    changed = with_history(
        replace(facts, server=replace(SERVER, used_memory=3 * GB, maxmemory=maxmemory, machine_memory=4 * GB)),
        footprint=Footprint(1_000_000, {"north": 2_000_000}, 3600, 600, 1400),
        moves=moves,
        counters=Counters({**dict.fromkeys(COUNTED, 0), **counts}, {}),
    )
    window = changed.config.receiver.model_copy(update={"dedupe_window": 3600.0, "spool_age": 3600.0})
    changed = replace(changed, config=changed.config.model_copy(update={"receiver": window}))
    line = only_line(data_checks.check_memory(changed))
    assert line.startswith(f"{level} memory: 3 GB of 4 GB")
    assert ("will fill it in" in line) == (level == "fail")
    taken = "from 70% on, the history takes events as soon as they have settled, not after 1 h; the rest needs 7"
    assert (taken in line) == (level == "warn" and not counts)


def test_marks_that_fill_the_memory_are_forecast(facts: Facts) -> None:
    """10 days of 50,000,000 marks. The million settled events in memory will leave it."""
    changed = with_history(
        replace(facts, server=replace(SERVER, used_memory=3 * GB)),
        footprint=Footprint(1_000_000, {"north": 50_000_000}, 86400, 600, 1400),
        moves=MoveReport(),
    )
    room = 0.85 * 4 * GB - 3 * GB + 1_000_000 * (2000 - 190)
    line = only_line(data_checks.check_memory(changed))
    assert line.startswith("fail memory: 3 GB of 4 GB; 50,000,000 events a day of 1.95 kB")
    assert f"will fill it in {span(room / (50_000_000 * 190) * 86400)} and need 88.5 GB in the end" in line


@pytest.mark.parametrize(
    ("moves", "unmoved", "says"),
    [
        (None, 0, ""),
        (None, 3, "warn history: no housekeeper reports that it moves events, and 3 settled events should be moved"),
        (MoveReport(), 0, "ok history: sqlite, settled events are moved to it after 1 h"),
        (MoveReport(), 2, "ok history: sqlite, settled events are moved to it after 1 h; 2 settled events wait"),
        (
            MoveReport(fault="the disk is full"),
            2,
            "warn history: sqlite: the disk is full / settled events stay in Redis until it can be used (2",
        ),
        (
            MoveReport(left=2, example="e1: too deep"),
            2,
            "warn history: 2 settled events cannot be stored in the history",
        ),
    ],
)
def test_the_history_check(facts: Facts, moves: MoveReport | None, unmoved: int, says: str) -> None:
    lines = as_lines(data_checks.check_history(with_history(facts, moves=moves, unmoved=unmoved)))
    assert len(lines) == bool(says)
    assert "".join(lines).startswith(says)
    assert as_lines(data_checks.check_history(with_inbox(facts, moves=moves, unmoved=unmoved))) == [], "it is off"


def test_files_of_the_history_before_are_named(facts: Facts) -> None:
    settings = facts.config.history.model_copy(update={"url": "postgresql://db/hooks"})
    host = replace(facts.host, history_files=2)
    now = replace(facts, config=facts.config.model_copy(update={"history": settings}), host=host)
    warning, _ = as_lines(data_checks.check_history(with_inbox(now, moves=MoveReport())))
    assert warning.startswith("warn history: /srv/data/history has past events of the SQLite history that was used")
    (line,) = as_lines(data_checks.check_history(with_history(replace(facts, host=host), moves=MoveReport())))
    assert line.startswith("ok history: sqlite"), "they are its own"


def test_a_host_that_has_not_the_files_of_the_history_is_told_although_another_moves_events(facts: Facts) -> None:
    elsewhere = with_history(facts, moves=MoveReport(), history_elsewhere="the files of the history are on b:/data")
    (line,) = as_lines(data_checks.check_history(elsewhere))
    assert line.startswith(
        "warn history: sqlite: the files of the history are on b:/data / commands on this host show only"
    )


# Disk, spool and public URLs


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (HostFacts("/srv/data", True, 50 * GB), "ok disk: 50 GB free at /srv/data"),
        (HostFacts("/srv/data", True, 1 << 20), "fail disk: 1 MB free at /srv/data: if the server is unreachable"),
        (HostFacts("/srv/data", True, 500 << 20), "warn disk: 500 MB free at /srv/data, and the spool may need 1 GB"),
        (HostFacts("/srv/data", True, 50 * GB, 100), "ok disk: 50 GB free at /srv/data"),
        (HostFacts("/srv/data", True, 50 * GB, 99), "fail disk: room for 99 more files at /srv/data: if the server is"),
        (
            HostFacts("/srv/data", True, 50 * GB, write_fault="Disk quota exceeded"),
            "fail disk: no new file (Disk quota exceeded) at /srv/data: if the server is unreachable",
        ),
        (HostFacts("/srv/data", False, GB), "fail disk: /srv/data is not writable for this user"),
        (HostFacts("/srv/data", True, GB, spool_fault="disk image is malformed"), "fail disk: a file of the spool in"),
        (
            HostFacts("/srv/data", True, 0, spool_fault="database or disk is full"),
            "fail disk: 0 bytes free at",
        ),
        (HostFacts("/srv/data", False, GB, read_only=True), "fail disk: the disk of /srv/data is read-only"),
        (HostFacts("/srv/data", True, GB, hangs=True), "fail disk: the disk of /srv/data does not answer: without"),
    ],
)
def test_disk_findings(facts: Facts, host: HostFacts, says: str) -> None:
    assert only_line(system_checks.check_disk(replace(facts, host=host))).startswith(says)


@pytest.mark.parametrize(
    ("host", "fix"),
    [
        (HostFacts("/srv/data", True, 0), "free disk space"),
        (HostFacts("/srv/data", False, GB, read_only=True), "mount it writable"),
        (HostFacts("/srv/data", True, GB), "check the owner of refused.sqlite3 and the disk"),
    ],
)
def test_refusals_that_cannot_be_read_have_the_fix_of_their_cause(facts: Facts, host: HostFacts, fix: str) -> None:
    host = replace(host, refused_fault="unable to open database file")
    first = as_lines(system_checks.check_disk(replace(facts, host=host)))[0]
    assert first.startswith("warn disk: refused deliveries cannot be read")
    assert first.partition(" -> ")[2].startswith(fix)


def test_a_full_disk_says_that_refusals_may_not_be_seen(facts: Facts) -> None:
    for host in (HostFacts("/srv/data", True, 0), HostFacts("/srv/data", False, GB, read_only=True)):
        line = only_line(system_checks.check_disk(replace(facts, host=host)))
        assert "then the checks of stores do not show them yet -> " in line


def test_the_fix_for_a_damaged_file_promises_no_recovery(facts: Facts) -> None:
    host = HostFacts("/srv/data", True, GB, spool_fault="spool-damaged-1.sqlite3 is damaged")
    line = only_line(system_checks.check_disk(replace(facts, host=host)))
    assert line.endswith("what can be read of it is in the inbox: move it away, or delete it")


def test_spool_findings(facts: Facts) -> None:
    def ago(seconds: float) -> datetime:
        return NOW - timedelta(seconds=seconds)

    spooling = with_inbox(
        facts,
        hosts=(
            Host("a", "receiving", 0, 0, None, NOW),
            Host("b", "receiving", 3, 3, ago(2), NOW),
            Host("c", "receiving", 5, 5, ago(300), NOW),
            Host("d", "silent", 7, None, None, ago(60)),
            Host("e", "silent", 0, None, None, ago(60)),
            Host("f", "stopped", 2, 2, ago(5), NOW),
            Host("g", "receiving", 0, None, None, NOW),
            Host("h", "silent", 0, 4, ago(60), ago(60)),
        ),
    )
    recent, stuck, silent, empty, stopped, unreadable, hung = as_lines(system_checks.check_spool(spooling))
    assert recent.startswith("warn spool: 3 accepted deliveries in the spool of b, to be drained")
    assert stuck.startswith("fail spool: 5 accepted deliveries in the spool of c, the oldest since")
    assert silent.startswith("fail spool: d is silent since")
    assert "its spool had 7 accepted deliveries then, and may have more" in silent
    assert "was not stopped" not in silent, "it may be cut off, or have stopped while it was"
    assert silent.endswith(
        "-> check its connection to the server; start `storehooks web` on it if it is not running; or run "
        "`storehooks hosts forget d` if the machine is gone"
    )
    assert "its spool had 0 accepted deliveries then" in empty
    assert stopped.startswith(
        "fail spool: 2 accepted deliveries in the spool of f, where `storehooks web` is not running"
    )
    assert unreadable.startswith("fail spool: g cannot read all of its spool")
    assert hung.startswith("fail spool: `storehooks web` runs on h, and has not reported since")
    assert "its spool has 4 accepted deliveries -> check its connection to the server; if its log is silent too" in hung
    assert "start `storehooks web`" not in hung
    no_server = replace(facts, inbox=None, host=replace(facts.host, spooled=2))
    assert only_line(system_checks.check_spool(no_server)).startswith(
        "fail spool: 2 accepted deliveries in the spool of this host, waiting for the server"
    )


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"used_memory": int(3.5 * GB)}, "memory"),
        ({"write_fault": "it could not write its append-only file"}, "server"),
        ({"role": "slave"}, "server"),
    ],
)
@pytest.mark.parametrize("age", [2, 300])
def test_while_the_server_takes_nothing_a_spool_is_not_draining(
    facts: Facts, changes: dict[str, Any], row: str, age: int
) -> None:
    spooling = with_inbox(facts, hosts=(Host("b", "receiving", 3, 3, NOW - timedelta(seconds=age), NOW),))
    full = replace(spooling, server=replace(SERVER, **changes), web=(WebFacts("u", ms=84, stores_in="spool"),))
    line = only_line(system_checks.check_spool(full))
    assert line.startswith("fail spool: 3 accepted deliveries in the spool of b, the oldest since")
    assert line.endswith(f"-> see {row} above")
    assert only_line(system_checks.check_public_urls(full)) == (
        f"warn public url: u stores deliveries in the spool now -> see {row} above"
    )


def test_only_a_fault_that_lets_web_start_leaves_deliveries_in_the_spool(facts: Facts) -> None:
    away = ServerFault("it does not answer", "start it", temporary=True)
    refused = ServerFault("it refuses the password", "correct it")
    lines = [
        only_line(
            system_checks.check_server(replace(facts, server=ServerFacts(address="a", fault=fault), inbox=None, web=()))
        )
        for fault in (away, refused)
    ]
    assert "`storehooks web` on this host stores deliveries in the spool, and its workers begin no run" in lines[0]
    assert (
        "web and worker do not start on this host, so do not restart them; a web process that runs already stores"
        in lines[1]
    )


def test_a_web_process_that_uses_a_spool_which_it_could_not_open_again_is_believed(facts: Facts) -> None:
    away = ServerFacts(address="a", fault=ServerFault("it does not answer", "start it", temporary=True))
    web, host = (WebFacts("u", stores_in="spool"),), HostFacts("/srv", True, 50 * GB, 0)
    found = replace(facts, server=away, inbox=None, web=web, host=host)
    assert "`storehooks web` on this host stores deliveries in the spool" in only_line(
        system_checks.check_server(found)
    )
    assert only_line(system_checks.check_disk(found)).startswith(
        "fail disk: room for 0 more files at /srv: `storehooks web` uses the spool that it has open; do not restart it"
    )


def test_a_web_process_that_says_that_it_cannot_store_is_believed(facts: Facts) -> None:
    away = ServerFacts(address="a", fault=ServerFault("it does not answer", "start it", temporary=True))
    web = (WebFacts("u", stores_in="nowhere"),)
    line = only_line(system_checks.check_server(replace(facts, server=away, inbox=None, web=web)))
    assert "`storehooks web` on this host answers every delivery with 503" in line


def test_a_fault_of_new_connections_only_is_not_taken_for_an_outage(facts: Facts) -> None:
    """doctor could not look up the server's name, and said that web uses the spool and that no run begins."""
    away = ServerFacts(address="a", fault=ServerFault("it does not answer", "start it", temporary=True))
    web = (WebFacts("u", stores_in="redis"),)
    line = only_line(system_checks.check_server(replace(facts, server=away, inbox=None, web=web)))
    assert "new connections from this host fail; the public URL stores deliveries in Redis" in line


@pytest.mark.parametrize(
    "host",
    [HostFacts("/srv", True, 1 << 20), HostFacts("/srv", True, GB, True), HostFacts("/srv", True, GB, hangs=True)],
)
def test_without_server_and_disk_no_delivery_is_said_to_wait_in_the_spool(facts: Facts, host: HostFacts) -> None:
    away = ServerFacts(address="a", fault=ServerFault("it does not answer", "start it", temporary=True))
    line = only_line(system_checks.check_server(replace(facts, server=away, inbox=None, web=(), host=host)))
    assert "`storehooks web` on this host answers every delivery with 503, and its workers begin no run" in line


@pytest.mark.parametrize("web_runs", [False, True])
def test_a_start_is_advised_only_if_no_web_process_runs(facts: Facts, web_runs: bool) -> None:
    host = replace(facts.host, web_runs=web_runs)
    line = only_line(system_checks.check_public_urls(replace(facts, host=host, web=(WebFacts("u", "timed out"),))))
    assert line.startswith("fail public url: u does not answer: timed out -> ")
    assert ("start `storehooks web`" in line) is not web_runs
    assert ("`storehooks web` runs, and does not answer at 127.0.0.1:8000 either" in line) is web_runs


def test_without_time_to_ask_the_web_process_nothing_is_said_about_it(facts: Facts) -> None:
    late = replace(facts, web=(WebFacts("u", "timed out", answers_at=None),))
    assert only_line(system_checks.check_public_urls(late)) == (
        "fail public url: u does not answer: timed out -> run with a longer timeout: --timeout 1m"
    )


def test_a_public_url_that_was_not_requested_is_no_failure(facts: Facts) -> None:
    line = only_line(system_checks.check_public_urls(replace(facts, web=(WebFacts("u", asked=False),))))
    assert line == "warn public url: u was not requested: out of time -> run with a longer timeout: --timeout 1m"


@pytest.mark.parametrize(
    ("web", "says"),
    [
        (WebFacts("u", ms=84, stores_in="redis"), "ok public url: u answered in 84 ms"),
        (
            WebFacts("http://127.0.0.1:1", ms=84, stores_in="redis"),
            "ok public url: http://127.0.0.1:1 answered in 84 ms; only programs on this machine can reach it",
        ),
        (WebFacts("u", ms=84, stores_in="spool"), "warn public url: u stores deliveries in the spool now"),
        (WebFacts("u", ms=84, stores_in="nowhere"), "fail public url: u cannot store deliveries"),
        (
            WebFacts("u", "timed out", answers_at="127.0.0.1:8000"),
            "fail public url: u does not answer: timed out / the web process itself answers at 127.0.0.1:8000 -> check",
        ),
        (
            WebFacts("u", "timed out", answers_at="0.0.0.0:5000"),
            "fail public url: u does not answer: timed out / the web process itself answers at 0.0.0.0:5000, not at",
        ),
        (WebFacts("u", "answered 301, a redirect to x"), "fail public url: u answered 301, a redirect to x -> start"),
    ],
)
def test_public_url_findings(facts: Facts, web: WebFacts, says: str) -> None:
    assert only_line(system_checks.check_public_urls(replace(facts, web=(web,)))).startswith(says)


@pytest.mark.parametrize(
    ("bind", "public", "says"),
    [
        ("127.0.0.1:1", "https://hooks.example.com", "ok config: no unknown keys, 3 secrets of stores resolved"),
        ("127.0.0.1:1", "http://hooks.example.com", "warn config: public_url is http: deliveries can be read"),
        (
            "127.0.0.1:1",
            "http://127.0.0.1:1",
            "fail config: public_url http://127.0.0.1:1 is a loopback address, and the store north",
        ),
    ],
)
def test_the_public_url_of_the_config(facts: Facts, bind: str, public: str, says: str) -> None:
    receiver = facts.config.receiver.model_copy(update={"bind": bind, "public_url": public})
    config = facts.config.model_copy(update={"receiver": receiver})
    assert only_line(system_checks.check_config(replace(facts, config=config))).startswith(says)


# Behind the queue


def sent(**topics: int) -> dict[str, list[EventName]]:
    return {"north": [EventName(name.replace("_", "."), count, NOW) for name, count in topics.items()]}


def test_an_invalid_plugin_stops_new_workers_and_not_those_that_run(facts: Facts) -> None:
    broken = replace(facts, plugins=replace(facts.plugins, fault="erp.py:3: SyntaxError"))
    assert only_line(handler_checks.check_handlers(broken)).startswith(
        "fail handlers: erp.py:3: SyntaxError / workers refuse to start; running ones keep the code that they have -> "
    )


def test_an_unknown_topic_fails_with_the_nearest_topic_and_the_source_line(facts: Facts) -> None:
    changed = with_inbox(facts, topic_names=sent(product_updated=4310), workers=())
    line = only_line(handler_checks.check_handlers(changed))
    assert line == (
        "fail handlers: erp.push wants product.stock, which no store has sent / "
        "nearest: product.updated (4,310 so far) -> correct the topic in /srv/erp.py:31"
    )


def test_settings_of_a_plugin_that_is_not_loaded_are_a_warning(facts: Facts, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[plugins.erp]\nx = 1\n[plugins.left]\nx = 1\n[plugins.removed]\nx = 1\n")
    with_settings = replace(facts, config=load(file, {}), plugins=PluginFacts((HANDLER,), left_out={"left": "y"}))
    found = [line for line in as_lines(handler_checks.check_handlers(with_settings)) if "[plugins.removed]" in line]
    assert found == [
        "warn handlers: the config has [plugins.removed], and no handler of a plugin removed is loaded -> "
        f"delete it if the plugin was removed; otherwise install the plugin, or correct the name ({file}:5)"
    ]
    without = replace(with_settings, plugins=PluginFacts())
    assert sum("and no handler of a plugin " in line for line in as_lines(handler_checks.check_handlers(without))) == 3


def test_plugins_that_take_longer_than_doctor_waits_are_a_warning(facts: Facts) -> None:
    late = replace(facts, plugins=PluginFacts(is_late=True))
    assert only_line(handler_checks.check_handlers(late)) == (
        "warn handlers: loading the plugins takes longer than doctor waits / workers let it take 60 s at most"
        " -> run with a longer timeout: --timeout 1m"
    )


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ('headers = ["authorization"]', "its scheme reads authorization, which is not stored"),
        ('headers = ["x-signature"]\nbatch = "json:events"', "it signs whole batches"),
        ('headers = ["x-signature"]', ""),
    ],
)
def test_a_forward_without_a_secret_of_events_that_cannot_be_verified_again_is_a_warning(
    facts: Facts, tmp_path: Path, scheme: str, why: str
) -> None:
    east = (
        f'[schemes.own]\n{scheme}\nsigned = "{{body}}"\n[stores.east]\nscheme = "own"\nsigning_secrets = ["secret"]\n'
    )
    text = CONFIG + east + '[forward.crm]\nurl = "https://crm.example"\ntopics = "*"\n'
    path = tmp_path / "config.toml"
    for secret in ("", 'secret = "whsec_c2VjcmV0IG9mIHRoZSBmb3J3YXJkIQ=="\n'):
        path.write_text(text + secret)
        found = as_lines(handler_checks.check_handlers(replace(facts, config=load(path, {}))))
        warning = (
            f"warn handlers: forward.crm sends events of east that its target cannot verify: {why} -> set secret in "
        )
        lines = [line for line in found if "forward.crm" in line]
        assert lines == ([] if secret or not why else [f"{warning}[forward.crm] ({path}:{lines[0].rpartition(':')[2]}"])


@pytest.mark.parametrize("secret", ["", 'secret = "whsec_c2VjcmV0IG9mIHRoZSBmb3J3YXJkIQ=="\n'])
def test_a_forward_without_a_secret_of_events_that_were_redacted_is_a_warning(
    facts: Facts, tmp_path: Path, secret: str
) -> None:
    path = tmp_path / "config.toml"
    redacted = '[redact]\npaths = ["email"]\n[forward.crm]\nurl = "https://crm.example"\ntopics = "*"\n'
    path.write_text(CONFIG + redacted + secret)
    found = as_lines(handler_checks.check_handlers(replace(facts, config=load(path, {}))))
    assert [line for line in found if "forward.crm" in line] == (
        []
        if secret
        else [
            "warn handlers: forward.crm fails for events from which [redact] removes email / their stores have signed"
            f" what was removed -> set secret in [forward.crm] ({path}:15)"
        ]
    )


@pytest.mark.parametrize(
    ("number", "told"),
    [(3, ""), (4, "warn north: 4 open events; at max_stored (5) its"), (5, "fail north: 5 open events, and max")],
)
def test_a_store_whose_deliveries_are_answered_503_for_its_open_events_is_a_failure(
    facts: Facts, tmp_path: Path, number: int, told: str
) -> None:
    """All of them were, and only the log of the receiver said so."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("[stores.south]", "max_stored = 5\n[stores.south]"))
    counts = {**dict.fromkeys(COUNTED, 0), "open": number}
    full = with_inbox(facts, counters=Counters(counts, {"north": counts}))
    lines = as_lines(store_checks.check_stores(replace(full, config=load(path, {}))))
    assert [line.startswith(told) for line in lines if "open events" in line] == ([True] if told else [])
    assert any(line.endswith(f"or raise max_stored ({path}:10)") for line in lines) == bool(told), lines


def test_a_known_topic_that_was_not_sent_yet_is_a_warning(facts: Facts) -> None:
    handler = replace(HANDLER, topics=("order.paid", "product.*"))
    changed = with_inbox(facts, topic_names=sent(product_updated=1), workers=())
    loaded, paid = as_lines(handler_checks.check_handlers(replace(changed, plugins=PluginFacts((handler,)))))
    assert loaded.startswith("ok handlers: 1 handler of erp")
    assert paid.startswith("warn handlers: no store has sent yet: order.paid (for erp.push) -> none, if such")


def test_topics_that_were_not_sent_yet_are_one_warning(facts: Facts) -> None:
    """In an emptied Redis they were a page of warnings, and hid the others."""
    wanted = ("order.created", "order.paid", "order.cancelled", "customer.created", "customer.updated")
    changed = with_inbox(facts, topic_names=sent(product_updated=1), workers=())
    handler = PluginFacts((replace(HANDLER, topics=wanted),))
    _, unsent = as_lines(handler_checks.check_handlers(replace(changed, plugins=handler)))
    assert unsent.startswith(
        "warn handlers: no store has sent yet: order.created (for erp.push), order.paid (for erp.push),"
        " order.cancelled (for erp.push), customer.created (for erp.push) and 1 more -> none, if such events are rare"
    )


def test_workers_that_run_another_version_than_this_host_has(facts: Facts) -> None:
    same = with_inbox(facts, declared=(HANDLER,), running={"erp.push": {"1.0"}})
    assert len(as_lines(handler_checks.check_handlers(same))) == 1
    old = with_inbox(facts, declared=(HANDLER, replace(HANDLER, version="0.9")), running={"erp.push": {"0.9"}})
    assert "warn handlers: erp.push is 1.0 here, and workers run 0.9" in as_lines(handler_checks.check_handlers(old))[1]
    absent = with_inbox(facts, declared=(HANDLER,))
    assert (
        "erp.push is in this config, and no worker has loaded it" in as_lines(handler_checks.check_handlers(absent))[1]
    )


def test_without_a_plugin_here_doctor_says_what_workers_still_run(facts: Facts) -> None:
    """Between `pip uninstall` and HUP they handle events."""
    removed = with_inbox(replace(facts, plugins=PluginFacts()), running={"erp.push": {"1.0"}})
    (still,) = as_lines(handler_checks.check_handlers(removed))
    assert still.startswith("warn handlers: this config loads no plugin on this host, and workers run erp.push -> ")
    assert "if the plugin was removed: send HUP to `storehooks worker`" in still
    (none,) = as_lines(handler_checks.check_handlers(with_inbox(removed, running={"erp.push": set()})))
    assert none.startswith("warn handlers: no plugin is loaded: events are stored and not handled")


def test_runs_that_wait_for_a_handler_of_this_config_fail_until_a_worker_has_loaded_it(facts: Facts) -> None:
    """Putting a plugin back into the config does not run them: the workers must load it again."""
    waiting = with_inbox(facts, declared=(HANDLER,), absent={"erp.push": AbsentHandler(None, 3)})
    reload = "send HUP to `storehooks worker`: it reloads config and plugins"
    for found in (waiting, replace(waiting, plugins=PluginFacts(is_late=True))):
        assert as_lines(handler_checks.check_handlers(found))[0].startswith(
            "fail handlers: erp.push: no worker has this handler any more; 3 runs of it wait -> "
        )
    assert only_line(handler_checks.check_handlers(waiting)).endswith(reload), "neither ok nor a second finding"
    idle = with_inbox(facts, declared=(HANDLER,), absent={"erp.push": AbsentHandler(None, 0)})
    absent, loaded = as_lines(handler_checks.check_handlers(idle))
    assert absent == f"warn handlers: erp.push: no worker has this handler any more -> {reload}"
    assert loaded.startswith("ok handlers: 1 handler of erp")


def test_several_versions_of_storehooks_are_a_warning_that_names_their_hosts(facts: Facts) -> None:
    def lines(**changes: Any) -> list[str]:
        return as_lines(worker_checks.check_workers(with_inbox(facts, declared=(), **changes)))

    old, new = (
        Heartbeat(f"{host}-1-2", ("default",), NOW, version=it) for host, it in (("a", "0.1.0"), ("b", "0.2.0"))
    )
    receiver = Host("b", "receiving", 0, 0, None, NOW, "0.2.0")
    warning = (
        "warn workers: several versions of storehooks are running: 0.1.0 on a, 0.2.0 on b -> "
        "upgrade the remaining hosts; see docs/how-to/upgrading.md"
    )
    assert warning in lines(workers=(old, new), hosts=())
    assert warning in lines(workers=(old,), hosts=(receiver,))
    assert len(lines(workers=(new,), hosts=(receiver,))) == 1
    assert len(lines(workers=(old,), hosts=(replace(receiver, state="stopped"),))) == 1


def test_a_worker_without_a_heartbeat_counts_as_dead_and_an_unserved_queue_fails(facts: Facts) -> None:
    silent = with_inbox(facts, workers=())
    assert only_line(worker_checks.check_workers(silent)).startswith("fail workers: no worker is running")
    slow = with_inbox(facts, declared=(replace(HANDLER, queue="slow"),))
    assert as_lines(worker_checks.check_workers(slow))[0].startswith(
        "fail workers: no worker serves the queue slow of erp.push"
    )


def test_what_waits_for_an_operator(facts: Facts) -> None:
    changed = with_inbox(
        facts,
        failed=12,
        retrying=3988,
        paused=frozenset({"handler:erp.push"}),
        declared=(HANDLER,),
        alerts=(Alert("silent", "north", "no event for 4 min", NOW), Alert("oldest_open", "", "waited for 6 min", NOW)),
        busy={f"h:{HANDLER.handler}": NOW + timedelta(hours=1), "erp": NOW + timedelta(hours=1)},
        quarantined=(1, ["ID|erp.push: found in later while its record says nothing"]),
    )
    failures, paused, busy, alerts, quarantined = as_lines(worker_checks.check_open_issues(changed))
    firing = "silent north: no event for 4 min, oldest_open - waited for 6 min"
    assert alerts == f"warn alerts: 2 alerts fire: {firing} -> storehooks alerts"
    name = HANDLER.handler
    assert busy == (
        f"warn busy: {name}: Busy until 13:00; runs wait -> to let them begin now: storehooks handlers resume {name}"
    )
    assert failures == (
        "fail failures: 12 runs failed for good; 3,988 runs wait for a retry -> "
        "storehooks failures; then replay or drop each group"
    )
    assert paused == "warn paused: erp.push is paused; its runs wait -> storehooks handlers resume erp.push"
    assert quarantined == (
        "fail inbox: 1 damaged record in Redis, quarantined: what belongs to it is not handled / "
        "ID|erp.push: found in later while its record says nothing -> "
        "check what else writes to this database; then clear the list: redis-cli DEL sh:quarantined "
        "(runs with sound records are then put back)"
    )


def test_deliveries_that_could_not_be_read_are_to_be_reread(facts: Facts) -> None:
    """A replay of them is refused."""
    reread = "after you have corrected the scheme: storehooks events reread"
    only = only_line(worker_checks.check_open_issues(with_inbox(facts, failed=3, unreadable=3)))
    assert only == (
        f"fail failures: 3 runs failed for good; none waits for a retry / 3 of them could not be read -> {reread}"
    )
    both = only_line(worker_checks.check_open_issues(with_inbox(facts, failed=5, unreadable=3)))
    assert both.endswith(f"-> storehooks failures; then replay or drop each group; {reread}")


def test_runs_that_are_still_retried_are_a_warning(facts: Facts) -> None:
    line = only_line(worker_checks.check_open_issues(with_inbox(facts, retrying=1)))
    assert line == "warn failures: 1 run waits for a retry after a failed attempt -> storehooks failures"


def test_failures_that_retention_will_delete_are_announced(facts: Facts) -> None:
    ending = EndingFailures(3, NOW + timedelta(hours=1))
    line = only_line(worker_checks.check_open_issues(with_inbox(facts, failed=12, ending=ending)))
    first = (NOW + timedelta(hours=1)).astimezone()
    assert f"3 of them are deleted within 7 d, the first at {first:%H:%M}: failures are kept for 90 d" in line


# Stores


def lines_of(facts: Facts, name: str = "north") -> list[str]:
    return [line for line in as_lines(store_checks.check_stores(facts)) if line.split()[1] == f"{name}:"]


def test_a_healthy_store_has_a_summary(facts: Facts) -> None:
    changed = with_inbox(facts, last_events={"north": NOW - timedelta(seconds=3)})
    assert lines_of(changed) == [
        "ok north: token 51 min, 6 of 6 wanted subscriptions (1 min ago), last event 3 s ago -> "
    ]
    assert lines_of(changed, "south") == ["ok south: no base_url, so its API is not used, no event yet -> "]


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (ApiFacts("token", "the token endpoint answered 401"), "fail north: no token: the token endpoint answered 401"),
        (
            ApiFacts("denied", "answered 403"),
            "fail north: API access denied: answered 403 -> check the app's permissions",
        ),
        (ApiFacts("unreachable", "no answer"), "fail north: API unreachable: no answer -> check base_url ("),
        (ApiFacts("no-token", "no answer"), "fail north: no token: no answer -> check base_url ("),
        (ApiFacts("late"), "fail north: API did not answer in time"),
        (ApiFacts("redis", "OOM", "free memory"), "fail north: its API was not called: OOM -> free memory"),
        (
            ApiFacts("fine", clock_ahead=600.0),
            "fail north: the store's clock is 10 min ahead of this machine's, and standard-webhooks allows",
        ),
        (ApiFacts("fine", clock_ahead=-60.0), "warn north: the store's clock is 1 min behind this machine's"),
    ],
)
def test_api_findings(facts: Facts, api: ApiFacts, says: str) -> None:
    assert lines_of(replace(facts, apis={**facts.apis, "north": api}))[0].startswith(says)


@pytest.mark.parametrize(
    ("checked", "says"),
    [
        (
            None,  # as if HUP was not sent after the store was added: no worker will check it
            "warn north: subscriptions of this store were not checked yet; workers that have loaded it check every "
            "5 min -> send HUP to `storehooks web` and `storehooks worker` on each host, unless they have loaded this "
            "config; then storehooks subscriptions plan --store north",
        ),
        (CheckResult("north", NOW.timestamp() - 60, wanted=6), "ok north: token 51 min, 6 of 6 wanted subscriptions"),
        (
            CheckResult("north", NOW.timestamp() - 7200, wanted=6),
            "warn north: subscriptions were last checked 2 h ago",
        ),
        (
            CheckResult("north", NOW.timestamp(), unknown="answered 404"),
            "fail north: subscriptions could not be checked",
        ),
        (
            CheckResult(
                "north", NOW.timestamp(), wanted=6, pending=({"action": "enable", "topic": "order.paid", "why": "x"},)
            ),
            "fail north: at the last check: 6 subscriptions wanted, 0 at the store; pending changes: "
            "enable order.paid / checked 0 s ago -> storehooks subscriptions apply",
        ),
        (
            CheckResult(
                "north",
                NOW.timestamp() - 120,
                wanted=1,
                existing=("a", "b"),
                pending=({"action": "delete", "topic": "order.paid", "why": "deleted in 6 d"},),
            ),
            "warn north: at the last check: 1 subscription wanted, 2 at the store; pending changes: "
            "delete order.paid / checked 2 min ago / order.paid: deleted in 6 d -> storehooks subscriptions plan "
            "--store north, then apply; or wait: the check deletes what no handler has wanted for 7 d",
        ),
        (
            CheckResult(
                "north",
                NOW.timestamp(),
                wanted=1,
                existing=("a", "b"),
                pending=({"action": "delete", "topic": "order.paid", "why": "deleted only by `apply`"},),
            ),
            "warn north: at the last check: 1 subscription wanted, 2 at the store; pending changes: "
            "delete order.paid / checked 0 s ago / order.paid: deleted only by `apply` -> "
            "storehooks subscriptions plan --store north, then apply",
        ),
    ],
)
def test_subscription_findings(facts: Facts, checked: CheckResult | None, says: str) -> None:
    changed = with_inbox(facts, checked={"north": checked} if checked else {})
    assert lines_of(changed)[0].startswith(says)


@pytest.mark.parametrize("state", ["fine", "unasked"])
def test_what_the_last_check_found_is_reported_also_when_the_api_is_not_asked(facts: Facts, state: ApiState) -> None:
    """A store whose own handlers use up its rate limit is not asked, for as long as they do."""
    disabled = CheckResult("north", NOW.timestamp(), wanted=6, pending=({"action": "enable", "topic": "order.paid"},))
    changed = with_inbox(replace(facts, apis={**facts.apis, "north": ApiFacts(state)}), checked={"north": disabled})
    assert lines_of(changed)[0].startswith("fail north: at the last check: 6 subscriptions wanted, 0 at the store")


def test_a_store_with_a_learned_secret_needs_none_in_the_config(tmp_path: Path, facts: Facts) -> None:
    key = "[secrets]\nkey = 'AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8='\n"
    (tmp_path / "learns.toml").write_text(
        f"{key}[stores.north]\nbase_url = 'https://n.example'\nauth = {{token = 't'}}\n"
    )
    changed = with_inbox(replace(facts, config=load(tmp_path / "learns.toml", {})), checked=CHECKED)
    assert lines_of(changed)[0].startswith("fail north: no signing secret: none in the config, and none learned")
    assert lines_of(with_inbox(changed, learned={"north": 2}))[0].startswith("ok north")


@pytest.mark.parametrize(
    ("refused_minutes_ago", "accepted_minutes_ago", "level", "says"),
    [
        ([90, 80, 70, 60], 100, "fail", "no delivery was accepted since"),
        ([90, 80, 70, 60], None, "fail", "no delivery was ever accepted"),
        ([90, 80, 70, 60], 50, "warn", "other deliveries were accepted since"),
        ([90, 80, 70, 60], 75, "warn", "2 of them after the last accepted delivery"),
        ([9000, 90, 80, 70, 60], 100, "fail", "4 of them after the last accepted delivery"),
        ([60], 100, "warn", "no delivery was accepted since"),  # any sender can cause it
        ([60.2, 60.1, 60], 100, "warn", "no delivery was accepted since"),
        ([60], None, "warn", "no delivery was ever accepted"),
        ([-90, -100, -110, -120], 100, "warn", "at times in the future: a clock of ours was wrong, so it is unknown"),
    ],
)
def test_only_refusals_over_some_time_after_the_last_accepted_delivery_fail(
    facts: Facts,
    tmp_path: Path,
    refused_minutes_ago: list[float],
    accepted_minutes_ago: float | None,
    level: str,
    says: str,
) -> None:
    def ago(minutes: float) -> datetime:
        return NOW - timedelta(minutes=minutes)

    refusals = open_refusals(tmp_path)
    lines = [
        Refusal(ago(minutes).timestamp(), "north", "north", "signature-mismatch", 1, "", "")
        for minutes in refused_minutes_ago
    ]
    refusals.add(lines, bounds=Bounds(30 * 86400.0, 1 << 20), now=NOW.timestamp())
    accepted = {"north": ago(accepted_minutes_ago)} if accepted_minutes_ago else {}
    host = replace(
        facts.host,
        refused=tuple(refusals.by_store()),
        refused_after=local_facts.refused_after(refusals, ["north"], accepted),
    )
    line = lines_of(with_inbox(replace(facts, host=host), last_events=accepted))[0]
    assert line.startswith(f"{level} north: {len(refused_minutes_ago)} refused since ")
    assert f"signature-mismatch {len(refused_minutes_ago)}; {says}" in line


def test_refusals_are_a_warning_while_it_is_unknown_what_was_accepted(facts: Facts) -> None:
    at = NOW.timestamp() - 3600
    host = replace(facts.host, refused=(StoreRefusals("north", {"signature-mismatch": 212}, 212, at - 9000, at),))
    line = lines_of(replace(facts, host=host, inbox=None))[0]
    assert line.startswith("warn north: 212 refused since ")
    assert "it is unknown whether other deliveries were accepted" in line


def test_refusals_without_a_body_are_listed_not_verified(facts: Facts) -> None:
    at = NOW.timestamp() - 3600
    for with_body, says, fix in (
        (0, "0 of them with a body", "refused --store north"),
        (1, "1 of them with a body", "verify --store north --refused last"),
        (3, "all stored", "verify --store north --refused last"),
    ):
        refused = StoreRefusals("north", {"signature-mismatch": 3}, with_body, at, at)
        line = lines_of(with_inbox(replace(facts, host=replace(facts.host, refused=(refused,)))))[0]
        assert f", {says}; " in line or f", {says} " in line, line
        assert line.endswith(f"storehooks {fix}"), line


def test_a_store_that_signs_with_an_expired_secret_is_a_failure(facts: Facts) -> None:
    """Only the store can cause it."""
    at = NOW.timestamp() - 3600
    host = replace(facts.host, refused=(StoreRefusals("north", {"secret-expired": 2}, 2, at, at),))
    line = lines_of(with_inbox(replace(facts, host=host), last_events={"north": NOW}))[0]
    assert line.startswith("fail north: 2 refused since ")
    assert "secret-expired 2; the store has signed with an expired secret -> " in line


def test_refusals_that_are_valid_by_now_need_a_reload_before_the_release(facts: Facts) -> None:
    """The release alone was the fix. It stops no new refusal while `web` has the old config."""
    at = NOW.timestamp() - 3600
    refused = StoreRefusals("north", {"unknown-store": 3}, 3, at, at)
    host = replace(facts.host, refused=(refused,), now_valid={"north": (3, 3)})
    line = lines_of(with_inbox(replace(facts, host=host)))[0]
    assert "all stored; all valid under the current config -> send HUP to `storehooks web` and `storehooks work" in line
    assert line.endswith("unless they have loaded this config; then storehooks refused release --store north")


def test_unknown_stores_and_limits_of_a_scheme_are_reported_once(facts: Facts) -> None:
    host = replace(
        facts.host,
        refused=(StoreRefusals("west", {"unknown-store": 4}, 4, 0, 1), StoreRefusals("?", {"x": 2}, 2, 0, 1)),
    )
    lines = as_lines(store_checks.check_stores(replace(facts, host=host)))
    assert any(
        line.startswith("warn stores: 6 deliveries refused for which no configured store was found: west")
        for line in lines
    )
    (scheme,) = [line for line in lines if line.startswith("warn scheme")]
    assert "woocommerce (south): no timestamp is signed" in scheme
    assert "the topic is not signed" in scheme


SHARED_DOMAINS = """
[stores.orders-app]
scheme = "shopify"
domain = "north.myshopify.com"
signing_secrets = ["first secret"]
[stores.a-stock-app]
scheme = "shopify"
domain = "https://North.myshopify.com/"
signing_secrets = ["second secret"]
[stores.ads-app]
scheme = "{scheme}"
domain = "{domain}"
signing_secrets = ["third secret"]
"""


@pytest.mark.parametrize(
    ("scheme", "domain", "others"),
    [
        ("woocommerce", "north.myshopify.com", "a-stock-app"),
        ("shopify", "south.myshopify.com", "a-stock-app"),
        ("shopify", "north.myshopify.com", "a-stock-app, ads-app"),
    ],
)
def test_stores_that_the_common_url_cannot_tell_apart_are_one_warning(
    tmp_path: Path, facts: Facts, scheme: str, domain: str, others: str
) -> None:
    """Two apps of one shop: the second one's deliveries were refused there, and nothing said so."""
    (tmp_path / "shared.toml").write_text(SHARED_DOMAINS.format(scheme=scheme, domain=domain))
    config = load(tmp_path / "shared.toml", {})
    lines = as_lines(store_checks.check_stores(replace(facts, config=config, apis={})))
    assert [line for line in lines if "POST /webhooks" in line] == [
        "warn stores: stores have the same domain, and POST /webhooks finds only the first of them: "
        f"north.myshopify.com (orders-app, {others}) -> have the others send to their own URLs, such as "
        "/webhooks/a-stock-app, and remove `domain` of each"
    ]


def test_many_healthy_stores_share_a_line(tmp_path: Path, facts: Facts) -> None:
    tables = "".join(f'[stores.s{n:03}]\nsigning_secrets = ["c2VjcmV0IG9mIG5vcnRo"]\n' for n in range(40))
    (tmp_path / "many.toml").write_text(tables)
    config = load(tmp_path / "many.toml", {})
    apis = {name: ApiFacts("none") for name in config.stores}
    assert only_line(store_checks.check_stores(replace(facts, config=config, apis=apis))) == (
        "ok stores: 40 without failures: s000, s001, s002, s003 and 36 more -> "
    )


def test_the_same_finding_of_many_stores_is_reported_once(tmp_path: Path, facts: Facts) -> None:
    lines = ('base_url = "https://x.example"', 'auth = {token = "t"}', 'signing_secrets = ["c2VjcmV0IG9mIG4="]')
    tables = ("\n".join([f"[stores.s{n:03}]", *lines, ""]) for n in range(1000))
    (tmp_path / "many.toml").write_text("".join(tables))
    config = load(tmp_path / "many.toml", {})
    apis = {name: ApiFacts("late" if n < 30 else "unasked") for n, name in enumerate(config.stores)}
    late, healthy, not_requested = as_lines(store_checks.check_stores(replace(facts, config=config, apis=apis)))
    assert late.startswith("fail stores: 30 stores: API did not answer in time (s000, s001, s002, s003 and 26 more)")
    assert healthy.startswith("ok stores: 970 without failures")
    assert not_requested.startswith("warn stores: 970 APIs were not checked")


@pytest.mark.timed
def test_jobs_that_hang_are_abandoned_at_the_deadline() -> None:
    release = threading.Event()
    jobs: dict[str, Callable[[], int]] = {
        f"slow {n}": lambda: int(release.wait(30)) for n in range(network_facts.PARALLEL)
    }
    mixed = network_facts.ParallelJobs({"quick": lambda: 7, "broken": lambda: 1 // 0}, time.monotonic() + 5)
    assert (mixed.results(), mixed.started) == ({"quick": 7}, {"quick", "broken"})
    started = time.monotonic()
    hanging = network_facts.ParallelJobs({**jobs, "next": lambda: 1}, started + 1.0)
    assert (hanging.results(), hanging.started) == ({}, set(jobs))
    release.set()
    assert time.monotonic() - started < 4


# Refusals by store, and formatting


def test_refusals_by_store(tmp_path: Path, config: Config) -> None:
    refusals = open_refusals(tmp_path)
    lines = [
        ("north", "", "too-old", b"{}", 401),
        ("north", "", "too-old", None, 503),
        ("?", "west", "unknown-store", b"{}", 503),
    ]
    refusals.add(
        [
            Refusal(1000.0 + at, store, named, reason, 2, "", "", {}, body, status=status)
            for at, (store, named, reason, body, status) in enumerate(lines)
        ],
        bounds=config.receiver.refused,
        now=1000.0,
    )
    north, west = refusals.by_store()
    assert (north.store, dict(north.reasons), north.with_body, north.first, north.last) == (
        "north",
        {"too-old": 2},
        1,
        1000.0,
        1001.0,
    )
    assert (west.store, west.total, west.with_body) == ("west", 1, 1)
    assert [(one.store, one.total) for one in refusals.by_store(besides={2, 3})] == [("north", 1)]
    assert (refusals.after("north", 0), refusals.after("north", 0, besides={2})) == ((2, 1.0), (1, 0.0))
    assert [one.status for one in refusals.newest()] == [503, 503, 401]
    assert [one.id for one in refusals.newest(store="north", status=503)] == [2]


def test_formatting_of_counts_times_and_sizes() -> None:
    assert [counted(count, "run") for count in (0, 1, 3988)] == ["0 runs", "1 run", "3,988 runs"]
    assert [waits(count, "delivery", "deliveries") for count in (1, 2)] == ["1 delivery waits", "2 deliveries wait"]
    assert [span(seconds) for seconds in (0.4, 3, 61, 3060, 10260, 86400 * 12)] == [
        "0 s",
        "3 s",
        "1 min",
        "51 min",
        "2 h 51 min",
        "12 d",
    ]
    exact = [exact_span(seconds) for seconds in (0.5, 90.0, 150, 3600, 5400, 86400 * 2)]
    assert exact == ["0.5 s", "90 s", "150 s", "1 h", "90 min", "2 d"]
    assert [size(octets) for octets in (12, 2000, 4 * GB, 500 << 20)] == ["12 bytes", "1.95 kB", "4 GB", "500 MB"]
    assert some(list("abcdef")) == "a, b, c, d and 2 more"
    assert clock(NOW.timestamp() - 86400, NOW).startswith("14 Nov")
