"""Regressions of the inbox and its workers. Docstrings say what went wrong before the fix."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from receiver.inbox import Declaration, Limit, Outcome, keys
from tests.receiver.inbox.test_inbox import GREET, claim_one, lapse, route
from tests.support.harness import System, eventually
from workers.plugins import validation_process
from workers.plugins.router import wanted_by
from workers.runtime.housekeeper import Housekeeper

HEAD = "from workers import Router\nrouter = Router('shop')\n"


def lose(system: System, many: int, lane: str) -> None:
    """Lease this number of runs of a lane, and let their leases lapse: they are ready again, as suspects."""
    for _ in range(many):
        system.accept()
    events = system.inbox.claim({"": many}, capacity=many).runs
    system.inbox.route([(event, [(lane, "default", False)]) for event in events], "0")
    assert len(system.inbox.claim({lane: many}, capacity=many).runs) == many
    lapse(system.inbox)


def test_the_runs_of_a_killed_worker_begin_soon_while_other_lanes_are_busy(system: System) -> None:
    """A suspect began only when its lane was first in a claim: with ten lanes, in one claim of ten."""
    lanes = [f"shop.h{n}" for n in range(10)]
    lose(system, 12, lanes[0])
    for _ in range(12):
        system.accept()
    events = system.inbox.claim({"": 12}, capacity=12).runs
    system.inbox.route([(event, [(lane, "default", False) for lane in lanes[1:]]) for event in events], "0")
    begun, claims = 0, 0
    while begun < 12:
        claims += 1
        assert claims <= 26, f"{begun} of 12 were begun"
        first = claims % len(lanes)
        order = dict.fromkeys(lanes[first:] + lanes[:first], 4)
        _, claim = system.inbox.finish_and_claim((), order, capacity=16, suspects_first=claims % 2 == 0)
        begun += sum(run.losses > 0 for run in claim.runs)
        assert len(claim.runs) == 1 or not any(run.losses for run in claim.runs)
        system.inbox.finish([Outcome(run, "release") for run in claim.runs if not run.losses])  # they stay busy


def test_a_claim_skips_suspects_and_leases_the_work_behind_them(system: System) -> None:
    lose(system, 20, "shop.one")
    for _ in range(3):
        system.accept()
    events = system.inbox.claim({"": 3}, capacity=3).runs
    both = [("shop.one", "default", False), ("shop.two", "default", False)]
    system.inbox.route([(event, both) for event in events], "0")
    claim = system.inbox.claim({"shop.two": 1, "shop.one": 3}, capacity=9)
    assert [run.handler for run in claim.runs] == ["shop.two", "shop.one", "shop.one", "shop.one"]
    assert not any(run.losses for run in claim.runs)


def test_a_lane_without_suspects_is_no_longer_marked(system: System) -> None:
    lose(system, 1, "shop.one")
    assert system.client.smembers("sh:suspects") == {b"shop.one"}
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.one"), "done")])
    assert system.inbox.claim({"shop.one": 1}, capacity=1).runs == ()
    assert not system.client.exists("sh:suspects")


def wait_for_greet(system: System, many: int) -> None:
    for _ in range(many):
        system.accept()
    events = system.inbox.claim({"": many}, capacity=many).runs
    version = system.inbox.declarations().version
    system.inbox.route([(event, [("shop.greet", "default", False)]) for event in events], version)


def test_busy_works_after_the_limit_was_removed_from_the_config(system: System) -> None:
    """It closed a limit that no claim read any more, and the run began again at once, without end."""
    wait_for_greet(system, 2)
    (run,) = system.inbox.claim({"shop.greet": 1}, capacity=1, limits={"shop.greet": Limit("erp", concurrency=2)}).runs
    system.inbox.finish([Outcome(run, "done")])
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "busy", delay=30)])
    claim = system.inbox.claim({"shop.greet": 1}, capacity=1)
    assert claim.runs == ()
    assert 29 < claim.retry_in <= 30


def test_a_run_routed_to_a_busy_handler_waits(system: System) -> None:
    event_id = system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "busy", delay=30)])
    system.administration.retire("shop.greet")
    assert system.status(event_id) == "failed", "no older run waits"
    system.accept()
    assert system.inbox.route([(claim_one(system.inbox), [GREET])], system.inbox.declarations().version) == [["routed"]]
    assert system.client.zcard(keys.READY + "shop.greet") == 1


def test_a_routed_run_waits_behind_older_runs_of_its_handler(system: System) -> None:
    wait_for_greet(system, 1)
    system.accept()
    assert system.inbox.route([(claim_one(system.inbox), [GREET])], "0") == [["routed"]]
    assert system.client.zcard(keys.READY + "shop.greet") == 2


def test_a_clock_set_back_an_hour_does_not_stop_a_handler_with_a_rate(system: System) -> None:
    wait_for_greet(system, 1)
    limits = {"shop.greet": Limit("erp", rate=10)}
    system.client.hset("sh:paces", "erp", int(time.time() * 1000) + 3_600_000)
    assert 0 < system.inbox.claim({"shop.greet": 1}, capacity=1, limits=limits).retry_in < 1
    assert eventually(lambda: system.inbox.claim({"shop.greet": 1}, capacity=1, limits=limits).runs)


ONE_AT_A_TIME = """
import os, time
from workers import Router
router = Router("shop")
HERE = os.path.dirname(__file__)

@router.on("order.paid")
def book(event, ctx):
    return ctx.once("book", slowly, event.data["slow"], scope="resource")

def slowly(slow):
    while slow and not os.path.exists(os.path.join(HERE, "go")):
        open(os.path.join(HERE, "begun"), "w").close()
        time.sleep(0.02)
    return "booked"
"""


def test_two_runs_of_one_effect_delay_no_other_run(make_system: Callable[..., System]) -> None:
    """The second run raised Busy for its handler, and so for every store and resource, again and again."""
    system = make_system(plugin=ONE_AT_A_TIME, child_processes=6)
    system.start("worker", "housekeeper")
    first = system.accept("order.paid", data={"id": 1, "slow": True})
    eventually((system.folder / "begun").exists)
    second = system.accept("order.paid", data={"id": 1, "slow": False})
    eventually(lambda: (run := system.run_of(second, "shop.book")) and "another run" in (run.error or ""))
    assert not system.client.exists(keys.BUSY)
    assert system.settled(system.accept("order.paid", data={"id": 2, "slow": False})) == "settled"
    assert system.status(first) == system.status(second) == "open"
    (system.folder / "go").touch()
    assert [system.settled(one) for one in (first, second)] == ["settled", "settled"]
    run = system.run_of(second, "shop.book")
    assert (run.attempts, run.result) == (1, "booked")


ABSENT = """
import os
from pathlib import Path
from workers import Router
router = Router("shop")
if "ABSENT" not in os.environ or Path("/proc/self/comm").read_text().strip() != "sh-child":
    @router.on("order.paid")
    def book(event, ctx):
        return "booked"
"""


def test_a_run_whose_handler_is_absent_at_one_worker_is_done_by_another_at_once(
    make_system: Callable[..., System],
) -> None:
    """It waited five seconds at all workers, and was then claimed by the same worker again."""
    system = make_system(plugin=ABSENT)
    system.start("worker", env={"ABSENT": "yes"})
    eventually(lambda: system.inbox.declarations().handlers)
    event = system.accept("order.paid")
    eventually(lambda: "does not have the handler" in system.log("worker"))
    eventually(lambda: system.client.zcard(keys.READY + "shop.book") == 1, 4, what="the run is ready for other workers")
    assert system.run_of(event, "shop.book").attempts == 0
    assert not system.client.exists(keys.BUSY)
    system.start("worker", "housekeeper")
    assert system.settled(event, 4) == "settled"
    assert system.log("worker").count("does not have the handler") == 1, "the first worker did not claim it again"


def test_a_worker_claims_an_absent_handler_again_after_a_while(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=ABSENT)
    system.start(
        "worker",
        "housekeeper",
        env={"ABSENT": "yes"},
        quicker={"workers.runtime.worker.claim_sizes.ABSENT_SECONDS": 1.0},
    )
    event = system.accept("order.paid")
    eventually(lambda: system.log("worker").count("does not have the handler") == 2, 15)
    assert system.run_of(event, "shop.book").attempts == 0


def test_many_runs_due_at_one_moment_are_made_ready_in_one_round(system: System) -> None:
    """Only a thousand were made ready at each tick of half a second."""
    pipeline = system.client.pipeline()
    for number in range(2_500):
        fields = {"store": "north", "state": "open", "open": 1, "r:shop.greet": "later 1 0 default "}
        pipeline.hset(f"{keys.EVENT}e{number}", mapping=fields)
        pipeline.zadd(keys.LATER, {f"e{number}|shop.greet": 1})
    pipeline.execute()
    Housekeeper(system.housekeeping, system.config).round()
    assert system.client.zcard(keys.READY + "shop.greet") == 2_500


def now_ms(system: System) -> int:
    seconds, rest = system.client.time()
    return int(seconds * 1000 + rest // 1000)


def test_after_a_deploy_the_queue_and_delay_of_the_new_version_apply(system: System) -> None:
    """Sorted as text, 1.9 came after 1.10, and its queue and delay applied until its declaration expired."""
    old = Declaration("shop.greet", "1.9", ("order.*",), ("*",), "old", {"delay": 0})
    new = Declaration("shop.greet", "1.10", ("order.*",), ("*",), "new", {"delay": 3600})
    for one in (old, new):
        system.inbox.declare([one])
        declared = int(max(system.client.hvals(keys.DECLARED_AT)))
        eventually(lambda seen=declared: now_ms(system) > seen)
    assert system.inbox.declarations().handlers[-1].version == "1.10"
    assert wanted_by(system.inbox.declarations().handlers, topic="order.paid", store="north")["shop.greet"] == new


def test_declarations_of_replaced_versions_are_removed_unless_their_routing_differs(system: System) -> None:
    """There was one entry for each deploy of each handler, and every worker read all of them every five seconds."""
    now = Declaration("shop.greet", "3", ("order.*",), ("*",))
    replaced = replace(now, version="1")
    wanted_more = replace(now, version="2", topics=("order.*", "product.*"))
    long_gone = replace(now, handler="shop.old")
    system.inbox.declare([now, replaced, wanted_more, long_gone])
    days = {b"shop.greet@1": 2, b"shop.greet@2": 2, b"shop.old@3": 91, b"shop.greet@3": 0, b"@": 0}
    for name in system.client.hkeys(keys.DECLARATIONS):
        system.client.hset(keys.DECLARED_AT, name, now_ms(system) - days[name.partition(b"#")[0]] * 86_400_000)
    system.inbox.declare([now])
    assert [one for one, _ in system.ledger.declared()] == [now, wanted_more]
    assert not [
        name for name in system.client.hkeys(keys.DECLARED_AT) if name.startswith((b"shop.old@", b"shop.greet@1"))
    ]


def test_a_second_body_is_a_duplicate_after_the_first_was_removed_by_age(system: System) -> None:
    """It was stored again as the first, and handled again, within its own duplicate window."""
    given = [system.delivery(delivery_id="msg_one", data={"id": number}) for number in (1, 2)]
    events = [replace(one.event, id=letter * 26) for one, letter in zip(given, "ab", strict=True)]
    first, second = (replace(one, event=event, first_id="f" * 26) for one, event in zip(given, events, strict=True))
    (stored,) = system.inbox.accept([first])
    assert [one.status for one in system.inbox.accept([second, second])] == ["accepted", "duplicate"]
    system.client.delete(keys.EVENT + stored.id, keys.BODY + stored.id)
    (again,) = system.inbox.accept([second])
    assert (again.status, again.id) == ("duplicate", second.event.id)


def test_explain_reports_that_a_limit_has_no_free_slot(make_system: Callable[..., System]) -> None:
    text = HEAD + "@router.on('*', limit='erp')\ndef greet(event, ctx):\n    pass\n"
    system = make_system(plugin=text, more="[limits.erp]\nconcurrency = 1\n")
    system.inbox.declare(validation_process.validate_plugins(system.config))
    wait_for_greet(system, 2)
    limits = {"shop.greet": Limit("erp", concurrency=1)}
    (run,) = system.inbox.claim({"shop.greet": 1}, capacity=1, limits=limits).runs
    waiting = next(one.id for one in system.ledger.events() if one.id != run.stored.id)
    shown = system.run_cli("handlers", "explain", waiting)
    assert shown.returncode in (0, 1), shown.stderr
    assert "[limits.erp] has no free slot" in shown.stdout
