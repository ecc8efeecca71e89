"""The test kit for integrators: events, contexts, fixtures and the system under test."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from receiver.contract.records import Order
from receiver.contract.topics import matches
from tests.docs.test_architecture import loaded_by
from tests.support.programs import ROOT
from workers import Busy, Context, Drop, Event, Fail, Retry, testing
from workers.storeapi import ApiError
from workers.storeapi.sandbox.shop import TOPICS
from workers.testing import SystemUnderTest, make_context, make_event, sample_events
from workers.testing.local_system import LocalSystem, LocalSystemError

KIT = {f"workers.testing.{name}" for name in ("events", "recording_context", "sandbox_store", "system_under_test")}


def award(event: Event, ctx: Context) -> str:
    if event.data["status"] != "paid":
        raise Drop("not paid")
    ctx.log.info("order %s", event.data["id"])
    points = ctx.once("points", lambda: int(float(event.data["total"])) * ctx.settings.rate)
    ctx.state.add("orders")
    return f"{points} points for {ctx.api.customers.get(event.data['customer']['id']).name}"


def test_a_handler_can_be_called_without_a_server() -> None:
    event = make_event("order.paid", {"total": "42.00"})
    context = make_context(event, settings={"rate": 2}, api={"customers.get": {"id": 1, "name": "Ada"}})
    assert award(event, context) == "84 points for Ada"
    assert context.once_calls == [("points", 84)]
    assert context.logged == ["INFO order 1001"]
    assert [name for name, _, _ in context.api_calls] == ["customers.get"]
    assert context.state.get("orders") == 1


def test_a_second_attempt_gets_the_once_results_of_the_first() -> None:
    event = make_event("order.paid")
    first = make_context(event, settings={"rate": 2}, api={"customers.get": ApiError("unreachable")})
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


def test_an_api_call_without_an_answer_fails_and_shows_how_to_set_one() -> None:
    context = make_context()
    with pytest.raises(AssertionError, match=r'make_context\(api=\{"orders.get": ...\}\)'):
        context.api.orders.get(1)
    with pytest.raises(AttributeError, match=r"has no operation orders\.fly"):
        context.api.orders.fly()


def test_an_event_is_a_sample_updated_with_data_or_exactly_the_data() -> None:
    assert make_event("order.paid", {"total": "1.00"}).data["status"] == "paid"
    assert make_event("order.paid", {"total": "1.00"}, exact=True).data == {"total": "1.00"}
    assert make_event().id != make_event().id
    assert make_event(delivery_id="a").id == make_event(delivery_id="a").id
    assert make_event("order.paid", {"total": "1.10"}).record.total.as_tuple().exponent == -2  # type: ignore[union-attr]
    assert make_context(stopping=True).stopping
    assert 0 < make_context(timeout=5).remaining() <= 5
    assert make_context(state={"seen": 3}).state.add("seen") == 4
    assert Retry("x").after is None


@pytest.mark.parametrize("kind", [Retry, Busy])
@pytest.mark.parametrize("after", [-5, math.nan, "60", timedelta(minutes=1)])
def test_a_delay_that_is_no_number_of_seconds_is_refused(kind: type[Retry | Busy], after: Any) -> None:
    with pytest.raises(ValueError, match=r"^after= is a number of seconds, not less than 0, and not "):
        kind("x", after=after)


@pytest.mark.parametrize("kind", [Retry, Busy, Fail, Drop])
def test_an_ending_without_a_reason_says_so(kind: type[Retry | Busy | Fail | Drop]) -> None:
    with pytest.raises(kind, match="no reason given") as raised:
        raise kind
    assert raised.value.why == "no reason given"


@pytest.mark.parametrize("scheme", ["shopify", "woocommerce", "shopware", "salla", "stripe", "paddle"])
def test_an_event_in_the_shape_of_a_platform_has_the_same_record(scheme: str) -> None:
    event = make_event("order.paid", {"total": "12.30"}, scheme=scheme)
    assert isinstance(event.record, Order)
    assert (event.record.id, event.record.status, str(event.record.total)) == (1001, "paid", "12.30")
    assert event.resource_id == "1001"
    assert event.data.get("total") == ("12.30" if scheme == "woocommerce" else None)
    assert event.record.currency == "EUR"


def test_data_may_have_the_platforms_own_names() -> None:
    """The value of the sample was written over it, without a sign."""
    event = make_event("order.paid", {"total_price": "9.90", "tags": "vip"}, scheme="shopify")
    assert str(event.record.total) == "9.90"  # type: ignore[union-attr]
    assert event.data["tags"] == "vip"


def test_sample_events_cover_every_topic() -> None:
    events = list(sample_events())
    assert [event.topic for event in events] == list(TOPICS)
    assert all(event.record is not None and event.record.id == 1001 for event in events)
    assert next(event for event in events if matches("product.*", event.topic)).data["stock"] >= 0


def test_importing_the_kit_loads_nothing_heavy() -> None:
    """Every pytest run of the environment imports it, including runs that do not use storehooks."""
    heavy = {"flask", "rq", "redis", "pydantic", "httpx2", "gunicorn", "structlog", "rich", "orjson", "click"}
    assert not loaded_by("import storehooks.pytest_plugin") & (heavy | KIT)
    assert not loaded_by("import workers.testing") & heavy


def test_every_public_name_of_the_kit_loads() -> None:
    assert {name for name in testing.__all__ if getattr(testing, name).__module__ not in KIT} == set()
    with pytest.raises(AttributeError, match="has no attribute nothing"):
        _ = testing.nothing


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
        sent = system.refresh(sent)
    assert sent.run("loyalty.award").result == "42 points"
    assert sent.run("thank").status == "waiting"
    assert store.records("customer")[0]["metadata"] == {"points": 42}
    assert store.writes() == ["PATCH /api/v3/app/customers/1/metadata"]
    assert (system.files / "points.txt").read_text() == "7\\n"
    assert system.send("order.paid", {"id": 7}, delivery_id="a", wait=("open",)).answer == "accepted"
    assert system.send("order.paid", {"id": 7}, delivery_id="a", wait=("open",)).answer == "duplicate"
    settled = system.send("product.created", wait=("settled",), delivery_id="b")
    assert system.send("product.created", wait=("open",), delivery_id="b").id == settled.id

def test_the_store_is_reset(store, make_context, make_event):
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


@pytest.mark.slow  # the quick tests run docs/how-to/testing.md, which uses the same fixtures
def test_the_fixtures_start_the_real_pipeline_and_a_real_sandbox(tmp_path: Path) -> None:
    (tmp_path / "loyalty.py").write_text(PLUGIN)
    (tmp_path / "test_loyalty.py").write_text(THREE_LINES)
    done = run_pytest(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_loads_the_plugin_by_its_entry_point_and_other_tests_load_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        f"import sys\ndef test_other():\n    assert not {KIT | {'redis'}} & set(sys.modules)\n"
    )
    done = run_pytest(tmp_path, "--trace-config")
    assert "1 passed" in done.stdout, done.stdout
    assert "storehooks/pytest_plugin.py" in done.stdout.replace(str(ROOT), "")


TRIES = """
from workers import Context, Event, Router
router = Router("tries")
@router.on("order.paid", retries=(3600, 3600), delay="1d")
def note(event: Event, ctx: Context) -> str:
    with open("attempts.txt", "a") as file:
        file.write(f"{ctx.attempt} {ctx.replay}\\n")
    raise OSError("unreachable")
"""


def test_skipping_delays_makes_the_next_attempt_and_is_not_a_replay(tmp_path: Path) -> None:
    (tmp_path / "tries.py").write_text(TRIES)
    system = SystemUnderTest(tmp_path / "system")
    system.start(tmp_path / "tries.py")
    try:
        sent = system.skip_delays(system.send("order.paid", wait=("open",)))
    finally:
        system.stop()
    assert (system.files / "attempts.txt").read_text() == "1 False\n2 False\n3 False\n"
    assert (sent.run("note").status, sent.run("note").attempts) == ("failed", 3)


def test_workers_are_ready_even_if_a_plugin_prints_a_lot_after_the_start(tmp_path: Path) -> None:
    local_system = LocalSystem(tmp_path / "system")
    local_system._running["workers"] = subprocess.Popen(["sleep", "60"])
    (local_system.folder / "workers.log").write_text("worker started\n" + "a plugin prints its banner\n" * 100)
    assert local_system._is_ready("workers")
    local_system.kill("workers")


def test_settings_and_further_config_are_written_as_toml(tmp_path: Path) -> None:
    settings = {"loyalty": {"path": tmp_path, "rates": (1, 2.5), "nested": {"on": True}, "since": date(2026, 11, 15)}}
    local_system = LocalSystem(tmp_path / "system", settings=settings, more="[limits.crm]\nconcurrency = 2\n")
    assert local_system.config.plugins["loyalty"].plugin_values == {
        "path": str(tmp_path),
        "rates": [1, 2.5],
        "nested": {"on": True},
        "since": date(2026, 11, 15),
    }
    assert local_system.config.limits["crm"].concurrency == 2


def test_a_system_that_cannot_start_reports_the_cause(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    system = SystemUnderTest(tmp_path / "system")
    with pytest.raises(LocalSystemError, match=r"bad\.py:1: plugin .* ZeroDivisionError") as raised:
        system.start(tmp_path / "bad.py")
    assert "bad.py:1: plugin" in str(raised.value).splitlines()[0], "lines of the log come after the sentence"
    assert "{" not in str(raised.value).splitlines()[0]
    system.stop()
