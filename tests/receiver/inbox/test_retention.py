"""Retention: old bodies and events are removed in slices. Open events, failures and duplicate marks stay."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from receiver.inbox import Declaration, Outcome, housekeeping, keys
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.housekeeping import TRIM_SLICE
from receiver.inbox.queries.failures import NOTICE, FailureQueries
from receiver.inbox.queries.handlers import HandlerQueries
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System, eventually

DAY = 86400.0
FOREVER = 1e9
NOW = 0.0


def close(system: System, how: str = "done", **event: object) -> str:
    event_id = system.accept(**event)
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, how, {})])  # type: ignore[arg-type]
    return event_id


def test_bodies_are_removed_before_records(system: System) -> None:
    event_id = close(system)
    eventually(lambda: system.housekeeping.trim(bodies=NOW, records=FOREVER)[0] == 1)
    record = system.ledger.event(event_id)
    assert (record.body, record.summary.status) == (b"", "settled")
    assert system.housekeeping.trim(bodies=NOW, records=FOREVER) == (0, 0, 0)


def test_a_removed_event_leaves_no_key_and_the_counters_stay(system: System) -> None:
    event_id = close(system)
    eventually(lambda: system.housekeeping.trim(bodies=NOW, records=NOW)[1] == 1)
    assert system.ledger.event(event_id) is None
    assert not [key for key in system.client.keys("sh:*") if event_id.encode() in key]
    assert system.ledger.events() == system.ledger.events(store="north") == []
    assert system.ledger.counters().total["settled"] == 1
    assert system.identity_holds()


def test_open_events_and_failures_are_kept(system: System) -> None:
    failed = close(system, "failed")
    waiting = system.accept()
    assert system.housekeeping.trim(bodies=NOW, records=NOW) == (0, 0, 0)
    assert system.ledger.event(failed).body
    assert system.ledger.event(waiting).body


def test_failures_are_removed_by_age_only_if_configured(system: System) -> None:
    failed = close(system, "failed")
    assert system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=0)[2] == 0
    eventually(lambda: system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=0.001)[2] == 1)
    assert system.ledger.event(failed) is None
    assert system.client.zcard(keys.FAILED) == 0
    counted = system.ledger.counters().total
    assert (counted["failed"], counted["settled"]) == (0, 1), "failed are those that can be replayed"
    assert system.identity_holds()


def test_an_old_failure_is_removed_past_many_of_open_events(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "TRIM_SLICE", 2)
    failed = close(system, "failed")
    for _ in range(5):
        system.client.zadd(keys.FAILED, {keys.run_item(system.accept(), "erp.other"): 1})
    eventually(lambda: system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=0.001)[2] == 1)
    assert system.ledger.event(failed) is None
    assert system.client.zcard(keys.FAILED) == 5


def test_more_than_a_slice_is_removed_in_slices(system: System) -> None:
    count = TRIM_SLICE + 20
    for _ in range(count):
        system.inbox.accept([system.delivery()])
    claim = system.inbox.claim({"": count}, capacity=count)
    system.client.set(keys.DECLARED_SINCE, 1)
    system.inbox.route([(run, ()) for run in claim.runs], "0")
    removed = [system.housekeeping.trim(bodies=NOW, records=FOREVER)[0] for _ in range(4)]
    assert removed[0] == TRIM_SLICE
    assert system.client.keys("sh:b:*") == []


def test_a_store_keeps_its_newest_events_and_other_stores_keep_all(system: System) -> None:
    old, _, new = (close(system) for _ in range(3))
    other = close(system, store="south")
    eventually(lambda: system.housekeeping.trim_store("north", keep=1, window=NOW)[1] == 2)
    assert system.ledger.event(old) is None
    assert system.ledger.event(new)
    assert system.ledger.event(other)


def test_a_store_above_its_maximum_keeps_an_event_that_is_about_to_be_replayed(system: System) -> None:
    """A past event that was brought back for a replay is the oldest of its store."""
    old, other, _ = (close(system) for _ in range(3))
    moves = HistoryMoves(system.client)
    with moves.kept([old]):
        eventually(lambda: system.housekeeping.trim_store("north", keep=1, window=NOW)[1] == 1)
        assert system.ledger.event(other) is None
        assert system.ledger.event(old)
    assert system.housekeeping.trim_store("north", keep=1, window=NOW)[1] == 1
    assert system.ledger.event(old) is None


def test_a_duplicate_mark_inside_its_window_is_never_removed(system: System) -> None:
    close(system)
    close(system)
    assert system.housekeeping.trim_store("north", keep=1, window=3600) == (0, 0)


def test_the_housekeeper_applies_retention(make_system: Callable[..., System]) -> None:
    more = '[retention]\nbodies = "0s"\n'
    system = make_system(more=more)
    event_id = close(system)
    system.start("housekeeper")
    eventually(lambda: system.ledger.event(event_id).body == b"", 15)


def test_runs_of_a_handler_that_no_worker_has_become_failures(system: System) -> None:
    event_id = system.accept()
    route(system.inbox, claim_one(system.inbox), ("old.handler", "default", False), GREET)
    assert system.housekeeping.end_orphans(absent=0.01) == [], "no run is an orphan while all workers are stopped"
    system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])
    assert len(eventually(lambda: system.housekeeping.end_orphans(absent=30))) == 1
    assert system.run_of(event_id, "old.handler").error.startswith("no-such-handler")
    assert system.identity_holds()


def test_only_the_store_over_max_stored_is_answered_503(make_system: Callable[..., System]) -> None:
    system = make_system()
    text = system.config_file.read_text().replace("[stores.north]\n", "[stores.north]\nmax_stored = 2\n")
    system.config_file.write_text(text)
    system.start("web")
    answers = [system.post(system.request()).status_code for _ in range(3)]
    assert answers == [200, 200, 503]
    assert system.post(system.request(store="south"), store="south").status_code == 200


def test_runs_of_the_only_handler_are_orphans_if_workers_are_alive_without_it(system: System) -> None:
    system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])
    event_id = system.accept()
    route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", False))
    for name in system.client.hkeys(keys.DECLARED_AT):
        system.client.hset(keys.DECLARED_AT, name, int((time.time() - 40) * 1000))
    system.inbox.declare([])
    assert HandlerQueries(system.client).absent()["shop.greet"].waiting == 1
    assert len(system.housekeeping.end_orphans(absent=30)) == 1
    assert system.status(event_id) == "failed"


def test_no_failure_is_removed_before_people_could_be_told(system: System) -> None:
    """As after an upgrade from a version that kept failures: the first removal waits for the time of the notice."""
    failed, kept, long_ago = close(system, "failed"), 90 * DAY, int((time.time() - 100 * DAY) * 1000)
    system.client.zadd(keys.FAILED, {keys.run_item(failed, "shop.greet"): long_ago})
    assert system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=kept)[2] == 0
    ending = FailureQueries(system.client).ending(kept=kept)
    assert ending.count == 1
    assert abs(ending.first.timestamp() - time.time() - NOTICE) < 60
    system.client.set(keys.FAILURES_END, int((time.time() - NOTICE - 1) * 1000))
    assert system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=kept)[2] == 1
    assert system.ledger.event(failed) is None


def test_failures_that_are_kept_again_get_a_new_notice(system: System) -> None:
    system.client.set(keys.FAILURES_END, 1)
    system.housekeeping.trim(bodies=FOREVER, records=FOREVER, failures=0)
    assert FailureQueries(system.client).ending(kept=0).first is None
    assert not system.client.exists(keys.FAILURES_END)


def test_the_audit_trail_has_an_end(system: System) -> None:
    trail = AuditTrail(system.client)
    old, new = trail.begin("ann", "pause", {}), trail.begin("ann", "resume", {})
    (member,) = [one for one in system.client.zrange(keys.AUDIT, 0, -1) if old.id.encode() in one]
    system.client.zadd(keys.AUDIT, {member: (time.time() - 2 * DAY) * 1000})
    assert system.housekeeping.trim_audit(0) == 0
    assert system.housekeeping.trim_audit(DAY) == 1
    assert [one.id for one in trail.newest()] == [new.id]
