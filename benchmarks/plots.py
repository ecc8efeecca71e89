"""Plots a results file with matplotlib: `benchmarks/.venv/bin/python benchmarks/plots.py results.json [FOLDER]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

OURS, THEIRS = "#1b6ca8", "#b8c4ce"
BARS = {
    "ingest": ("rate", "requests/s"),
    "workers": ("rate", "runs/s"),
    "p99": ("p99", "p99 in ms, at half of naive's maximum"),
    "steady": ("rate", "highest rate with a p99 under 10 ms"),
    "latency": ("p99", "p99 in ms, sent to handler started"),
    "memory": ("bytes", "bytes in Redis, open event, five handlers"),
    "growth": ("ingest", "microseconds for one ingest"),
}


def bars(comparison: dict[str, Any], folder: Path) -> None:
    """One figure of every system, with its range over the rounds."""
    figure, label = BARS[comparison["name"]]
    shown = {name: values[figure] for name, values in comparison["samples"].items() if figure in values}
    ordered = sorted(shown, key=lambda name: median(shown[name]))
    middle = [median(shown[name]) for name in ordered]
    below = [m - min(shown[name]) for m, name in zip(middle, ordered, strict=True)]
    above = [max(shown[name]) - m for m, name in zip(middle, ordered, strict=True)]
    colours = [OURS if name in ("storehooks", "many") else THEIRS for name in ordered]
    plot, axes = plt.subplots(figsize=(7, 0.45 * len(ordered) + 1.2))
    axes.barh(ordered, middle, xerr=(below, above), color=colours, ecolor="#444444", capsize=3)
    axes.set_xlabel(label)
    axes.set_title(comparison["description"], fontsize=9, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    plot.tight_layout()
    plot.savefig(folder / f"{comparison['name']}.png", dpi=120)
    plt.close(plot)


def ratios(comparisons: list[dict[str, Any]], folder: Path) -> None:
    """Every target as a multiple of its goal: from 1 on it is met."""
    lines = []
    evaluations = [evaluation for comparison in comparisons for evaluation in comparison["evaluations"]]
    for evaluation in evaluations:
        if evaluation["outcome"] == "skipped":
            continue
        target = evaluation["target"]
        more = target["better"] == "more"
        reached = evaluation["ratio"] / target["target"] if more else target["target"] / evaluation["ratio"]
        stretch = target["stretch"] / target["target"] if more else target["target"] / target["stretch"]
        lines.append((target["title"], reached, stretch))
    lines.reverse()
    plot, axes = plt.subplots(figsize=(9, 0.4 * len(lines) + 1.2))
    axes.barh([line[0] for line in lines], [line[1] for line in lines], color=OURS)
    axes.plot([line[2] for line in lines], range(len(lines)), "|", color="#d1495b", markersize=14, label="stretch")
    axes.axvline(1, color="#444444", linewidth=1, label="target")
    axes.set_xlabel("multiple of the target")
    axes.legend(loc="lower right", frameon=False)
    plot.tight_layout()
    plot.savefig(folder / "targets.png", dpi=120)
    plt.close(plot)


def main() -> None:
    file = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else file.parent
    comparisons = json.loads(file.read_text())["comparisons"]
    for comparison in comparisons:
        if comparison["name"] in BARS:
            bars(comparison, folder)
    if any(comparison["evaluations"] for comparison in comparisons):
        ratios(comparisons, folder)
    print(f"plots: {folder}")


if __name__ == "__main__":
    main()
