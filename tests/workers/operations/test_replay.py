"""Replays of past events: by selection, a few at a time, interrupted."""

from __future__ import annotations

import signal
import sys

import pytest

from receiver.inbox import Declaration, FailureQueries, Outcome, keys
from receiver.inbox.administration import ReopenResult
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import claim_one, route
from tests.support.harness import Process, System, eventually
from workers.operations.all_events import AllEvents
from workers.operations.replay import Replay, ReplayedElsewhere, Selection

GREET, PRINT = "shop.greet", "shop.print"
TOPICS = ("order.created", "order.paid")
SELECTION = ("events", "replay", "--run-status", "done", "--yes")


def done_events(system: System, number: int, *handlers: str) -> list[str]:
    """Events whose runs are done."""
    system.inbox.declare([Declaration(one, "1", ("*",), ("*",)) for one in handlers])
    ids = [system.accept() for _ in range(number)]
    for _ in ids:
        for run in route(system.inbox, claim_one(system.inbox), *((one, "default", True) for one in handlers)):
            system.inbox.finish([Outcome(run, "done")])
    return ids


def finish_replayed(system: System, handler: str = GREET, outcome: OutcomeKind = "done") -> None:
    for run in system.inbox.claim({handler: 100}, capacity=100).runs:
        system.inbox.finish([Outcome(run, outcome, {"error": "E"})])


def fail_replayed(system: System) -> None:
    finish_replayed(system, outcome="failed")


def replays(system: System, ids: list[str], handler: str = GREET) -> list[int]:
    """How often each run was replayed."""
    return [int(system.client.hget(keys.EVENT + one, f"p:{handler}") or 0) for one in ids]


def test_a_handler_that_no_worker_has_is_refused(system: System) -> None:
    ids = done_events(system, 2, GREET)
    for chosen in (ids, ["--since", "1h"]):
        done = system.run_cli("events", "replay", *chosen, "--handler", "shop.gret", "--yes")
        assert done.returncode == 2
        assert "no worker has a handler shop.gret; did you mean shop.greet?" in done.stderr
    assert system.client.hkeys(keys.LANES) == [GREET.encode()]
    assert system.ledger.counters().total["open"] == 0


def test_the_first_few_given_again_are_the_next_few(system: System) -> None:
    """Although the runs of the first time are done again, and match again."""
    ids = done_events(system, 5, GREET)
    for expected, message in (
        ([1, 1, 0, 0, 0], "5 runs match\n2 runs replayed\n"),
        ([1, 1, 1, 1, 0], "continuing after the runs that were replayed before\n3 runs match\n2 runs replayed\n"),
    ):
        shown = system.run_cli(*SELECTION, "--first", "2").stdout
        assert message in shown
        assert replays(system, ids) == expected
        finish_replayed(system)
    assert "1 run matches\n1 run replayed\n\n" in system.run_cli(*SELECTION).stdout
    assert replays(system, ids) == [1] * 5
    finish_replayed(system)
    assert "5 runs match\n5 runs replayed" in system.run_cli(*SELECTION, "--first", "5").stdout
    finish_replayed(system)
    assert "5 runs match" in system.run_cli(*SELECTION, "--dry-run").stdout, "the replay before came to its end"


def test_a_replay_with_again_does_not_continue_one_without(system: System) -> None:
    """The first part was replayed without its effects, and `--again` left it out."""
    ids = done_events(system, 4, GREET)
    system.run_cli(*SELECTION, "--first", "2")
    finish_replayed(system)
    shown = system.run_cli(*SELECTION, "--again").stdout
    assert "4 runs match\n4 runs replayed" in shown
    assert "continuing" not in shown
    assert replays(system, ids) == [2, 2, 1, 1]
    finish_replayed(system)
    assert "continuing after the runs that were replayed before\n2 runs match" in system.run_cli(*SELECTION).stdout
    finish_replayed(system)
    system.run_cli(*SELECTION, "--again", "--first", "3")
    finish_replayed(system)
    assert "1 run matches\n1 run replayed" in system.run_cli(*SELECTION, "--again").stdout, "it continues itself"


def test_a_failed_run_that_failed_again_is_among_the_rest(system: System) -> None:
    """It was skipped: three failed, one was tried before the bug was mended, and that one stayed failed."""
    done_events(system, 3, GREET)
    system.run_cli(*SELECTION)
    fail_replayed(system)
    failed = ("events", "replay", "--run-status", "failed", "--yes")
    assert "1 run replayed" in system.run_cli(*failed, "--first", "1").stdout
    fail_replayed(system)
    assert "3 runs replayed" in system.run_cli(*failed).stdout


def test_all_failures_of_one_handler_are_replayed_whatever_their_groups(system: System) -> None:
    ids = done_events(system, 3, GREET, PRINT)
    system.run_cli(*SELECTION)
    for handler in (GREET, PRINT):
        for run, error in zip(system.inbox.claim({handler: 9}, capacity=9).runs, ("A", "B", "C"), strict=True):
            system.inbox.finish([Outcome(run, "failed", {"error": error, "group": f"{handler}{error}"})])
    assert len(FailureQueries(system.client).groups().entries) == 6
    shown = system.run_cli("events", "replay", "--handler", GREET, "--run-status", "failed", "--yes").stdout
    assert "3 runs replayed" in shown
    assert (replays(system, ids, GREET), replays(system, ids, PRINT)) == ([2] * 3, [1] * 3)


@pytest.mark.parametrize("ends", ["done", "dropped"])
def test_a_replay_of_failures_leaves_those_that_another_has_replayed_or_dropped(system: System, ends: str) -> None:
    """Two people at once, and each effect came twice; what one had dropped was run."""
    ids = done_events(system, 6, GREET)
    system.run_cli("events", "replay", *ids, "--yes")
    fail_replayed(system)
    (group,) = FailureQueries(system.client).groups().entries
    replay = Replay(system.inbox, AllEvents(system.client, None), rate=None, first=None)
    listed = FailureQueries(system.client).runs_of(group.id)
    replay.failures([next(listed)])
    finish_replayed(system)
    if ends == "dropped":
        system.administration.drop([keys.run_item(one, GREET) for one in ids], reason="by hand")
    else:
        assert "5 runs replayed" in system.run_cli("failures", "replay", "--group", group.id, "--yes").stdout
        finish_replayed(system)
    before = replays(system, ids)
    replay.failures(listed)
    assert replays(system, ids) == before
    assert replay.counts[ReopenResult.CHANGED, GREET] == 5
    assert system.ledger.counters().total["open"] == 0


def test_the_first_few_may_be_some_of_the_runs_of_an_event(system: System) -> None:
    ids = done_events(system, 2, GREET, PRINT)
    system.run_cli(*SELECTION, "--first", "1")
    finish_replayed(system)
    system.run_cli(*SELECTION, "--first", "2")
    assert (replays(system, ids, GREET), replays(system, ids, PRINT)) == ([1, 1], [1, 0])


def test_an_interrupted_replay_of_a_selection_replays_no_run_twice(system: System) -> None:
    ids = done_events(system, 60, GREET)
    command = [sys.executable, "-m", "workers.cli", *SELECTION, "--config", str(system.config_file)]
    process = Process([*command, "--rate", "40/s"], log=system.folder / "replay.log")
    eventually(lambda: system.client.zcard(keys.READY + GREET) >= 10)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    assert "the same command continues" in process.output()
    reopened = sum(replays(system, ids))
    assert 10 <= reopened < 60
    finish_replayed(system)
    assert f"{60 - reopened} runs replayed" in system.run_cli(*SELECTION).stdout
    assert replays(system, ids) == [1] * 60


def test_two_processes_that_replay_the_same_replay_no_run_twice(system: System) -> None:
    ids = done_events(system, 60, GREET)
    command = [sys.executable, "-m", "workers.cli", *SELECTION, "--rate", "10/s", "--config", str(system.config_file)]
    both = [Process(command, log=system.folder / f"replay{number}.log") for number in range(2)]
    while any(one.alive for one in both):
        finish_replayed(system)
    assert replays(system, ids) == [1] * 60
    assert sorted(one.wait() for one in both) == [0, 2]
    assert sum("another process replays the same runs, or has replayed them" in one.output() for one in both) == 1


@pytest.mark.parametrize("first", [3, None])
def test_a_replay_that_was_counted_before_another_of_the_same_began_replays_nothing(
    system: System, first: int | None
) -> None:
    """It waited at its question, and then began at the start, although the other had come to its end."""
    ids, selection = done_events(system, 5, GREET), Selection(run_status="done")
    events = AllEvents(system.client, None)
    one, other = (Replay(system.inbox, events, rate=None, first=many) for many in (first, None))
    assert len(list(other.matching(selection))) == 5
    one.selection(selection)
    finish_replayed(system)
    replayed = replays(system, ids)
    assert sum(replayed) == (first or 5)
    with pytest.raises(
        ReplayedElsewhere, match="0 runs replayed here. The command again " + ("goes on" if first else "begins")
    ):
        other.selection(selection)
    assert replays(system, ids) == replayed
    Replay(system.inbox, events, rate=None, first=None).selection(selection)
    finish_replayed(system)
    assert replays(system, ids) == ([1] * 5 if first else [2] * 5), "it goes on, or begins again"


def test_a_replay_that_ends_leaves_the_position_of_another_that_went_on(system: System) -> None:
    """It waited for its rate after its last run; events that were accepted since are of the other."""
    ids, selection = done_events(system, 3, GREET), Selection(run_status="done")
    events = AllEvents(system.client, None)
    one, other = (Replay(system.inbox, events, rate=None, first=many) for many in (None, 2))

    def meanwhile(_: int) -> None:
        one.progress = lambda _: None
        finish_replayed(system)
        ids.extend(done_events(system, 3, GREET))
        other.selection(selection)
        finish_replayed(system)

    one.progress = meanwhile
    one.selection(selection)
    assert replays(system, ids) == [1, 1, 1, 1, 1, 0]
    Replay(system.inbox, events, rate=None, first=None).selection(selection)
    assert replays(system, ids) == [1] * 6


def test_a_replay_comes_to_its_end_although_the_server_is_full(system: System) -> None:
    ids, selection = done_events(system, 3, GREET), Selection(run_status="done")
    replay = Replay(system.inbox, AllEvents(system.client, None), rate=None, first=None)
    system.client.config_set("maxmemory", "1mb")
    try:
        replay.selection(selection)
    finally:
        system.client.config_set("maxmemory", "0")
    assert replays(system, ids) == [1] * 3
    assert replay.position(selection) == ""


def test_a_selection_gives_a_new_handler_only_the_events_that_it_wants(system: System) -> None:
    """It got runs of every topic and store: orders that were only created were exported as paid."""
    ids = {(topic, store): system.accept(topic, store=store) for topic in TOPICS for store in ("north", "south")}
    done_events(system, 0, GREET)
    for _ in ids:
        route(system.inbox, claim_one(system.inbox), (GREET, "default", False))
    finish_replayed(system)
    system.inbox.declare([Declaration(PRINT, "1", ("order.paid",), ("south",))])
    for name, at in system.client.hgetall(keys.DECLARED_AT).items():  # all workers have been stopped for an hour
        system.client.hset(keys.DECLARED_AT, name, int(at) - 3_600_000)
    assert "1 run matches" in system.run_cli("events", "replay", "--handler", PRINT, "--dry-run").stdout
    assert "1 run replayed" in system.run_cli("events", "replay", "--handler", PRINT, "--yes").stdout
    (run,) = system.inbox.claim({PRINT: 9}, capacity=9).runs
    assert run.event.id == ids["order.paid", "south"]
    chosen = ids["order.created", "north"]
    assert "1 run replayed" in system.run_cli("events", "replay", chosen, "--handler", PRINT, "--yes").stdout
    assert system.run_of(chosen, PRINT).status == "waiting", "an event chosen by its id is given to any handler"


def test_a_version_of_a_handler_that_has_no_runs_matches_none(system: System) -> None:
    (event_id,) = done_events(system, 1, GREET)
    system.inbox.declare([Declaration(PRINT, "1", ("*",), ("*",))])
    for chosen in ((), (event_id,)):
        command = ("events", "replay", *chosen, "--handler", PRINT, "--handler-version", "9.9.9", "--dry-run")
        assert "0 runs match" in system.run_cli(*command).stdout


def test_last_is_the_event_that_was_accepted_last(system: System) -> None:
    ids = done_events(system, 2, GREET)
    assert "1 run replayed" in system.run_cli("events", "replay", "last", "--yes").stdout
    assert replays(system, ids) == [0, 1]


def test_a_run_that_waits_already_is_counted_and_one_of_a_paused_handler_begins(system: System) -> None:
    system.inbox.declare([Declaration(GREET, "1", ("*",), ("*",))])
    event_id = system.accept()
    route(system.inbox, claim_one(system.inbox), (GREET, "default", False))
    told = system.run_cli("events", "replay", event_id, "--yes").stdout
    assert "1 run not replayed: already waiting or running" in told
    system.administration.pause(handler=GREET)
    told = system.run_cli("events", "replay", event_id, "--yes").stdout
    assert f"{GREET} is paused: this run begins anyway" in told
