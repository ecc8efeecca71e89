"""handlers: what the plugins of this config offer, loaded and judged here."""

from __future__ import annotations

from typing import Any

import click

from receiver.inbox import Declaration
from workers.cli import show
from workers.cli.options import the_config, with_config


@click.group(invoke_without_command=True)
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
@click.pass_context
def handlers(context: click.Context, json_: bool) -> None:
    """Handlers: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_handlers, json_=json_)


@handlers.command("list")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_handlers(json_: bool = False) -> None:
    """Every handler this config and environment would load."""
    from workers.plugins import declarations, load

    config = the_config()
    found = declarations(config, load(config))
    if json_:
        show.as_json([_handler_json(one) for one in found])
        return
    if not found:
        click.echo("no handlers: no plugin is installed, and [workers] plugins names none")
        return
    rows = [
        (
            one.handler,
            ", ".join(one.topics),
            ", ".join(one.stores),
            _retries(one),
            f"{one.details['timeout']:g} s",
            one.version,
        )
        for one in found
    ]
    show.table(("HANDLER", "TOPICS", "STORES", "RETRIES", "TIMEOUT", "VERSION"), rows)
    show.next_command("storehooks send order.created      see them called")


def _retries(one: Declaration) -> str:
    retries = one.details["retries"]
    return str(retries) if isinstance(retries, int) else "/".join(f"{delay:g}" for delay in retries) + " s"


def _handler_json(one: Declaration) -> dict[str, Any]:
    return {
        "plugin": one.details["plugin"],
        "handler": one.handler,
        "topics": one.topics,
        "stores": one.stores,
        "retries": one.details["retries"],
        "timeout": one.details["timeout"],
        "limit": one.details["limit"],
        "version": one.version,
        "file": one.details["file"],
        "line": one.details["line"],
    }
