"""Check that every locked wheel exists for each supported Linux platform and Python version.

It downloads the wheels with pip into a temporary folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PLATFORMS = {"x86_64": "manylinux_2_28_x86_64", "aarch64": "manylinux_2_28_aarch64"}
PYTHONS = ("3.11", "3.12", "3.13")
LOCK = Path("requirements/run.txt")


def accepted_platforms(name: str) -> list[str]:
    """The platform tags that a machine with glibc 2.28 accepts, including older ones."""
    machine = name.split("_", 3)[3]
    return [name, *(f"manylinux_2_{minor}_{machine}" for minor in (27, 26, 24, 17)), f"manylinux2014_{machine}"]


def check(platform: str, python: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        flags = [part for tag in accepted_platforms(platform) for part in ("--platform", tag)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--python-version", python, *flags]
        done = subprocess.run([*command, "-d", folder, "-r", str(LOCK)], capture_output=True, text=True, check=False)
        if done.returncode:
            missing = re.findall(r"No matching distribution found for (\S+)", done.stderr)
            return f"NO  {missing or done.stderr.strip()[-300:]}"
        return f"ok  {len(list(Path(folder).iterdir()))} wheels"


def main() -> int:
    results = []
    for machine, platform in PLATFORMS.items():
        for python in PYTHONS:
            result = check(platform, python)
            results.append(result)
            print(f"{machine:8} Python {python}  {result}", flush=True)
    return 0 if all(result.startswith("ok") for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
