"""Replays while a handler or a store is paused: the runbook for a broken handler is pause, fix, try a few, resume."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.inbox import FailureQueries, Housekeeping, Outcome, keys
from receiver.inbox.administration import ReopenResult
from tests.receiver.inbox.test_inbox import claim_one, lapse, route
from tests.support.harness import System, eventually
from tests.support.programs import ROOT
from tests.workers.operations.test_failures import fail

HANDLER = "loyalty.award_points"
PLUGIN = """
from pathlib import Path
from workers import Router
router = Router("loyalty")
@router.on("order.*", retries={retries})
def award_points(event, ctx):
    if Path({broken!r}).exists():
        raise ValueError("no points")
    return f"attempt {{ctx.attempt}}, replay {{ctx.replay}}"
"""


class BrokenShop:
    """A system whose handler raises an error until `fix` is called, with failures of events that came over HTTP."""

    def __init__(self, make_system: Callable[..., System], folder: Path, *, retries: str) -> None:
        self._broken = folder / "broken"
        self._broken.touch()
        plugin = PLUGIN.format(retries=retries, broken=str(self._broken))
        self.system = make_system(plugin=plugin)
        self.system.start("web", "worker", "housekeeper")

    def receive(self, number: int, store: str = "north") -> list[str]:
        ids = [self.system.deliver(data={"id": n}, store=store) for n in range(number)]
        eventually(lambda: self.failures >= number, what="every run has failed once")
        return ids

    @property
    def failures(self) -> int:
        return sum(one.failed + one.retrying for one in FailureQueries(self.system.client).groups().entries)

    @property
    def group(self) -> str:
        (found,) = FailureQueries(self.system.client).groups().entries
        return found.id

    def fix(self) -> None:
        self._broken.unlink()

    def replay(self, *options: str) -> subprocess.CompletedProcess[str]:
        done = self.system.run_cli("failures", "replay", *options, "--yes")
        assert done.returncode == 0, done.stderr
        return done

    def settled(self) -> int:
        return self.system.ledger.counters().total["settled"]

    def waiting(self) -> int:
        return int(self.system.client.zcard(keys.READY + HANDLER))


def test_retrying_runs_of_a_paused_handler_are_replayed_and_the_command_ends(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    shop = BrokenShop(make_system, tmp_path, retries="(0.1,) * 500")
    ids = shop.receive(12)
    shop.system.run_cli("handlers", "pause", HANDLER, "--yes")
    eventually(lambda: shop.waiting() == 12, what="every retry is due, and waits because the handler is paused")
    shop.fix()
    told = shop.replay("--group", shop.group, "--first", "5").stdout
    assert "5 runs replayed" in told
    assert f"{HANDLER} is paused: these 5 runs begin anyway" in told
    eventually(lambda: shop.settled() == 5, what="five have run although the handler is paused")
    told = shop.replay("--group", shop.group).stdout
    assert f"{HANDLER} is paused: these 7 runs wait for `storehooks handlers resume {HANDLER} --config " in told
    assert (shop.settled(), shop.waiting(), shop.failures) == (5, 7, 0)
    shop.system.run_cli("handlers", "resume", HANDLER, "--yes")
    for one in ids:
        assert shop.system.settled(one) == "settled"
    results = [shop.system.run_of(one, HANDLER).result for one in ids]
    assert results == ["attempt 1, replay True"] * 12, "each has all its attempts again"
    assert shop.system.identity_holds()


def test_failed_runs_of_a_paused_handler_wait_unless_a_few_are_chosen(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    shop = BrokenShop(make_system, tmp_path, retries="0")
    ids = shop.receive(10)
    shop.system.run_cli("handlers", "pause", HANDLER, "--yes")
    shop.fix()
    shop.replay("--group", shop.group, "--first", "3")
    eventually(lambda: shop.settled() == 3)
    left = next(one for one in ids if shop.system.status(one) == "failed")
    told = shop.replay("--event", left).stdout
    assert f"{HANDLER} is paused: this run begins anyway" in told
    assert shop.system.settled(left) == "settled"
    told = shop.replay("--group", shop.group).stdout
    assert f"{HANDLER} is paused: these 6 runs wait for `storehooks handlers resume {HANDLER} --config " in told
    assert "--first" not in told, "there is no failure left to choose"
    assert (shop.settled(), shop.waiting(), shop.failures) == (4, 6, 0)
    again = shop.system.run_cli(
        "events", "replay", "--handler", HANDLER, "--run-status", "done", "--first", "2", "--yes"
    )
    assert f"{HANDLER} is paused: these 2 runs begin anyway" in again.stdout
    eventually(lambda: shop.settled() == 4)
    shop.system.run_cli("handlers", "resume", HANDLER, "--yes")
    for one in ids:
        assert shop.system.settled(one) == "settled"
    assert shop.system.identity_holds()


def test_the_runbook_of_the_documents_can_be_followed_line_by_line(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """With the resume before the last replay, the retries run first, with the attempts that they have left, and then
    there is no group to replay."""
    shop = BrokenShop(make_system, tmp_path, retries="(0.1,) * 500")
    ids = shop.receive(8)
    page = (ROOT / "docs/operating/failures.md").read_text()
    runbook = page.partition("In the morning:\n\n")[2].partition("\n\n")[0]
    lines = runbook.replace("erp.export_order", HANDLER).replace("a1f3", shop.group).splitlines()
    assert len(lines) == 7
    for line in lines:
        if "# deploy the fix" in line:
            shop.fix()
            continue
        asks = any(verb in line for verb in ("pause", "replay", "resume"))  # on a terminal; the answer is yes
        done = shop.system.run_cli(*line.split()[1:], *(["--yes"] if asks else []))
        assert done.returncode == 0, line + done.stdout + done.stderr
        if "--first" in line:
            eventually(lambda: shop.settled() == 5, what="five have run although the handler is paused")
        if "resume" in line:
            for one in ids:
                assert shop.system.settled(one) == "settled"
    assert shop.system.identity_holds()


def test_without_a_worker_a_replay_does_not_say_that_its_runs_begin(system: System) -> None:
    fail(system)
    (group,) = FailureQueries(system.client).groups().entries
    system.administration.pause(handler=group.handler)
    told = system.run_cli("failures", "replay", "--group", group.id, "--first", "1", "--yes").stdout
    told = " ".join(told.split())
    assert f"{group.handler} is paused: this run begins all the same, but no worker has this handler now" in told
    gone = system.run_cli("failures", "replay", "--group", group.id, "--yes")
    assert (gone.returncode, "if it was listed before, nothing is left to replay" in gone.stderr) == (2, True)


def test_replayed_runs_of_a_paused_store_wait_for_the_store_and_then_begin_although_the_handler_is_paused(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    shop = BrokenShop(make_system, tmp_path, retries="0")
    ids = shop.receive(3, store="south")
    shop.system.run_cli("stores", "pause", "south", "--yes")
    shop.system.run_cli("handlers", "pause", HANDLER, "--yes")
    shop.fix()
    told = shop.replay("--group", shop.group, "--first", "3").stdout
    assert "3 runs are of paused stores and wait for `storehooks stores resume NAME --config " in told
    assert "; paused stores: south" in told
    eventually(lambda: shop.system.client.zcard(keys.HELD + "south") == 3, what="the claim holds them")
    assert shop.settled() == 0
    shop.system.run_cli("stores", "resume", "south", "--yes")
    for one in ids:
        assert shop.system.settled(one) == "settled"
    assert shop.system.identity_holds()


# What becomes of such a run until it was attempted


def reopened_while_paused(system: System) -> str:
    """A failure that was replayed while its handler is paused, with another run before it that waits; its id."""
    event_id = fail(system)
    system.administration.pause(handler="shop.greet")
    system.accept()
    assert route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", False)) == []
    item = f"{event_id}|shop.greet"
    assert system.administration.reopen([item], {}, urgent=True) == [ReopenResult.ALTHOUGH_PAUSED]
    assert system.administration.reopen([item], {}, urgent=True) == [ReopenResult.OPEN]
    return event_id


def claimed(system: System) -> list[str]:
    return [run.event.id for run in system.inbox.claim({"shop.greet": 5}, capacity=5).runs]


@pytest.mark.parametrize("outcome", ["release", "wait", "lost lease"])
def test_an_urgent_run_that_was_not_attempted_stays_urgent(system: System, outcome: str) -> None:
    event_id = reopened_while_paused(system)
    run = claim_one(system.inbox, "shop.greet")
    assert run.event.id == event_id
    if outcome == "lost lease":
        lapse(system.inbox)
    else:
        assert system.inbox.finish([Outcome(run, outcome)]) == [True]  # type: ignore[arg-type]
        Housekeeping(system.client).tick()
    assert claimed(system) == [event_id]
    assert claimed(system) == []


def test_the_retry_of_an_urgent_run_waits_until_its_handler_is_resumed(system: System) -> None:
    event_id = reopened_while_paused(system)
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "retry")])  # type: ignore[arg-type]
    Housekeeping(system.client).tick()
    assert claimed(system) == []
    system.administration.resume(handler="shop.greet")
    assert event_id in claimed(system)
    assert system.client.hlen(keys.QUARANTINED) == 0


def test_an_urgent_run_leaves_the_fair_order_of_its_lane_as_it_was(system: System) -> None:
    reopened_while_paused(system)
    before = system.client.hget(keys.PREFIX + "fair:shop.greet", "")
    assert len(claimed(system)) == 1
    assert system.client.hget(keys.PREFIX + "fair:shop.greet", "") == before


def test_urgent_runs_can_be_retired(system: System) -> None:
    event_id = reopened_while_paused(system)
    assert system.administration.retire("shop.greet") == 2
    assert system.run_of(event_id, "shop.greet").status == "failed"
    assert system.identity_holds()


def test_a_retry_that_waits_because_its_handler_is_paused_can_be_dropped(system: System) -> None:
    event_id = fail(system, how="retry")
    system.administration.pause(handler="shop.greet")
    system.administration.make_due([f"{event_id}|shop.greet"])
    Housekeeping(system.client).tick()
    assert system.client.zcard(keys.READY + "shop.greet") == 1
    told = system.run_cli("failures", "drop", "--group", "a1f3", "--reason", "test data", "--yes").stdout
    assert "1 run dropped" in told
    assert (system.status(event_id), system.client.zcard(keys.READY + "shop.greet")) == ("settled", 0)
    assert FailureQueries(system.client).groups().entries == []
    assert system.identity_holds()


def test_drop_says_which_runs_it_left(system: System) -> None:
    event_id = fail(system, how="retry")
    system.administration.make_due([f"{event_id}|shop.greet"])
    Housekeeping(system.client).tick()
    running = claim_one(system.inbox, "shop.greet")
    told = system.run_cli("failures", "drop", "--group", "a1f3", "--reason", "test data", "--yes").stdout
    assert "0 runs dropped" in told
    assert "1 run not dropped: running now, or no failure any more" in told
    assert system.inbox.finish([Outcome(running, "done")]) == [True]


def test_a_replay_of_a_group_takes_each_run_once_although_some_leave_it_meanwhile(system: System) -> None:
    ids = [fail(system) for _ in range(5)]
    reader = FailureQueries(system.client)
    (group,) = reader.groups().entries
    seen = []
    for item in reader.runs_of(group.id, until=group.last_at):
        system.administration.reopen([item], {})
        seen.append(item.split("|")[0])
    assert sorted(seen) == sorted(ids)


def test_a_delayed_run_is_run_now_if_its_event_is_replayed(make_system: Callable[..., System]) -> None:
    plugin = PLUGIN.replace("retries={retries}", 'delay="1h"').format(broken="/nonexistent")
    system = make_system(plugin=plugin)
    system.start("worker", "housekeeper")
    event_id = system.accept()
    eventually(lambda: system.client.zscore(keys.LATER, f"{event_id}|{HANDLER}"), what="the run is due later")
    assert "1 run replayed" in system.run_cli("events", "replay", event_id, "--yes").stdout
    assert system.settled(event_id) == "settled"
