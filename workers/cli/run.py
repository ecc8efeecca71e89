"""web, worker: the processes, each as the Procfile runs it."""

from __future__ import annotations

import os
import sys

import click

from workers.cli.options import load_config, with_config


@click.command()
@with_config
def web() -> None:
    """Run the public endpoint (gunicorn)."""
    become("receiver.server.web")


@click.command()
@with_config
def worker() -> None:
    """Run the workers and their housekeeper."""
    become("workers")


def become(module: str) -> None:
    """Turn into another process of ours: the edge is started, never imported."""
    config = load_config()
    sys.stdout.flush()
    arguments = ["--config", str(config.path)] if config.path else []
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
