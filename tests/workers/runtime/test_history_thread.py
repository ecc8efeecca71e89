"""The housekeeper moves settled events to the history next to its ticks; without the database, work goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from receiver.inbox import keys
from receiver.inbox.history_moves import HistoryMoves, MoveReport
from tests.receiver.inbox.test_history_moves import settle
from tests.support.harness import Server, System, eventually
from tests.support.logged_lines import capture_logs
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryError
from workers.runtime import history_thread
from workers.runtime.history_thread import TRY_EVERY, HistoryThread

HISTORY = '[history]\nurl = "sqlite"\nafter = "{}"\n'
PLUGIN = """
from workers import Router

router = Router("shop")

@router.on("order.*")
def greet(event, ctx):
    return ctx.once("mail", lambda: f"mailed {ctx.state.add('mails')}")
"""


def thread_of(system: System) -> HistoryThread:
    config = system.config
    return HistoryThread(lambda: config)


def test_real_processes_move_show_and_replay_events(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, more=HISTORY.format("0s"))
    system.start("web", "worker", "housekeeper")
    request = system.request(data={"id": 7, "customer": {"email": "a@b"}})
    event_id = system.post(request).json()["id"]

    def is_past() -> bool:
        return bool(system.client.hexists(keys.EVENT + event_id, "moved"))

    eventually(is_past, 20, what=f"it is moved; {system.log('housekeeper')[-800:]}")
    assert [one["id"] for one in listed(system)] == [event_id]
    found = listed(system, "--where", "customer.email=a@b", "--handler", "shop.greet")
    assert [one["id"] for one in found] == [event_id]
    assert listed(system, "--where", "customer.email=c@d") == []
    assert shown(system, "7")["result"] == "mailed 1"
    assert system.post(request).json()["status"] == "duplicate"
    assert "shop.greet" in system.run_cli("handlers", "explain", event_id).stdout
    assert b'"mailed 1"' in system.run_cli("events", "show", event_id, "--export", "-").stdout.encode()

    done = system.run_cli("events", "replay", event_id, "--yes")
    assert "1 run replayed" in done.stdout, done.stdout + done.stderr
    eventually(lambda: is_past() and system.ledger.counters().total["settled"] == 1, 20)
    assert shown(system, event_id)["result"] == "mailed 1", "the effect was not repeated"
    assert [one["id"] for one in listed(system)] == [event_id]
    assert system.identity_holds()


def listed(system: System, *options: str) -> list[Any]:
    done = system.run_cli("events", "list", "--json", *options)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def shown(system: System, event_id: str) -> Any:
    return json.loads(system.run_cli("events", "show", event_id, "--json").stdout)["runs"][0]


def test_events_stay_while_the_history_cannot_be_used_and_are_moved_afterwards(
    make_system: Callable[..., System],
) -> None:
    system = make_system(more=HISTORY.format("0s"))
    event_id = settle(system)
    thread, folder = thread_of(system), system.config.data_dir / "history"
    folder.write_text("not a directory")
    with capture_logs() as logged:
        assert [thread.round(), thread.round()] == [TRY_EVERY] * 2
    assert [one["event"] for one in logged] == ["the history cannot be used; events stay in Redis"]
    assert system.status(event_id) == "settled"
    report = HistoryMoves(system.client).report()
    assert report
    assert str(folder) in report.fault
    doctor = system.run_cli("doctor").stdout
    assert "history" in doctor
    assert str(folder) in doctor.replace("\n", "")
    listing = system.run_cli("events", "list")
    assert event_id in listing.stdout
    assert "only events in Redis are listed" in listing.stderr
    folder.unlink()
    with capture_logs() as logged:
        eventually(lambda: thread.round() != TRY_EVERY and system.status(event_id) == "unknown")
    assert "the history can be used again" in [one["event"] for one in logged]


def test_an_event_is_moved_after_its_time(make_system: Callable[..., System]) -> None:
    system = make_system(more=HISTORY.format("1h"))
    event_id = settle(system)
    thread_of(system).round()
    assert system.status(event_id) == "settled"


def test_events_are_moved_sooner_when_memory_is_short(make_system: Callable[..., System], own_redis: Server) -> None:
    system = make_system(url=own_redis.url, more=HISTORY.format("1h"))
    event_id = settle(system)
    used = system.client.info("memory")["used_memory"]
    system.client.config_set("maxmemory", int(used / 0.8))
    thread = thread_of(system)
    eventually(lambda: thread.round() == 0.0 or system.status(event_id) == "unknown")
    assert system.status(event_id) == "unknown"
    assert system.ledger.counters().total["settled"] == 1


def test_retention_holds_in_the_history_too(make_system: Callable[..., System]) -> None:
    more = HISTORY.format("0s") + '[retention]\nbodies = "0s"\n'
    system = make_system(more=more)
    event_id = settle(system)
    thread = thread_of(system)
    history = open_history(system.config, system.client)
    assert history

    def has_no_body() -> bool:
        thread._schedule = type(thread._schedule)()
        thread.round()
        past = history.event(event_id)
        return past is not None and past.content is None

    eventually(has_no_body)


def test_a_defect_of_a_driver_does_not_end_the_thread(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = make_system(more=HISTORY.format("0s"))
    event_id = settle(system)
    thread = thread_of(system)
    for error in (KeyError("secret"), HistoryError("full")):
        with monkeypatch.context() as patched:
            patched.setattr(history_thread.Mover, "move", lambda *_, _error=error, **__: (_ for _ in ()).throw(_error))
            assert thread.round() == TRY_EVERY
    assert HistoryMoves(system.client).report() == MoveReport(fault="full")
    eventually(lambda: thread.round() != TRY_EVERY and system.status(event_id) == "unknown")


def test_a_thread_that_does_not_lead_moves_nothing(make_system: Callable[..., System]) -> None:
    system = make_system(more=HISTORY.format("0s"))
    event_id = settle(system)
    thread = thread_of(system)
    thread.start()
    thread.stop()
    assert system.status(event_id) == "settled"
