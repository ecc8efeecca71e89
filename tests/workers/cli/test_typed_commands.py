"""Commands in messages are printed as a person types them: with the path of the program, and with the config."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.harness import System
from tests.support.programs import ROOT
from tests.workers.cli.test_command_rules import refuse
from workers.cli import doctor, storehooks
from workers.cli.command_names import COMMANDS
from workers.cli.typed_commands import SERVICES, as_typed, commands_as_typed
from workers.operations.doctor.findings import fail

NAMED = re.compile(rf"(?<![\w./-])storehooks (?:{'|'.join(COMMANDS)})(?![\w-])(?!:)")
SERVICE = re.compile(rf"storehooks (?:{'|'.join(SERVICES)})(?! --)")
PRINTS = {"line", "echo", "field", "table", "text", "joined", "state", "_line", "confirm"}
TYPED = {"next_command", "as_typed", "commands_as_typed"}


def source_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def literal(node: ast.AST) -> str:
    """The text of a literal, with `x` for each value in it; empty for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(one) if isinstance(one, ast.Constant) else "x" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def sentences(path: Path) -> Iterator[str]:
    """Every text in the code of a file that names a command, without docstrings."""
    tree = ast.parse(path.read_text())
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) not in statements | parts and NAMED.search(found := literal(node)):
            yield found


MESSAGES = sorted({one for path in source_files("receiver", "workers") for one in sentences(path) if "\n" not in one})


@pytest.fixture
def at_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The program is called by a path that is not on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [".venv/bin/storehooks"])
    return ".venv/bin/storehooks"


def without_services(text: str) -> str:
    return SERVICE.sub("", text)


def test_there_are_messages_to_check() -> None:
    assert len(MESSAGES) > 150


def with_config() -> click.Context:
    """As in a command that was given --config."""
    return click.Context(storehooks, obj={"config": "shop.toml"})


@pytest.mark.usefixtures("at_a_path")
def test_each_message_of_ours_is_printed_with_commands_that_can_be_typed() -> None:
    with with_config():
        typed = [commands_as_typed(message) for message in MESSAGES]
    assert [one for one in typed if NAMED.search(without_services(one))] == []
    commands = [re.findall(r"\.venv/bin/storehooks (.+?) --config shop\.toml", one) for one in typed]
    assert [one for found in commands for one in found if arguments_left(shlex.split(one))] == []


def arguments_left(words: list[str]) -> list[str]:
    """The words after a command that it does not take. A word that is no option of it is an error."""
    name, *rest = words
    command = storehooks.get_command(click.Context(storehooks), name)
    assert command is not None
    if isinstance(command, click.Group) and rest and rest[0] == "x":
        return []  # any of its commands
    if isinstance(command, click.Group) and rest and (below := rest[0].removesuffix("x")) in command.commands:
        command, rest = command.commands[below], rest[1:]
    elif isinstance(command, click.Group) and "list" in command.commands:
        command = command.commands["list"]
    _, left, _ = command.make_parser(click.Context(command)).parse_args(rest)
    return left


def test_doctor_prints_each_of_them_so(at_a_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for message in MESSAGES:
        with with_config():
            doctor._show([fail("north", message, message, fix=message)])
        shown = capsys.readouterr().out
        assert not NAMED.search(without_services(shown)), shown
        assert (at_a_path in shown) == bool(NAMED.search(without_services(message)))


def test_services_are_named_and_not_typed(at_a_path: str) -> None:
    assert commands_as_typed("see the log of `storehooks web` on north") == "see the log of `storehooks web` on north"
    assert commands_as_typed("`storehooks worker --check` asks") == f"`{at_a_path} worker --check` asks"
    assert as_typed("storehooks worker") == f"{at_a_path} worker", "as a command of its own"


def test_doctor_prints_the_path_in_every_part_of_a_fix(make_system: Callable[..., System]) -> None:
    system = make_system()
    refuse(system, 3, store="nosuch")
    script = os.path.relpath(Path(sys.executable).parent / "storehooks", system.folder)
    environ = {**os.environ, "PATH": "/usr/bin:/bin", "STOREHOOKS_CONFIG": str(system.config_file)}
    done = subprocess.run(
        [script, "doctor"], check=False, cwd=system.folder, env=environ, capture_output=True, text=True
    )
    assert f"fix: {script} stores add NAME, if a store is yours" in done.stdout
    assert f"then {script} refused release" in done.stdout


@pytest.mark.parametrize("typed", ["/opt/shop/bin/storehooks", "../bin/storehooks", "./storehooks"])
def test_the_path_of_the_program_is_printed_as_it_was_typed(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(sys, "argv", [typed])
    assert commands_as_typed("`storehooks init` writes one") == f"`{typed} init` writes one"


def printed_as_they_are(tree: ast.AST) -> Iterator[str]:
    """Texts with a command that are given to a function that prints them unchanged."""

    def look(node: ast.AST, prints: bool) -> Iterator[str]:
        if isinstance(node, ast.Call):
            called: Any = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            prints = name not in TYPED and (prints or name in PRINTS)
        found = literal(node)
        if prints and NAMED.search(without_services(found)):
            yield found
        for child in ast.iter_child_nodes(node):
            yield from look(child, prints)

    return look(tree, False)


def test_no_command_prints_a_command_as_it_is_in_the_code() -> None:
    assert list(printed_as_they_are(ast.parse("output.line('see `storehooks events`')"))) == ["see `storehooks events`"]
    found = {
        path.name: texts
        for path in source_files("workers/cli")
        if (texts := list(printed_as_they_are(ast.parse(path.read_text()))))
    }
    assert found == {}
