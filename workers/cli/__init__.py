"""The commands. One file for each noun; a bare noun lists.

Exit 0: fine. 1: a finding. 2: wrong use or config. Errors are a sentence and the fix, never a traceback.
"""

from __future__ import annotations

import sys

import click
from redis.exceptions import RedisError

from receiver import __version__
from receiver.contract.errors import StorehooksError
from workers.cli import (
    api,
    dev,
    events,
    failures,
    handlers,
    init,
    look,
    processes,
    refused,
    sandbox,
    scheme,
    stores,
    topics,
    verify,
)
from workers.cli.options import with_config


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="storehooks")
@with_config
def storehooks() -> None:
    """Receive the webhooks of many stores, and lose none.

    \b
    run      dev  web  worker  sandbox  init
    look     stats  topics  verify  send
    nouns    events  failures  refused  handlers  stores  scheme  api          a bare noun lists
    """


for command in (
    dev.dev,
    processes.web,
    processes.worker,
    sandbox.sandbox,
    init.init,
    look.stats,
    look.send,
    topics.topics,
    verify.verify,
    events.events,
    handlers.handlers,
    failures.failures,
    stores.stores,
    refused.refused,
    scheme.scheme,
    api.api,
):
    storehooks.add_command(command)


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
    except RedisError as error:
        print(f"storehooks: the Redis server went away: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
