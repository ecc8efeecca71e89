"""The steps of `stores add` and `stores remove`: printed as they are done, with what is left to do at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click

from receiver.config import Config
from workers.cli import output
from workers.cli.typed_commands import commands_as_typed
from workers.runtime.reload import reload

RELOAD_SECONDS = 15.0
"""How long to wait until the receiver serves the new config."""
SEND_HUP = "send HUP to `storehooks web` and `storehooks worker` on each host, to reload the config"


@dataclass
class Steps:
    """Prints each step when it is done, and collects what is left to do."""

    quiet: bool
    done: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def report(self, name: str, text: str, value: Any = None) -> None:
        self.done[name] = text if value is None else value
        if not self.quiet:
            output.field(name.replace("_", " "), commands_as_typed(text))

    def finish(self) -> None:
        """Print what is left to do. Exits with 1 if there is anything."""
        if self.quiet:
            output.as_json({**self.done, "left": self.left})
        elif self.left:
            output.echo("\nleft to do:")
            for line in self.left:
                output.line("  ", commands_as_typed(line), whole=True)
        if self.left:
            raise click.exceptions.Exit(1)


def first_line(error: object) -> str:
    return str(error).splitlines()[0]


def reload_processes(config: Config, steps: Steps, no_reload: bool) -> bool:
    """Make the processes of this host read the config again, and wait for the receiver. Returns False if one of this
    host still serves the old config."""
    reloaded = None if no_reload else reload(config.data_dir)
    if not (reloaded and reloaded.signalled):
        steps.report("reloaded", "no process: none on this host uses this data_dir", [])
        steps.left.append(SEND_HUP)
        return True
    names = ", ".join(f"{one.role} {one.pid}" for one in reloaded.signalled)
    if not reloaded.wait(RELOAD_SECONDS):
        steps.report("reloaded", f"no: HUP was sent to {names}", [])
        after = f"the receiver still serves the old config after {RELOAD_SECONDS:.0f} s; its log says why"
        steps.left += [f"{after}. Correct that before anything is restarted", SEND_HUP]
        return False
    steps.report("reloaded", names, [{"name": one.role, "pid": one.pid} for one in reloaded.signalled])
    if reloaded.signalled[0].role != "dev":
        steps.report(
            "other_hosts", "if there are any: copy the change to their config, then send HUP to web and worker"
        )
    return True
