"""Regressions: each test repeats a bug that was once found, and names its effect."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from receiver.inbox import Declaration, FailureQueries, Outcome, keys
from receiver.inbox.redis.connecting import socket_path
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import Server, System, children_of, eventually, own_server
from tests.support.proxy import Proxy
from workers.plugins import validation_process
from workers.plugins.effects import Effect, LocalEffects
from workers.plugins.exceptions import Fail

ODD_PLUGIN = """
import asyncio, decimal, os, sys, time
from workers import Busy, Drop, Retry, Router
sys.path.insert(0, os.path.dirname(__file__))
import elsewhere
router = Router("shop")
router.startup(elsewhere.start)

class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")

def raises(error):
    raise error

ENDS = {
    "big": lambda: 2**70,
    "nan": lambda: float("nan"),
    "shy": lambda: Unprintable(),
    "surrogate": lambda: "\\ud800",
    "drop": lambda: raises(Drop(404)),
    "later": lambda: raises(Retry("soon", after=decimal.Decimal("0.01"))),
    "cancelled": lambda: raises(asyncio.CancelledError()),
    "exit": lambda: sys.exit(3),
    "unreadable error": lambda: raises(ValueError("\\ud800")),
    "long error": lambda: raises(ValueError("y" * 100_000)),
}

@router.on("order.odd", retries=0)
def odd(event, ctx):
    return ENDS[event.data["end"]]()

@router.on("order.later", retries=3)
def much_later(event, ctx):
    raise Retry("much later", after=float(event.data["after"]))

@router.on("order.slow", retries=0)
def slow(event, ctx):
    open(os.path.join(os.path.dirname(__file__), "begun"), "w").close()
    time.sleep(1.5)
    return "whole"
"""
HEAD = "from workers import Router\nrouter = Router('shop')\n"
HELLO = HEAD + "@router.on('*')\ndef greet(event, ctx):\n    pass\n"
OTHER_MODULE = "def start(settings):\n    if getattr(settings, 'broken', False):\n        raise OSError('no crm')\n"


def system_with_odd_plugin(make_system: Callable[..., System], **how: object) -> System:
    system = make_system(plugin=ODD_PLUGIN, child_processes=4, **how)
    (system.folder / "elsewhere.py").write_text(OTHER_MODULE)
    return system


def test_an_error_outside_the_plugins_own_file_does_not_lose_the_run(make_system: Callable[..., System]) -> None:
    """Its line in plugin code is unknown (JSON null), which once stopped the script half way."""
    system = system_with_odd_plugin(make_system, more="[plugins.shop]\nbroken = true\n")
    system.start("worker", "housekeeper")
    event_id = system.accept("order.odd", data={"id": 1, "end": "big"})
    assert system.settled(event_id) == "failed"
    assert system.run_of(event_id, "shop.odd").error == "OSError: no crm"


@pytest.mark.parametrize(
    ("end", "state", "shown"),
    [
        ("big", "settled", str(2**70)),
        ("nan", "settled", "nan"),
        ("shy", "settled", "<Unprintable that cannot be shown: RuntimeError>"),
        ("surrogate", "settled", "?"),
        ("drop", "settled", "404"),
        ("later", "failed", "Retry: soon"),
        ("cancelled", "failed", "CancelledError: "),
        ("exit", "failed", "SystemExit: 3"),
        ("unreadable error", "failed", "ValueError: ?"),
        ("long error", "failed", f"ValueError: {'y' * 487}…"),
    ],
)
def test_odd_results_and_errors_are_shown_and_end_no_child_process(
    make_system: Callable[..., System], end: str, state: str, shown: str
) -> None:
    system = system_with_odd_plugin(make_system)
    worker, _ = system.start("worker", "housekeeper")
    event_id = system.accept("order.odd", data={"id": 1, "end": end})
    assert system.settled(event_id) == state
    run = system.run_of(event_id, "shop.odd")
    assert (run.error or run.result) == shown
    assert "child process gone" not in system.log("worker")
    assert worker.alive


def test_a_very_late_retry_is_due_within_a_month_and_breaks_neither_worker_nor_list(
    make_system: Callable[..., System],
) -> None:
    """1e306 s could not be stored, and 1e12 s could not be shown as a date."""
    system = system_with_odd_plugin(make_system)
    worker, _ = system.start("worker", "housekeeper")
    ids = {system.accept("order.later", data={"id": 1, "after": after}) for after in ("1e306", "1e12", "inf")}
    eventually(lambda: len(FailureQueries(system.client).latest()) == 3)
    found = FailureQueries(system.client).latest()
    assert {one.event for one in found} == ids
    assert all(29 < (one.next_at - one.failed_at).days <= 30 for one in found)
    assert worker.alive


def test_sigterm_to_every_process_burns_no_attempt(make_system: Callable[..., System]) -> None:
    """A service manager sends it to every process at once."""
    system = system_with_odd_plugin(make_system)
    worker, _ = system.start("worker", "housekeeper")
    event_id = system.accept("order.slow")
    eventually((system.folder / "begun").exists)
    for pid in (*children_of(worker.pid), worker.pid):
        os.kill(pid, signal.SIGTERM)
    assert worker.wait() == 0
    assert system.run_of(event_id, "shop.slow").result == "whole"


def test_a_slow_reload_lets_no_lease_lapse(make_system: Callable[..., System]) -> None:
    system = system_with_odd_plugin(make_system)
    worker, _ = system.start("worker", "housekeeper")
    event_id = system.accept("order.slow")
    eventually((system.folder / "begun").exists)
    system.plugin.write_text("import time\ntime.sleep(4)\n" + ODD_PLUGIN)
    worker.send(signal.SIGHUP)
    assert system.settled(event_id) == "settled"
    assert system.client.hget(keys.EVENT + event_id, "r:shop.slow").split()[2] == b"0", "no loss"
    eventually(lambda: '"reloaded"' in system.log("worker"), 15)


def test_a_wait_for_a_wake_up_that_hangs_is_ended(make_system: Callable[..., System], own_redis: Server) -> None:
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    system = make_system(
        url=proxy.url,
        plugin=HELLO,
    )
    system.inbox.client = system.ledger.client = system.client = own_redis.client
    system.start(
        "worker",
        "housekeeper",
        quicker={"workers.runtime.worker.wake_ups.WAIT_SECONDS": 1, "workers.runtime.worker.wake_ups.OVERDUE": 1},
    )
    system.settled(system.accept())
    silence = threading.Event()
    proxy.at_reply(b"BLMOVE", lambda: silence.wait(60))
    eventually(lambda: proxy._watch is None, 15, what="a BLMOVE hangs")
    for _ in range(3):
        assert system.settled(system.accept(), within=10) == "settled"
    silence.set()
    system.close()
    proxy.close()


def test_at_maxmemory_leases_still_lapse_and_workers_still_start(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    with own_server(folder) as server:
        system = make_system(
            url=server.url,
            plugin=HELLO,
        )
        lost, waiting = system.accept(), system.accept()
        claim_one(system.inbox)
        for item in server.client.zrange(keys.LEASED, 0, -1):
            server.client.zadd(keys.LEASED, {item: 1})
        server.client.config_set("maxmemory", 1)
        assert system.housekeeping.lead("me", 1000)
        assert system.housekeeping.tick()[1] == 1
        system.client.delete(keys.LEADER)
        system.start("worker", "housekeeper")
        assert {system.settled(one) for one in (lost, waiting)} == {"settled"}


def test_an_idle_worker_finds_work_at_maxmemory_without_wake_ups(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url, plugin=HELLO)
    system.administration.pause(store="north")
    waiting = system.accept()
    system.start("worker", quicker={"workers.runtime.worker.worker.HEARTBEAT_EVERY": 60.0})
    eventually(lambda: own_redis.client.info("clients")["blocked_clients"] == 1, what="the worker waits for wake-ups")
    own_redis.client.config_set("maxmemory", 1)
    eventually(lambda: "refuses to wait for wake-ups" in system.log("worker"))
    system.administration.resume(store="north")
    assert system.settled(waiting) == "settled"


def test_held_runs_are_resumed_even_if_the_resume_command_was_killed(system: System) -> None:
    for _ in range(3):
        system.accept()
    system.administration.pause(store="north")
    assert system.inbox.claim({"": 9}, capacity=9).runs == ()
    system.client.srem(keys.PAUSED, "store:north")
    system.client.sadd("sh:resuming", "north")
    system.housekeeping.tick()
    assert len(system.inbox.claim({"": 9}, capacity=9).runs) == 3


def test_a_claim_is_bounded_in_bytes(system: System) -> None:
    for n in range(14):
        system.accept(data={"id": n, "pad": "x" * 900_000})
    first = system.inbox.claim({"": 64}, capacity=64).runs
    assert 8 <= len(first) <= 11
    assert len(first) + len(system.inbox.claim({"": 64}, capacity=64).runs) == 14


def test_the_first_worker_after_an_outage_routes_to_the_handlers_of_all(system: System) -> None:
    ours, theirs = (Declaration(name, "1", ("*",), ("*",)) for name in ("a.one", "b.two"))
    system.inbox.declare([ours, theirs])
    for name in system.client.hkeys(keys.DECLARED_AT):
        system.client.hset(keys.DECLARED_AT, name, 1)
    system.inbox.declare([ours])
    assert {one.handler for one in system.inbox.declarations().handlers} == {"a.one", "b.two"}


def test_two_configs_of_one_version_do_not_overwrite_each_other(system: System) -> None:
    one = Declaration("a.one", "1", ("order.*",), ("*",))
    other = Declaration("a.one", "1", ("product.*",), ("*",))
    system.inbox.declare([one], worker="old")
    version = system.inbox.declare([other], worker="new")
    assert system.inbox.declare([one], worker="old") == system.inbox.declare([other], worker="new") == version


def test_a_done_effect_with_a_result_that_is_not_json_is_not_repeated() -> None:
    effect, calls = Effect(LocalEffects(), "o:1", "shop.one|charge", "1|shop.one", in_doubt="run"), []

    def charge() -> object:
        calls.append(1)
        return object()

    with pytest.raises(Fail, match="not JSON"):
        effect.once(charge)
    assert effect.once(charge) is None
    assert calls == [1]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import sys\nsys.exit('bye')\n", "cannot be loaded: SystemExit: bye"),
        ("import os\nos.kill(os.getpid(), 9)\n", "it was killed by SIGKILL"),
    ],
)
def test_a_plugin_that_ends_its_process_is_reported_in_one_sentence(
    make_system: Callable[..., System], text: str, error: str
) -> None:
    system = make_system(plugin=text)
    done = system.refuse_to_start("worker")
    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_started_by_a_plugins_import_delays_nothing_and_is_ended(make_system: Callable[..., System]) -> None:
    system = make_system(plugin="import subprocess\nhelper = subprocess.Popen(['sleep', '97'])\n" + HEAD)
    began = time.monotonic()
    assert validation_process.validate_plugins(system.config) == []
    assert time.monotonic() - began < 5
    sleeping = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _command(pid) == b"sleep\x0097\x00"
    ]
    assert eventually(lambda: not [pid for pid in sleeping if _command(pid)])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("queue", ["'eu.high'", "'my queue'", "''", "None", "12"])
def test_an_invalid_queue_name_is_refused(make_system: Callable[..., System], queue: str) -> None:
    system = make_system(plugin=HEAD + f"@router.on('*', queue={queue})\ndef one(event, ctx):\n    pass\n")
    assert "a queue's name is letters" in system.refuse_to_start("worker").stderr


def test_a_queue_with_the_name_of_a_list_of_rq_is_refused(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HEAD + "@router.on('*', queue='intermediate')\ndef one(event, ctx):\n    pass\n")
    assert "has queue='intermediate'; RQ uses that name" in system.refuse_to_start("worker").stderr


def test_a_replayed_run_settles_while_another_run_of_the_event_is_failed(system: System) -> None:
    event_id = system.accept()
    greet, count = route(system.inbox, claim_one(system.inbox), GREET, ("shop.count", "default", True))
    system.inbox.finish([Outcome(greet, "failed", {"error": "E"}), Outcome(count, "failed", {"error": "E"})])
    system.administration.reopen([greet.item], {})
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "done")])
    assert system.status(event_id) == "failed"
    assert system.identity_holds()


def test_an_event_that_arrives_during_a_listing_makes_none_appear_twice(system: System) -> None:
    first, second, third = (system.accept() for _ in range(3))
    late = system.delivery()
    late = replace(late, event=replace(late.event, received_at=late.event.received_at + timedelta(seconds=1)))
    listed = system.ledger._newest(keys.INDEX, None, 2)
    found = [next(listed).id]
    system.inbox.accept([late])
    found += [event.id for event in listed]
    assert len(found) == 3
    assert set(found) == {first, second, third}
    assert system.ledger.events()[0].id == late.event.id
