"""Plan: which events are sent, and what goes wrong with them. Pure: everything follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from receiver.contract.topics import matches
from workers.storeapi.samples import STATUSES, price, sample

Json = dict[str, Any]

LIVES: Mapping[str, Sequence[Sequence[str]]] = {
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
"""What happens to three resources of each kind, in this order."""
FIRST_ID = {"product": 1, "order": 1001, "customer": 1}
BETWEEN = 2.0
"""Seconds between two things that happen."""
HOURS_LATE = 3.0


@dataclass(frozen=True)
class ScenarioStep:
    """One delivery. `at` is when it happened, in seconds after the first one."""

    topic: str
    data: Json
    at: float
    delivery: str

    @property
    def about(self) -> str:
        return f"{self.topic} {self.data.get('id')}"


@dataclass(frozen=True)
class Scenario:
    """One way through the steps, and what is wrong with it."""

    name: str
    what: str
    steps: tuple[ScenarioStep, ...]
    kind: str = "same"
    """same: the end must be as after the clean run; ends: only that every run ends well; basis: compared with."""
    again: bool = False
    """Each event is replayed once it is settled."""
    kill: str = ""
    """Who dies after an effect: the child process, or the whole worker."""
    drop: float = 0.0
    """The chance that the store's API loses an answer."""
    late: bool = False
    retries: tuple[float, ...] = (0.05,) * 3
    wait: bool = True
    """Wait for each event to be settled before the next; else only for its first attempt."""


BASES = ("clean", "repeated")
"""What the others are compared with: where these go wrong, nothing can be told of them."""
IDEMPOTENCE = ("replayed", "redelivered", "killed", "restarted", "lost-answers")
ORDER = ("shuffled", "late")


def sequence(topics: Iterable[str], seed: int) -> list[ScenarioStep]:
    """The events of a few resources' lives that somebody wants, in the order they happen."""
    chance = random.Random(f"{seed}|sequence")  # noqa: S311
    wanted = list(topics)
    lives = [
        list(_life(kind, FIRST_ID[kind] + number, actions, chance))
        for kind, several in LIVES.items()
        for number, actions in enumerate(several)
    ]
    lives += [[(topic, {"id": number}) for number in (1, 2, 3)] for topic in wanted if _is_unknown(topic)]
    kept = [[one for one in life if any(matches(pattern, one[0]) for pattern in wanted)] for life in lives]
    steps: list[ScenarioStep] = []
    while any(kept):
        topic, data = chance.choice([life for life in kept if life]).pop(0)
        steps.append(ScenarioStep(topic, data, len(steps) * BETWEEN, f"msg_{seed}_{len(steps)}"))
    return steps


def scene(steps: Sequence[ScenarioStep]) -> dict[str, list[Json]]:
    """What the store holds when all has happened: what a handler that asks is told, whatever the order."""
    last: dict[tuple[str, Any], Json] = {}
    for step in sorted(steps, key=lambda step: step.at):
        kind = step.topic.partition(".")[0]
        if kind in LIVES:
            last[kind, step.data["id"]] = step.data
            if kind == "order":
                buyer = step.data["customer"]
                last.setdefault(("customer", buyer["id"]), {**buyer, "metadata": {}})
    records: dict[str, list[Json]] = {}
    for (kind, _), data in sorted(last.items(), key=lambda item: (item[0][0], item[0][1])):
        records.setdefault(kind, []).append(data)
    return records


def scenarios(steps: Sequence[ScenarioStep], seed: int, *, uses_api: bool) -> list[Scenario]:
    """Everything the plugin must bear, after the clean run."""
    clean = tuple(steps)
    found = [
        Scenario("repeated", "the same again, to see that two equal runs end alike", clean),
        Scenario("replayed", "each event replayed once it is settled", clean, again=True),
        Scenario("redelivered", "each event again under another delivery id", _doubled(clean)),
        Scenario("shuffled", "out of order", _shuffled(clean, seed), retries=(0.25,) * 16, wait=False),
        Scenario("late", f"delivered {HOURS_LATE:g} hours after it happened", clean, late=True),
        Scenario(
            "killed",
            "its process killed after an effect, in the first attempt of each run",
            clean,
            kill="child process",
        ),
        Scenario("restarted", "the worker killed after an effect, twice", clean, kill="worker"),
        Scenario("unknown-fields", "fields nobody has heard of", tuple(map(_with_more, clean))),
        Scenario("missing-fields", "one field missing", _with_less(clean), kind="ends", retries=()),
    ]
    if uses_api:
        lost = Scenario("lost-answers", "the store's API loses answers", clean, drop=0.3, retries=(0.05,) * 12)
        found.insert(-2, lost)
    return found


def kill_after(seed: int, about: str) -> int:
    """After which effect of a run its process dies; 0 is when the handler has returned."""
    return random.Random(f"{seed}|kill|{about}").randint(0, 2)  # noqa: S311


def restarts(steps: Sequence[ScenarioStep], seed: int) -> list[str]:
    """The two deliveries in whose runs the worker dies."""
    chance = random.Random(f"{seed}|restart")  # noqa: S311
    return [step.delivery for step in chance.sample(list(steps), min(2, len(steps)))]


def _life(kind: str, number: int, actions: Sequence[str], chance: random.Random) -> Iterable[tuple[str, Json]]:
    """The resource as it is after each thing that happens to it; no two are alike."""
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
    return "*" not in topic and topic.partition(".")[0] not in LIVES


def _doubled(steps: Sequence[ScenarioStep]) -> tuple[ScenarioStep, ...]:
    return tuple(one for step in steps for one in (step, replace(step, delivery=f"{step.delivery}_again")))


def _shuffled(steps: Sequence[ScenarioStep], seed: int) -> tuple[ScenarioStep, ...]:
    """Every resource's events out of order, the newest never last; the resources' events mixed at random."""
    chance = random.Random(f"{seed}|shuffle")  # noqa: S311
    lives: dict[tuple[str, Any], list[ScenarioStep]] = {}
    for step in steps:
        lives.setdefault((step.topic.partition(".")[0], step.data.get("id")), []).append(step)
    for life in lives.values():
        newest = life.pop()
        chance.shuffle(life)
        life.insert(chance.randrange(max(1, len(life))), newest)
    mixed: list[ScenarioStep] = []
    while left := [life for life in lives.values() if life]:
        mixed.append(chance.choice(left).pop(0))
    return tuple(mixed)


def _with_more(step: ScenarioStep) -> ScenarioStep:
    return replace(step, data={**step.data, "x_new": {"deep": [1, {"a": None}]}, "x_list": ["=1+1", 2.5, None]})


def _with_less(steps: Sequence[ScenarioStep]) -> tuple[ScenarioStep, ...]:
    """Each topic once for each field but the id, without it."""
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
