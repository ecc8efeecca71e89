"""Evaluation of a target: medians, spread, ratio, and whether the target is met. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from benchmarks.targets import Target

MINIMUM_SAMPLES = 3
Outcome = Literal["stretch met", "met", "falls short", "too noisy", "skipped", "did not run"]

Figures = dict[str, list[float]]
Samples = dict[str, Figures]
"""system -> figure -> one value for each round."""


@dataclass(frozen=True)
class Evaluation:
    target: Target
    outcome: Outcome
    ratio: float = 0.0
    spread: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0

    @property
    def conclusive(self) -> bool:
        return self.outcome != "too noisy"


def spread(values: Sequence[float]) -> float:
    """The interquartile range relative to the median. A single bad round does not widen it."""
    if len(values) < MINIMUM_SAMPLES or not (middle := median(values)):
        return float("inf")
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / abs(middle)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """One ratio for each round: a temporary slowdown of the machine affects both systems of a round."""
    return [mine / other for mine, other in zip(ours, theirs, strict=False) if other]


def is_reached(ratio: float, goal: float, better: str) -> bool:
    return ratio >= goal if better == "more" else ratio <= goal


def evaluate(target: Target, samples: Mapping[str, Figures]) -> Evaluation:
    """Evaluate one target on the samples of its comparison."""
    ours = samples.get(target.ours, {}).get(target.figure, [])
    theirs = samples.get(target.theirs, {}).get(target.figure, [])
    if not ours or not theirs:
        return Evaluation(target, "skipped")
    by_round = ratios(ours, theirs)
    width, ratio = spread(by_round), median(by_round)
    return Evaluation(target, _outcome(target, ratio, width), ratio, width, median(ours), median(theirs))


def _outcome(target: Target, ratio: float, width: float) -> Outcome:
    if width > target.max_spread:
        return "too noisy"
    if is_reached(ratio, target.stretch, target.better):
        return "stretch met"
    return "met" if is_reached(ratio, target.target, target.better) else "falls short"
