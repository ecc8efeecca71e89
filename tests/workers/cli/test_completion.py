"""`storehooks completion SHELL`: the script works in the real shell."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from receiver.inbox import Declaration
from tests.support.harness import System
from tests.support.programs import ROOT, storehooks
from workers.cli import COMMANDS
from workers.cli.completion import SHELLS


def completions(system: System, line: str) -> list[str]:
    """What the scripts ask the command for."""
    words = line.split(" ")
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_STOREHOOKS_COMPLETE": "bash_complete"}
    done = storehooks(env={**env, "STOREHOOKS_CONFIG": str(system.config_file)})
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.split()]


def test_commands_options_stores_and_handlers_are_completed(system: System) -> None:
    system.declare_as_worker(Declaration("shop.greet", "1", ("*",), ("*",)))
    assert completions(system, "storehooks ") == list(COMMANDS)
    assert completions(system, "storehooks ref") == ["refused"]
    assert completions(system, "storehooks refused ") == ["drop", "list", "release", "show"]
    assert completions(system, "storehooks refused --f") == ["--follow"]
    assert "--tamper" in completions(system, "storehooks send --")
    assert completions(system, "storehooks send --tamper b") == ["body"]
    assert completions(system, "storehooks events --store ") == ["north", "south"]
    assert completions(system, "storehooks stores pause so") == ["south"]
    assert completions(system, "storehooks handlers pause sh") == ["shop.greet"]
    assert completions(system, "storehooks completion ") == list(SHELLS)
    assert completions(system, "storehooks scheme show shopi") == ["shopify"]
    assert completions(system, "storehooks alerts test me") == ["memory"]
    assert completions(system, "storehooks events --store x --config /nowhere --store ") == []


def install(system: System, folder: Path) -> dict[str, str]:
    """A folder with the command, as pip installs it, and the environment of a shell that finds it."""
    (folder / "storehooks").write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom workers.cli import main\nmain()\n"
    )
    (folder / "storehooks").chmod(0o755)
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "dumb",
        "STOREHOOKS_CONFIG": str(system.config_file),
    }


def test_bash_completes_with_the_script(system: System, tmp_path: Path) -> None:
    env = install(system, tmp_path)
    (tmp_path / "script").write_text(storehooks("completion", "bash").stdout)
    asked = """
        source script
        COMP_WORDS=(storehooks stores pause no) COMP_CWORD=3
        _storehooks_completion storehooks
        echo "${COMPREPLY[@]}"
        complete -p storehooks
    """
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[0] == "north"
    assert "_storehooks_completion" in done.stdout


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_with_the_script(system: System, tmp_path: Path) -> None:
    env = install(system, tmp_path)
    (tmp_path / "script").write_text(storehooks("completion", "fish").stdout)
    asked = "source script; complete -C 'storehooks stores pause no'; complete -C 'storehooks refu'"
    done = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["north", f"refused\t{COMMANDS['refused'][1].replace(',', ';')}"]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_with_the_script(system: System, tmp_path: Path) -> None:
    """zsh completes only on a terminal, so the keys are typed."""
    env = install(system, tmp_path)
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/_storehooks").write_text(storehooks("completion", "zsh").stdout)
    (tmp_path / ".zshrc").write_text("fpath=(~/functions $fpath)\nautoload -Uz compinit\ncompinit -u\nPS1='ready> '\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve("/usr/bin/zsh", ["zsh", "-i"], env)
    shown = ""

    def read_until(pattern: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, shown
            shown += os.read(terminal, 4096).decode(errors="replace")

    try:
        read_until("ready> ")
        os.write(terminal, b"storehooks stores pause no\t")
        read_until("pause north")
    finally:
        os.write(terminal, b"\x03\x04")
        os.close(terminal)
        os.waitpid(pid, 0)
