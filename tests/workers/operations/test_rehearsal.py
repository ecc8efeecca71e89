"""Rehearsal: a handler runs on a stored event, and nothing outside its process is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from receiver.contract.errors import ConfigError
from tests.support.harness import System, children_of, eventually
from workers.operations import rehearsal
from workers.operations.local_run import LocalRun

PLUGIN = """
import os, socket, subprocess, urllib.request
from workers import Retry, Router
router = Router("erp")

@router.on("order.*", retries=0)
def export(event, ctx):
    if "needs" in event.data and not os.path.exists(event.data["needs"]):
        raise KeyError("vat_id")
    return "exported"

@router.on("order.paid", retries=0)
def busy(event, ctx):
    ctx.once("mail", lambda: "sent")
    ctx.once("letter", lambda: "posted", scope="resource")
    ctx.state.set("last", event.data["id"])
    ctx.state.add("total", 3)
    return "busy"

@router.on("customer.created", retries=0)
def outside(event, ctx):
    print("hello from the handler")
    order = ctx.api.orders.list()
    refused = 0
    for attempt in (
        lambda: urllib.request.urlopen("http://crm.example/x", timeout=1),
        lambda: socket.create_connection(("127.0.0.1", int(event.data["port"])), timeout=1),
        lambda: subprocess.run(["true"]),
    ):
        try:
            attempt()
        except OSError:
            refused += 1
    return f"{refused} refused"

@router.on("customer.deleted", retries=0)
def slow(event, ctx):
    import time
    time.sleep(60)

@router.on("product.created", retries=0)
def grow(event, ctx):
    import time
    held = []
    while len(held) < 100:
        held.append(b"x" * (8 << 20))
    time.sleep(30)
"""


@pytest.fixture
def shop(system: System) -> System:
    system.plugin.write_text(PLUGIN)
    return system


def contents(system: System) -> dict[bytes, Any]:
    return {key: system.client.dump(key) for key in system.client.keys("*")}


def run_for_real(system: System, handler: str, event_id: str) -> None:
    """A run whose marks and state are stored."""
    event = system.ledger.as_event(event_id)
    assert event
    run = LocalRun(system.config, handler, record=True)
    assert run.run(event).ending == "done"
    run.close()


def test_it_lists_what_the_handler_did_and_leaves_every_key(shop: System) -> None:
    event_id = shop.accept("order.paid")
    run_for_real(shop, "erp.busy", event_id)
    before = contents(shop)
    found = rehearsal.rehearse(shop.config, "erp.busy", event_id)
    assert contents(shop) == before
    assert (found.ending, found.message) == ("done", '"busy"')
    assert found.skipped == [
        {"mark": "erp.busy|mail", "result": "sent"},
        {"mark": "erp.busy|letter", "result": "posted"},
    ]
    assert found.performed == []
    assert found.state == [
        {"name": "last", "before": 1001, "after": 1001},
        {"name": "total", "before": 3, "after": 6},
    ]
    assert (found.calls, found.refused) == ([], [])


@pytest.mark.full
def test_effects_that_are_new_are_performed_here_once(shop: System) -> None:
    event_id = shop.accept("order.paid")
    before = contents(shop)
    found = rehearsal.rehearse(shop.config, "erp.busy", event_id)
    assert (found.performed, found.skipped) == (["erp.busy|mail", "erp.busy|letter"], [])
    assert [one["after"] for one in found.state] == [1001, 3]
    assert contents(shop) == before


@pytest.mark.full
def test_other_connections_are_refused_and_listed(shop: System) -> None:
    event_id = shop.accept("customer.created", data={"id": 5, "port": shop.port})
    before = contents(shop)
    found = rehearsal.rehearse(shop.config, "erp.outside", event_id)
    assert (found.ending, found.message) == ("done", '"3 refused"')
    assert found.refused == ["crm.example:80", f"127.0.0.1:{shop.port}", "start of a program: true"]
    assert found.calls == [{"operation": "orders.list", "arguments": [], "fields": {}}]
    assert "hello from the handler" in found.printed
    assert contents(shop) == before


@pytest.mark.full
def test_a_forward_that_is_refused_says_so(shop: System) -> None:
    forward = '\n[forward.crm]\ntopics = ["order.*"]\nurl = "https://crm.example/x"\n'
    shop.config_file.write_text(shop.config_file.read_text() + forward)
    found = rehearsal.rehearse(shop.config, "forward.crm", shop.accept())
    assert rehearsal.REFUSED in found.message, found.message


def test_what_the_handler_raises_is_the_result(shop: System) -> None:
    found = rehearsal.rehearse(shop.config, "erp.export", shop.accept(data={"id": 1, "needs": "/no/such/file"}))
    assert (found.ending, found.message) == ("raised", "KeyError: 'vat_id'")
    assert "raise KeyError" in found.traceback


@pytest.mark.parametrize(
    ("handler", "event", "sentence"),
    [("erp.none", "", "no handler is named erp.none"), ("erp.export", "x" * 26, "there is no event x{26} with a body")],
)
def test_what_cannot_be_rehearsed_is_a_sentence(shop: System, handler: str, event: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        rehearsal.rehearse(shop.config, handler, event or shop.accept())


@pytest.mark.full
def test_one_that_does_not_end_is_ended_with_all_it_started(shop: System, monkeypatch: pytest.MonkeyPatch) -> None:
    event_id = shop.accept("customer.deleted", data={"id": 5})
    monkeypatch.setattr(rehearsal, "SECONDS", 4.0)
    before = set(children_of(os.getpid()))
    with pytest.raises(ConfigError, match="did not end within 4 s"):
        rehearsal.rehearse(shop.config, "erp.slow", event_id)
    eventually(lambda: set(children_of(os.getpid())) <= before, what="its process has ended")


GUARDED = """
import multiprocessing, os, socket, threading
from workers.operations.rehearsal import ConnectionGuard
server = socket.create_server(("127.0.0.1", 0))
address = server.getsockname()
one, other = socket.socketpair()
spawn = multiprocessing.get_context("spawn")
refused = []
guard = ConnectionGuard(refused)
guard.turn_on()

def tries(attempt):
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"

def connect():
    socket.create_connection(address, timeout=5).close()

def in_a_thread(attempt):
    found = []
    thread = threading.Thread(target=lambda: found.append(tries(attempt)))
    thread.start()
    thread.join()
    return found[0]

print("spawn", tries(lambda: spawn.Process(target=os.getpid).start()))
print("posix_spawn", tries(lambda: os.posix_spawn("/bin/true", ["true"], {})))
print("sendmsg", tries(lambda: one.sendmsg([b"x"])))
print("names", tries(lambda: socket.gethostbyname("crm.example")), tries(lambda: socket.gethostbyaddr("192.0.2.1")))
with guard.paused():
    print("paused", tries(connect), in_a_thread(connect))
print("then", tries(connect))
print([one for one in refused if one.startswith("look")])
"""


def test_the_guard_refuses_other_processes_other_threads_and_lookups() -> None:
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "spawn ConnectionRefusedError",
        "posix_spawn ConnectionRefusedError",
        "sendmsg done",
        "names ConnectionRefusedError ConnectionRefusedError",
        "paused done ConnectionRefusedError",
        "then ConnectionRefusedError",
        "['look up crm.example', 'look up 192.0.2.1']",
    ], done.stderr


@pytest.mark.full
def test_what_is_listed_is_limited_and_the_end_of_what_is_printed_is_kept(shop: System) -> None:
    shop.plugin.write_text(PLUGIN + MUCH)
    found = rehearsal.rehearse(shop.config, "erp.much", shop.accept("product.created", data={"id": 5}))
    assert (found.ending, len(found.state), len(found.performed)) == ("done", 200, 200)
    assert found.printed.rstrip().endswith("the end")
    assert len(found.printed) <= rehearsal.MAX_PRINTED


MUCH = """
@router.on("product.created", retries=0)
def much(event, ctx):
    for number in range(300):
        ctx.state.set(f"name{number}", number)
        ctx.once(f"effect{number}", lambda: None)
    print("x" * 100_000, "the end")
"""


def test_a_handler_that_takes_too_much_memory_is_ended(shop: System) -> None:
    workers = shop.config.workers.model_copy(update={"memory": 300 << 20})
    config = shop.config.model_copy(update={"workers": workers})
    with pytest.raises(ConfigError, match=r"killed: its process used \d+ MB of memory, the limit is 300 MB"):
        rehearsal.rehearse(config, "erp.grow", shop.accept("product.created"))


def test_a_handler_that_exits_is_a_result(shop: System) -> None:
    shop.plugin.write_text(PLUGIN.replace('return "exported"', "raise SystemExit(0)"))
    found = rehearsal.rehearse(shop.config, "erp.export", shop.accept("order.created"))
    assert (found.ending, found.message) == ("raised", "SystemExit: 0")
