"""What became of the deliveries of one row: counted from what the client and the handlers wrote. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Answer(NamedTuple):
    """One delivery, as its sender saw it."""

    sent: float
    answered: float
    store: str
    status: int
    event_id: str
    why: str


class Effect(NamedTuple):
    """One run of a handler, as the handler noted it."""

    event_id: str
    handler: str
    at: float
    version: str


def read_answers(text: str) -> list[Answer]:
    lines = (line.split() for line in text.splitlines())
    return [Answer(float(a), float(b), store, int(status), id_, why) for a, b, store, status, id_, why in lines]


def read_effects(text: str) -> list[Effect]:
    lines = (line.split() for line in text.splitlines())
    return [Effect(id_, handler, float(at), version) for id_, handler, at, version in lines]


@dataclass
class Counted:
    """The deliveries of one row."""

    seconds: float = 0.0
    accepted: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Deliveries without a 2xx, by status or error."""
    not_handled: list[Answer] = field(default_factory=list)
    """Answered 2xx, and not run by every handler."""
    beyond_one: int = 0
    """Runs of a handler for an event that it had run before."""
    worst_delay: float = 0.0
    """The longest time from an answer to the end of the last handler's run."""
    worst_answer: float = 0.0

    @property
    def lost_seconds(self) -> float:
        """The time in which the deliveries that were not handled were answered."""
        times = [one.answered for one in self.not_handled]
        return max(times) - min(times) if times else 0.0

    @property
    def sent(self) -> int:
        return self.accepted + sum(self.failed.values())


def count(answers: Sequence[Answer], effects: Iterable[Effect], handlers: Sequence[str]) -> Counted:
    first: dict[tuple[str, str], float] = {}
    runs: Counter[tuple[str, str]] = Counter()
    for one in effects:
        first.setdefault((one.event_id, one.handler), one.at)
        runs[one.event_id, one.handler] += 1
    counted = Counted()
    for answer in answers:
        counted.worst_answer = max(counted.worst_answer, answer.answered - answer.sent)
        if not 200 <= answer.status < 300:
            counted.failed[str(answer.status) if answer.status else answer.why] += 1
            continue
        counted.accepted += 1
        done = [first.get((answer.event_id, handler)) for handler in handlers]
        if None in done:
            counted.not_handled.append(answer)
        else:
            counted.worst_delay = max(counted.worst_delay, max(at for at in done if at) - answer.answered)
    counted.beyond_one = sum(number - 1 for number in runs.values())
    if answers:
        counted.seconds = max(one.sent for one in answers) - min(one.sent for one in answers)
    return counted
