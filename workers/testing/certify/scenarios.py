"""The events that are sent and the faults that are injected. Pure: everything follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from receiver.contract.topics import matches
from workers.storeapi.samples import STATUSES, price, sample

Json = dict[str, Any]
Kind = Literal["same", "ends", "baseline"]
"""baseline: the clean run; same: the end state must equal the clean run's; ends: no run may end with an exception."""

LIFECYCLES: Mapping[str, Sequence[Sequence[str]]] = {
    "product": (
        ("created", "updated", "updated", "updated"),
        ("created", "updated", "updated"),
        ("created", "updated", "deleted"),
    ),
    "order": (
        ("created", "updated", "paid", "shipped", "delivered"),
        ("created", "updated", "paid", "cancelled"),
        ("created", "updated", "paid", "refunded", "deleted"),
    ),
    "customer": (("created", "updated", "updated"), ("created", "updated"), ("created", "deleted")),
}
"""The actions on three resources of each kind, in this order."""
FIRST_ID = {"product": 1, "order": 1001, "customer": 1}
SECONDS_BETWEEN = 2.0
"""Time between the occurrence of two events."""
HOURS_LATE = 3.0


@dataclass(frozen=True)
class ScenarioStep:
    """One delivery. `at` is when its event occurred, in seconds after the first one."""

    topic: str
    data: Json
    at: float
    delivery: str

    @property
    def label(self) -> str:
        return f"{self.topic} {self.data.get('id')}"


@dataclass(frozen=True)
class Scenario:
    """One run through the steps, with a fault."""

    name: str
    description: str
    steps: tuple[ScenarioStep, ...]
    kind: Kind = "same"
    replay: bool = False
    """Each event is replayed after it is settled."""
    kill: str = ""
    """What is killed after an effect: the child process, or the whole worker."""
    drop: float = 0.0
    """The probability that the store's API loses an answer."""
    late: bool = False
    """Each event is delivered hours after it occurred."""
    retries: tuple[float, ...] = (0.05,) * 3
    alone: str = ""
    """The only handler that does anything; empty for all."""
    with_options: bool = False
    """Handlers have order_by="resource", if they have no order, and stale="skip"."""
    wait: bool = True
    """Wait until each event is settled before sending the next; otherwise only for its first attempt."""


BASELINES = ("clean", "repeated")
"""The other scenarios are compared with these. If one of them fails, the comparison proves nothing."""
IDEMPOTENCE = ("replayed", "redelivered", "killed", "restarted", "lost-answers")
ORDER = ("shuffled", "late")


def sequence(topics: Iterable[str], seed: int) -> list[ScenarioStep]:
    """The events of a few resources that the plugin has handlers for, in the order they occur."""
    chance = random.Random(f"{seed}|sequence")  # noqa: S311
    wanted = list(topics)
    lifecycles = [
        list(_lifecycle(kind, FIRST_ID[kind] + number, actions, chance))
        for kind, several in LIFECYCLES.items()
        for number, actions in enumerate(several)
    ]
    lifecycles += [[(topic, {"id": number}) for number in (1, 2, 3)] for topic in wanted if _is_unknown(topic)]
    selected = [
        [event for event in life if any(matches(pattern, event[0]) for pattern in wanted)] for life in lifecycles
    ]
    steps: list[ScenarioStep] = []
    while any(selected):
        topic, data = chance.choice([life for life in selected if life]).pop(0)
        steps.append(ScenarioStep(topic, data, len(steps) * SECONDS_BETWEEN, f"msg_{seed}_{len(steps)}"))
    return steps


def final_records(steps: Sequence[ScenarioStep]) -> dict[str, list[Json]]:
    """The store's records after the last event. The API returns these in every scenario, in any order of events."""
    last: dict[tuple[str, Any], Json] = {}
    for step in sorted(steps, key=lambda step: step.at):
        kind = step.topic.partition(".")[0]
        if kind in LIFECYCLES:
            last[kind, step.data["id"]] = step.data
            if kind == "order":
                buyer = step.data["customer"]
                last.setdefault(("customer", buyer["id"]), {**buyer, "metadata": {}})
    records: dict[str, list[Json]] = {}
    for (kind, _), data in sorted(last.items(), key=lambda item: (item[0][0], item[0][1])):
        records.setdefault(kind, []).append(data)
    return records


def scenarios(steps: Sequence[ScenarioStep], seed: int, *, uses_api: bool) -> list[Scenario]:
    """All scenarios after the clean run."""
    clean = tuple(steps)
    found = [
        Scenario("repeated", "the clean run again, to show that two equal runs end in the same state", clean),
        Scenario("replayed", "each event replayed after it is settled", clean, replay=True),
        Scenario("redelivered", "each event delivered again with another delivery id", _duplicated(clean)),
        Scenario("shuffled", "events out of order", _shuffled(clean, seed), retries=(0.25,) * 16, wait=False),
        Scenario("late", f"each event delivered {HOURS_LATE:g} hours after it occurred", clean, late=True),
        Scenario(
            "killed",
            "the handler's process killed after an effect, in the first attempt of each run",
            clean,
            kill="child process",
        ),
        Scenario("restarted", "the worker killed after an effect, twice", clean, kill="worker"),
        Scenario("unknown-fields", "payloads with unknown fields", tuple(map(_with_unknown_fields, clean))),
        Scenario(
            "missing-fields", "payloads with one field missing", _with_missing_fields(clean), kind="ends", retries=()
        ),
    ]
    if uses_api:
        lost = Scenario(
            "lost-answers", "the store's API executes requests and loses answers", clean, drop=0.3, retries=(0.05,) * 12
        )
        found.insert(-2, lost)
    return found


def kill_after(seed: int, run: str) -> int:
    """The number of the effect after which a run's process is killed; 0 is after the handler has returned."""
    return random.Random(f"{seed}|kill|{run}").randint(0, 2)  # noqa: S311


def restarts(steps: Sequence[ScenarioStep], seed: int) -> list[str]:
    """The two deliveries during whose runs the worker is killed."""
    chance = random.Random(f"{seed}|restart")  # noqa: S311
    return [step.delivery for step in chance.sample(list(steps), min(2, len(steps)))]


def _lifecycle(kind: str, number: int, actions: Sequence[str], chance: random.Random) -> Iterable[tuple[str, Json]]:
    """The topic and the resource after each action; no two versions are equal."""
    data = sample(f"{kind}.created", number)
    stocks = chance.sample(range(30), len(actions))
    for at, action in enumerate(actions):
        if kind == "product":
            data = {**data, "price": price(chance), "stock": stocks[at]}
        elif kind == "customer" and action == "updated":
            data = {**data, "name": f"{data['name']} {at}", "email": f"c{number}.{at}@example.com"}
        elif kind == "order":
            total = price(chance) if action == "updated" else data["total"]
            data = {**data, "total": total, "status": action if action in STATUSES else data["status"]}
        yield f"{kind}.{action}", data


def _is_unknown(topic: str) -> bool:
    return "*" not in topic and topic.partition(".")[0] not in LIFECYCLES


def _duplicated(steps: Sequence[ScenarioStep]) -> tuple[ScenarioStep, ...]:
    return tuple(copy for step in steps for copy in (step, replace(step, delivery=f"{step.delivery}_again")))


def _shuffled(steps: Sequence[ScenarioStep], seed: int) -> tuple[ScenarioStep, ...]:
    """The events of each resource out of order, the newest never last; the resources are mixed at random."""
    chance = random.Random(f"{seed}|shuffle")  # noqa: S311
    by_resource: dict[tuple[str, Any], list[ScenarioStep]] = {}
    for step in steps:
        by_resource.setdefault((step.topic.partition(".")[0], step.data.get("id")), []).append(step)
    for life in by_resource.values():
        newest = life.pop()
        chance.shuffle(life)
        life.insert(chance.randrange(max(1, len(life))), newest)
    mixed: list[ScenarioStep] = []
    while left := [life for life in by_resource.values() if life]:
        mixed.append(chance.choice(left).pop(0))
    return tuple(mixed)


def _with_unknown_fields(step: ScenarioStep) -> ScenarioStep:
    return replace(step, data={**step.data, "x_new": {"deep": [1, {"a": None}]}, "x_list": ["=1+1", 2.5, None]})


def _with_missing_fields(steps: Sequence[ScenarioStep]) -> tuple[ScenarioStep, ...]:
    """The first event of each topic, once for each field except the id, without that field."""
    firsts = {step.topic: step for step in reversed(steps)}
    return tuple(
        replace(
            step,
            data={name: value for name, value in step.data.items() if name != field},
            delivery=f"{step.delivery}_without_{field}",
        )
        for step in firsts.values()
        for field in step.data
        if field != "id"
    )
