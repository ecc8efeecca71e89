"""Damaged records and keys: each affects only itself, and is quarantined."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from redis import ConnectionPool, Redis
from redis.exceptions import ResponseError

from receiver.contract.event import UNREADABLE
from receiver.inbox import Administration, Declaration, FailureQueries, Inbox, Limit, Outcome, Routes, Run, keys
from receiver.inbox.administration import DropResult, ReopenResult
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import lapse
from tests.support.harness import System, eventually

GREET = "shop.greet"
PLUGIN = "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    pass\n"
ROUTES = {("north", "order.created"): [(GREET, "default", True)]}
ERP = {GREET: Limit("erp", concurrency=2)}


def ready_runs(system: System, count: int) -> list[str]:
    """Accept and route events. Returns their ids; each has one ready run."""
    ids = [system.accept() for _ in range(count)]
    events = system.inbox.claim({"": count}, capacity=count).runs
    system.inbox.route([(event, [(GREET, "default", False)]) for event in events], system.inbox.declarations().version)
    return ids


def leased_runs(system: System, count: int, limits: dict[str, Limit] | None = None) -> list[Run]:
    ready_runs(system, count)
    return list(system.inbox.claim({GREET: count}, capacity=count, limits=limits).runs)


def quarantined(system: System) -> set[str]:
    return {item.decode() for item in system.client.hkeys(keys.QUARANTINED)}


def test_a_claim_routes_past_a_damaged_event(system: System) -> None:
    """It stayed first in the lane, and nothing behind it was routed."""
    bad, good = system.accept(), system.accept()
    system.client.hset(keys.EVENT + bad, "open", "x")
    routes = Routes(system.inbox.declarations().version, ROUTES)  # type: ignore[arg-type]
    _, claim = system.inbox.finish_and_claim((), {"": 8, GREET: 8}, capacity=8, routes=routes)
    assert [run.stored.id for run in claim.runs] == [good]
    assert quarantined(system) == {bad}
    assert system.client.zcard(keys.READY) == 0


@pytest.mark.parametrize("damage", [{"open": "x"}, {"store": None}])
def test_a_damaged_event_is_not_routed_and_the_others_of_its_batch_are(
    system: System, damage: dict[str, str | None]
) -> None:
    bad, good = system.accept(), system.accept()
    events = sorted(system.inbox.claim({"": 8}, capacity=8).runs, key=lambda run: run.stored.id != bad)
    damage_record(system, bad, damage)
    replies = system.inbox.route([(event, [(GREET, "default", True)]) for event in events], "0")
    assert replies == [["stale"], ["routed", GREET]]
    assert quarantined(system) == {bad}
    assert system.client.zrange(keys.LEASED, 0, -1) == [f"{good}|{GREET}".encode()]


@pytest.mark.parametrize("outcome", ["done", "failed", "retry", "busy"])
@pytest.mark.parametrize("damage", [{"store": None}, {"open": "x", "bad": "x"}])
def test_the_outcomes_of_the_runs_behind_a_damaged_one_are_written(
    system: System, outcome: str, damage: dict[str, str | None]
) -> None:
    """The worker sent the same group again and again, and none behind the first was written."""
    runs = leased_runs(system, 3)
    damage_record(system, runs[0].stored.id, damage)
    written = system.inbox.finish([Outcome(run, outcome, {"error": "E"}, 60) for run in runs])  # type: ignore[arg-type]
    untouched = outcome in ("retry", "busy") and "open" in damage  # these outcomes change no number of runs
    assert written == [untouched, True, True]
    assert quarantined(system) == (set() if untouched else {runs[0].item})
    assert system.client.zcard(keys.LEASED) == 0
    assert system.identity_holds()


def test_a_damaged_event_is_not_listed_for_retention(system: System) -> None:
    (run,) = leased_runs(system, 1)
    damage_record(system, run.stored.id, {"store": None})
    assert system.inbox.finish([Outcome(run, "done")]) == [False]
    assert system.client.zcard(keys.PREFIX + "done") == 0


def test_damaged_slots_cost_no_run_and_stop_no_claim(system: System) -> None:
    runs = leased_runs(system, 2, ERP)
    system.client.delete(keys.SLOTS + "erp")
    system.client.set(keys.SLOTS + "erp", "damaged")
    assert system.inbox.finish([Outcome(run, "done") for run in runs]) == [True] * len(runs)
    ready_runs(system, 1)
    assert system.inbox.claim({GREET: 1}, capacity=1, limits=ERP).runs
    assert quarantined(system) == {keys.SLOTS + "erp"}


@pytest.mark.parametrize("damage", [{"store": None}, {"open": "x", "bad": "x"}])
def test_a_tick_moves_the_runs_behind_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    """It had left its set before the error and was lost, with everything that the same tick had still to move."""
    retried = leased_runs(system, 2)
    system.inbox.finish([Outcome(run, "retry", {"error": "E"}, delay=0.001) for run in retried])
    lost = leased_runs(system, 2)
    for run in (retried[0], lost[0]):
        damage_record(system, run.stored.id, damage)
        raw = system.client.hget(keys.EVENT + run.stored.id, f"r:{GREET}")
        system.client.hset(keys.EVENT + run.stored.id, f"r:{GREET}", raw.replace(b"leased 0 0", b"leased 0 9"))
    lapse(system.inbox)
    good = {run.item.encode() for run in (retried[1], lost[1])}
    assert good <= set(system.client.zrange(keys.READY + GREET, 0, -1))
    assert lost[0].item in quarantined(system)
    assert ("store" in damage) == (retried[0].item in quarantined(system)), "a due run needs no undamaged counters"
    assert system.client.zcard(keys.LATER) == system.client.zcard(keys.LEASED) == 0


def test_an_error_that_concerns_the_caller_quarantines_nothing(system: System) -> None:
    """It occurs with every item: all of them would leave their lanes, although nothing is damaged."""
    ids = {system.accept(), system.accept()}
    routes = Routes(system.inbox.declarations().version, {("north", "order.created"): [(GREET, "default", False)]})
    with restricted_inbox(system, "-llen") as restricted, pytest.raises(ResponseError):
        restricted.finish_and_claim((), {"": 8}, capacity=8, routes=routes)
    assert quarantined(system) == set()
    assert {run.stored.id for run in system.inbox.claim({"": 8}, capacity=8).runs} == ids


def test_outcomes_are_written_without_the_right_to_publish(system: System) -> None:
    """Since Redis 7 a new user has no channels. Runs claimed in the same round trip were lost with the error."""
    (run,) = leased_runs(system, 1)
    ready_runs(system, 1)
    with restricted_inbox(system, "resetchannels") as restricted:
        written, claim = restricted.finish_and_claim([Outcome(run, "done")], {GREET: 1}, capacity=1)
    assert written == [True]
    assert len(claim.runs) == 1
    assert system.status(run.stored.id) == "settled"


def test_claimed_runs_are_returned_even_if_the_outcomes_were_refused(system: System) -> None:
    (run,) = leased_runs(system, 1)
    ready_runs(system, 1)
    with restricted_inbox(system, "-hincrby") as restricted:
        written, claim = restricted.finish_and_claim([Outcome(run, "done")], {GREET: 1}, capacity=1)
    assert isinstance(written, ResponseError)
    assert [one.handler for one in claim.runs] == [GREET]


WRONG_TYPE = {"": "of another type"}
NO_STORE = {"store": None}
NO_NUMBERS = {"open": "x", "bad": "x"}
NO_RUN = {f"r:{GREET}": "x"}


@pytest.mark.parametrize("damage", [WRONG_TYPE, NO_STORE, NO_NUMBERS, NO_RUN])
def test_a_handler_with_a_damaged_run_can_be_retired(system: System, damage: dict[str, str | None]) -> None:
    """The command failed each time, and the runs behind the damaged one were never ended."""
    bad, good = ready_runs(system, 2)
    damage_record(system, bad, damage)
    assert system.administration.retire(GREET) == 1
    assert system.run_of(good, GREET).status == "failed"
    assert quarantined(system) == {f"{bad}|{GREET}"}
    assert system.client.zcard(keys.READY + GREET) == 0
    assert system.identity_holds()


@pytest.mark.parametrize("damage", [WRONG_TYPE, NO_STORE, NO_NUMBERS, NO_RUN])
def test_orphans_are_ended_past_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    bad, good = ready_runs(system, 2)
    damage_record(system, bad, damage)
    system.inbox.declare([])
    system.client.hset(keys.DECLARED_AT, "shop.other@1#x", "yesterday")
    assert len(system.housekeeping.end_orphans(absent=0)) == 1
    assert system.run_of(good, GREET).status == "failed"
    assert quarantined(system) == {f"{bad}|{GREET}"}
    assert system.housekeeping.end_orphans(absent=0) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.DECLARED_AT, "yesterday"),
        (keys.DECLARED_AT, "-1"),
        (keys.DECLARATIONS, "{"),
        (keys.DECLARATIONS, "[]"),
        (keys.DECLARATIONS, '{"handler": "shop.other"}'),
    ],
)
def test_workers_and_commands_work_past_a_damaged_declaration(
    make_system: Callable[..., System], key: str, value: str
) -> None:
    """A worker could not start, a running one did not route, and commands ended with a traceback."""
    system = make_system(plugin=PLUGIN)
    system.inbox.declare([Declaration("shop.other", "1", ("*",), ("*",))])
    for name in system.client.hkeys(keys.DECLARATIONS):
        system.client.hset(key, name, value)
    system.start("worker")
    event_id = system.accept()
    eventually(lambda: (run := system.run_of(event_id, "shop.greet")) and run.status == "done", what="it is handled")
    for command in ("doctor", "handlers"):
        assert "Traceback" not in system.run_cli(command).stderr
    if value == "yesterday":
        assert value.encode() not in system.client.hvals(key)


def test_retire_changes_nothing_if_the_server_refuses(system: System) -> None:
    ids = ready_runs(system, 2)
    with restricted_inbox(system, "-hset") as restricted, pytest.raises(ResponseError):
        Administration(restricted.client).retire(GREET)
    assert quarantined(system) == set()
    assert {item.decode() for item in system.client.zrange(keys.READY + GREET, 0, -1)} == {f"{i}|{GREET}" for i in ids}


@pytest.mark.parametrize("damage", [WRONG_TYPE, {"store": None, f"g:{GREET}": "abc failed"}, {f"g:{GREET}": "x"}])
def test_retention_continues_past_a_damaged_record(system: System, damage: dict[str, str | None]) -> None:
    """It failed at the same record every five seconds, and nothing was removed any more."""
    bad, good = leased_runs(system, 2)
    system.inbox.finish([Outcome(run, "done") for run in (bad, good)])
    damage_record(system, bad.stored.id, damage)
    system.client.set(keys.PREFIX + "bodies_removed_until", "never")
    assert system.housekeeping.trim(bodies=-1, records=-1)[:2] == (2, 2)
    assert system.status(good.stored.id) == "unknown"
    assert quarantined(system) == {bad.stored.id}
    assert system.housekeeping.trim(bodies=-1, records=-1) == (0, 0, 0)


@pytest.mark.parametrize("damage", [WRONG_TYPE, {"store": None}, {f"g:{GREET}": "x"}])
def test_old_failures_are_removed_past_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    bad, good = leased_runs(system, 2)
    system.inbox.finish([Outcome(run, "failed", {"error": "E"}) for run in (bad, good)])
    damage_record(system, bad.stored.id, damage)
    eventually(lambda: system.housekeeping.trim(bodies=1e6, records=1e6, failures=0.001)[2] == 2)
    assert system.status(good.stored.id) == "unknown"
    assert quarantined(system) == {bad.item}
    assert system.client.zcard(keys.FAILED) == 0


@pytest.mark.parametrize("damage", [WRONG_TYPE, {"store": None, f"g:{GREET}": "abc failed"}])
def test_a_store_with_too_many_events_is_trimmed_past_a_damaged_record(
    system: System, damage: dict[str, str | None]
) -> None:
    bad, good = leased_runs(system, 2)
    system.inbox.finish([Outcome(run, "done") for run in (bad, good)])
    damage_record(system, bad.stored.id, damage)
    assert system.housekeeping.trim_store("north", keep=0, window=-1) == (2, 2)
    assert system.status(good.stored.id) == "unknown"
    assert quarantined(system) == {bad.stored.id}


def failed_runs(system: System, count: int) -> list[str]:
    runs = leased_runs(system, count)
    system.inbox.finish([Outcome(run, OutcomeKind.FAILED, {"error": "E"}) for run in runs])
    return [run.item for run in runs]


@pytest.mark.parametrize("damage", [WRONG_TYPE, {f"g:{GREET}": "x"}, NO_NUMBERS])
def test_failures_are_dropped_past_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    """The command failed each time, and nothing of its page was dropped."""
    bad, *good = failed_runs(system, 3)
    damage_record(system, keys.split_item(bad)[0], damage)
    dropped = system.administration.drop([bad, *good], reason="noise")
    assert dropped == [DropResult.DAMAGED, DropResult.DROPPED, DropResult.DROPPED]
    assert quarantined(system) == {bad}
    assert {system.status(keys.split_item(one)[0]) for one in good} == {"settled"}
    assert system.identity_holds()


@pytest.mark.parametrize("damage", [WRONG_TYPE, {f"g:{GREET}": "x"}, NO_NUMBERS])
def test_runs_are_replayed_past_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    bad, *good = failed_runs(system, 3)
    damage_record(system, keys.split_item(bad)[0], damage)
    replayed = system.administration.reopen([bad, *good], {})
    assert replayed == [ReopenResult.DAMAGED, ReopenResult.READY, ReopenResult.READY]
    assert quarantined(system) == {bad}
    assert {run.item for run in system.inbox.claim({GREET: 3}, capacity=3).runs} == set(good)
    assert system.identity_holds()


@pytest.mark.parametrize("damage", [WRONG_TYPE, {"g:intake": "x"}])
def test_events_are_read_again_past_a_damaged_one(system: System, damage: dict[str, str | None]) -> None:
    read = [system.delivery() for _ in range(3)]
    unreadable = [replace(one, event=replace(one.event, topic=UNREADABLE), unreadable="no topic") for one in read]
    bad, *good = (accepted.id for accepted in system.inbox.accept(unreadable))
    damage_record(system, bad, damage)
    done = system.run_cli("events", "reread", "--json", "--yes")
    assert done.returncode == 1, done.stderr
    assert (json.loads(done.stdout)["read"], json.loads(done.stdout)["damaged"]) == (2, 1)
    assert {system.status(one) for one in good} == {"open"}
    assert system.identity_holds()


def test_commands_work_past_a_damaged_event_and_name_it(system: System) -> None:
    """One key of another type stopped each of them with the server's error."""
    bad, *good = failed_runs(system, 3)
    event_id = keys.split_item(bad)[0]
    damage_record(system, event_id, WRONG_TYPE)
    ids = {keys.split_item(one)[0] for one in good}
    listed = {one["id"]: one["status"] for one in json.loads(system.run_cli("events", "--json").stdout)}
    assert listed == {event_id: "damaged"} | dict.fromkeys(ids, "failed")
    failures = {one["event"]: one["error"] for one in json.loads(system.run_cli("failures", "list", "--json").stdout)}
    assert failures == {event_id: "its record is damaged"} | dict.fromkeys(ids, "E")
    (group,) = FailureQueries(system.client).groups().entries
    assert system.run_cli("failures", "show", group.id).returncode == 0
    for command in (("events", "show", event_id), ("failures", "drop", "--event", event_id, "--reason", "x", "--yes")):
        done = system.run_cli(*command)
        assert (done.returncode, f"the record of event {event_id} is damaged" in done.stderr) == (2, True), done.stderr
    assert "2 runs replayed" in system.run_cli("events", "replay", "--run-status", "failed", "--yes").stdout
    dropped = system.run_cli("failures", "drop", "--group", group.id, "--reason", "noise", "--yes")
    assert "1 run not dropped: the record is damaged" in dropped.stdout, dropped.stderr


@pytest.mark.parametrize("damage", [WRONG_TYPE, NO_RUN])
def test_held_work_of_a_store_returns_past_a_damaged_run(system: System, damage: dict[str, str | None]) -> None:
    """Each tick failed at it."""
    ids = ready_runs(system, 3)
    system.administration.pause(store="north")
    assert system.inbox.claim({GREET: 2}, capacity=2).runs == ()
    for one in (ids[0], ids[2]):
        damage_record(system, one, damage)
    assert system.administration.resume(store="north") == 1
    assert quarantined(system) == {f"{ids[0]}|{GREET}"}
    system.housekeeping.tick()
    assert [run.stored.id for run in system.inbox.claim({GREET: 3}, capacity=3).runs] == [ids[1]]


@contextmanager
def restricted_inbox(system: System, *rules: str) -> Iterator[Inbox]:
    """The inbox for a Redis user with restricted rights."""
    system.client.execute_command("ACL", "SETUSER", "restricted", "on", ">pw", "~*", "&*", "+@all", *rules)
    how = system.client.connection_pool.connection_kwargs | {"username": "restricted", "password": "pw"}
    kind = system.client.connection_pool.connection_class
    client = Redis(connection_pool=ConnectionPool(connection_class=kind, **how))
    try:
        yield Inbox(client)
    finally:
        client.close()
        system.client.execute_command("ACL", "DELUSER", "restricted")


def damage_record(system: System, event_id: str, fields: dict[str, str | None]) -> None:
    for name, value in fields.items():
        if not name:
            system.client.delete(keys.EVENT + event_id)
            system.client.set(keys.EVENT + event_id, value or "")
        elif value is None:
            system.client.hdel(keys.EVENT + event_id, name)
        else:
            system.client.hset(keys.EVENT + event_id, name, value)


def test_damaged_fair_times_leave_no_event_half_accepted(system: System) -> None:
    """It was stored and never ready, and its redelivery was taken for a duplicate."""
    system.client.set(keys.PREFIX + "fair:", "damaged")
    one = system.delivery()
    assert isinstance(system.inbox.accept_each([one])[0], ResponseError)
    system.client.delete(keys.PREFIX + "fair:")
    (again,) = system.inbox.accept([one])
    assert again.status == "accepted"
    assert system.client.zrange(keys.READY, 0, -1) == [again.id.encode()]
    assert system.identity_holds()


@pytest.mark.parametrize("key", [keys.LEASED, keys.LATER])
@pytest.mark.parametrize("step", ["claim", "claim with routes", "route", "finish"])
def test_a_step_is_refused_as_a_whole_while_a_set_that_it_writes_is_damaged(
    system: System, key: str, step: str
) -> None:
    """Records were written, and the items were in no set: they waited for ever."""
    version = system.inbox.declarations().version
    system.accept()
    routes = Routes(version, ROUTES if step == "claim with routes" else {})  # type: ignore[arg-type]
    (event,) = system.inbox.claim({"": 1}, capacity=1).runs if step in ("route", "finish") else (None,)
    (run,) = leased_runs(system, 1) if step == "finish" else (None,)

    def take() -> bool:
        if run:
            return system.inbox.finish([Outcome(run, "retry", {}, delay=60)]) == [True]
        if event:
            return system.inbox.route([(event, [(GREET, "default", True)])], version) == [["routed", GREET]]
        return len(system.inbox.finish_and_claim((), {"": 9, GREET: 9}, capacity=9, routes=routes)[1].runs) == 1

    good = system.client.dump(key)
    system.client.set(key, "no sorted set")
    with pytest.raises(ResponseError, match=f"{key} is damaged"):
        take()
    system.client.restore(key, 0, good, replace=True) if good else system.client.delete(key)
    assert take()
    assert quarantined(system) == set()


def test_a_delivery_is_refused_while_the_set_of_ready_events_is_damaged(system: System) -> None:
    """It was stored and in no set, and its redelivery was a duplicate."""
    delivery = system.delivery()
    system.client.set(keys.READY, "no sorted set")
    with pytest.raises(ResponseError, match="sh:ready: is damaged"):
        system.inbox.accept([delivery])
    system.client.delete(keys.READY)
    assert system.inbox.accept([delivery])[0].status == "accepted"
    assert len(system.inbox.claim({"": 9}, capacity=9).runs) == 1


def test_an_event_whose_body_is_gone_fails_without_a_call_and_is_healed_by_a_redelivery(
    make_system: Callable[..., System],
) -> None:
    """The handler was called with an empty body, and a redelivery was only counted as a duplicate."""
    plugin = PLUGIN.replace("pass", "return event.data['id']")
    system = make_system(plugin=plugin)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "settled"
    system.run_cli("handlers", "pause", GREET, "--yes")
    request = system.request(data={"id": 17})
    event_id = str(system.post(request).json()["id"])
    eventually(lambda: system.run_of(event_id, GREET), what="it is routed")
    system.client.delete(keys.BODY + event_id)
    system.run_cli("handlers", "resume", GREET, "--yes")
    assert system.settled(event_id) == "failed"
    run = system.run_of(event_id, GREET)
    assert (run.status, run.reason, run.attempts) == ("failed", "no-body", 1)
    assert "have the store send the event again" in run.error
    assert "not replayed" in system.run_cli("failures", "replay", "--event", event_id, "--yes").stdout
    assert system.post(request).json()["status"] == "duplicate"
    system.run_cli("failures", "replay", "--event", event_id, "--yes")
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, GREET).result == 17


def test_a_redelivery_does_not_bring_back_a_body_that_was_removed_by_age(system: System) -> None:
    delivery = system.delivery()
    (accepted,) = system.inbox.accept([delivery])
    system.inbox.declare([Declaration(GREET, "1", ("*",), ("*",), "default", {})])
    (event,) = system.inbox.claim({"": 1}, capacity=1).runs
    system.inbox.route([(event, [(GREET, "default", True)])], system.inbox.declarations().version)
    (run,) = [replace(event, item=f"{accepted.id}|{GREET}", handler=GREET)]
    system.inbox.finish([Outcome(run, "done")])
    system.client.delete(keys.BODY + accepted.id)
    assert system.inbox.accept([delivery])[0].status == "duplicate"
    assert not system.client.exists(keys.BODY + accepted.id)
