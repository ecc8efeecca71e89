"""Certification finds what is wrong with a plugin, passes what is right, and a seed brings it back."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from receiver import config as config_room
from receiver.contract.errors import PluginError
from workers.cli import storehooks
from workers.plugins.loading import judge_one
from workers.testing.certify import end_state, report, scenarios
from workers.testing.certify.runner import CertificationRun, Results, ScenarioFinding, target_of

EVERY = ("product.*", "order.*", "customer.*")

TWICE = """
from workers import Router
router = Router("twice")
@router.on("order.paid")
def note(event, ctx):
    with open("paid.txt", "a") as file:
        file.write(f"{event.data['id']}\\n")
"""
OLDER = """
from workers import Router
router = Router("older")
@router.on("product.*")
def remember(event, ctx):
    ctx.state.set(f"price of {event.data['id']}", event.data["price"])
"""
CAREFUL = """
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
    found = judge_one(config, str(plugin))
    told = [{"topics": one.topics, "handler": one.handler} for one in found]
    target = target_of(str(plugin), found[0].version, found[0].details["plugin"], told)
    return CertificationRun(config, target, seed=seed, only=only).run()


# On the rig


def command(folder: Path, *arguments: str) -> Result:
    (folder / "config.toml").touch()
    return CliRunner().invoke(storehooks, ["handlers", "certify", *arguments, "--config", str(folder / "config.toml")])


def test_an_effect_that_is_not_idempotent_and_one_that_depends_on_the_order_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one plugin, since a rig takes seconds to start; each alone, and in every way, is a slow test.

    Whoever writes a plugin has a folder with the plugin, and perhaps no config.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STOREHOOKS_CONFIG", raising=False)
    (tmp_path / "plugin.py").write_text(TWICE + OLDER[OLDER.index("@router") :])
    chosen = [word for name in ("redelivered", "shuffled", "missing-fields") for word in ("--only", name)]
    done = CliRunner().invoke(storehooks, ["handlers", "certify", "plugin.py", "--json", "--seed", "9", *chosen])
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    found = {one["scenario"]: one for one in told["findings"]}
    assert set(found) == {"redelivered", "shuffled", "missing-fields"}
    assert found["redelivered"]["examples"] == ["+ paid.txt: 1001", "+ paid.txt: 1002", "+ paid.txt: 1003"]
    assert "+ ctx.state: price of 1 =" in found["shuffled"]["examples"][0]
    assert "twice.remember, product.created without price: KeyError: 'price'" in found["missing-fields"]["examples"]
    assert (told["idempotent"], told["order_safe"], told["seed"]) == (False, False, 9)
    assert found["redelivered"]["reproduce"].endswith("certify plugin.py --seed 9 --only redelivered")
    assert told["memory_mb"] > 10
    assert told["ms_longest"] >= told["ms_per_event"] > 0


def test_wrong_use_is_said(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(TWICE)
    assert "--only late2: there are repeated, replayed," in str(
        command(tmp_path, str(tmp_path / "plugin.py"), "--only", "late2").exception
    )
    assert "there is no such file" in str(command(tmp_path, str(tmp_path / "nothing.py")).exception)
    assert "no plugin is called nothing" in str(command(tmp_path, "nothing").exception)
    (tmp_path / "empty.py").write_text(TWICE[: TWICE.index("@router")])
    assert "has no handlers" in str(command(tmp_path, str(tmp_path / "empty.py")).exception)


def test_the_report_says_what_to_do_and_not_more_than_was_tried() -> None:
    target = target_of("shop.py", "1.2", "shop", [{"topics": ["order.*"], "handler": "shop.note"}])
    results = Results(target, 7, 3, passed={"clean": "in order", "late": "late"})
    assert (report.is_idempotent(results), report.is_order_safe(results)) == (None, None)
    results.findings.append(ScenarioFinding("late", "the end differs", ("+ a.txt: 1",)))
    text = "\n".join(report.lines(results))
    assert "ok    clean" in text
    assert "FAIL  late" in text
    assert "again: storehooks handlers certify shop.py --seed 7 --only late" in text
    assert "idempotent      not known\norder-safe      no" in text


def verdicts(*findings: str, without: tuple[str, ...] = ()) -> tuple[bool | None, bool | None]:
    """Of a plugin that does not use the store's API, where all but some scenarios were run."""
    target = target_of("shop.py", "1.2", "shop", [{"topics": ["order.*"], "handler": "shop.note"}])
    there = tuple(one.name for one in scenarios.scenarios(scenarios.sequence(EVERY, 7), 7, uses_api=False))
    passed = {name: "" for name in ("clean", *there) if name not in without}
    results = Results(
        target, 7, 3, passed=passed, apply=there, findings=[ScenarioFinding(name, "") for name in findings]
    )
    return report.is_idempotent(results), report.is_order_safe(results)


def test_a_yes_needs_all_that_there_is_and_bases_that_are_clean() -> None:
    assert verdicts() == (True, True)
    assert verdicts(without=("restarted",)) == (None, True)
    assert verdicts(without=("repeated",)) == (None, None)
    assert verdicts("clean") == (None, None)
    assert verdicts("repeated", "killed") == (None, None), "two equal runs end differently"
    assert verdicts("killed") == (False, True)
    assert verdicts("late", without=("repeated", "shuffled")) == (None, False)


def test_beside_what_is_in_doubt_an_effect_that_was_done_twice_is_still_found() -> None:
    clean = Counter({"paid.txt: 1001": 1, "paid.txt: 1002": 1, "ctx.state: n = 2": 1})
    left_to_a_person = Counter({"paid.txt: 1001": 1, "ctx.state: n = 1": 1})
    assert end_state.repeats(left_to_a_person, clean) == []
    assert end_state.repeats(left_to_a_person + Counter({"paid.txt: 1001": 1}), clean) == ["+ paid.txt: 1001"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("text", "idempotent", "order_safe", "failing"),
    [
        (TWICE, False, True, {"replayed", "redelivered", "killed", "restarted"}),
        (OLDER, True, False, {"shuffled", "missing-fields"}),
        (CAREFUL, True, True, set()),
    ],
    ids=["twice", "older", "careful"],
)
def test_every_scenario(tmp_path: Path, text: str, idempotent: bool, order_safe: bool, failing: set[str]) -> None:
    results = certified(tmp_path, text)
    told = list(report.lines(results))
    print(told[0], *told[-4:], sep="\n")
    assert {one.scenario for one in results.findings} == failing
    assert (report.is_idempotent(results), report.is_order_safe(results)) == (idempotent, order_safe)
    assert len(results.passed) >= 10


def test_what_cannot_be_certified_is_said(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no plugin is called nothing_there; loaded are: none"):
        judge_one(config_room.load(None, {}), "nothing_there")
    target = target_of("x", "1", "x", [{"topics": ["order.flown"], "handler": "x.y"}])
    with pytest.raises(PluginError, match="wants no topic of which there are samples"):
        CertificationRun(config_room.load(None, {}), target, seed=1)


# The plan


def test_the_same_seed_is_the_same_plan() -> None:
    assert scenarios.sequence(EVERY, 7) == scenarios.sequence(EVERY, 7)
    assert scenarios.sequence(EVERY, 7) != scenarios.sequence(EVERY, 8)
    assert scenarios.scenarios(scenarios.sequence(EVERY, 7), 7, uses_api=True) == scenarios.scenarios(
        scenarios.sequence(EVERY, 7), 7, uses_api=True
    )


@pytest.mark.parametrize("seed", range(20))
def test_each_resource_lives_in_order_and_is_shuffled_out_of_it(seed: int) -> None:
    steps = scenarios.sequence(EVERY, seed)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    shuffled = next(one for one in scenarios.scenarios(steps, seed, uses_api=False) if one.name == "shuffled")
    assert Counter(step.delivery for step in shuffled.steps) == Counter(step.delivery for step in steps)
    lives: dict[tuple[str, int], list[float]] = defaultdict(list)
    for step in shuffled.steps:
        lives[step.topic.partition(".")[0], step.data["id"]].append(step.at)
    assert len(lives) == 9
    assert all(times != sorted(times) for times in lives.values())


def test_no_two_versions_of_a_product_are_alike_and_the_store_holds_the_last() -> None:
    steps = [step for step in scenarios.sequence(("product.*",), 7) if step.data["id"] == 1]
    assert len({json.dumps(step.data) for step in steps}) == len(steps) == 4
    assert scenarios.scene(steps)["product"] == [steps[-1].data]


def test_a_topic_nobody_knows_is_tried_with_an_id() -> None:
    assert {step.topic for step in scenarios.sequence(("cart.abandoned",), 7)} == {"cart.abandoned"}
    assert [step.data for step in scenarios.sequence(("order.flown",), 7)] == []


def test_fields_are_left_out_one_by_one() -> None:
    steps = scenarios.sequence(("customer.created",), 7)
    missing = scenarios.scenarios(steps, 7, uses_api=False)[-1]
    assert [sorted({"email", "metadata", "name"} - set(step.data)) for step in missing.steps] == [
        ["name"],
        ["email"],
        ["metadata"],
    ]


# What is left


def test_ends_are_compared_without_times_ids_and_order(tmp_path: Path, redis: Redis) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, when in ((first, "2026-11-15T10:00:00Z"), (second, "2026-11-15T11:30:00.5+01:00")):
        folder.mkdir()
        rows = [f"1,{when}", f"2,{when}"]
        (folder / "rows.csv").write_text("\n".join(rows if folder is first else rows[::-1]) + "\n")
    before = {"order": [{"id": 1, "status": "new"}]}
    after = {"order": [{"id": 1, "status": "paid"}], "comment": [{"id": 5, "text": "x"}]}
    again = {"order": [{"id": 1, "status": "paid"}], "comment": [{"id": 9, "text": "x"}, {"id": 10, "text": "x"}]}
    one = end_state.end_state(after, before, first, redis)
    assert 'store: order 1 is {"id":1,"status":"paid"}' in one
    assert end_state.differences(end_state.end_state(after, before, second, redis), one) == []
    assert end_state.differences(end_state.end_state(again, before, second, redis), one) == [
        '+ store: a new comment {"text":"x"}'
    ]
    redis.hset("sh:st:shop:demo", "seen", "4")
    assert end_state.differences(end_state.end_state(after, {}, first, redis), one) != []
    assert "+ ctx.state: seen = 4" in end_state.differences(end_state.end_state(after, before, first, redis), one)
