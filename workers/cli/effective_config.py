"""config: show the config in use, and where each value is set."""

from __future__ import annotations

import json

import click

from receiver.config.effective_values import effective_values
from workers.cli import output
from workers.cli.listing import RowList
from workers.cli.options import Noun, json_option, load_config

LISTING = RowList(cells={"value": lambda value: json.dumps(value, ensure_ascii=False)}, shorten=("value",))


class _ShowByDefault(Noun):
    def default(self, args: list[str]) -> str:  # noqa: ARG002
        return "show"


@click.group(cls=_ShowByDefault)
def config() -> None:
    """Show the config in use, and where each value is set."""


@config.command("show")
@click.option("--changed", is_flag=True, help="Only what is not a default.")
@json_option
def show(changed: bool = False, json_: bool = False) -> None:
    """Show every key with its value and the line or variable that sets it. Secrets are hidden."""
    found = load_config()
    rows = [one._asdict() for one in effective_values(found) if one.set_by != "default" or not changed]
    LISTING.show(rows, json_=json_)
    if not json_:
        output.line(f"file: {found.path or 'none, only variables'}")
