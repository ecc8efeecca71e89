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

from scripts.locked_packages import LICENCES, LOCKS, ROOT, RUN, all_locked, allowed, licences, locked

PIP_AUDIT = "pip-audit==2.10.1"
COMMAND = (str(Path(sys.executable).parent / "uv"), "tool", "run", "--from", PIP_AUDIT, "pip-audit")
SECONDS = 300
UNREACHABLE = re.compile(
    r"ServiceError|ConnectionError|Max retries|[Tt]imed? ?out|Temporary failure|Failed to (fetch|download|resolve)|"
    r"No solution found|Network|network|offline"
)


# Licences


def licence_faults(root: Path = ROOT, installed: Mapping[str, str] | None = None) -> Iterator[str]:
    """A sentence for each locked package whose licence is not known, not allowed, or another one than is listed."""
    listed, packages = licences(root), all_locked(root)
    shipped = {one.name for one in locked(root / RUN)}
    for one in packages:
        licence, fine = listed.get(one.name), allowed(root, outside_of_run=one.name not in shipped)
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


def advisories(lock: Path, command: Sequence[str] = COMMAND) -> tuple[list[str], str]:
    """The known vulnerabilities of a lock's packages; and why they were not checked, empty if they were."""
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
            return [], f"no advisory service can be reached: no answer within {SECONDS} s"
        if report.exists() and report.read_text():
            return list(_found(json.loads(report.read_text()))), ""
        said = (done.stdout + done.stderr).strip()
        if done.returncode and UNREACHABLE.search(said):
            return [], "no advisory service can be reached"
        return [f"pip-audit ended with {done.returncode}: {said[-500:]}"], ""


def _found(report: Mapping[str, list[dict[str, object]]]) -> Iterator[str]:
    for package in report["dependencies"]:
        for one in package.get("vulns", []):  # type: ignore[attr-defined]
            fixed = ", ".join(one["fix_versions"]) or "none"
            yield f"{package['name']} {package['version']}: {one['id']}; fixed in: {fixed}"


def main(command: Sequence[str] = COMMAND) -> int:
    faults = list(licence_faults())
    packages = all_locked()
    print(
        f"licences: {len(packages)} locked packages, {len(faults)} refused"
        if faults
        else f"licences: {len(packages)} locked packages, all allowed"
    )
    for lock in LOCKS:
        found, why_not = advisories(ROOT / lock, command)
        if why_not:
            print(f"vulnerabilities: not checked: {why_not}")
            break
        print(f"vulnerabilities of {lock}: {len(found) or 'none known'}")
        faults += found
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
