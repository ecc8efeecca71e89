"""`make audit`: licences that are not known or not allowed are refused, and what was not checked is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import audit
from scripts.locked_packages import LICENCES, LOCKS, ROOT, all_locked, licences

REPORT = """#!/bin/sh
while [ "$1" != "--output" ]; do shift; done
cat > "$2" <<'END'
{"dependencies": [{"name": "flask", "version": "3.1", "vulns": [{"id": "CVE-1", "fix_versions": ["3.2"]}]},
                  {"name": "rq", "version": "2.12", "vulns": []}], "fixes": []}
END
exit 1
"""
CLEAN = REPORT.replace('{"id": "CVE-1", "fix_versions": ["3.2"]}', "").replace("exit 1", "exit 0")
UNREACHABLE = "#!/bin/sh\necho 'pip_audit._service.interface.ServiceError: Max retries exceeded with url' >&2\nexit 1\n"
SKIPPED = """{"name": "flask", "skip_reason": "Dependency not found"}"""
PARTLY = REPORT.replace(REPORT[REPORT.index('{"name": "flask"') : REPORT.index(",\n")], SKIPPED).replace(
    "exit 1", "exit 0"
)
NONE_ANSWERED = PARTLY.replace('{"name": "rq", "version": "2.12", "vulns": []}', SKIPPED)
BROKEN = "#!/bin/sh\necho 'a bug in it' >&2\nexit 1\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The locks and the list of licences, to be changed."""
    for name in (*LOCKS, LICENCES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def program(folder: Path, text: str) -> tuple[str]:
    path = folder / "pip-audit"
    path.write_text(text)
    path.chmod(0o755)
    return (str(path),)


def test_every_locked_package_has_an_allowed_licence() -> None:
    assert list(audit.licence_faults()) == []
    assert len(all_locked()) > 100


def test_a_package_without_a_listed_licence_is_refused(copy: Path) -> None:
    text = (copy / LICENCES).read_text()
    (copy / LICENCES).write_text(text.replace('\nflask = "BSD-3-Clause"', ""))
    (fault,) = audit.licence_faults(copy)
    assert fault.startswith("flask ")
    assert "unknown licence; read it" in fault


@pytest.mark.parametrize(
    ("licence", "is_refused"),
    [
        ("AGPL-3.0-only", True),
        ("LGPL-3.0-only", True),
        ("MIT AND AGPL-3.0-only", True),
        ("MIT OR AGPL-3.0-only", False),
        ("MIT AND (AGPL-3.0-only OR BSD-3-Clause)", True),
    ],
)
def test_a_licence_that_is_not_allowed_is_refused(copy: Path, licence: str, is_refused: bool) -> None:
    text = (copy / LICENCES).read_text()
    (copy / LICENCES).write_text(text.replace('\nflask = "BSD-3-Clause"', f'\nflask = "{licence}"'))
    faults = list(audit.licence_faults(copy, installed={}))
    assert [fault.split()[0] for fault in faults] == ["flask"] * is_refused


def test_a_package_that_changes_its_licence_is_noticed(copy: Path) -> None:
    (fault,) = audit.licence_faults(copy, installed={"flask": "MIT"})
    assert fault.endswith("says BSD-3-Clause, and the installed package MIT")


def test_a_package_that_is_locked_no_more_leaves_the_list(copy: Path) -> None:
    with open(copy / LICENCES, "a") as file:
        file.write('left-pad = "MIT"\n')
    (fault,) = audit.licence_faults(copy, installed=licences(copy))
    assert fault.startswith("left-pad: ")


def test_known_vulnerabilities_are_named_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(program(tmp_path, REPORT)) == 1
    said = capsys.readouterr()
    assert "vulnerabilities of requirements/run.txt: 1 known in 2 packages" in said.out
    assert "flask 3.1: CVE-1; fixed in: 3.2" in said.err


@pytest.mark.parametrize("text", [UNREACHABLE, NONE_ANSWERED], ids=["no connection", "no answer for any package"])
def test_without_an_advisory_service_it_says_that_it_did_not_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """pip-audit itself says "No known vulnerabilities found" if the service knows none of the packages."""
    assert audit.main(program(tmp_path, text)) == 0
    said = capsys.readouterr().out
    assert "vulnerabilities: not checked: no advisory service can be reached" in said
    assert "none known" not in said


def test_packages_that_the_service_does_not_know_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(program(tmp_path, PARTLY)) == 0
    said = capsys.readouterr().out
    assert "vulnerabilities of requirements/run.txt: none known in 1 packages" in said
    assert "not checked, the advisory service does not know them: flask" in said


def test_an_audit_that_fails_for_another_reason_is_not_taken_for_fine(tmp_path: Path) -> None:
    assert audit.main(program(tmp_path, BROKEN)) == 1


def test_with_an_answer_and_no_vulnerability_the_exit_code_is_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(program(tmp_path, CLEAN)) == 0
    assert capsys.readouterr().out.count("none known") == len(LOCKS)
