"""web, worker: the processes of production, as the Procfile runs them."""

from __future__ import annotations

import os
import sys

import click

from workers.cli.options import load_config, with_config


@click.command()
@with_config
def web() -> None:
    """Run the receiver: the public HTTP endpoint."""
    replace_process("receiver.server.web")


@click.command()
@with_config
def worker() -> None:
    """Run the workers and their housekeeper."""
    replace_process("workers")


def replace_process(module: str) -> None:
    """Replace this process by another one of ours. The receiver is never imported here."""
    config = load_config()
    sys.stdout.flush()
    arguments = ["--config", str(config.path)] if config.path else []
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
