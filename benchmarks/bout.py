"""What a bout is, and how its rounds are run: turns of about two seconds, rests between them, noise not believed."""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.targets import TARGETS, Target
from benchmarks.verdict import Samples, Verdict, judge
from workers.testing.local_system import LocalSystemError

REST = 0.3


class System(Protocol):
    def stop(self) -> None: ...


@dataclass
class Pace:
    """How long a turn is, how many rounds there are, and how often a noisy bout is tried."""

    seconds: float = 2.0
    rounds: int = 5
    tries: int = 3
    many: int = 1_000_000
    """How many open events are many."""
    patience: float = 14 * 60
    """Seconds after the start from which nothing is tried again, so that the whole ends in time."""
    started: float = field(default_factory=time.monotonic)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() > self.started + self.patience


class Bout(ABC):
    """One kind of measurement. `systems` have their turns in this order; the ones in `beside` are never judged."""

    name = ""
    about = ""
    systems: tuple[str, ...] = ()
    share = 1.0
    """The part of the pace's rounds that this bout takes."""

    def __init__(self, folder: Path, pace: Pace, say: Callable[[str], None]) -> None:
        self.folder = folder / self.name
        self.folder.mkdir()
        self.pace = pace
        self.say = say
        self._running = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start every system, and warm it."""

    @abstractmethod
    def turn(self, system: str) -> dict[str, float]:
        """Measure one system once; give its figures."""

    def extra(self) -> dict[str, dict[str, float]]:
        """What is printed beside the judged figures, measured once at the end; system -> figures."""
        return {}

    def keep(self, system: System) -> None:
        self._running.callback(system.stop)

    def stop(self) -> None:
        self._running.close()


@dataclass
class Result:
    """What became of a bout."""

    bout: str
    about: str
    samples: Samples = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    tries: int = 0


def targets_of(name: str) -> list[Target]:
    return [one for one in TARGETS if one.bout == name]


def run_rounds(bout: Bout, rounds: int) -> Samples:
    """Every system once in each round, each round beginning with another one."""
    samples: Samples = {system: {} for system in bout.systems}
    for number in range(rounds):
        first = number % len(bout.systems)
        for system in bout.systems[first:] + bout.systems[:first]:
            for figure, value in bout.turn(system).items():
                samples[system].setdefault(figure, []).append(value)
            time.sleep(REST)
    return samples


def run(bout: Bout) -> Result:
    """The whole bout: rounds until every ratio can be judged, or the tries are used up."""
    result = Result(bout.name, bout.about)
    try:
        bout.start()
        while True:
            result.tries += 1
            result.samples = run_rounds(bout, max(3, round(bout.pace.rounds * bout.share)))
            result.verdicts = [judge(target, result.samples) for target in targets_of(bout.name)]
            if all(one.concluded for one in result.verdicts):
                break
            over = result.tries >= bout.pace.tries or bout.pace.time_is_up
            noisy = ", ".join(_noise(one) for one in result.verdicts if not one.concluded)
            bout.say(f"too noisy to conclude ({noisy}): {'given up' if over else 'tried again'}")
            if over:
                break
        result.extra = bout.extra()
    except (OSError, RuntimeError, LocalSystemError, subprocess.SubprocessError) as error:  # the other bouts go on
        bout.say(f"did not run to its end: {error}")
        result.verdicts = result.verdicts or [Verdict(target, "did not run") for target in targets_of(bout.name)]
    finally:
        bout.stop()
    return result


def _noise(verdict: Verdict) -> str:
    return f"{verdict.target.theirs}: ratios spread by {verdict.spread:.0%}"


def pick(all_bouts: Iterable[type[Bout]], wanted: Iterable[str]) -> list[type[Bout]]:
    wanted = set(wanted)
    return [one for one in all_bouts if not wanted or one.name in wanted]
