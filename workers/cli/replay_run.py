"""A replay with a progress bar and a summary, for `events replay` and `failures replay`."""

from __future__ import annotations

from collections.abc import Callable

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox.administration import NOT_REPLAYED, ReopenResult
from receiver.inbox.queries.handlers import HandlerQueries
from workers.cli import output
from workers.cli.typed_commands import commands_as_typed
from workers.operations.replay import Replay


def run_replay(replay: Replay, work: Callable[[], None], *, total: int) -> None:
    """Replay, show the progress and print what was replayed."""
    with output.progress("replaying", total) as bar:
        replay.progress = bar.advance
        try:
            work()
        except KeyboardInterrupt:
            bar.stop()
            output.echo(f"interrupted after {counted(replay.replayed, 'run')}; the same command continues")
            raise
    output.echo(f"{counted(replay.replayed, 'run')} replayed")
    _show_pauses(replay)
    for result, reason in NOT_REPLAYED.items():
        if number := sum(many for (one, _), many in replay.counts.items() if one is result):
            output.line(f"{counted(number, 'run')} not replayed: {commands_as_typed(reason)}")
    output.next_command("storehooks failures  what failed again", "storehooks stats  how many are open")


def _show_pauses(replay: Replay) -> None:
    """Which of the replayed runs wait because of a pause, and which begin anyway."""
    present = HandlerQueries(replay.administration.client).present()
    for (result, handler), number in sorted(replay.counts.items()):
        resume = commands_as_typed(f"`storehooks handlers resume {handler}`")
        if result is ReopenResult.ALTHOUGH_PAUSED:
            these = "this run begins" if number == 1 else f"these {number:,} runs begin"
            how = "anyway" if handler in present else "all the same, but no worker has this handler now"
            output.line(f"{handler} is paused: {these} {how}; its other runs, and retries, wait for {resume}")
        elif result is ReopenResult.HANDLER_PAUSED:
            these = "this run waits" if number == 1 else f"these {number:,} runs wait"
            output.line(f"{handler} is paused: {these} for {resume}")
    if held := sum(number for (result, _), number in replay.counts.items() if result is ReopenResult.STORE_PAUSED):
        paused = sorted(one.removeprefix("store:") for one in replay.administration.paused() if "store:" in one)
        these = "run is of a paused store and waits" if held == 1 else "runs are of paused stores and wait"
        resume = commands_as_typed("`storehooks stores resume NAME`")
        output.line(f"{held:,} {these} for {resume}; paused stores: {', '.join(paused)}")
