"""completion: the script that makes a shell complete commands, options, stores and handlers of `storehooks`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class, get_completion_class

from workers.cli import output
from workers.cli.options import COMPLETE_VARIABLE

SHELLS = ("bash", "zsh", "fish")


@add_completion_class
class FishScript(FishComplete):
    """fish shows the help beside each word. click's script cuts it at a comma."""

    def format_completion(self, item: CompletionItem) -> str:
        item.help = (item.help or "").replace(",", ";")
        return super().format_completion(item)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of bash, zsh or fish.

    \b
    bash   storehooks completion bash > ~/.local/share/bash-completion/completions/storehooks
    zsh    storehooks completion zsh > FOLDER/_storehooks, where FOLDER is in $fpath
    fish   storehooks completion fish > ~/.config/fish/completions/storehooks.fish
    """
    script_class = get_completion_class(shell)
    assert script_class is not None
    root = click.get_current_context().find_root().command
    output.echo(script_class(root, {}, "storehooks", COMPLETE_VARIABLE).source())
