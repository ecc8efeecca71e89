"""audit: what people did, by commands and by the console."""

from __future__ import annotations

import click

from receiver.inbox.audit_trail import AuditEntry, AuditTrail
from workers.cli import output
from workers.cli.options import Command, connect_reader, json_option, load_config


@click.command(cls=Command)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of entries.")
@json_option
def audit(limit: int, json_: bool) -> None:
    """List what people did, newest first.

    Each action has an entry from before it began, and mostly one from its end.
    """
    found = AuditTrail(connect_reader(load_config())).newest(limit)
    if json_:
        output.as_json(found)
        return
    if not found:
        output.echo("no one has changed anything yet")
        return
    rows = [(one.at, one.who, _action(one), _what(one), "" if one.count is None else one.count) for one in found]
    output.table(("TIME", "WHO", "ACTION", "WHAT", "COUNT"), rows, drop=("COUNT",), wrap="WHAT")


def _action(one: AuditEntry) -> str:
    return f"{one.action} ended" if one.of else one.action


def _what(one: AuditEntry) -> str:
    return one.result or ", ".join(f"{name} {value}" for name, value in one.selection.items())
