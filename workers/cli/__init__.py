"""The commands. One file for each noun; a noun without a command lists.

Exit 0: success. 1: a finding. 2: wrong use or invalid config. 3: the output could not be written. Errors are one
sentence with the fix, never a traceback.
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
from traceback import format_exc, walk_tb

import click
from click.shell_completion import CompletionItem

from receiver import __version__
from receiver.contract.errors import StorehooksError
from receiver.process.standard_streams import open_closed_streams
from workers.cli.command_names import COMMANDS, SECTIONS
from workers.cli.options import COMPLETE_VARIABLE, CommandGroup

OUTPUT_LOST = 3
"""The exit code if the output could not be written. The command may have done all, or a part, of what it does."""


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
    open_closed_streams()
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
        try:
            code = _show(error)
        except OSError as unwritten:
            if not _is_lost_output(unwritten):
                raise
            code = OUTPUT_LOST  # standard error is full, too
    if code == OUTPUT_LOST:
        _discard_output()
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
    if _is_lost_output(error):
        why = getattr(error, "strerror", "")
        output.error(f"the output could not be written ({why}); what the command changes may have been changed")
        return OUTPUT_LOST
    output.echo(format_exc(), nl=False, err=True)
    return 1


def _is_lost_output(error: Exception) -> bool:
    """Whether it was raised by printing, such as to a full disk. All printing is done by click.echo, which flushes."""
    if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
        return False
    return any(frame.f_code is click.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _discard_output() -> None:
    """Python writes what is left in its buffers when it ends; if that failed, it would print so and end with 120."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
