"""The findings process: runs `storehooks doctor` each minute, or when asked, and keeps its findings in a file."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from receiver import logs
from workers.processes import die_with_parent, python_command

FILE, ASKED = "findings.json", "findings.asked"
GATHER_EVERY = 60.0
TIMEOUT = 90.0
POLL_SECONDS = 0.5

log = logs.get("console")


@dataclass(frozen=True)
class Findings:
    at: datetime
    found: list[dict[str, Any]]
    """As `storehooks doctor --json` writes them."""
    is_asked: bool
    """Whether they are being gathered again, because something was changed since."""

    def of_level(self, level: str) -> list[dict[str, Any]]:
        return [one for one in self.found if one["level"] == level]


def read_findings(data_dir: Path) -> Findings | None:
    """The latest findings; None if there are none yet."""
    try:
        path = data_dir / FILE
        found = json.loads(path.read_bytes())["findings"]
        return Findings(datetime.fromtimestamp(path.stat().st_mtime, UTC), found, (data_dir / ASKED).exists())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask_for_findings(data_dir: Path) -> None:
    """Let the findings be gathered soon, after something was changed."""
    (data_dir / ASKED).touch(mode=0o600)


def gather(data_dir: Path, config: Path | None) -> None:
    """Run doctor once. Its findings replace those before."""
    new, parent = data_dir / f"{FILE}.new", os.getpid()
    (data_dir / ASKED).unlink(missing_ok=True)
    command = python_command("workers.cli", "doctor", "--json", config=config)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as output:
        subprocess.run(
            command,
            stdout=output,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
            preexec_fn=lambda: die_with_parent(parent),
        )
    json.loads(new.read_bytes())
    new.replace(data_dir / FILE)


def run(data_dir: Path, config: Path | None) -> int:
    """Gather until a signal."""
    asked = data_dir / ASKED
    while True:
        started = time.monotonic()
        try:
            gather(data_dir, config)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.error("doctor could not be run for the console", why=type(error).__name__)
        while time.monotonic() - started < GATHER_EVERY and not asked.exists():
            time.sleep(POLL_SECONDS)


def remove_findings(data_dir: Path) -> None:
    """Old findings would say what is no longer so."""
    for name in (FILE, ASKED, f"{FILE}.new"):
        (data_dir / name).unlink(missing_ok=True)
