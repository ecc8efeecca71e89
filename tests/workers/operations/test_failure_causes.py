"""Failure groups: each is one cause, for every command that takes a group; at most 200 for a handler."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from receiver.inbox import FailureQueries, Housekeeping, Outcome, keys
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.failures import FailureGroup
from tests.receiver.inbox.test_inbox import claim_one
from tests.support.harness import System, eventually
from tests.workers.operations.test_failures import fail
from workers.plugins.exceptions import Fail
from workers.runtime.pool.error_details import describe_error

PLUGIN = """
import json
from functools import wraps
from workers import Fail, Retry, Router
{imports}
router = Router("erp")
@router.on("order.*", retries=0)
def export(event, ctx):
    cause = event.data["cause"]
    if cause == "customer":
        raise Fail(f"no such customer {{event.data['id']}}")
    if cause == "key":
        raise Fail("the ERP refuses our key")
    if cause == "helper":
        look_up(event)
    if cause == "library":
        json.loads("{{" * event.data["id"])
    if cause == "nested":
        (lambda: event.data["missing"])()
    if cause == "chained":
        try:
            int("x")
        except ValueError as error:
            raise Retry("not a number") from error
    if cause == "many":
        raise Fail("no " + "".join(chr(97 + int(digit)) for digit in str(event.data["id"])))
{helper}
"""
HELPER = """
def look_up(event):
    from workers import Fail
    raise Fail("no such customer")
"""
CAUSES = ("customer", "key", "helper", "library", "nested", "chained")


def groups_of(system: System) -> list[FailureGroup]:
    return list(FailureQueries(system.client).every_group())


def causes(system: System) -> dict[str, str]:
    """The group of each failed run, by the cause and number of its event."""
    failures = FailureQueries(system.client).latest()
    return {_name(system, one.event): one.group for one in failures}


def _name(system: System, event_id: str) -> str:
    record = system.ledger.event(event_id)
    assert record
    data = json.loads(record.body)["data"]
    return f"{data['cause']} {data['id']}"


def deliver_all(system: System, *numbers: int) -> None:
    for cause in CAUSES:
        for number in numbers:
            system.deliver(data={"id": number, "cause": cause})
    total = len(CAUSES) * len(numbers)
    eventually(lambda: sum(one.failed for one in groups_of(system)) >= total, what="every run has failed")


def test_two_causes_in_one_handler_are_two_groups_for_every_command(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN.format(imports="", helper=HELPER))
    system.start("web", "worker", "housekeeper")
    deliver_all(system, 7, 8)
    found = causes(system)
    assert len(groups_of(system)) == len(CAUSES)
    assert all(found[f"{cause} 7"] == found[f"{cause} 8"] for cause in CAUSES)
    listed = system.run_cli("failures").stdout
    assert "Fail: no such customer" in listed
    assert "Fail: the ERP refuses our key" in listed
    key = found["key 7"]
    assert "Fail: the ERP refuses our key" in system.run_cli("failures", "show", key).stdout
    told = system.run_cli("failures", "drop", "--group", key, "--reason", "a new key", "--yes").stdout
    assert "2 runs dropped" in told
    assert "key 7" not in causes(system)
    told = system.run_cli("failures", "replay", "--group", found["customer 7"], "--yes").stdout
    assert "2 runs replayed" in told
    eventually(lambda: len(causes(system)) == 2 * len(CAUSES) - 2, what="the two have failed again")
    assert {name: causes(system)[name] for name in ("customer 7", "customer 8")} == dict.fromkeys(
        ("customer 7", "customer 8"), found["customer 7"]
    )
    assert system.identity_holds()


def test_a_plugin_that_moves_from_a_file_to_a_package_keeps_its_groups(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN.format(imports="from erp_customers import look_up", helper=""))
    (system.plugin.parent / "erp_customers.py").write_text(HELPER)
    worker = system.start("web", "worker")[1]
    deliver_all(system, 1)
    before = {one.id for one in groups_of(system)}
    assert len(before) == len(CAUSES)
    package = system.folder / "shop_package"
    package.mkdir()
    (package / "__init__.py").write_text("from shop_package.handlers import router\n")
    (package / "handlers.py").write_text(PLUGIN.format(imports="from shop_package.erp import look_up", helper=""))
    (package / "erp.py").write_text(HELPER)
    system.config_file.write_text(system.config_file.read_text().replace('"shop.py"', '"shop_package"'))
    worker.send(signal.SIGTERM)
    worker.wait()
    system.start("worker")
    for cause in CAUSES:
        system.deliver(data={"id": 2, "cause": cause})
    eventually(lambda: sum(one.failed for one in groups_of(system)) == 2 * len(CAUSES), what="every run has failed")
    assert {one.id for one in groups_of(system)} == before


def test_a_handler_has_at_most_200_groups_and_one_for_all_other_causes(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN.format(imports="", helper=HELPER))
    system.start("worker")
    for number in range(1000, 1210):
        system.accept(data={"id": number, "cause": "many"})
    eventually(lambda: system.ledger.counters().total["failed"] == 210, 20, what="every run has failed")
    groups = groups_of(system)
    assert len(groups) == 201
    (others,) = (one for one in groups if one.failed > 1)
    assert others.failed == 10
    assert others.error.startswith("other causes, beyond 200 groups; the last: Fail: no ")
    assert "other causes, beyond 200 groups" in system.run_cli("failures").stdout
    # A group that is empty again frees its place.
    first = next(one for one in groups if one.failed == 1)
    system.run_cli("failures", "drop", "--group", first.id, "--reason", "test data", "--yes")
    system.run_cli("failures", "replay", "--group", others.id, "--first", "1", "--yes")
    eventually(lambda: system.ledger.counters().total["failed"] == 209, what="it has failed again")
    assert sorted(one.failed for one in groups_of(system))[-2:] == [1, 9]
    assert len(groups_of(system)) == 201
    system.run_cli("failures", "drop", "--group", others.id, "--reason", "test data", "--yes")
    assert len(groups_of(system)) == 200
    assert system.client.scard(keys.PREFIX + "gh:erp.export") == 200
    assert system.identity_holds()


def test_a_retry_that_fails_again_keeps_the_time_of_the_first_failure(system: System) -> None:

    event_id = fail(system, how="retry")
    (before,) = groups_of(system)
    system.administration.make_due([f"{event_id}|shop.greet"])
    Housekeeping(system.client).tick()
    run = claim_one(system.inbox, "shop.greet")
    detail = {"error": "KeyError: 'x'", "group": "a1f3aaaa", "version": "1"}
    system.inbox.finish([Outcome(run, OutcomeKind.FAILED, detail)])
    (after,) = groups_of(system)
    assert (after.first_at, after.retrying, after.failed) == (before.first_at, 0, 1)


def test_a_start_of_an_id_that_names_two_groups_is_refused(system: System) -> None:
    fail(system, group="a1f3aaaa")
    fail(system, group="a1f3bbbb")
    done = system.run_cli("failures", "show", "a1f3")
    assert done.returncode == 2
    assert "2 failure groups begin with 'a1f3'" in done.stderr
    assert "a1f3b" in system.run_cli("failures").stdout


def test_unreadable_deliveries_are_grouped_by_cause(system: System) -> None:
    problems = ("the body is empty", "no topic at header X-Topic")

    for number, problem in enumerate((*problems, *problems)):
        delivery = system.delivery()
        system.inbox.accept([replace(delivery, event=replace(delivery.event, id=f"e{number}"), unreadable=problem)])
    assert {(one.handler, one.error, one.failed) for one in groups_of(system)} == {
        ("intake", problem, 2) for problem in problems
    }


def test_an_exception_that_never_passed_through_the_plugin_has_a_group_too() -> None:
    try:
        raise Fail("x")
    except Fail as error:
        outside = describe_error(error, handler="a.b", packages=("nowhere",))
        inside = describe_error(error, handler="a.b", packages=(__name__.partition(".")[0],))
    assert (outside["at"], outside["group"] != inside["group"]) == (None, True)
    assert inside["at"].startswith(__file__)


def test_a_long_error_begins_with_its_type_and_has_no_text_of_the_payload() -> None:
    error = OSError("no ann@example.com" + "y" * 3_000_000)
    told = describe_error(error, handler="a.b", packages=(), payload={"email": "ann@example.com"})
    assert told["error"].startswith("OSError: no {email}yyy")
    assert len(told["error"]) == 500


@pytest.mark.parametrize("size", [10, 400, 20_000])
def test_a_very_long_message_leaves_the_calls_in_the_traceback_and_no_text_of_the_payload(size: int) -> None:
    texts = {str(number): f"customer-{number}" * 20 for number in range(size)}
    with pytest.raises(ValueError, match="customer") as raised:
        raise ValueError(str(texts))
    told = describe_error(raised.value, handler="a.b", packages=(), payload=texts)
    assert "test_a_very_long_message" in told["traceback"]
    assert len(told["traceback"]) < 9_000
    assert "customer-" not in told["traceback"].partition("ValueError: ")[2]
