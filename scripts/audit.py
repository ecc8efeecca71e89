"""Audit the locked packages: every licence is allowed, and no version has a known vulnerability.

Exit codes: 0 nothing was found, also where no advisory service could be reached: the output says so; 1 otherwise.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple

from scripts.locked_packages import LICENCES, LOCKS, ROOT, RUN, all_locked, allowed, licences, locked

PIP_AUDIT = "pip-audit==2.10.1"
COMMAND = (str(Path(sys.executable).parent / "uv"), "tool", "run", "--from", PIP_AUDIT, "pip-audit")
SECONDS = 300
NO_SERVICE = "no advisory service can be reached"
UNREACHABLE = re.compile(
    r"ServiceError|ConnectionError|Max retries|[Tt]imed? ?out|Temporary failure|Failed to (fetch|download|resolve)|"
    r"No solution found|Network|network|offline"
)


# Licences


def licence_faults(root: Path = ROOT, installed: Mapping[str, str] | None = None) -> Iterator[str]:
    """A sentence for each locked package whose licence is not known, not allowed, or another one than is listed."""
    listed, packages = licences(root), all_locked(root)
    shipped = {one.name for one in locked(root / RUN)}
    for_run, for_others = (allowed(root, outside_of_run=outside) for outside in (False, True))
    for one in packages:
        licence, fine = listed.get(one.name), for_run if one.name in shipped else for_others
        if licence is None:
            yield f"{one.name} {one.version}: unknown licence; read it, then add the package to {LICENCES}"
        elif unfit := sorted(set(words_of(licence)) - fine) if not _has_choice(licence, fine) else []:
            yield f"{one.name} {one.version}: {' and '.join(unfit)} is not in the list of allowed licences"
        else:
            said = _declared(one.name) if installed is None else installed.get(one.name, "")
            if said and set(words_of(said)) != set(words_of(licence)):
                yield f"{one.name} {one.version}: {LICENCES} says {licence}, and the installed package {said}"
    for name in sorted(listed.keys() - {one.name for one in packages}):
        yield f"{name}: is in {LICENCES}, and no lock has it any more; remove it"


def words_of(licence: str) -> list[str]:
    """The licences of an expression: `MPL-2.0 AND (Apache-2.0 OR MIT)` has three."""
    return [word for word in re.findall(r"[\w.+-]+", licence) if word not in ("AND", "OR", "WITH")]


def _has_choice(licence: str, fine: set[str]) -> bool:
    """Whether one side of a plain choice is allowed. A nested expression must be allowed in full."""
    return "(" not in licence and " AND " not in licence and any(word in fine for word in words_of(licence))


def _declared(name: str) -> str:
    """What the installed package says as an expression; empty if it is not installed, or says it in prose only."""
    try:
        found: PackageMetadata = metadata(name)
    except PackageNotFoundError:
        return ""
    return str(found.get("License-Expression") or "")


# Vulnerabilities


class Advisories(NamedTuple):
    """What an advisory service says about the packages of a lock."""

    found: list[str]
    checked: int = 0
    unchecked: tuple[str, ...] = ()
    """Packages that the service has no answer for. pip-audit counts them as fine."""
    why_not: str = ""
    """Why nothing was checked."""


def advisories(lock: Path, command: Sequence[str] = COMMAND) -> Advisories:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["--disable-pip", "--require-hashes", "-r", str(lock), "--progress-spinner", "off"]
        try:
            done = subprocess.run(
                [*command, *words, "--format", "json", "--output", str(report)],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Advisories([], why_not=f"{NO_SERVICE}: no answer within {SECONDS} s")
        if report.exists() and report.read_text():
            return read_report(json.loads(report.read_text())["dependencies"])
        said = (done.stdout + done.stderr).strip()
        if done.returncode and UNREACHABLE.search(said):
            return Advisories([], why_not=NO_SERVICE)
        return Advisories([f"pip-audit ended with {done.returncode}: {said[-500:]}"])


def read_report(packages: Sequence[Mapping[str, Any]]) -> Advisories:
    unchecked = tuple(sorted(one["name"] for one in packages if "skip_reason" in one))
    if len(unchecked) == len(packages):
        return Advisories([], why_not=f"{NO_SERVICE}: there was an answer for none of {len(packages)} packages")
    found = [
        f"{package['name']} {package['version']}: {one['id']}; fixed in: {', '.join(one['fix_versions']) or 'none'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    return Advisories(found, len(packages) - len(unchecked), unchecked)


def main(command: Sequence[str] = COMMAND) -> int:
    faults = list(licence_faults())
    print(f"licences: {len(all_locked())} locked packages, {f'{len(faults)} refused' if faults else 'all allowed'}")
    for lock in LOCKS:
        answer = advisories(ROOT / lock, command)
        faults += answer.found
        if answer.why_not:
            print(f"vulnerabilities: not checked: {answer.why_not}")
            break
        print(f"vulnerabilities of {lock}: {len(answer.found) or 'none'} known in {answer.checked} packages")
        if answer.unchecked:
            print(f"  not checked, the advisory service does not know them: {', '.join(answer.unchecked)}")
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
