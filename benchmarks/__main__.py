"""`python -m benchmarks`: runs comparisons, prints tables, writes JSON and plots. `make bench` runs all of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import performance_page, tables
from benchmarks.comparison import Comparison, Result, Timing, run, select
from benchmarks.comparisons.fanout import FanOut
from benchmarks.comparisons.growth import Growth
from benchmarks.comparisons.history import MovedMemory, Moving
from benchmarks.comparisons.ingest import Ingest, SameRate, SteadyRate
from benchmarks.comparisons.judging import Judging
from benchmarks.comparisons.latency import Latency
from benchmarks.comparisons.links import Links
from benchmarks.comparisons.memory import Memory
from benchmarks.comparisons.workers import NoOpRuns, Ordered, TwoWorkers
from benchmarks.processes import PEERS_PYTHON, ROOT
from receiver.inbox.redis import embedded_server

COMPARISONS: tuple[type[Comparison], ...] = (
    Ingest,
    SameRate,
    SteadyRate,
    Links,
    Judging,
    NoOpRuns,
    Ordered,
    Latency,
    FanOut,
    Memory,
    Growth,
    MovedMemory,
    Moving,
    TwoWorkers,
)
RESULTS = ROOT / "benchmarks" / "results"
QUICK = Timing(seconds=0.4, rounds=3, attempts=1, backlog=50_000)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare storehooks with its peers.")
    names = [comparison.name for comparison in COMPARISONS]
    parser.add_argument("--rows", help=f"only these comparisons, separated by commas: {', '.join(names)}")
    parser.add_argument("--runs", type=int, help="rounds of each comparison, at least 3")
    parser.add_argument("--seconds", type=float, help="duration of one turn")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short turns, few rounds: shows that it runs, with noisy results",
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "results.json", help="file for the figures")
    parser.add_argument("--docs", action="store_true", help="also write figures and plots into docs/performance.md")
    return parser


def read_arguments() -> argparse.Namespace:
    parser, names = arguments(), {comparison.name for comparison in COMPARISONS}
    options = parser.parse_args()
    options.rows = options.rows.split(",") if options.rows else []
    if unknown := set(options.rows) - names:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}; available: {', '.join(sorted(names))}")
    return options


def timing_of(options: argparse.Namespace) -> Timing:
    timing = QUICK if options.quick else Timing()
    timing.rounds = max(3, options.runs) if options.runs else timing.rounds
    timing.seconds = options.seconds or timing.seconds
    return timing


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    options = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    timing, results = timing_of(options), list[Result]()
    say(f"{machine_line()}\n")
    try:
        for comparison in select(COMPARISONS, options.rows):
            results.append(run_one(comparison, folder, timing))
    except KeyboardInterrupt:
        say("\nstopped; all processes have ended")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(results, options.json, time.monotonic() - timing.started)
    if options.docs:
        performance_page.write(results, machine_line(), options.json)
    return 0


def run_one(comparison: type[Comparison], folder: Path, timing: Timing) -> Result:
    began = time.monotonic()
    say(f"{comparison.name}: {comparison.description}")
    try:
        result = run(comparison(folder, timing, lambda text: say(f"  {text}")))
    finally:
        shutil.rmtree(folder / comparison.name, ignore_errors=True)
    say("\n" + indent(tables.plain(tables.system_lines(result.samples, result.extra))))
    say("\n" + indent(tables.plain([tables.HEAD, *map(tables.evaluation_line, result.evaluations)])))
    say(f"  {time.monotonic() - began:.0f} s\n")
    return result


def indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


def machine_line() -> str:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    server = embedded_server.version_of(embedded_server.binary())
    python = platform.python_version()
    return f"{os.cpu_count()} cores {platform.machine()}, Python {python}, {server}; load {load}"


def report(results: list[Result], file: Path, seconds: float) -> None:
    evaluations = [evaluation for result in results for evaluation in result.evaluations]
    say("# Markdown for docs/performance.md\n")
    say(tables.markdown([tables.HEAD, *map(tables.evaluation_line, evaluations)]))
    say(f"\n{tables.summary(evaluations)}. {seconds / 60:.1f} minutes.")
    document: dict[str, Any] = {
        "machine": machine_line(),
        "seconds": seconds,
        "comparisons": [asdict(result) for result in results],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1))
    say(f"written: {file}")
    if PEERS_PYTHON.exists():
        subprocess.run([PEERS_PYTHON, ROOT / "benchmarks" / "plots.py", file], check=False)


if __name__ == "__main__":
    sys.exit(main())
