"""`storehooks` is the one package that plugins, tests and scripts import: public, light, and typed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import storehooks
import workers
from tests.docs.test_architecture import inside, loaded_by
from tests.support.programs import ROOT
from workers import testing
from workers.cli import init, new_plugin
from workers.storeapi import errors

MODULES = ("storehooks", "storehooks.records", "storehooks.errors", "storehooks.testing", "storehooks.api")
HEAVY = {"flask", "rq", "redis", "pydantic", "httpx2", "gunicorn", "structlog", "rich", "orjson", "click"}
PAGES = [ROOT / "README.md", ROOT / "config.example.toml", *(ROOT / "docs").rglob("*.md")]
OURS = re.compile(r"\b(?:from|import) +(?:receiver|workers)\b")


def test_the_public_names_are_these() -> None:
    assert storehooks.__all__ == ["Busy", "Context", "Drop", "Event", "Fail", "Retry", "Router"]
    assert all(getattr(storehooks, name) is getattr(workers, name) for name in storehooks.__all__)
    for module in map(import_module, MODULES):
        assert all(hasattr(module, name) for name in module.__all__), module
        assert not hasattr(module, "nothing")
    assert import_module("storehooks.testing").__all__ == testing.__all__


def test_every_error_of_the_client_can_be_caught_by_name() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised <= set(import_module("storehooks.errors").__all__)


@pytest.mark.parametrize("module", [*MODULES[:4], "storehooks.pytest_plugin"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    assert not loaded_by(f"import {module}") & HEAVY


def test_importing_it_loads_nothing_of_ours_before_a_name_is_used() -> None:
    for module in ("storehooks", "storehooks.pytest_plugin"):
        assert not {name for name in loaded_by(f"import {module}") if inside(name, "receiver", "workers")}
    assert "workers.plugins.router" in loaded_by("from storehooks import Router")


# What integrators copy imports nothing else


def plugin_texts() -> list[tuple[str, str]]:
    """Every text that an integrator copies: the pages, the examples, and what `init` and `new-plugin` write."""
    examples = ROOT / "examples"
    files = [*PAGES, *examples.rglob("*.py"), *examples.rglob("*.md"), ROOT / "tests/docs/type_check/plugin.py"]
    texts = [(str(path.relative_to(ROOT)), path.read_text()) for path in files]
    return [*texts, ("init", init.PLUGIN), *new_plugin.FILES.items()]


@pytest.mark.parametrize(("name", "text"), plugin_texts(), ids=lambda value: value[:40].replace("\n", " "))
def test_what_integrators_copy_imports_storehooks_only(name: str, text: str) -> None:
    assert OURS.findall(text) == [], name


def test_the_examples_and_templates_do_import_it() -> None:
    using = [name for name, text in plugin_texts() if re.search(r"from storehooks[. ]", text)]
    assert len(using) > 15
    assert OURS.search("x = 1\n    from workers.testing import make_event")


def test_no_message_names_another_import() -> None:
    for path in (ROOT / "workers").rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert [text for text in texts if isinstance(text, str) and OURS.search(text)] == [], path


# The wheel


@pytest.mark.slow
def test_the_wheel_contains_it_with_its_types(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True, timeout=60)
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(copy)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    written = {f"storehooks/{path.name}" for path in (ROOT / "storehooks").glob("*.py")} | {"storehooks/py.typed"}
    assert {name for name in names if name.startswith("storehooks/")} == written
