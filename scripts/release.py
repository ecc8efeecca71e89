"""Build a release into dist/: wheel, sdist, SBOM (CycloneDX) and SHA256SUMS. The same commit gives the same bytes.

Only what is committed is built: the files come from `git archive`, and a tree with changes is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.locked_packages import ROOT, RUN, LockedPackage, licences, locked

BUILD = "import sys, setuptools.build_meta as b; into = sys.argv[1]; b.build_wheel(into); b.build_sdist(into)"


def build(root: Path, into: Path) -> list[Path]:
    """Build all files from the commit that is checked out in `root`."""
    if changes := _git(root, "status", "--porcelain").decode().strip():
        raise SystemExit(f"the tree has changes that are not committed, so this would not be a release:\n{changes}")
    commit, seconds = _git(root, "log", "-1", "--format=%H %ct").decode().split()
    into.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)  # file modes are part of both archives
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "source", Path(folder) / "built"
        built.mkdir()
        with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", commit))) as archive:
            archive.extractall(source, filter="data")
        version = checked_version(source)
        environ = {**os.environ, "SOURCE_DATE_EPOCH": seconds, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", BUILD, str(built)]
        subprocess.run(command, cwd=source, env=environ, check=True, stdout=subprocess.DEVNULL)
        (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
        contents = {
            wheel.name: wheel.read_bytes(),
            sdist.name: same_bytes(sdist.read_bytes(), int(seconds)),
            f"storehooks-{version}.cdx.json": sbom(source, version, commit, int(seconds)),
        }
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(contents.items()))
    contents["SHA256SUMS"] = sums.encode()
    for name, data in contents.items():
        (into / name).write_bytes(data)
    return [into / name for name in contents]


def checked_version(source: Path) -> str:
    """The version in pyproject.toml, which must be that of the code."""
    found = re.search(r'^version = "(.+)"$', (source / "pyproject.toml").read_text(), re.MULTILINE)
    version = found[1] if found else ""
    if f'__version__ = "{version}"' not in (source / "receiver/__init__.py").read_text():
        raise SystemExit(f"pyproject.toml has the version {version}, and receiver/__init__.py another one")
    return version


def same_bytes(sdist: bytes, seconds: int) -> bytes:
    """The archive without what differs between two builds: times, owners, and the order of files."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=seconds) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, content)
    return packed.getvalue()


def sbom(source: Path, version: str, commit: str, seconds: int) -> bytes:
    """The software bill of materials: every package that requirements/run.txt installs, by CycloneDX 1.6."""
    known = licences(source)
    packages = locked(source / RUN)
    ours = f"pkg:pypi/storehooks@{version}"
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{ours}?commit={commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": "storehooks",
                "version": version,
                "purl": ours,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "storehooks:commit", "value": commit}],
            },
        },
        "components": [_component(one, known[one.name]) for one in packages],
        "dependencies": [{"ref": ours, "dependsOn": [_purl(one) for one in packages]}],
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def _component(package: LockedPackage, licence: str) -> dict[str, Any]:
    properties = [{"name": "storehooks:locked-sha256", "value": one} for one in package.hashes]
    if package.marker:
        properties.insert(0, {"name": "storehooks:installed-where", "value": package.marker})
    return {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        "licenses": [{"expression": licence}],
        "properties": properties,
    }


def _purl(package: LockedPackage) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _git(root: Path, *words: str) -> bytes:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, check=True).stdout


if __name__ == "__main__":
    for path in build(ROOT, ROOT / "dist"):
        print(f"{path.stat().st_size:>10,}  dist/{path.name}")
