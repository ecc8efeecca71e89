"""A comparison and its rounds: turns of about two seconds with rests, repeated while the ratios are too noisy."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.evaluation import Evaluation, Samples, evaluate
from benchmarks.targets import TARGETS, Target
from workers.testing.local_system import LocalSystemError

REST_SECONDS = 0.3


class System(Protocol):
    def stop(self) -> None: ...


@dataclass
class Timing:
    """The duration of a turn, the number of rounds, and the number of attempts for a noisy comparison."""

    seconds: float = 2.0
    rounds: int = 5
    attempts: int = 3
    backlog: int = 1_000_000
    """The number of open events in a large inbox."""
    retry_seconds: float = 14 * 60
    """After this time no comparison is repeated, so that the whole run ends in time."""
    started: float = field(default_factory=time.monotonic)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() > self.started + self.retry_seconds


class Comparison(ABC):
    """One kind of measurement. Each of its `systems` has one turn in every round."""

    name = ""
    description = ""
    systems: tuple[str, ...] = ()
    share = 1.0
    """The fraction of the timing's rounds that this comparison needs."""

    def __init__(self, folder: Path, timing: Timing, say: Callable[[str], None]) -> None:
        self.folder = folder / self.name
        self.folder.mkdir()
        self.timing = timing
        self.say = say
        self._running = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start every system and warm it up."""

    @abstractmethod
    def turn(self, system: str) -> dict[str, float]:
        """Measure one system once and return its figures."""

    def extra(self) -> dict[str, dict[str, float]]:
        """Figures that are printed and not evaluated, measured once at the end; system -> figures."""
        return {}

    def stop_later(self, system: System) -> None:
        self._running.callback(system.stop)

    def stop(self) -> None:
        self._running.close()


@dataclass
class Result:
    """The result of a comparison."""

    name: str
    description: str
    samples: Samples = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    attempts: int = 0


def targets_of(name: str) -> list[Target]:
    return [target for target in TARGETS if target.comparison == name]


def run_rounds(comparison: Comparison, rounds: int) -> Samples:
    """Measure every system once in each round. Each round starts with another system."""
    samples: Samples = {system: {} for system in comparison.systems}
    for number in range(rounds):
        first = number % len(comparison.systems)
        for system in comparison.systems[first:] + comparison.systems[:first]:
            for figure, value in comparison.turn(system).items():
                samples[system].setdefault(figure, []).append(value)
            time.sleep(REST_SECONDS)
    return samples


def run(comparison: Comparison) -> Result:
    """Repeat the rounds until every ratio is stable enough, or no attempts are left."""
    result = Result(comparison.name, comparison.description)
    try:
        comparison.start()
        while True:
            result.attempts += 1
            result.samples = run_rounds(comparison, max(3, round(comparison.timing.rounds * comparison.share)))
            result.evaluations = [evaluate(target, result.samples) for target in targets_of(comparison.name)]
            if all(evaluation.conclusive for evaluation in result.evaluations):
                break
            last = result.attempts >= comparison.timing.attempts or comparison.timing.time_is_up
            noisy = ", ".join(_noise(each) for each in result.evaluations if not each.conclusive)
            comparison.say(f"too noisy ({noisy}): {'giving up' if last else 'repeating'}")
            if last:
                break
        result.extra = comparison.extra()
    except (OSError, RuntimeError, LocalSystemError, subprocess.SubprocessError) as error:
        comparison.say(f"aborted: {error}")  # the other comparisons still run
        targets = targets_of(comparison.name)
        result.evaluations = result.evaluations or [Evaluation(target, "did not run") for target in targets]
    finally:
        comparison.stop()
    return result


def _noise(evaluation: Evaluation) -> str:
    return f"{evaluation.target.theirs}: ratios spread by {evaluation.spread:.0%}"


def select(all_comparisons: Iterable[type[Comparison]], wanted: Iterable[str]) -> list[type[Comparison]]:
    wanted = set(wanted)
    return [comparison for comparison in all_comparisons if not wanted or comparison.name in wanted]
