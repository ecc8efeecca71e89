"""Typed commands: a command of ours as a person types it here, alone or in a sentence."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click

from workers.cli.command_names import COMMANDS

SERVICES = ("web", "worker", "console")
"""In a sentence, `storehooks web` is the service, on any host and however it is started there."""
_NAMED = rf"storehooks (?!(?:{'|'.join(SERVICES)})(?! --))(?:{'|'.join(COMMANDS)})(?![\w-])"
_IN_A_SENTENCE = re.compile(rf"`{_NAMED}[^`]*`|(?<![\w./`-]){_NAMED}(?:(?!  |\. |\.$)[^\n`;,()])*")
"""A command between backticks, or one that ends with the part of the sentence."""


def as_typed(command: str) -> str:
    """A command as it is to be typed here: with the path of our program, and with the config that was given."""
    if not command.startswith("storehooks "):
        return command
    return our_name() + command.removeprefix("storehooks") + ("" if " --config " in command else _config_option())


def commands_as_typed(sentence: str) -> str:
    """A sentence in which each command is as it is to be typed here."""
    return _IN_A_SENTENCE.sub(_replaced, sentence)


def _replaced(found: re.Match[str]) -> str:
    command = found[0].strip("`")
    return found[0].replace(command, as_typed(command.rstrip()) + command[len(command.rstrip()) :])


def _config_option() -> str:
    """`--config FILE`, if this command was given a file that it would not have found by itself."""
    context = click.get_current_context(silent=True)
    given = ((context and context.find_object(dict)) or {}).get("config")
    found = os.environ.get("STOREHOOKS_CONFIG") or "config.toml"
    return f" --config {shlex.quote(given)}" if given and os.path.abspath(given) != os.path.abspath(found) else ""


def our_name() -> str:
    """How to call this program: its name if the shell finds it, else its path as it was typed."""
    script = Path(sys.argv[0])
    if script.name != "storehooks" or shutil.which("storehooks") == str(script.absolute()):
        return "storehooks"
    return sys.argv[0]
