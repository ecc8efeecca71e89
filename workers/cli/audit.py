"""audit: what people did, by commands and by the console."""

from __future__ import annotations

import click

from receiver.inbox.audit_trail import AuditTrail, in_words
from workers.cli import output
from workers.cli.listing import RowList
from workers.cli.options import Command, connect_reader, json_option, load_config

LISTING = RowList(
    cells={"selection": in_words},
    drop=("id", "of", "count"),
    shorten=("who", "result", "selection"),
)


@click.command(cls=Command)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of entries.")
@json_option
def audit(limit: int, json_: bool) -> None:
    """List what people did, newest first.

    Each action has an entry from before it began, and mostly one from its end.
    """
    found = AuditTrail(connect_reader(load_config())).newest(limit)
    names = ("at", "who", "action", "selection", "count", "result", "of", "id")
    LISTING.show([{name: getattr(one, name) for name in names} for one in found], json_=json_)
    if not found and not json_:
        output.echo("nothing was changed yet")
