"""Certification finds faulty plugins, passes correct ones, and a seed reproduces each finding."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from click.testing import Result
from redis import Redis

from receiver import config as config_room
from receiver.contract.errors import PluginError
from tests.support.command_in_process import run_in_process
from workers.plugins.validation_process import validate_plugin
from workers.testing.certify import end_state, report, scenarios
from workers.testing.certify.runner import CertificationRun, HandlerOrder, Results, ScenarioFinding, Target, target_of

ALL_TOPICS = ("product.*", "order.*", "customer.*")

NOT_IDEMPOTENT = """
from workers import Router
router = Router("twice")
@router.on("order.paid")
def note(event, ctx):
    with open("paid.txt", "a") as file:
        file.write(f"{event.data['id']}\\n")
"""
NOT_ORDER_SAFE = """
from workers import Router
router = Router("older")
@router.on("product.*")
def remember(event, ctx):
    ctx.state.set(f"price of {event.data['id']}", event.data["price"])
"""
BOTH = """
from workers import Router
router = Router("both")
@router.on("product.*")
def remember(event, ctx):
    with open("seen.txt", "a") as file:
        file.write(f"{event.data['id']}\\n")
    ctx.state.set(f"price of {event.data['id']}", event.data["price"])
"""
NEWEST_ONLY = 'order_by="resource", stale="skip"'
CORRECT = """
from workers import Router
router = Router("careful")
@router.on("order.paid", "order.created")
def comment(event, ctx):
    if event.topic == "order.created":
        ctx.state.set(f"known {event.data['id']}", True)
    elif not ctx.state.get(f"known {event.data['id']}"):
        from workers import Retry
        raise Retry("not created yet", after=3600)
    else:
        ctx.once("comment", add, ctx, event.data["id"], scope="resource")
def add(ctx, order):
    return ctx.api.orders.add_comment(order, text="paid", idempotency_key=ctx.key("c", scope="resource")).id
"""


def certified(folder: Path, text: str, *only: str, seed: int = 7) -> Results:
    plugin = folder / "plugin.py"
    plugin.write_text(text)
    (folder / "config.toml").write_text("")
    config = config_room.load(folder / "config.toml", {})
    target = target_of(str(plugin), validate_plugin(config, str(plugin)))
    return CertificationRun(config, target, seed=seed, only=only).run()


# On a local system


def command(folder: Path, *arguments: str) -> Result:
    (folder / "config.toml").touch()
    return run_in_process("handlers", "certify", *arguments, "--config", str(folder / "config.toml"))


@pytest.mark.full
def test_a_handler_that_is_not_idempotent_and_depends_on_the_order_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one handler, because each scenario takes a second or more. Slow tests have handlers with one fault.

    There is no config: a plugin can be certified in a folder that contains only the plugin.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STOREHOOKS_CONFIG", raising=False)
    (tmp_path / "plugin.py").write_text(BOTH)
    chosen = [part for name in ("redelivered", "shuffled", "missing-fields") for part in ("--only", name)]
    done = run_in_process("handlers", "certify", "plugin.py", "--json", "--seed", "9", *chosen)
    assert done.exit_code == 1, done.output
    result = json.loads(done.stdout)
    found = {finding["scenario"]: finding for finding in result["findings"]}
    assert set(found) == {"redelivered", "shuffled", "missing-fields"}
    assert found["redelivered"]["examples"] == [
        f"+ seen.txt: {product}   ({times} times)" for product, times in ((1, 4), (2, 3), (3, 3))
    ]
    assert "+ ctx.state: price of 1 =" in found["shuffled"]["examples"][0]
    assert "both.remember, product.created without price: KeyError: 'price'" in found["missing-fields"]["examples"]
    assert (result["idempotent"], result["order_safe"], result["seed"]) == (False, False, 9)
    not_safe = {"handler": "both.remember", "order_safe": False, "proposal": NEWEST_ONLY, "suffices": False}
    assert result["order"] == [not_safe], "it needs each event, so stale=skip does not help"
    assert found["redelivered"]["reproduce"].endswith("certify plugin.py --seed 9 --only redelivered"), (
        "no config is given"
    )
    assert result["memory_mb"] > 10
    assert result["ms_longest"] >= result["ms_per_event"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_options_are_tested_for_each_handler_before_they_are_proposed(tmp_path: Path) -> None:
    results = certified(tmp_path, NOT_IDEMPOTENT + NOT_ORDER_SAFE[NOT_ORDER_SAFE.index("@router") :], "shuffled")
    assert results.order == [
        HandlerOrder("twice.note", True),
        HandlerOrder("twice.remember", False, NEWEST_ONLY, suffices=True),
    ]
    ordered = NOT_ORDER_SAFE.replace('"product.*"', f'"product.*", {NEWEST_ONLY}')
    results = certified(tmp_path, ordered, "shuffled")
    assert results.findings == []
    assert results.order == [HandlerOrder("older.remember", True)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_scenario_has_settled_makes_no_event_of_the_next_one_stale(tmp_path: Path) -> None:
    plugin = BOTH.replace('"product.*"', '"product.*", order_by="data.name", stale="skip"')
    results = certified(tmp_path, plugin, "repeated", "shuffled")
    assert {finding.scenario for finding in results.findings} == {"shuffled"}
    assert results.order == [HandlerOrder("both.remember", False)]


def test_wrong_arguments_are_reported(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(NOT_IDEMPOTENT)
    assert "no scenario late2; known scenarios: clean, repeated, replayed," in str(
        command(tmp_path, str(tmp_path / "plugin.py"), "--only", "late2").exception
    )
    assert "no such file" in str(command(tmp_path, str(tmp_path / "nothing.py")).exception)
    assert "no plugin is called nothing" in str(command(tmp_path, "nothing").exception)
    (tmp_path / "empty.py").write_text(NOT_IDEMPOTENT[: NOT_IDEMPOTENT.index("@router")])
    assert "has no handlers" in str(command(tmp_path, str(tmp_path / "empty.py")).exception)


def test_only_the_clean_run(tmp_path: Path) -> None:
    """Of a plugin whose limit is in no config: limits are ignored."""
    (tmp_path / "plugin.py").write_text(NOT_IDEMPOTENT.replace('"order.paid"', '"order.paid", limit="target"'))
    done = command(tmp_path, str(tmp_path / "plugin.py"), "--only", "clean", "--json")
    assert (done.exit_code, json.loads(done.stdout)["scenarios"]) == (0, ["clean"])


def test_the_report_shows_the_command_to_reproduce_and_claims_only_what_was_run() -> None:
    target = Target("shop.py", "shop", "1.2", ("order.*",), ("shop.note",))
    results = Results(target, 7, 3, completed={"clean": "in order", "late": "late"})
    assert (report.is_idempotent(results), report.is_order_safe(results)) == (None, None)
    results.findings.append(ScenarioFinding("late", "the end state differs", ("+ a.txt: 1",)))
    text = "\n".join(report.lines(results))
    assert "ok    clean" in text
    assert "FAIL  late" in text
    assert "reproduce: storehooks handlers certify shop.py --seed 7 --only late\n" in text
    results.config_file = "my config.toml"
    assert "--only late --config 'my config.toml'\n" in "\n".join(report.lines(results))
    assert "idempotent      unknown\norder-safe      no" in text


@pytest.mark.parametrize(
    ("proposal", "suffices", "says"),
    [
        (NEWEST_ONLY, True, f"shop.note: no; add {NEWEST_ONLY} to its @router.on: tested, it is order-safe then"),
        (
            NEWEST_ONLY,
            False,
            'shop.note: no; add order_by="resource" to its @router.on, if the store itself sends in order. With '
            'stale="skip" it was tested, and is not order-safe: the code must handle late events',
        ),
        ('stale="skip"', False, 'shop.note: no; with stale="skip" it was tested, and is not order-safe either'),
        ("", False, "shop.note: no; the code must handle late events"),
    ],
)
def test_the_report_proposes_options_for_each_handler(proposal: str, suffices: bool, says: str) -> None:
    target = Target("shop.py", "shop", "1.2", ("order.*",), ("shop.note", "shop.other"))
    order = [HandlerOrder("shop.note", False, proposal, suffices), HandlerOrder("shop.other", True)]
    results = Results(target, 7, 3, findings=[ScenarioFinding("shuffled", "differs")], order=order)
    text = list(report.lines(results))
    assert any(line.strip().startswith(says) for line in text), text
    assert not any("shop.other" in line for line in text)


def properties(*findings: str, without: tuple[str, ...] = ()) -> tuple[bool | None, bool | None]:
    """idempotent and order-safe, for a plugin that does not use the store's API."""
    target = Target("shop.py", "shop", "1.2", ("order.*",), ("shop.note",))
    applicable = tuple(
        scenario.name for scenario in scenarios.scenarios(scenarios.sequence(ALL_TOPICS, 7), 7, uses_api=False)
    )
    completed = {name: "" for name in ("clean", *applicable) if name not in without}
    found = [ScenarioFinding(name, "") for name in findings]
    results = Results(target, 7, 3, completed=completed, applicable=applicable, findings=found)
    return report.is_idempotent(results), report.is_order_safe(results)


def test_a_yes_needs_all_scenarios_and_baselines_without_findings() -> None:
    assert properties() == (True, True)
    assert properties(without=("restarted",)) == (None, True)
    assert properties(without=("repeated",)) == (None, None)
    assert properties("clean") == (None, None)
    assert properties("repeated", "killed") == (None, None), "two equal runs end in different states"
    assert properties("killed") == (False, True)
    assert properties("late", without=("repeated", "shuffled")) == (None, False)


def test_repeated_effects_are_found_even_if_other_runs_failed_in_doubt() -> None:
    clean = Counter({"paid.txt: 1001": 1, "paid.txt: 1002": 1, "ctx.state: n = 2": 1})
    failed_in_doubt = Counter({"paid.txt: 1001": 1, "ctx.state: n = 1": 1})
    assert end_state.repeats(failed_in_doubt, clean) == []
    assert end_state.repeats(failed_in_doubt + Counter({"paid.txt: 1001": 1}), clean) == ["+ paid.txt: 1001"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "idempotent", "order_safe", "failing"),
    [
        (NOT_IDEMPOTENT, False, True, {"replayed", "redelivered", "killed", "restarted"}),
        (NOT_ORDER_SAFE, True, False, {"shuffled", "missing-fields"}),
        (CORRECT, True, True, set()),
    ],
    ids=["not-idempotent", "not-order-safe", "correct"],
)
def test_every_scenario(tmp_path: Path, text: str, idempotent: bool, order_safe: bool, failing: set[str]) -> None:
    results = certified(tmp_path, text)
    lines = list(report.lines(results))
    print(lines[0], *lines[-4:], sep="\n")
    assert {finding.scenario for finding in results.findings} == failing
    assert (report.is_idempotent(results), report.is_order_safe(results)) == (idempotent, order_safe)
    assert len(results.completed) >= 10


def test_a_plugin_that_cannot_be_certified_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no plugin is called nothing_there; the loaded plugins are: none"):
        validate_plugin(config_room.load(None, {}), "nothing_there")
    target = Target("x", "x", "1", ("order.flown",), ("x.y",))
    with pytest.raises(PluginError, match="no samples of its topics"):
        CertificationRun(config_room.load(None, {}), target, seed=1)


# Scenarios


def test_the_same_seed_gives_the_same_scenarios() -> None:
    assert scenarios.sequence(ALL_TOPICS, 7) == scenarios.sequence(ALL_TOPICS, 7)
    assert scenarios.sequence(ALL_TOPICS, 7) != scenarios.sequence(ALL_TOPICS, 8)
    assert scenarios.scenarios(scenarios.sequence(ALL_TOPICS, 7), 7, uses_api=True) == scenarios.scenarios(
        scenarios.sequence(ALL_TOPICS, 7), 7, uses_api=True
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_events_of_each_resource_are_in_order_and_shuffled_out_of_order(seed: int) -> None:
    steps = scenarios.sequence(ALL_TOPICS, seed)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    planned = scenarios.scenarios(steps, seed, uses_api=False)
    shuffled = next(scenario for scenario in planned if scenario.name == "shuffled")
    assert Counter(step.delivery for step in shuffled.steps) == Counter(step.delivery for step in steps)
    times_by_resource: dict[tuple[str, int], list[float]] = defaultdict(list)
    for step in shuffled.steps:
        times_by_resource[step.topic.partition(".")[0], step.data["id"]].append(step.at)
    assert len(times_by_resource) == 9
    assert all(times != sorted(times) for times in times_by_resource.values())


def test_all_versions_of_a_product_differ_and_the_store_has_the_last() -> None:
    steps = [step for step in scenarios.sequence(("product.*",), 7) if step.data["id"] == 1]
    assert len({json.dumps(step.data) for step in steps}) == len(steps) == 4
    assert scenarios.final_records(steps)["product"] == [steps[-1].data]


def test_an_unknown_topic_is_sent_with_an_id_only() -> None:
    assert {step.topic for step in scenarios.sequence(("cart.abandoned",), 7)} == {"cart.abandoned"}
    assert [step.data for step in scenarios.sequence(("order.flown",), 7)] == []


def test_fields_are_removed_one_at_a_time() -> None:
    steps = scenarios.sequence(("customer.created",), 7)
    missing = scenarios.scenarios(steps, 7, uses_api=False)[-1]
    assert [sorted({"email", "metadata", "name"} - set(step.data)) for step in missing.steps] == [
        ["name"],
        ["email"],
        ["metadata"],
    ]


# End states


def test_end_states_are_compared_without_times_ids_and_order(tmp_path: Path, redis: Redis) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, when in ((first, "2026-11-15T10:00:00Z"), (second, "2026-11-15T11:30:00.5+01:00")):
        folder.mkdir()
        rows = [f"1,{when}", f"2,{when}"]
        (folder / "rows.csv").write_text("\n".join(rows if folder is first else rows[::-1]) + "\n")
    before = {"order": [{"id": 1, "status": "new"}]}
    after = {"order": [{"id": 1, "status": "paid"}], "comment": [{"id": 5, "text": "x"}]}
    again = {"order": [{"id": 1, "status": "paid"}], "comment": [{"id": 9, "text": "x"}, {"id": 10, "text": "x"}]}
    clean = end_state.end_state(after, before, first, redis)
    assert 'store: order 1 is {"id":1,"status":"paid"}' in clean
    assert end_state.differences(end_state.end_state(after, before, second, redis), clean) == []
    assert end_state.differences(end_state.end_state(again, before, second, redis), clean) == [
        '+ store: a new comment {"text":"x"}'
    ]
    redis.hset("sh:st:shop:demo", "seen", "4")
    assert end_state.differences(end_state.end_state(after, {}, first, redis), clean) != []
    assert "+ ctx.state: seen = 4" in end_state.differences(end_state.end_state(after, before, first, redis), clean)
