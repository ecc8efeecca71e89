"""The server's clock was days ahead and is set right: nothing waits for days, and nothing counts as alive for days.

Most tests move a stored time ahead, which is what such a clock leaves behind. One really sets a server's clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from receiver.inbox import Administration, Declaration, FailureQueries, keys
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.keyring.receiver_versions import ReceiverVersions
from receiver.inbox.outcomes import Outcome, OutcomeKind
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.rq_records import WORKER_SECONDS, register_worker
from receiver.inbox.subscription_checks import LOCK_MS, SubscriptionChecks
from tests.receiver.inbox.test_inbox import claim_one, route
from tests.support.faked_clock import needs_faketime, server_with_clock
from tests.support.harness import System, eventually
from tests.workers.operations.test_failures import fail
from workers.storeapi.keys import rate_limit_keys, run_script, token_keys
from workers.storeapi.transport.rate_limit import SharedRateLimiter

DAYS = 5 * 86_400
PLUGIN = """
import time
from workers import Busy, Router
router = Router("shop")
@router.on("order.created", retries=(4.0, 1.0))
def flaky(event, ctx):
    if ctx.attempt < 2:
        raise RuntimeError("not yet")
@router.on("order.busy")
def busy(event, ctx):
    if time.time() < event.data["free_at"]:
        raise Busy("no time", after=4)
@router.on("order.patient", delay="7d")
def patient(event, ctx):
    pass
"""


def server_ms(client: Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.full
@needs_faketime
def test_work_goes_on_at_once_after_a_clock_that_was_days_ahead_is_set_right(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    with server_with_clock(tmp_path / "faked") as (server, set_ahead):
        system = make_system(url=server.url, plugin=PLUGIN)
        worker, housekeeper = system.start("worker", "housekeeper")
        set_ahead(DAYS)
        waiting = [
            system.accept("order.created"),
            system.accept("order.busy", data={"id": 1, "free_at": time.time() + 3}),
        ]
        patient = system.accept("order.patient")
        eventually(lambda: (run := system.run_of(waiting[0], "shop.flaky")) and run.attempts == 1)
        eventually(lambda: system.client.exists(keys.BUSY))
        eventually(lambda: (run := system.run_of(patient, "shop.patient")) and run.status == "waiting")
        housekeeper.kill()  # while it leads
        set_ahead(0)
        system.start("housekeeper")
        for event_id in waiting:
            assert system.settled(event_id) == "settled"
        week = server_ms(system.client) + 7 * 86_400_000
        eventually(lambda: system.client.zscore(keys.LATER, f"{patient}|shop.patient") <= week)
        assert system.client.zscore(keys.LATER, f"{patient}|shop.patient") > week - 60_000
        system.close()
        assert worker.wait() == 0


def test_a_retry_is_not_further_away_than_its_delay(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    system.start("worker")
    patient, flaky = system.accept("order.patient"), system.accept("order.created")
    waiting = {f"{patient}|shop.patient", f"{flaky}|shop.flaky"}
    eventually(lambda: {item.decode() for item in system.client.zrange(keys.LATER, 0, -1)} == waiting)
    due = system.client.zscore(keys.LATER, f"{patient}|shop.patient")
    system.client.zincrby(keys.LATER, DAYS * 1000, f"{flaky}|shop.flaky")
    system.start("housekeeper")
    assert system.settled(flaky) == "settled"
    assert system.client.zscore(keys.LATER, f"{patient}|shop.patient") == due


def test_each_of_many_waiting_runs_is_examined_in_turn(system: System) -> None:
    system.accept()
    handlers = [(f"shop.greet{number}", "default", 600.0) for number in range(250)]
    assert system.inbox.route([(claim_one(system.inbox), handlers)], "0") == [["routed"]]
    near = dict(system.client.zrange(keys.LATER, 0, -1, withscores=True))
    far = [item for place, item in enumerate(near) if place % 2]
    for item in far:
        system.client.zincrby(keys.LATER, DAYS * 1000, item)
    same = system.client.zscore(keys.LATER, far[0])
    system.client.zadd(keys.LATER, dict.fromkeys(far[:120], same))  # more with one time than are examined at once
    latest = server_ms(system.client) + 601_000
    for _ in range(8):
        system.housekeeping.tick()
    assert system.client.zcount(keys.LATER, latest, "+inf") == 0
    kept = [item for item in near if item not in far]
    assert [system.client.zscore(keys.LATER, item) for item in kept] == [near[item] for item in kept]


def test_busy_does_not_close_a_limit_for_longer_than_was_asked(system: System) -> None:
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", True))
    system.inbox.finish([Outcome(run, OutcomeKind.BUSY, {"error": "Busy: no time"}, delay=0.5)])
    (name, text), *_ = system.client.hgetall(keys.BUSY).items()
    until, rest = text.decode().split(" ", 1)
    system.client.hset(keys.BUSY, name, f"{int(until) + DAYS * 1000} {rest}")
    claim = system.inbox.claim({"shop.greet": 1}, capacity=1)
    assert claim.runs == ()
    assert claim.retry_in <= 0.5
    assert HandlerQueries(system.client).busy_limits()[name.decode()].timestamp() < time.time() + 60
    eventually(lambda: system.inbox.claim({"shop.greet": 1}, capacity=1).runs)


def test_a_dead_housekeeper_does_not_lead_for_days(system: System) -> None:
    system.client.set(keys.LEADER, "dead", px=DAYS * 1000)
    assert not system.housekeeping.lead("next", 200)
    eventually(lambda: system.housekeeping.lead("next", 200), within=2)


def test_dead_processes_do_not_look_alive_for_days(make_system: Callable[..., System]) -> None:
    system = make_system()
    health, (worker, housekeeper) = HealthQueries(system.client), system.start("worker", "housekeeper")
    eventually(lambda: health.workers() and health.housekeeper(), what="both are alive")
    worker.kill()
    housekeeper.kill()
    record = keys.RQ_WORKER + health.workers()[0].name
    system.client.expire(record, DAYS)
    assert health.workers(), "its heartbeat is of this moment"
    system.client.hset(record, "last_heartbeat", (datetime.now(UTC) - timedelta(seconds=WORKER_SECONDS)).isoformat())
    system.client.set(keys.LEADER, "dead", px=DAYS * 1000)
    assert (health.workers(), health.housekeeper()) == ([], "")


def test_a_dead_receiver_is_silent(system: System) -> None:
    system.inbox.publish_spool("host", 3, 0.0)
    assert system.ledger.spools()["host"].state == "receiving"
    report = json.loads(system.client.hget(keys.SPOOLS, "host"))
    system.client.hset(keys.SPOOLS, "host", json.dumps(report | {"at": report["at"] + DAYS}))
    assert system.ledger.spools()["host"].state == "silent"


def test_a_handler_that_is_gone_is_not_routed_to_for_days(system: System) -> None:
    old = Declaration("shop.old", "1", ("*",), ("*",), "default", {})
    new = Declaration("shop.new", "1", ("*",), ("*",), "default", {})
    system.inbox.declare([old, new])
    for field, at in system.client.hgetall(keys.DECLARED_AT).items():
        system.client.hset(keys.DECLARED_AT, field, int(at) + DAYS * 1000)
    system.inbox.declare([new])
    latest = max(int(at) for at in system.client.hvals(keys.DECLARED_AT))
    assert latest <= server_ms(system.client)
    assert {one.handler for one in system.inbox.declarations().handlers} == {"shop.old", "shop.new"}


def test_bodies_are_removed_again_after_their_age(system: System) -> None:
    system.client.set("sh:bodies_removed_until", server_ms(system.client) + DAYS * 1000)
    system.housekeeping.trim(bodies=0.01, records=86_400)
    event_id = system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", True))
    system.inbox.finish([Outcome(run, OutcomeKind.DONE)])
    eventually(lambda: system.housekeeping.trim(bodies=0.01, records=86_400)[0] == 1)
    assert not system.client.exists(keys.BODY + event_id)


def test_an_effect_of_a_dead_run_is_not_under_way_for_days(system: System) -> None:
    effects = EffectStore(system.client, keep=3600, at_work=60)
    effects.begin("o:s:north:x", "f", "one|shop.greet", in_doubt="run")
    assert effects.begin("o:s:north:x", "f", "two|shop.greet", in_doubt="run") == ["busy"]
    system.client.hset("sh:o:s:north:x", "f", f"begun {server_ms(system.client) + DAYS * 1000} one|shop.greet")
    assert effects.begin("o:s:north:x", "f", "two|shop.greet", in_doubt="run")[0] == "go"


def test_a_receiver_that_is_gone_is_not_waited_for(redis: Redis) -> None:
    versions = ReceiverVersions(redis)
    versions.confirm("live", 6)
    redis.hset(keys.RECEIVERS, "gone", f"6 {server_ms(redis) + DAYS * 1000}")
    assert versions.behind(7) == ["live"]
    assert redis.hkeys(keys.RECEIVERS) == [b"live"]


def test_a_lock_on_subscriptions_does_not_outlive_a_dead_process_for_days(redis: Redis) -> None:
    redis.set(keys.CHECK_LOCK + "north", "dead", px=DAYS * 1000)
    checks = SubscriptionChecks(redis)
    with pytest.raises(Exception, match=f"another process .* in {LOCK_MS // 1000} s"), checks.lock("north"):
        pass
    assert 0 < redis.pttl(keys.CHECK_LOCK + "north") <= LOCK_MS


def test_api_calls_are_not_stopped_for_days(redis: Redis) -> None:
    limiter = SharedRateLimiter(redis, "north", rate=10)
    assert limiter.take_slot(1.0) == 0
    limiter.pause(0.2)
    (key,) = rate_limit_keys("north")
    for field in ("tat", "paused_until"):
        redis.hset(key, field, int(redis.hget(key, field)) + DAYS * 1_000_000)
    wait = limiter.take_slot(1.0)
    assert 0 < wait <= 0.4
    assert abs(limiter.take_slot(0.05)) <= 0.5, "also where the slot is refused"


@pytest.mark.parametrize("stuck", [1, 2])
def test_fetching_a_token_is_not_stopped_for_days(redis: Redis, stuck: int) -> None:
    names = token_keys("north", "f")
    redis.set(names[stuck], "dead", px=DAYS * 1000)
    run_script(redis, "get_token", names, "caller", 300, "", 300)
    eventually(lambda: run_script(redis, "get_token", names, "caller", 300, "", 300)[0] == b"fetch", within=2)


def test_replays_of_retries_forget_the_delay(system: System) -> None:
    """A run that waits has its delay in place of a token; it is not left there when the run is ready again."""
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", True))
    system.inbox.finish([Outcome(run, OutcomeKind.RETRY, {"error": "x"}, delay=0.001)])
    record = keys.EVENT + run.event.id
    assert system.client.hget(record, "r:shop.greet") == b"later 1 0 default 1"
    eventually(lambda: system.housekeeping.tick()[0] == 1)
    assert system.client.hget(record, "r:shop.greet") == b"ready 1 0 default "
    Administration(system.client).drop([run.item], reason="given up")
    assert b"dropped 1 0 default " in system.client.hget(record, "r:shop.greet")


@pytest.mark.parametrize("action", ["replay", "drop"])
def test_failures_of_the_time_ahead_can_be_replayed_and_dropped(system: System, action: str) -> None:
    ahead = [fail(system), fail(system)]
    (group,) = FailureQueries(system.client).groups().entries
    for event_id in ahead:
        system.client.zincrby(keys.GROUP_RUNS + group.id, DAYS * 1000, f"{event_id}|shop.greet")
    fail(system)
    options = ("--reason", "a test") if action == "drop" else ()
    done = system.run_cli("failures", action, "--group", group.id, *options, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"3 runs {'dropped' if action == 'drop' else 'replayed'}" in done.stdout
    assert FailureQueries(system.client).groups().entries == []


def test_a_failure_of_the_time_ahead_that_fails_again_is_replayed_once(system: System) -> None:
    """It fails again at a time before its first failure, and the replay has not ended then."""
    ids = [fail(system) for _ in range(3)]
    reader = FailureQueries(system.client)
    (group,) = reader.groups().entries
    for event_id in ids:
        system.client.zincrby(keys.GROUP_RUNS + group.id, DAYS * 1000, f"{event_id}|shop.greet")
    replayed = []
    for item in reader.runs_of(group.id):
        replayed.append(item)
        assert len(replayed) <= 3
        system.administration.reopen([item], {})
        system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), OutcomeKind.FAILED, {"group": group.id})])
    assert sorted(replayed) == sorted(f"{event_id}|shop.greet" for event_id in ids)
    assert [one.failed for one in reader.groups().entries if one.id == group.id] == [3]


def test_an_unreadable_delivery_of_the_time_ahead_can_be_read_again(system: System) -> None:
    (stored,) = system.inbox.accept([replace(system.delivery(), unreadable="no topic")])
    system.client.zincrby(keys.FAILED, DAYS * 1000, f"{stored.id}|intake")
    assert list(FailureQueries(system.client).unreadable()) == [stored.id]


def test_a_worker_killed_before_the_clock_was_set_back_is_not_shown_for_days(system: System) -> None:
    """What was written while the clock was three days ahead expires three days later than it should."""
    register_worker(system.client, "killed", ["default"], {"queues": "storehooks"})
    system.client.expire("rq:worker:killed", 3 * 86_400)
    system.client.hset("rq:worker:foreign", "queues", "storehooks")
    system.client.expire("rq:worker:foreign", 480)
    system.client.sadd("rq:workers:storehooks", "rq:worker:foreign")
    register_worker(system.client, "alive", ["default"], {"queues": "storehooks"})
    assert 0 < system.client.ttl("rq:worker:killed") <= WORKER_SECONDS
    assert system.client.ttl("rq:worker:foreign") > WORKER_SECONDS, "another program's worker is left alone"
