"""Tables of results, as plain text and as Markdown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benchmarks.evaluation import Evaluation, Outcome, Samples, spread
from benchmarks.targets import Target

HEAD = ("", "ours", "theirs", "ratio", "spread", "target", "stretch", "")


def number(value: float) -> str:
    """Three significant figures: enough to compare such measurements."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def goal(target: Target, ratio: float) -> str:
    return f"{'≥' if target.better == 'more' else '≤'} {ratio:g} x"


def evaluation_line(evaluation: Evaluation) -> tuple[str, ...]:
    target, ratio = evaluation.target, evaluation.ratio
    goals = goal(target, target.target), goal(target, target.stretch)
    if not ratio:
        return (target.title, "", "", "", "", *goals, evaluation.outcome)
    figures = number(evaluation.ours), number(evaluation.theirs), f"{number(ratio)} x", f"{evaluation.spread:.0%}"
    return (target.title, *figures, *goals, evaluation.outcome)


def system_lines(samples: Samples, extra: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Each system with the median and the spread of its figures."""
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
    """Aligned columns; the first one left-aligned, the others right-aligned."""
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


def summary(evaluations: Sequence[Evaluation]) -> str:
    """The number of evaluations with each outcome."""
    counts = Counter(evaluation.outcome for evaluation in evaluations)
    met = counts["met"] + counts["stretch met"]
    others: tuple[Outcome, ...] = ("falls short", "too noisy", "skipped", "did not run")
    rest = "".join(f"; {outcome}: {counts[outcome]}" for outcome in others if counts[outcome])
    return f"{met} of {len(evaluations)} targets met, {counts['stretch met']} with the stretch goal{rest}"
