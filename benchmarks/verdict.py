"""Verdicts: medians, how far samples spread, whether that allows a conclusion, and which. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Literal

from benchmarks.targets import Target

FEWEST = 3
Word = Literal["stretch met", "met", "falls short", "too noisy", "skipped", "did not run"]

Figures = dict[str, list[float]]
Samples = dict[str, Figures]
"""system -> figure -> one value for each round."""


@dataclass(frozen=True)
class Verdict:
    target: Target
    word: Word
    ratio: float = 0.0
    spread: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0

    @property
    def concluded(self) -> bool:
        return self.word != "too noisy"


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles, as a part of the median: one bad round does not widen it."""
    if len(values) < FEWEST or not (middle := median(values)):
        return float("inf")
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / abs(middle)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round: what slows the machine for a while slows both sides of a round."""
    return [one / other for one, other in zip(ours, theirs, strict=False) if other]


def reached(ratio: float, wanted: float, better: str) -> bool:
    return ratio >= wanted if better == "more" else ratio <= wanted


def judge(target: Target, samples: Mapping[str, Figures]) -> Verdict:
    """What the samples of a bout say about one target."""
    ours = samples.get(target.ours, {}).get(target.figure, [])
    theirs = samples.get(target.theirs, {}).get(target.figure, [])
    if not ours or not theirs:
        return Verdict(target, "skipped")
    found = ratios(ours, theirs)
    width, ratio = spread(found), median(found)
    return Verdict(target, _word(target, ratio, width), ratio, width, median(ours), median(theirs))


def _word(target: Target, ratio: float, width: float) -> Word:
    if width > target.widest:
        return "too noisy"
    if reached(ratio, target.stretch, target.better):
        return "stretch met"
    return "met" if reached(ratio, target.target, target.better) else "falls short"
