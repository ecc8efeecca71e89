"""Writes the figures of a run into docs/performance.md, between two markers, and the plots next to it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.comparison import Result
from benchmarks.processes import PEERS_PYTHON, ROOT

PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
BEGIN, END = "<!-- figures: written by `make bench ARGS=--docs` -->", "<!-- end of the figures -->"


def figures(results: Sequence[Result], machine: str) -> str:
    """All evaluations, then each comparison with its systems."""
    evaluations = [evaluation for result in results for evaluation in result.evaluations]
    parts = [f"{time.strftime('%Y-%m-%d', time.gmtime())}, {machine}. {tables.summary(evaluations)}."]
    parts.append(tables.markdown([tables.HEAD, *map(tables.evaluation_line, evaluations)]))
    for result in results:
        title = f"**{result.name}**: {result.description}"
        parts += [title, tables.markdown(tables.system_lines(result.samples, result.extra))]
    return "\n\n".join(parts)


def with_figures(page: str, text: str) -> str:
    """The page with `text` between the markers."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


def write(results: Sequence[Result], machine: str, json_file: Path) -> None:
    PAGE.write_text(with_figures(PAGE.read_text(), figures(results, machine)))
    PLOTS.mkdir(exist_ok=True)
    subprocess.run([PEERS_PYTHON, ROOT / "benchmarks" / "plots.py", json_file, PLOTS], check=True)
