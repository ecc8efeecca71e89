"""The commands. One file for each noun; a noun without a command lists.

Exit 0: success. 1: a finding. 2: wrong use or invalid config. Errors are one sentence with the fix, never a traceback.
A command's file is imported when the command runs, so that a command does not wait for the imports of others.
"""

from __future__ import annotations

import os
import signal
import sys

# What they import takes long, and HUP is to reload them and not to end them.
if {"web", "worker", "console"} & set(sys.argv):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

from difflib import get_close_matches
from importlib import import_module
from io import StringIO
from traceback import format_exc
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from receiver import __version__
from receiver.contract.errors import StorehooksError
from workers.cli.options import COMPLETE_VARIABLE, CommandGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "dev": ("dev", "Run everything: receiver, workers, console, sandbox store."),
        "web": ("run", "Run the receiver: the public HTTP endpoint."),
        "worker": ("run", "Run the workers and their housekeeper."),
        "console": ("run", "Run the operator's web app."),
        "sandbox": ("sandbox", "Run a sandbox store: an API, a shopper, signed webhooks."),
        "listen": ("listen", "Send new events to a local program, until Ctrl-C."),
        "init": ("init", "Write config.toml and plugins/hello.py in this folder."),
        "new-plugin": ("new_plugin", "Write a plugin package with tests into a new folder."),
        "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    },
    "Look": {
        "doctor": ("doctor", "Check config, server, plugins, workers and stores."),
        "config": ("effective_config", "Show the config in use, and where each value is set."),
        "stats": ("stats", "Show event counts."),
        "size": ("size", "Show the memory, disk and processes that events need."),
        "topics": ("topics", "List the event names that stores send, and their handlers."),
        "audit": ("audit", "List what people did, newest first."),
        "alerts": ("alerts", "List alerts and their rules; send a test."),
        "verify": ("verify", "Explain why a delivery's signature is valid or not."),
        "send": ("send", "Send a signed event as the store would, and follow it."),
    },
    "Data": {
        "erase": ("erase", "Erase what is stored about a person; show receipts."),
        "export": ("export_import", "Write events, failures, marks and state to a file."),
        "import": ("export_import", "Write an export file into this server."),
    },
    "Nouns (without a command, each one lists)": {
        "events": ("events", "List, show, tail, replay and reread events."),
        "failures": ("failures", "List, show, replay and drop failures."),
        "refused": ("refused", "List, show, release and drop refused deliveries."),
        "hosts": ("hosts", "List and forget hosts, and accept that Redis was replaced."),
        "handlers": ("handlers", "List, explain, run, certify, pause and retire handlers."),
        "stores": ("stores", "List, show, add, pause, resume and remove stores."),
        "subscriptions": ("subscriptions", "List, plan, apply and rotate subscriptions at stores."),
        "scheme": ("scheme", "List, show and detect signing schemes."),
        "api": ("api", "Call the store's API."),
    },
}
"""Each command with its file and the first line of its help."""
COMMANDS: Mapping[str, tuple[str, str]] = {name: one for section in SECTIONS.values() for name, one in section.items()}


class LazyGroup(CommandGroup):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        wide = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), text) for name, (_, text) in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"workers.cli.{COMMANDS[cmd_name][0]}")
        name = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")  # the first is a word of Python
        command: click.Command = getattr(module, name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing the commands."""
        names = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMANDS, 1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="storehooks")
def storehooks() -> None:
    """Receive webhooks of many stores, verify and store them, and run handlers for them."""


def main() -> None:
    """The script `storehooks`."""
    if COMPLETE_VARIABLE in os.environ:
        import_module("workers.cli.completion")  # it has our own script for fish
    try:
        code = storehooks.main(standalone_mode=False, complete_var=COMPLETE_VARIABLE)
    except click.Abort as error:
        code = 130 if isinstance(error.__cause__, KeyboardInterrupt) else 1
    except BrokenPipeError:  # the reader of the pipe has ended, such as `| head`
        sys.stderr.close()
        code = 0
    except Exception as error:  # noqa: BLE001  shown as a sentence, or with its traceback
        code = _show(error)
    sys.exit(code if isinstance(code, int) else 0)


def _show(error: Exception) -> int:
    """Print why the command failed; returns its exit code. Every message may quote text from outside."""
    from workers.cli import output

    if isinstance(error, click.ClickException):
        text = StringIO()
        error.show(text)
        output.echo(text.getvalue(), nl=False, err=True)
        return error.exit_code
    if isinstance(error, StorehooksError):
        output.error(error)
        return 2
    if any(base.__module__ == "redis.exceptions" for base in type(error).__mro__):  # redis need not be imported
        damaged = "a key is damaged: " if "WRONGTYPE" in str(error) else ""
        output.error(f"Redis: {damaged}{error}; `storehooks doctor` checks it")
        return 2
    output.echo(format_exc(), nl=False, err=True)
    return 1
