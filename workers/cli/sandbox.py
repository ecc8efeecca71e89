"""sandbox: run a sandbox store, and control a running one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from receiver.contract.errors import ConfigError
from workers.cli import output
from workers.cli.options import CommandGroup, choose_store, json_option, load_config

ACTIONS = ("reset", "rotate-secret", "disable-subscriptions", "delete-subscriptions", "revoke-tokens")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--store", help="The store to simulate. Optional if only one store is configured.")
@click.option("--every", type=float, default=2.0, show_default=True, help="Seconds between two events.")
@click.option("--events", type=int, help="Stop the shopper after this number of events.")
@click.option("--no-shopper", is_flag=True, help="Only answer API calls; create no events.")
@click.option("--no-subscriptions", is_flag=True, help="Start without subscriptions; they are created through the API.")
@click.option("--products", type=int, default=40, show_default=True, help="Number of products in a new store.")
@click.option(
    "--data", type=click.Path(dir_okay=False, path_type=Path), help="The file for its state. Default: in data_dir."
)
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
    """Run a sandbox store: an API, a shopper, signed webhooks.

    \b
    storehooks sandbox                             run it
    storehooks sandbox status                      show what a running one has done
    storehooks sandbox misbehave late=0.1          change the faults of a running one
    storehooks sandbox do rotate-secret            make a running one do this now
    """
    if context.invoked_subcommand is not None:
        return
    from workers.storeapi.sandbox.process import SandboxOptions, run

    config = load_config()
    shopping = None if no_shopper else every
    run(config, SandboxOptions(choose_store(config, store), shopping, events, products, not no_subscriptions, data))


@sandbox.command()
@json_option
def status(json_: bool) -> None:
    """Show what the running sandbox has done, and its faults."""
    state = _ask("GET", "")
    if json_:
        output.as_json(state)
        return
    misbehave = state.pop("misbehave")
    for name, value in state.items():
        shown = ", ".join(f"{part} {number:,}" for part, number in value.items()) if isinstance(value, dict) else value
        output.field(name.replace("_", " "), shown, wide=16)
    output.field("misbehaves", _active_faults(misbehave) or "not at all", wide=16)
    output.next_command("storehooks sandbox misbehave duplicate=0.1 late=0.05  add faults")


@sandbox.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
def misbehave(changes: tuple[str, ...]) -> None:
    """Set the faults of the running sandbox; without arguments, list them."""
    from workers.storeapi.sandbox.misbehaviour import FAULT_SETTINGS, FAULTS

    if not changes:
        output.table(("NAME", "PROBABILITY THAT"), FAULTS.items(), wrap="PROBABILITY THAT")
        output.echo()
        output.line(f"with {', '.join(f'{name}={value}' for name, value in FAULT_SETTINGS.items())}", indent=5)
        output.next_command("storehooks sandbox misbehave duplicate=0.1  send every tenth delivery twice")
        return
    state = _ask("PUT", "/misbehave", dict(_pair(change) for change in changes))
    output.echo(f"misbehaves now: {_active_faults(state) or 'not at all'}")


@sandbox.command("do")
@click.argument("action", type=click.Choice(ACTIONS))
def do(action: str) -> None:
    """Make the running sandbox do something now."""
    _ask("POST", f"/do/{action}")
    output.echo(f"done: {action}")


def _pair(change: str) -> tuple[str, str]:
    name, sign, value = change.partition("=")
    if not sign:
        raise ConfigError(f"{change} is not NAME=VALUE, such as late=0.1")
    return name, value


def _active_faults(values: dict[str, Any]) -> str:
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
