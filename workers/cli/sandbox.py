"""sandbox: a sandbox store to try everything with, and to see everything go wrong with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from receiver.contract.errors import ConfigError
from workers.cli import output
from workers.cli.options import choose_store, load_config, with_config

ACTIONS = ("reset", "rotate-secret", "disable-subscriptions", "delete-subscriptions", "revoke-tokens")


@click.group(invoke_without_command=True)
@click.option("--store", help="Which store to pretend to be; with one store it need not be said.")
@click.option("--every", type=float, default=2.0, show_default=True, help="Seconds between two events.")
@click.option("--events", type=int, help="The shopper stops after so many.")
@click.option("--no-shopper", is_flag=True, help="Only answer; nothing happens by itself.")
@click.option("--no-subscriptions", is_flag=True, help="Nobody is told, until somebody subscribes through the API.")
@click.option("--products", type=int, default=40, show_default=True, help="How many a new store has.")
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), help="The state's file; else in data_dir.")
@with_config
@click.pass_context
def sandbox(
    context: click.Context,
    store: str | None,
    every: float,
    events: int | None,
    no_shopper: bool,
    no_subscriptions: bool,
    products: int,
    data: Path | None,
) -> None:
    """Pretend to be a store: its API, a shopper that buys, and signed webhooks.

    \b
    storehooks sandbox                             run it
    storehooks sandbox status                      what a running one has done
    storehooks sandbox misbehave late=0.1          change how a running one misbehaves
    storehooks sandbox do rotate-secret            make it do one thing now
    """
    if context.invoked_subcommand is not None:
        return
    from workers.storeapi.sandbox.process import SandboxOptions, run

    config = load_config()
    shopping = None if no_shopper else every
    run(config, SandboxOptions(choose_store(config, store), shopping, events, products, not no_subscriptions, data))


@sandbox.command()
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def status(json_: bool) -> None:
    """What the running sandbox has done, and how it misbehaves."""
    told = _ask("GET", "")
    if json_:
        output.as_json(told)
        return
    misbehave = told.pop("misbehave")
    for name, value in told.items():
        click.echo(f"{name.ljust(15)} {value}")
    click.echo(f"misbehaves      {_chances(misbehave) or 'not at all'}")
    output.next_command("storehooks sandbox misbehave duplicate=0.1 late=0.05")


@sandbox.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@with_config
def misbehave(changes: tuple[str, ...]) -> None:
    """Change how the running sandbox misbehaves; without an argument, list the ways."""
    from workers.storeapi.sandbox.misbehaviour import FAULT_SETTINGS, FAULTS

    if not changes:
        output.table(("NAME", "A CHANCE THAT"), FAULTS.items(), wrap=True)
        click.echo()
        output.prose(f"with {', '.join(f'{name}={value}' for name, value in FAULT_SETTINGS.items())}", 5)
        output.next_command("storehooks sandbox misbehave duplicate=0.1")
        return
    told = _ask("PUT", "/misbehave", dict(_pair(change) for change in changes))
    click.echo(f"misbehaves now: {_chances(told) or 'not at all'}")


@sandbox.command("do")
@click.argument("action", type=click.Choice(ACTIONS))
@with_config
def do(action: str) -> None:
    """Make the running sandbox do one thing, now."""
    _ask("POST", f"/do/{action}")
    click.echo(f"done: {action}")


def _pair(change: str) -> tuple[str, str]:
    name, sign, value = change.partition("=")
    if not sign:
        raise ConfigError(f"{change}: write it like late=0.1")
    return name, value


def _chances(values: dict[str, Any]) -> str:
    from workers.storeapi.sandbox.misbehaviour import FAULTS

    return ", ".join(f"{name}={value:g}" for name, value in values.items() if name in FAULTS and value)


def _ask(method: str, path: str, body: Any = None) -> Any:
    import httpx2

    url = f"http://{load_config().sandbox.bind}/sandbox{path}"
    try:
        answer = httpx2.request(method, url, json=body, timeout=10, trust_env=False)
    except httpx2.HTTPError:
        raise ConfigError(f"no sandbox answers at {url}; `storehooks sandbox` starts one") from None
    if not answer.is_success:
        raise ConfigError(answer.json()["error"]["message"])
    return answer.json()
