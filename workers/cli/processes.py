"""web, worker, sandbox: the processes, each as the Procfile runs it."""

from __future__ import annotations

import os
import signal
import sys

import click

from workers.cli.options import the_config, the_store, with_config
from workers.processes import Signals


@click.command()
@with_config
def web() -> None:
    """Run the public endpoint (gunicorn)."""
    become("receiver.gunicorn")


@click.command()
@with_config
def worker() -> None:
    """Run the workers and their housekeeper."""
    become("workers")


def become(module: str) -> None:
    """Turn into another process of ours: the edge is started, never imported."""
    config = the_config()
    sys.stdout.flush()
    arguments = ["--config", str(config.path)] if config.path else []
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


@click.command()
@click.option("--store", help="Which store to pretend to be; with one store it need not be said.")
@click.option("--every", type=float, default=2.0, show_default=True, help="Seconds between two events.")
@click.option("--events", type=int, help="Stop after so many.")
@with_config
def sandbox(store: str | None, every: float, events: int | None) -> None:
    """Pretend to be a store: a shopper buys, and signed events are sent."""
    from workers.storeapi.sandbox.shopper import shop

    config = the_config()
    name = the_store(config, store)
    signals = Signals(signal.SIGTERM, signal.SIGINT)

    def wait(seconds: float) -> bool:
        if not signals.seen:
            signals.wait(seconds)
        return bool(signals.seen)

    sent = shop(config.known_stores[name], every=every, most=events, wait=wait)
    click.echo(f"{sent} events sent to {config.public_url_of(name)}")
    if events is not None and not signals.seen:
        while not wait(3600):  # under `storehooks dev` an end would be taken for a fall
            pass
