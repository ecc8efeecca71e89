"""`python -m benchmarks`: run the bouts, print the tables, write JSON and plots. `make bench` is this with all rows."""

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

from benchmarks import docs, table
from benchmarks.bout import Bout, Pace, Result, pick, run
from benchmarks.bouts.fanout import FanOut
from benchmarks.bouts.growth import Growth
from benchmarks.bouts.ingest import HalfSpeed, Ingest
from benchmarks.bouts.latency import Latency
from benchmarks.bouts.memory import Memory
from benchmarks.bouts.working import TwoWorkers, Working
from benchmarks.machine import ROOT, THEIR_PYTHON
from receiver.inbox.redis import embedded_server

BOUTS: tuple[type[Bout], ...] = (Ingest, HalfSpeed, Working, Latency, FanOut, Memory, Growth, TwoWorkers)
RESULTS = ROOT / "benchmarks" / "results"
QUICK = Pace(seconds=0.4, rounds=3, tries=1, many=50_000)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="This product beside its peers.")
    names = [one.name for one in BOUTS]
    parser.add_argument("--rows", help=f"only these, with commas between: {', '.join(names)}")
    parser.add_argument("--runs", type=int, help="rounds of each bout, at least 3")
    parser.add_argument("--seconds", type=float, help="how long one turn is")
    parser.add_argument(
        "--quick", action="store_true", help="short turns, few rounds: shows that all works, concludes less"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "results.json", help="where the figures are written")
    parser.add_argument("--docs", action="store_true", help="write figures and plots into docs/performance.md, too")
    return parser


def read_arguments() -> argparse.Namespace:
    parser, names = arguments(), {one.name for one in BOUTS}
    given = parser.parse_args()
    given.rows = given.rows.split(",") if given.rows else []
    if unknown := set(given.rows) - names:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    return given


def pace_of(given: argparse.Namespace) -> Pace:
    pace = QUICK if given.quick else Pace()
    pace.rounds = max(3, given.runs) if given.runs else pace.rounds
    pace.seconds = given.seconds or pace.seconds
    return pace


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    given = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    pace, results = pace_of(given), list[Result]()
    say(f"{machine_line()}\n")
    try:
        for one in pick(BOUTS, given.rows):
            results.append(run_one(one, folder, pace))
    except KeyboardInterrupt:
        say("\nstopped; nothing is left running")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(results, given.json, time.monotonic() - pace.started)
    if given.docs:
        docs.write(results, machine_line(), given.json)
    return 0


def run_one(bout: type[Bout], folder: Path, pace: Pace) -> Result:
    began = time.monotonic()
    say(f"{bout.name}: {bout.about}")
    try:
        result = run(bout(folder, pace, lambda text: say(f"  {text}")))
    finally:
        shutil.rmtree(folder / bout.name, ignore_errors=True)
    say("\n" + indent(table.plain(table.system_lines(result.samples, result.extra))))
    say("\n" + indent(table.plain([table.HEAD, *map(table.verdict_line, result.verdicts)])))
    say(f"  {time.monotonic() - began:.0f} s\n")
    return result


def indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


def machine_line() -> str:
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    server = embedded_server.version_of(embedded_server.binary())
    python = platform.python_version()
    return f"{os.cpu_count()} cores {platform.machine()}, Python {python}, {server}; load {load}"


def report(results: list[Result], file: Path, seconds: float) -> None:
    verdicts = [one for result in results for one in result.verdicts]
    say("# As Markdown, for docs/performance.md\n")
    say(table.markdown([table.HEAD, *map(table.verdict_line, verdicts)]))
    say(f"\n{table.summary(verdicts)}. {seconds / 60:.1f} minutes.")
    document: dict[str, Any] = {
        "machine": machine_line(),
        "seconds": seconds,
        "bouts": [asdict(one) for one in results],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1))
    say(f"written: {file}")
    if THEIR_PYTHON.exists():
        subprocess.run([THEIR_PYTHON, ROOT / "benchmarks" / "plots.py", file], check=False)


if __name__ == "__main__":
    sys.exit(main())
