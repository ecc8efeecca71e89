"""The tutorial, followed from its first line to its last, as a new user would: every command of it is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_in_process import run_in_process
from tests.support.harness import Process, eventually, free_port
from tests.support.programs import ROOT
from workers.cli.new_plugin import FILES

TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
UNDER_FIVE_MINUTES = 300


def steps() -> Iterator[tuple[str, str]]:
    """Commands and files, in the order of the page."""
    for kind, text in BLOCK.findall(TUTORIAL):
        if kind == "python":
            yield "write", text
        else:
            yield from (("run", line) for line in text.splitlines())


class Reader:
    """A new user who follows the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port, sandbox = free_port(), free_port()
        scripts = str(Path(sys.executable).parent)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STOREHOOKS_", "PYTEST_", "REDIS_URL"))}
        self.environ = {
            **kept,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "STOREHOOKS_RECEIVER__BIND": f"127.0.0.1:{port}",  # the usual ports may be in use
            "STOREHOOKS_RECEIVER__PUBLIC_URL": f"http://127.0.0.1:{port}",
            "STOREHOOKS_SANDBOX__BIND": f"127.0.0.1:{sandbox}",
            "STOREHOOKS_CONSOLE__BIND": "127.0.0.1:0",
        }
        self.said: dict[str, str] = {}
        self.dev: Process | None = None

    def do(self, kind: str, text: str) -> None:
        if kind == "write":
            name = text.splitlines()[0].removeprefix("# ")
            assert (self.folder / name).exists(), f"{name} is there to be replaced"
            (self.folder / name).write_text(text)
        elif text.startswith("cd "):
            self.folder /= shlex.split(text)[1]
        elif text == "storehooks dev":
            self.dev = Process(["storehooks", "dev"], log=self.folder / "dev.log", env=self.environ, cwd=self.folder)
            eventually(lambda: "First event handled" in self.dev.output(), 60, what="the first event")  # type: ignore[union-attr]
        else:
            done = subprocess.run(
                ["/bin/sh", "-c", text], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr
            self.said[text] = self.said.get(text, "") + done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_works_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    started = time.monotonic()
    reader = Reader(tmp_path)
    try:
        for kind, text in steps():
            reader.do(kind, text)
    finally:
        if reader.dev is not None:
            reader.dev.stop()
    took = time.monotonic() - started
    print(f"\nthe tutorial's commands took {took:.0f} s")
    said = reader.said
    assert "3 passed" in said["python -m pytest -q loyalty"]
    assert "1 passed" in said["python -m pytest -q loyalty"]
    assert "loyalty.award" in said["storehooks handlers"]
    assert "84 points for order 7001" in said["storehooks send order.paid --set id=7001 --set total=42.50"]
    assert "skipped: when: total > 10 was false" in said["storehooks handlers explain 7002"]
    certified = said["storehooks handlers certify loyalty/loyalty.py"]
    assert re.search("idempotent +yes\norder-safe +yes", certified), certified
    assert took < UNDER_FIVE_MINUTES


# new-plugin


def test_new_plugin_writes_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_in_process("new-plugin", "stock-alert")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "stock-alert").rglob("*.*"))) == len(FILES)
    assert 'stock_alert = "stock_alert"' in (tmp_path / "stock-alert/pyproject.toml").read_text()
    compile((tmp_path / "stock-alert/stock_alert.py").read_text(), "stock_alert.py", "exec")
    written = "".join(path.read_text() for path in (tmp_path / "stock-alert").rglob("*.*"))
    assert written.count('"0.1.0"') == 1, "the version is written once"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Stock", "is not a valid plugin name"),
        ("workers", "is not a valid plugin name"),
        ("class", "Python or storehooks uses it already"),
        ("json", "Python or storehooks uses it already"),
        ("pydantic-settings", "Python or storehooks uses it already"),
        ("../x", "is not a valid plugin name"),
        ("here", "not overwritten"),
    ],
)
def test_a_name_that_cannot_be_is_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    done = run_in_process("new-plugin", name)
    assert says in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_init_refuses_a_name_that_no_config_could_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_in_process("init", "--store", "Bad Name]")
    assert "a store's name has only lower-case letters" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
