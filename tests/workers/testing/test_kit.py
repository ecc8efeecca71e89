"""The test kit, used as an integrator uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from receiver.contract.topics import matches
from tests.docs.test_architecture import loaded_by
from tests.support.programs import ROOT
from workers import Context, Drop, Event, Retry
from workers.storeapi import ApiError
from workers.storeapi.sandbox.shop import TOPICS
from workers.testing import SystemUnderTest, make_context, make_event, sample_events
from workers.testing.local_system import LocalSystem, LocalSystemError


def award(event: Event, ctx: Context) -> str:
    if event.data["status"] != "paid":
        raise Drop("not paid")
    ctx.log.info("order %s", event.data["id"])
    points = ctx.once("points", lambda: int(float(event.data["total"])) * ctx.settings.rate)
    ctx.state.add("orders")
    return f"{points} points for {ctx.api.customers.get(event.data['customer']['id']).name}"


def test_a_handler_is_called_without_a_server() -> None:
    event = make_event("order.paid", {"total": "42.00"})
    context = make_context(event, settings={"rate": 2}, api={"customers.get": {"id": 1, "name": "Ada"}})
    assert award(event, context) == "84 points for Ada"
    assert context.once_calls == [("points", 84)]
    assert context.logged == ["INFO order 1001"]
    assert [name for name, _, _ in context.api_calls] == ["customers.get"]
    assert context.state.get("orders") == 1


def test_a_second_attempt_remembers_the_first() -> None:
    event = make_event("order.paid")
    first = make_context(event, settings={"rate": 2}, api={"customers.get": ApiError("away")})
    with pytest.raises(ApiError):
        award(event, first)
    second = make_context(
        event,
        settings={"rate": 2},
        api={"customers.get": lambda number: {"name": f"customer {number}"}},
        after=first,
        attempt=2,
    )
    assert "points for customer" in award(event, second)
    assert second.once_calls == []


def test_what_no_answer_is_set_for_says_how_to_set_one() -> None:
    context = make_context()
    with pytest.raises(AssertionError, match=r'make_context\(api=\{"orders.get": ...\}\)'):
        context.api.orders.get(1)
    with pytest.raises(AttributeError, match=r"has no operation orders\.fly"):
        context.api.orders.fly()


def test_an_event_is_a_sample_with_changes_or_exactly_what_is_given() -> None:
    assert make_event("order.paid", {"total": "1.00"}).data["status"] == "paid"
    assert make_event("order.paid", {"total": "1.00"}, exact=True).data == {"total": "1.00"}
    assert make_event().id != make_event().id
    assert make_event(delivery_id="a").id == make_event(delivery_id="a").id
    assert make_event("order.paid", {"total": "1.10"}).record.total.as_tuple().exponent == -2  # type: ignore[union-attr]
    assert make_context(stopping=True).stopping
    assert 0 < make_context(timeout=5).remaining() <= 5
    assert make_context(state={"seen": 3}).state.add("seen") == 4
    assert Retry("x").after is None


def test_there_is_a_sample_for_every_topic() -> None:
    events = list(sample_events())
    assert [event.topic for event in events] == list(TOPICS)
    assert all(event.record is not None and event.record.id == 1001 for event in events)
    assert next(e for e in events if matches("product.*", e.topic)).data["stock"] >= 0


def test_the_kit_is_light_until_it_is_used() -> None:
    """It is imported by every pytest run of the environment, other people's too."""
    heavy = {"flask", "rq", "redis", "pydantic", "httpx2", "gunicorn", "structlog", "rich", "orjson", "click"}
    assert not loaded_by("import workers.testing.pytest_plugin") & heavy
    assert "workers.testing.kit" not in loaded_by("import workers.testing.pytest_plugin")
    assert not loaded_by("import workers.testing") & heavy


PLUGIN = """
from workers import Context, Event, Router
router = Router("loyalty")
@router.on("order.paid")
def award(event: Event, ctx: Context) -> str:
    note = ctx.api.customers.update_metadata(1, metadata={"points": ctx.settings.rate * 21})
    with open("points.txt", "a") as file:
        file.write(f"{event.data['id']}\\n")
    return f"{note.metadata['points']} points"
@router.on("order.paid", delay="1d")
def thank(event: Event, ctx: Context) -> str:
    return "thanks"
"""

THREE_LINES = """
def test_three_lines(system, store):
    system.start("loyalty.py", settings={"loyalty": {"rate": 2}})
    sent = system.send("order.paid", {"id": 7}, wait=("open",))
    while sent.run("award").status != "done":
        sent = system.look(sent)
    assert sent.run("loyalty.award").result == "42 points"
    assert sent.run("thank").status == "waiting"
    assert store.records("customer")[0]["metadata"] == {"points": 42}
    assert store.writes() == ["PATCH /api/v3/app/customers/1/metadata"]
    assert (system.files / "points.txt").read_text() == "7\\n"
    assert system.send("order.paid", {"id": 7}, delivery_id="a", wait=("open",)).answer == "accepted"
    assert system.send("order.paid", {"id": 7}, delivery_id="a", wait=("open",)).answer == "duplicate"

def test_a_new_day(store, make_context, make_event):
    assert store.records("customer")[0]["metadata"] == {}
    assert store.writes() == []
    assert make_context(make_event("order.paid"), api=store.client).api.customers.get(1).id == 1
"""


def run_pytest(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "STOREHOOKS_"))}
    return subprocess.run(
        command, cwd=folder, env={**environ, **(env or {})}, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.slow  # docs/how-to/testing.md is run always, and has the same fixtures
def test_the_fixtures_run_the_real_pipeline_and_a_real_sandbox(tmp_path: Path) -> None:
    (tmp_path / "loyalty.py").write_text(PLUGIN)
    (tmp_path / "test_loyalty.py").write_text(THREE_LINES)
    done = run_pytest(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_is_an_entry_point_and_leaves_others_alone(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n    assert not {'workers.testing.kit', 'redis'} & set(sys.modules)\n"
    )
    done = run_pytest(tmp_path, "--trace-config")
    assert "1 passed" in done.stdout, done.stdout
    assert "workers/testing/pytest_plugin.py" in done.stdout.replace(str(ROOT), "")


TRIES = """
from workers import Context, Event, Router
router = Router("tries")
@router.on("order.paid", retries=(3600, 3600), delay="1d")
def note(event: Event, ctx: Context) -> str:
    with open("attempts.txt", "a") as file:
        file.write(f"{ctx.attempt} {ctx.replay}\\n")
    raise OSError("away")
"""


def test_to_hurry_is_the_next_attempt_and_no_replay_and_attempts_run_out(tmp_path: Path) -> None:
    (tmp_path / "tries.py").write_text(TRIES)
    system = SystemUnderTest(tmp_path / "system")
    system.start(tmp_path / "tries.py")
    try:
        sent = system.hurry(system.send("order.paid", wait=("open",)))
    finally:
        system.stop()
    assert (system.files / "attempts.txt").read_text() == "1 False\n2 False\n3 False\n"
    assert (sent.run("note").status, sent.run("note").attempts) == ("failed", 3)


def test_workers_that_print_much_as_they_start_are_seen_to_have_started(tmp_path: Path) -> None:
    rig = LocalSystem(tmp_path / "rig")
    rig._running["workers"] = subprocess.Popen(["sleep", "60"])
    (rig.folder / "workers.log").write_text("worker started\n" + "a plugin prints its banner\n" * 100)
    assert rig._is_ready("workers")
    rig.kill("workers")


def test_a_system_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    system = SystemUnderTest(tmp_path / "system")
    with pytest.raises(LocalSystemError, match=r"bad\.py:1: plugin .* ZeroDivisionError"):
        system.start(tmp_path / "bad.py")
    system.stop()
