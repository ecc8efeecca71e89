"""Cases of the inbox and its workers that were found the hard way, each with the harm it did."""

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
    """So many runs of a lane are leased to a worker that is killed, and are ready again."""
    for _ in range(many):
        system.accept()
    events = system.inbox.claim({"": many}, room=many).runs
    system.inbox.route([(event, [(lane, "default", False)]) for event in events], "0")
    assert len(system.inbox.claim({lane: many}, room=many).runs) == many
    lapse(system.inbox)


def test_what_a_killed_worker_held_is_begun_soon_however_busy_the_other_lanes_are(system: System) -> None:
    """A suspect had its turn only when its lane was first: in one claim of as many as there are lanes."""
    lanes = [f"shop.h{n}" for n in range(10)]
    lose(system, 12, lanes[0])
    for _ in range(12):
        system.accept()
    events = system.inbox.claim({"": 12}, room=12).runs
    system.inbox.route([(event, [(lane, "default", False) for lane in lanes[1:]]) for event in events], "0")
    begun, claims = 0, 0
    while begun < 12:
        claims += 1
        assert claims <= 26, f"{begun} of 12 were begun"
        first = claims % len(lanes)
        order = dict.fromkeys(lanes[first:] + lanes[:first], 4)
        _, claim = system.inbox.finish_and_claim((), order, room=16, suspects_first=claims % 2 == 0)
        begun += sum(run.losses > 0 for run in claim.runs)
        assert len(claim.runs) == 1 or not any(run.losses for run in claim.runs)
        system.inbox.finish([Outcome(run, "release") for run in claim.runs if not run.losses])  # they stay busy


def test_fresh_work_behind_suspects_is_reached_by_a_claim_that_passes_them_over(system: System) -> None:
    lose(system, 20, "shop.one")
    for _ in range(3):
        system.accept()
    events = system.inbox.claim({"": 3}, room=3).runs
    both = [("shop.one", "default", False), ("shop.two", "default", False)]
    system.inbox.route([(event, both) for event in events], "0")
    claim = system.inbox.claim({"shop.two": 1, "shop.one": 3}, room=9)
    assert [run.handler for run in claim.runs] == ["shop.two", "shop.one", "shop.one", "shop.one"]
    assert not any(run.losses for run in claim.runs)


def test_a_lane_whose_suspects_are_gone_is_forgotten_as_such(system: System) -> None:
    lose(system, 1, "shop.one")
    assert system.client.smembers("sh:suspects") == {b"shop.one"}
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.one"), "done")])
    assert system.inbox.claim({"shop.one": 1}, room=1).runs == ()
    assert not system.client.exists("sh:suspects")


def wait_for_greet(system: System, many: int) -> None:
    for _ in range(many):
        system.accept()
    events = system.inbox.claim({"": many}, room=many).runs
    version = system.inbox.declarations().version
    system.inbox.route([(event, [("shop.greet", "default", False)]) for event in events], version)


def test_busy_holds_once_the_handlers_limit_was_taken_out_of_config(system: System) -> None:
    """It shut a limit that no claim looked at any more, and the run was begun again at once, for ever."""
    wait_for_greet(system, 2)
    (run,) = system.inbox.claim({"shop.greet": 1}, room=1, limits={"shop.greet": Limit("erp", concurrency=2)}).runs
    system.inbox.finish([Outcome(run, "done")])
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "busy", delay=30)])
    claim = system.inbox.claim({"shop.greet": 1}, room=1)
    assert claim.runs == ()
    assert 29 < claim.retry_in <= 30


def test_what_is_routed_to_a_handler_that_is_shut_waits(system: System) -> None:
    event_id = system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "busy", delay=30)])
    system.administration.retire("shop.greet")
    assert system.status(event_id) == "failed", "nothing older waits"
    system.accept()
    assert system.inbox.route([(claim_one(system.inbox), [GREET])], system.inbox.declarations().version) == [["routed"]]
    assert system.client.zcard(keys.READY + "shop.greet") == 1


def test_what_is_routed_waits_behind_older_runs_of_its_handler(system: System) -> None:
    wait_for_greet(system, 1)
    system.accept()
    assert system.inbox.route([(claim_one(system.inbox), [GREET])], "0") == [["routed"]]
    assert system.client.zcard(keys.READY + "shop.greet") == 2


def test_a_clock_set_back_an_hour_stops_no_handler_with_a_rate(system: System) -> None:
    wait_for_greet(system, 1)
    limits = {"shop.greet": Limit("erp", rate=10)}
    system.client.hset("sh:paces", "erp", int(time.time() * 1000) + 3_600_000)
    assert 0 < system.inbox.claim({"shop.greet": 1}, room=1, limits=limits).retry_in < 1
    assert eventually(lambda: system.inbox.claim({"shop.greet": 1}, room=1, limits=limits).runs)


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


def test_two_runs_at_one_effect_hold_up_nobody_else(make_system: Callable[..., System]) -> None:
    """The second said Busy for its handler, and so for every store and resource, again and again."""
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


LACKING = """
import os
from pathlib import Path
from workers import Router
router = Router("shop")
if "LACKING" not in os.environ or Path("/proc/self/comm").read_text().strip() != "sh-child":
    @router.on("order.paid")
    def book(event, ctx):
        return "booked"
"""


def test_a_run_whose_handler_one_worker_lacks_is_done_by_another_at_once(make_system: Callable[..., System]) -> None:
    """It waited five seconds, for everybody, and then came to the same worker again."""
    system = make_system(plugin=LACKING)
    system.start("worker", env={"LACKING": "yes"})
    eventually(lambda: system.inbox.declarations().handlers)
    event = system.accept("order.paid")
    eventually(lambda: "does not have the handler" in system.log("worker"))
    eventually(lambda: system.client.zcard(keys.READY + "shop.book") == 1, 2, what="it is ready for others")
    assert system.run_of(event, "shop.book").attempts == 0
    assert not system.client.exists(keys.BUSY)
    system.start("worker", "housekeeper")
    assert system.settled(event, 4) == "settled"
    assert system.log("worker").count("does not have the handler") == 1, "it was not offered to the first again"


def test_a_worker_whose_horses_lack_a_handler_asks_for_it_again_after_a_while(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=LACKING)
    system.start(
        "worker",
        "housekeeper",
        env={"LACKING": "yes"},
        quicker={"workers.runtime.worker.batch_sizes.ABSENT_SECONDS": 1.0},
    )
    event = system.accept("order.paid")
    eventually(lambda: system.log("worker").count("does not have the handler") == 2, 15)
    assert system.run_of(event, "shop.book").attempts == 0


def test_a_crowd_that_is_due_at_one_moment_is_moved_in_one_round(system: System) -> None:
    """A thousand at each tick of half a second, in due order over all stores."""
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


def test_after_a_deploy_the_new_version_says_where_and_when(system: System) -> None:
    """By name, 1.9 came after 1.10, and its queue and delay held for as long as its declaration did."""
    old = Declaration("shop.greet", "1.9", ("order.*",), ("*",), "old", {"delay": 0})
    new = Declaration("shop.greet", "1.10", ("order.*",), ("*",), "new", {"delay": 3600})
    for one in (old, new):
        system.inbox.declare([one])
        declared = int(max(system.client.hvals(keys.DECLARED_AT)))
        eventually(lambda seen=declared: now_ms(system) > seen)
    assert system.inbox.declarations().handlers[-1].version == "1.10"
    assert wanted_by(system.inbox.declarations().handlers, topic="order.paid", store="north")["shop.greet"] == new


def test_versions_that_were_replaced_are_forgotten_and_what_was_last_asked_for_is_not(system: System) -> None:
    """One entry for each deploy of each handler, read by every worker every five seconds."""
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


def test_a_second_body_is_known_after_the_first_is_gone_by_age(system: System) -> None:
    """It was kept again as the first, and handled again, inside its own window."""
    given = [system.delivery(delivery_id="msg_one", data={"id": number}) for number in (1, 2)]
    events = [replace(one.event, id=letter * 26) for one, letter in zip(given, "ab", strict=True)]
    first, second = (replace(one, event=event, first_id="f" * 26) for one, event in zip(given, events, strict=True))
    (kept,) = system.inbox.accept([first])
    assert [one.status for one in system.inbox.accept([second, second])] == ["accepted", "duplicate"]
    system.client.delete(keys.EVENT + kept.id, keys.BODY + kept.id)
    (again,) = system.inbox.accept([second])
    assert (again.status, again.id) == ("duplicate", second.event.id)


def test_a_handler_is_explained_while_its_limit_holds_slots(make_system: Callable[..., System]) -> None:
    text = HEAD + "@router.on('*', limit='erp')\ndef greet(event, ctx):\n    pass\n"
    system = make_system(plugin=text, more="[limits.erp]\nconcurrency = 1\n")
    system.inbox.declare(validation_process.validate_plugins(system.config))
    wait_for_greet(system, 2)
    limits = {"shop.greet": Limit("erp", concurrency=1)}
    (run,) = system.inbox.claim({"shop.greet": 1}, room=1, limits=limits).runs
    waiting = next(one.id for one in system.ledger.events() if one.id != run.stored.id)
    told = system.run_cli("handlers", "explain", waiting)
    assert told.returncode in (0, 1), told.stderr
    assert "every slot of [limits.erp] is taken" in told.stdout
