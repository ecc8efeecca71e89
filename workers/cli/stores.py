"""stores: who sends to us, and whether their work may begin."""

from __future__ import annotations

from typing import Any

import click

from receiver.config import Config
from receiver.inbox import Inbox, Ledger, keys
from workers.cli import show
from workers.cli.options import the_config, the_server, the_store, with_config


@click.group(invoke_without_command=True)
@with_config
@click.pass_context
def stores(context: click.Context) -> None:
    """Stores: list, pause, resume."""
    if context.invoked_subcommand is None:
        context.invoke(list_stores)


@stores.command("list")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_stores(json_: bool = False) -> None:
    """Every configured store, with its figures."""
    config = the_config()
    client = the_server(config)
    counters, paused = Ledger(client).counters().stores, Inbox(client).paused()
    found = [_about(config, name, counters.get(name, {}), f"store:{name}" in paused) for name in sorted(config.stores)]
    if json_:
        show.as_json(found)
        return
    headings = ("store", "scheme", "state", "accepted", "open", "failed", "rejected")
    show.table([name.upper() for name in headings], [[one[name] for name in headings] for one in found])
    show.next_command("storehooks events --store NAME")


@stores.command("pause")
@click.argument("store")
@with_config
def pause(store: str) -> None:
    """Let no more work of a store begin. Its deliveries are still accepted, and wait."""
    config = the_config()
    inbox = Inbox(the_server(config))
    new = inbox.pause(store=the_store(config, store))
    click.echo(f"{store} is paused; its deliveries are accepted and wait" if new else f"{store} was paused already")
    show.next_command(f"storehooks stores resume {store}")


@stores.command("resume")
@click.argument("store")
@with_config
def resume(store: str) -> None:
    """Let the work of a store begin again, in its order."""
    config = the_config()
    inbox = Inbox(the_server(config))
    waiting = inbox.client.zcard(keys.HELD + the_store(config, store))
    inbox.resume(store=store)
    click.echo(f"{store} goes on; {waiting:,} items were held back")


def _about(config: Config, name: str, counts: dict[str, int], paused: bool) -> dict[str, Any]:
    figures = {figure: counts.get(figure, 0) for figure in ("accepted", "open", "failed", "rejected")}
    return {"store": name, "scheme": config.stores[name].scheme, "state": "paused" if paused else "on", **figures}
