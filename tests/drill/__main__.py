"""`python -m tests.drill`: runs the rows and prints the table. Exit code 1 if a row fails."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.drill.counting import Counted, count, read_answers, read_effects
from tests.drill.fleet import HANDLERS
from tests.drill.installations import Installation
from tests.drill.rows import ROWS, Row
from tests.drill.table import Result, summary, table
from tests.support.harness import eventually

RATE = 150.0
STEADY_SECONDS = 3.0
"""Load before and after each fault."""
SETTLE_SECONDS = 90.0
WELL_SECONDS = 60.0
"""How soon `doctor` must find nothing again."""
LOSS = "lacks events that were accepted"


class Drill:
    """Runs rows, one after the other. Those that follow each other with the same installation share it."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._folder = folder
        self._rate = rate
        self._number = 0
        self._at: Installation | None = None

    def run(self, rows: Sequence[Row]) -> Iterable[Result]:
        with ExitStack() as stack:
            for row, before in zip(rows, [None, *rows], strict=False):
                self._number += 1
                if before is None or row.installation is not before.installation:
                    self._leave(stack)
                yield self._try(row, stack)

    def _try(self, row: Row, stack: ExitStack) -> Result:
        try:
            if self._at is None:
                self._at = stack.enter_context(row.installation(self._folder / f"{self._number:02d}"))
            return self._run_row(row, self._at)
        except Exception as error:  # noqa: BLE001  the other rows still count
            self._leave(stack)
            return Result(row, Counted(), broken=f"{type(error).__name__}: {error}")

    def _leave(self, stack: ExitStack) -> None:
        self._at = None
        stack.close()

    def _run_row(self, row: Row, at: Installation) -> Result:
        fleet, answers = at.fleet, self._folder / f"{self._number:02d}-answers.log"
        effects_before = fleet.effects.stat().st_size
        at.doctors.clear()
        with fleet.load(self._rate, answers):
            time.sleep(STEADY_SECONDS)
            row.fault(at)
            time.sleep(STEADY_SECONDS)
        ended = time.monotonic()
        broken = ""
        try:
            eventually(fleet.is_idle, SETTLE_SECONDS, what="everything is handled")
        except AssertionError as error:
            broken = str(error)
        found = [one for doctor in at.doctors for one in doctor.findings]
        well_after, left = self._wait_until_well(row, at, ended)
        with open(fleet.effects) as effects:
            effects.seek(effects_before)
            counted = count(read_answers(answers.read_text()), read_effects(effects.read()), HANDLERS)
        return Result(row, counted, worded(found), well_after, left, broken)

    def _wait_until_well(self, row: Row, at: Installation, since: float) -> tuple[float | None, str]:
        while findings := at.fleet.start_doctor().findings:
            if time.monotonic() - since > WELL_SECONDS:
                return None, worded(findings)
            if row.may_lose_seconds and LOSS in worded(findings):
                at.fleet.accept_loss()
            time.sleep(0.5)
        return time.monotonic() - since, ""


def worded(findings: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{one['level'].upper()} {one['check']}: {one['text']}" for one in findings) or "ok"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description="Faults under load, and what they cost.")
    parser.add_argument(
        "--rows", default="", help="only rows whose names contain one of these texts, e.g. web,failover"
    )
    parser.add_argument("--rate", type=float, default=RATE, help=f"deliveries per second; default {RATE:g}")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    options = parser.parse_args()
    rows = [row for row in ROWS if any(word in row.name for word in options.rows.split(","))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, began = Path(tempfile.mkdtemp(prefix="drill-")), time.monotonic()
    results = []
    try:
        for result in Drill(folder, options.rate).run(rows):
            results.append(result)
            said = "FAILED" if result.wrong else "passed"
            print(f"{said}  {time.monotonic() - began:4.0f} s  {result.row.name}: {result.doctor}", flush=True)
    finally:
        if options.keep:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{table(results)}\n\n{summary(results, time.monotonic() - began)}")
    return int(any(one.wrong for one in results))


if __name__ == "__main__":
    sys.exit(main())
