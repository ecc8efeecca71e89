"""The commands. One file for each noun; a bare noun lists.

Exit 0: fine. 1: a finding. 2: wrong use or config. Errors are a sentence and the fix, never a traceback.
A command's file is loaded when the command is called: nobody waits for what the others import.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

import click

from receiver import __version__
from receiver.contract.errors import StorehooksError
from workers.cli.options import with_config

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "dev": "dev",
    "web": "run",
    "worker": "run",
    "sandbox": "sandbox",
    "init": "init",
    "doctor": "doctor",
    "new-plugin": "new_plugin",
    "stats": "stats",
    "send": "send",
    "topics": "topics",
    "verify": "verify",
    "events": "events",
    "failures": "failures",
    "refused": "refused",
    "handlers": "handlers",
    "stores": "stores",
    "scheme": "scheme",
    "subscriptions": "subscriptions",
    "api": "api",
}
"""Each command, and the file it is in."""


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"workers.cli.{COMMANDS[cmd_name]}"), cmd_name.replace("-", "_"))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMANDS, 1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="storehooks")
@with_config
def storehooks() -> None:
    """Receive the webhooks of many stores, and lose none.

    \b
    run      dev  web  worker  sandbox  init  new-plugin
    look     doctor  stats  topics  verify  send
    nouns    events  failures  refused  handlers  stores  subscriptions  scheme  api      a bare noun lists
    """


def main() -> None:
    """The script `storehooks`."""
    try:
        code = storehooks.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 1
    except StorehooksError as error:
        print(f"storehooks: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        code = 0
    except Exception as error:
        if not _is_of_redis(error):
            raise
        print(f"storehooks: the Redis server went away: {error}", file=sys.stderr)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _is_of_redis(error: Exception) -> bool:
    """Whether the server's client raised it; asked this way so that commands without a server need not load it."""
    return any(base.__module__ == "redis.exceptions" for base in type(error).__mro__)
