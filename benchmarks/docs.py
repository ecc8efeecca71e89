"""Writes the figures of a run into docs/performance.md, between its two marks, and the plots beside it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import table
from benchmarks.bout import Result
from benchmarks.machine import ROOT, THEIR_PYTHON

PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
BEGIN, END = "<!-- figures: written by `make bench ARGS=--docs` -->", "<!-- end of the figures -->"


def figures(results: Sequence[Result], machine: str) -> str:
    """Every verdict, then each bout with its systems."""
    verdicts = [one for result in results for one in result.verdicts]
    parts = [f"{time.strftime('%Y-%m-%d', time.gmtime())}, {machine}. {table.summary(verdicts)}."]
    parts.append(table.markdown([table.HEAD, *map(table.verdict_line, verdicts)]))
    for result in results:
        title = f"**{result.bout}**: {result.about}"
        parts += [title, table.markdown(table.system_lines(result.samples, result.extra))]
    return "\n\n".join(parts)


def put(page: str, text: str) -> str:
    """The page with `text` between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


def write(results: Sequence[Result], machine: str, json_file: Path) -> None:
    PAGE.write_text(put(PAGE.read_text(), figures(results, machine)))
    PLOTS.mkdir(exist_ok=True)
    subprocess.run([THEIR_PYTHON, ROOT / "benchmarks" / "plots.py", json_file, PLOTS], check=True)
