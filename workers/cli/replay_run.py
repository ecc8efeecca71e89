"""A replay with a progress bar and a summary, for `events replay` and `failures replay`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from receiver.inbox import Inbox
from workers.cli import output
from workers.formatting import counted
from workers.operations.replay import Replay

NOT_REPLAYED = {
    "open": "already waiting or running",
    "no-body": "the body was deleted by retention",
    "absent": "no such run",
    "gone": "the event was deleted by retention",
}


def run_replay(
    inbox: Inbox,
    work: Callable[[Replay], Mapping[str, int]],
    *,
    total: int,
    first: int | None,
    rate: float | None,
    again: bool = False,
) -> None:
    """Replay, show the progress and print what was replayed. Exits with 1 if it is interrupted."""
    with output.progress("replaying", total) as bar:
        replay = Replay(inbox, rate=rate, first=first, progress=bar.advance, again=again)
        try:
            counts = work(replay)
        except KeyboardInterrupt:
            bar.stop()
            click.echo(f"interrupted after {counted(replay.counts['reopened'], 'run')}; the same command continues")
            raise click.exceptions.Exit(1) from None
    click.echo(f"{counted(counts.get('reopened', 0), 'run')} replayed")
    for name, reason in NOT_REPLAYED.items():
        if counts.get(name):
            click.echo(f"{counted(counts[name], 'run')} not replayed: {reason}")
    output.next_command("storehooks failures  what failed again", "storehooks stats  how many are open")
