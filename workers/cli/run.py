"""web, worker: the processes of production, as the Procfile runs them."""

from __future__ import annotations

import os
import sys

import click

from workers.cli.options import Command, load_config
from workers.processes import python_command


@click.command(cls=Command)
def web() -> None:
    """Run the receiver: the public HTTP endpoint."""
    replace_process("receiver.server.web")


@click.command(cls=Command)
def worker() -> None:
    """Run the workers and their housekeeper."""
    replace_process("workers")


def replace_process(module: str) -> None:
    """Replace this process by another one of ours. The receiver is never imported here."""
    config = load_config()
    sys.stdout.flush()
    os.execv(sys.executable, python_command(module, config=config.path))
