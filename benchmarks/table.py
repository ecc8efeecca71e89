"""Tables: what is printed, for people and as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benchmarks.targets import Target
from benchmarks.verdict import Samples, Verdict, spread

HEAD = ("", "ours", "theirs", "ratio", "spread", "target", "stretch", "")


def number(value: float) -> str:
    """Three figures are more than such measurements are worth, and enough to compare them."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goal(target: Target, wanted: float) -> str:
    return f"{'≥' if target.better == 'more' else '≤'} {wanted:g} x"


def verdict_line(one: Verdict) -> tuple[str, ...]:
    goals = goal(one.target, one.target.target), goal(one.target, one.target.stretch)
    if not one.ratio:
        return (one.target.title, "", "", "", "", *goals, one.word)
    figures = number(one.ours), number(one.theirs), f"{number(one.ratio)} x", f"{one.spread:.0%}"
    return (one.target.title, *figures, *goals, one.word)


def system_lines(samples: Samples, extra: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Each system with the median of each of its figures and how far it spreads."""
    names = list(dict.fromkeys(figure for figures in samples.values() for figure in figures))
    lines: list[tuple[str, ...]] = [("", *names)]
    for system, figures in samples.items():
        lines.append((system, *(_cell(figures.get(name, [])) for name in names)))
    for system, once in extra.items():
        lines.append((system, *(number(once[name]) if name in once else "" for name in names)))
    return lines


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    width = spread(values)
    return number(median(values)) + (f" ±{width / 2:.0%}" if width != float("inf") else "")


def plain(lines: Iterable[Sequence[str]]) -> str:
    """Columns one under the other; the first to the left, the others to the right."""
    rows = [list(line) for line in lines]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(_pairs(row, widths))
        )
        for row in rows
    )


def _pairs(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip(row, widths, strict=True))


def markdown(lines: Iterable[Sequence[str]]) -> str:
    head, *rows = [list(line) for line in lines]
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of each, in a sentence."""
    met = sum(one.word in ("met", "stretch met") for one in verdicts)
    stretched = sum(one.word == "stretch met" for one in verdicts)
    rest = [
        f"{words} {many}"
        for words in ("falls short", "too noisy", "skipped", "did not run")
        if (many := _many(verdicts, words))
    ]
    return f"{met} of {len(verdicts)} targets met, {stretched} of them the stretch" + "".join(
        f"; {one}" for one in rest
    )


def _many(verdicts: Sequence[Verdict], word: str) -> int:
    return sum(one.word == word for one in verdicts)
