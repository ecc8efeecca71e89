"""What the inbox remembers for people: ends and attempts of runs, secrets, versions, resources, open events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from receiver.inbox import Declaration, Outcome, Run, connect, keys
from receiver.inbox.host_refusals import publish_refusals, refusals_of_hosts
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.event_pages import newest_of_resource, oldest_open_age, open_since
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.redis import script_runner
from receiver.inbox.run_statistics import RunStatistics, all_runs_of, recent_runs_of, runs_of
from receiver.spool import open_events
from tests.receiver.inbox.test_inbox import GREET, claim_one, lapse, route
from tests.support.harness import System, eventually
from workers.history.event_filter import EventFilter
from workers.history.sqlite_history import SqliteHistory
from workers.operations.all_events import AllEvents
from workers.runtime.history_mover import Mover

HANDLER = "shop.greet"


def run_of(system: System, **event: Any) -> Run:
    system.accept(**event)
    return route(system.inbox, claim_one(system.inbox), GREET)[0]


def settle(system: System, **event: Any) -> str:
    run = run_of(system, **event)
    system.inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": "ok", "ms": 2.5})])
    return run.stored.id


def fail(system: System, run: Run, error: str = "KeyError: 'x'", how: str = "failed") -> None:
    detail = {"error": error, "version": "1.4", "ms": 12.5, "group": "aaaaaaaa"}
    system.inbox.finish([Outcome(run, OutcomeKind(how), detail)])


def is_now(moment: datetime | None) -> bool:
    return moment is not None and abs((datetime.now(UTC) - moment).total_seconds()) < 60


# Runs


@pytest.mark.parametrize("how", ["done", "dropped", "failed"])
def test_a_run_has_the_time_at_which_it_ended(system: System, how: str) -> None:
    run = run_of(system)
    assert system.run_of(run.stored.id, HANDLER).ended_at is None
    system.inbox.finish([Outcome(run, OutcomeKind(how), {"ms": 2.5})])
    ended = system.run_of(run.stored.id, HANDLER)
    assert is_now(ended.ended_at)
    assert ended.ms == 2.5
    system.administration.reopen([run.item], {HANDLER: "default"})
    assert system.run_of(run.stored.id, HANDLER).ended_at is None


def test_runs_that_a_person_or_the_housekeeper_ended_have_it_too(system: System) -> None:
    run = run_of(system)
    fail(system, run)
    system.administration.drop([run.item], reason="a test")
    assert is_now(system.run_of(run.stored.id, HANDLER).ended_at)
    lost = run_of(system)
    for _ in range(6):
        lapse(system.inbox)
        system.inbox.claim({HANDLER: 1}, capacity=1)
    assert system.status(lost.stored.id) == "failed"
    assert is_now(system.run_of(lost.stored.id, HANDLER).ended_at)


def test_the_last_ten_failed_attempts_are_kept_the_newest_first(system: System) -> None:
    run = run_of(system)
    for number in range(12):
        fail(system, run, f"E{number} " + "é" * 400, how="retry")
        system.housekeeping.tick()
        run = claim_one(system.inbox, HANDLER)
    fail(system, run, "the last\n")
    found = system.run_of(run.stored.id, HANDLER).failed_attempts
    assert [one.error.split()[0] for one in found] == ["the", *(f"E{number}" for number in range(11, 2, -1))]
    assert {(one.ms, one.version) for one in found} == {(12.5, "1.4")}
    assert all(is_now(one.ended_at) and len(one.error) <= 300 for one in found)
    system.administration.reopen([run.item], {HANDLER: "default"})
    system.inbox.finish([Outcome(claim_one(system.inbox, HANDLER), OutcomeKind.DONE, {"result": "ok"})])
    after = system.run_of(run.stored.id, HANDLER)
    assert (after.status, after.failed_attempts) == ("done", found)


def test_a_damaged_line_hides_no_other(system: System) -> None:
    run = run_of(system)
    fail(system, run)
    lines = system.client.hget(keys.EVENT + run.stored.id, f"a:{HANDLER}")
    system.client.hset(keys.EVENT + run.stored.id, f"a:{HANDLER}", b'{}\n[1]\n["a",1,2,3]\n\xff\n' + lines)
    assert [one.error for one in system.run_of(run.stored.id, HANDLER).failed_attempts] == ["KeyError: 'x'"]


def test_what_a_run_remembers_moves_to_the_history_with_it(system: System, tmp_path: Path) -> None:
    run = run_of(system)
    fail(system, run, how="retry")
    system.housekeeping.tick()
    system.inbox.finish([Outcome(claim_one(system.inbox, HANDLER), OutcomeKind.DONE, {"ms": 1.0})])
    before = system.ledger.event(run.stored.id)
    history = SqliteHistory(tmp_path / "history")
    history.check()
    assert Mover(system.client, history).move(age=-1, known_for=3600).moved == 1
    past = AllEvents(system.client, history).event(run.stored.id)
    assert past == before
    assert past
    assert past.signed_with
    assert (len(past.runs[0].failed_attempts), is_now(past.runs[0].ended_at)) == (1, True)


# Secrets


def test_an_event_has_the_fingerprint_of_its_secret_also_through_the_spool(system: System) -> None:
    delivery = system.delivery()
    system.inbox.accept([delivery])
    record = system.ledger.event(delivery.event.id)
    assert record
    assert record.signed_with == system.config.known_stores["north"].secrets[0].fingerprint
    assert f"secret {record.signed_with}" in system.run_cli("events", "show", "last").stdout
    system.config.data_dir.mkdir(mode=0o700, exist_ok=True)
    spool = open_events(system.config.data_dir)
    spool.add([delivery])
    (row,) = spool.oldest(limit=1)
    assert row.delivery
    assert row.delivery.signed_with == record.signed_with


# Versions


def test_the_first_declaration_of_each_version_is_known(system: System) -> None:
    def declare(version: str) -> None:
        system.inbox.declare([Declaration(HANDLER, version, ("*",), ("*",))])

    declare("1")
    first = HandlerQueries(system.client).versions([HANDLER, "shop.other"])
    assert is_now(first[HANDLER]["1"])
    assert first["shop.other"] == {}
    for version in ("2", "1", *map(str, range(3, 60))):
        declare(version)
    found = HandlerQueries(system.client).versions([HANDLER])[HANDLER]
    assert list(found)[-1] == "59"
    assert len(found) == 50
    assert "1" not in found


# Statistics


def test_runs_are_counted_by_outcome_duration_and_waiting_time(system: System) -> None:
    statistics = RunStatistics(system.client)
    first = run_of(system)
    received = first.event.received_at.timestamp() * 1000
    ended = received + 1000.0
    for outcome in (
        Outcome(first, OutcomeKind.DONE, {"ms": 0.9}),
        Outcome(first, OutcomeKind.DONE, {"ms": 3.0}),
        Outcome(replace(first, attempts=1), OutcomeKind.FAILED, {"ms": 3.5}),
        Outcome(replace(first, attempts=1), OutcomeKind.RETRY, {"error": "died"}),
        Outcome(first, OutcomeKind.BUSY),
        Outcome(first, OutcomeKind.RELEASE),
    ):
        statistics.add(outcome, ended)
    statistics.flush()
    statistics.flush()
    found = runs_of(system.client, [HANDLER, "shop.other"], days=8)
    assert found[HANDLER].outcomes == {"done": 2, "failed": 1, "retry": 1, "busy": 1}
    assert found[HANDLER].durations == {10: 1, 12: 2}
    assert found[HANDLER].waiting == {20: 2}
    assert found[HANDLER].percentile(found[HANDLER].durations, 0.99) == 4.096
    assert found["shop.other"].percentile(found["shop.other"].durations, 0.5) is None
    assert found[HANDLER].duration_us == 7_400
    assert found[HANDLER].waiting_us == 2_000_000 - 3_900
    assert all_runs_of(system.client, [HANDLER]) == {HANDLER: found[HANDLER]}
    assert recent_runs_of(system.client, [HANDLER])[HANDLER].outcomes == found[HANDLER].outcomes
    assert recent_runs_of(system.client, [HANDLER])[HANDLER].durations == {}
    kept = sorted(system.client.ttl(key) for key in system.client.scan_iter(f"{keys.RUNS}*"))
    assert 600 < kept[0] <= 900
    assert 8 * 86400 < kept[1] <= kept[2] <= 9 * 86400


def test_all_runs_are_counted_over_days(system: System) -> None:
    statistics = RunStatistics(system.client)
    for _ in range(2):
        statistics.add(Outcome(run_of(system), OutcomeKind.DONE, {"ms": 1.0}), time.time() * 1000)
        statistics.flush()
        system.client.delete(*system.client.keys(f"{keys.RUNS}2*"))
    assert runs_of(system.client, [HANDLER])[HANDLER].outcomes == {}
    assert all_runs_of(system.client, [HANDLER])[HANDLER].outcomes == {"done": 2}


def test_statistics_wait_for_the_server(system: System, tmp_path: Path) -> None:
    statistics = RunStatistics(connect(f"unix://{tmp_path}/no-server.sock", timeout=0.1))
    statistics.add(Outcome(run_of(system), OutcomeKind.DONE, {"ms": 1.0}), time.time() * 1000)
    with pytest.raises(RedisError):
        statistics.flush()
    statistics._client = system.client
    statistics.flush()
    assert runs_of(system.client, [HANDLER])[HANDLER].outcomes == {"done": 1}


def test_statistics_are_counted_at_maxmemory_and_once_after_a_lost_reply(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics, run = RunStatistics(system.client), run_of(system)

    def end_one() -> None:
        statistics.add(Outcome(run, OutcomeKind.DONE, {"ms": 1.0}), time.time() * 1000)

    def lose_reply(*arguments: Any) -> None:
        run_one(*arguments)
        raise RedisTimeout

    end_one()
    run_one = script_runner.run_one
    with monkeypatch.context() as patched:
        patched.setattr(script_runner, "run_one", lose_reply)
        with pytest.raises(RedisTimeout):
            statistics.flush()
    end_one()
    system.client.config_set("maxmemory", "1mb")
    try:
        statistics.flush()
    finally:
        system.client.config_set("maxmemory", 0)
    for read in (runs_of, all_runs_of, recent_runs_of):
        assert read(system.client, [HANDLER])[HANDLER].outcomes == {"done": 2}


def test_a_worker_writes_its_statistics(make_system: Callable[..., System]) -> None:
    plugin = "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    pass\n"
    system = make_system(plugin=plugin)
    ids = [system.accept() for _ in range(5)]
    (worker,) = system.start("worker")
    for event_id in ids:
        system.settled(event_id)
    worker.stop()
    found = runs_of(system.client, [HANDLER])[HANDLER]
    assert (found.outcomes, sum(found.durations.values()), sum(found.waiting.values())) == ({"done": 5}, 5, 5)
    assert list(HandlerQueries(system.client).versions([HANDLER])[HANDLER])


# Resources


class Shop:
    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.history = system, SqliteHistory(folder / "history")
        self.history.check()
        self.events = AllEvents(system.client, self.history)

    def move(self) -> int:
        return Mover(self.system.client, self.history).move(age=-1, known_for=3600).moved

    def ids(self, limit: int = 10, resource_id: str = "7") -> list[str]:
        found = self.events.of_resource(store="north", kind="order", resource_id=resource_id, limit=limit)
        assert all(one.content for one in found)
        return [one.id for one in found]


@pytest.fixture
def shop(system: System, tmp_path: Path) -> Shop:
    return Shop(system, tmp_path)


def test_the_events_of_a_resource_are_linked_the_newest_first(shop: Shop) -> None:
    system = shop.system
    ids = [system.accept(topic, data={"id": 7}) for topic in ("order.created", "order.updated", "order.paid")]
    for other in (
        {"data": {"id": 8}},
        {"data": {"id": 7}, "store": "south"},
        {"data": {"id": 7}, "topic": "product.updated"},
    ):
        system.accept(**other)
    assert shop.ids() == ids[::-1]
    assert shop.ids(limit=2) == [ids[2], ids[1]]
    assert shop.ids(resource_id="9") == []
    assert [one.id for one in shop.events.earlier_of_resource(ids[1])] == [ids[0]]
    assert shop.events.earlier_of_resource("unknown") == []


def test_the_events_of_one_group_are_linked_too(shop: Shop) -> None:
    deliveries = [shop.system.delivery(data={"id": number % 2 + 7}) for number in range(6)]
    shop.system.inbox.accept(deliveries)
    assert shop.ids() == [one.event.id for one in deliveries[4::-2]]
    assert shop.ids(resource_id="8") == [one.event.id for one in deliveries[5::-2]]


def test_the_link_leads_on_into_the_history_and_back(shop: Shop) -> None:
    """Moved, kept as a failure, moved, open: in both places in turn."""
    system = shop.system
    moved = settle(system, data={"id": 7})
    failed = run_of(system, data={"id": 7})
    fail(system, failed)
    second = settle(system, data={"id": 7})
    newest = system.accept(data={"id": 7})
    expected = [newest, second, failed.stored.id, moved]
    assert shop.ids() == expected
    assert shop.move() == 2
    assert shop.ids() == expected
    assert [one.id for one in shop.events.earlier_of_resource(second)] == expected[2:]
    shop.events.bring_back([second])
    assert shop.ids() == expected


def test_the_newest_event_may_have_left_redis(shop: Shop) -> None:
    system = shop.system
    ids = [settle(system, data={"id": 7}) for _ in range(2)]
    shop.move()
    assert newest_of_resource(system.client, store="north", kind="order", resource_id="7") is None
    assert not system.client.exists(keys.RESOURCES)
    assert shop.ids() == ids[::-1]
    ids.append(system.accept(data={"id": 7}))
    assert shop.ids() == ids[::-1]


def test_events_that_are_removed_leave_no_entry(system: System) -> None:
    settle(system, data={"id": 7})
    assert system.client.hlen(keys.RESOURCES) == 1
    system.housekeeping.trim(bodies=-1, records=-1)
    assert not system.client.exists(keys.RESOURCES)


def test_a_damaged_link_costs_no_event(system: System) -> None:
    system.accept(data={"id": 7})
    system.client.set(keys.RESOURCES, "damaged")
    second = settle(system, data={"id": 7})
    assert system.status(second) == "settled"
    assert AllEvents(system.client, None).of_resource(store="north", kind="order", resource_id="7") == []


# The oldest open event


def test_the_time_before_which_no_event_is_open_moves_on(system: System) -> None:
    accepted = {name: int(system.client.zscore(keys.INDEX, name)) for name in (settle(system) for _ in range(3))}
    assert open_since(system.client) == 0
    oldest = system.accept()
    system.accept()
    assert system.housekeeping.advance_open() == 3
    assert open_since(system.client) == system.client.zscore(keys.INDEX, oldest)
    assert system.housekeeping.advance_open() == 0
    first, *_ = accepted
    system.administration.reopen([f"{first}|{HANDLER}"], {HANDLER: "default"})
    assert open_since(system.client) == accepted[first]


def test_the_oldest_open_event_has_an_age(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(system)
    assert oldest_open_age(system.client) == 0
    oldest = system.accept()
    system.accept()
    system.client.zincrby(keys.INDEX, -60e6, oldest)
    system.housekeeping.advance_open()
    assert 60 <= oldest_open_age(system.client) < 90
    monkeypatch.setattr("receiver.inbox.queries.event_pages.PAGE", 1)
    system.client.delete(keys.OPEN_SINCE)
    system.client.hset(keys.EVENT + oldest, "state", "settled")
    assert 60 <= oldest_open_age(system.client) < 90, "the others were not read, and none is older"


def test_open_events_are_searched_from_there_on(system: System) -> None:
    for _ in range(5):
        settle(system)
    waiting = system.accept()
    events = AllEvents(system.client, None)
    system.housekeeping.advance_open()
    system.client.config_resetstat()
    found = events.find(EventFilter(), status="open")
    assert [one.id for one in found.events] == [waiting]
    assert system.client.info("commandstats")["cmdstat_hgetall"]["calls"] == 1


def test_it_passes_everything_in_slices(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.inbox.housekeeping.OPEN_SLICE", 2)
    for _ in range(5):
        last = settle(system)
    assert [system.housekeeping.advance_open() for _ in range(4)] == [2, 2, 1, 0]
    assert open_since(system.client) == system.client.zscore(keys.INDEX, last) + 1
    newest = system.accept()
    assert system.housekeeping.advance_open() == 0
    assert open_since(system.client) == system.client.zscore(keys.INDEX, newest)
    system.client.set(keys.OPEN_SINCE, "damaged")
    assert system.housekeeping.advance_open() == 2


# Refusals


@pytest.mark.full
def test_a_host_reports_the_sum_of_its_refusals(system: System) -> None:
    system.start("web")
    system.http.post("/webhooks/north", content=b"{}")
    system.http.post("/webhooks/" + "x" * 60, content=b"{}")
    host = keys.host_of(system.config.data_dir)
    found = eventually(lambda: (one := refusals_of_hosts(system.client).get(host)) and one.total == 2 and one, 30)
    assert {one.store: dict(one.reasons) for one in found.stores} == {
        "north": {"no-signature": 1},
        "?": {"unknown-store": 1},
    }
    assert is_now(found.at)
    assert all(is_now(one.last) for one in found.stores)


def test_reports_are_bounded_and_a_damaged_one_hides_no_other(redis: Redis) -> None:
    publish_refusals(
        redis, "one:/data", [(f"store-{number}", {"no-signature": 1}, 0, 1.0, 2.0) for number in range(300)]
    )
    redis.hset(keys.REFUSALS, "two:/data", b'{"at": 1, "stores": [1]}')
    assert {host: len(one.stores) for host, one in refusals_of_hosts(redis).items()} == {"one:/data": 200}
    publish_refusals(redis, "one:/data", [])
    assert refusals_of_hosts(redis) == {}
