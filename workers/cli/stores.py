"""stores: list and show stores, pause and resume their work."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.formatting import clock, span, waits
from receiver.inbox import Administration, keys
from receiver.inbox.subscription_checks import Repair
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.listing import RowList
from workers.cli.options import Noun, choose_store, connect_reader, connect_server, json_option, load_config, yes_option
from workers.cli.send_hint import send_command
from workers.cli.stats import SINCE_WHEN
from workers.cli.stores_add import add
from workers.cli.stores_remove import remove
from workers.cli.typed_commands import commands_as_typed
from workers.operations.system_state import FIGURES, store_rows

if TYPE_CHECKING:  # it imports an HTTP client, and `stores list` needs none
    from workers.operations.store_status import StoreStatus


def _ago(moment: datetime | None) -> str:
    return f"{span((datetime.now(UTC) - moment).total_seconds())} ago" if moment else "never"


HELD = ("event or run", "events or runs")
"""What waits while a store is paused: events that are not routed yet, and the runs of those that were routed before."""
LISTING = RowList(
    cells={"state": output.state, "last_event": _ago, **{name: partial(output.figure, name=name) for name in FIGURES}},
    drop=("scheme",),
)


@click.group(cls=Noun)
def stores() -> None:
    """List, show, add, pause, resume and remove stores."""


stores.add_command(add)
stores.add_command(remove)


@stores.command("list")
@json_option
def list_stores(json_: bool = False) -> None:
    """List stores with their counts, those with most failures first."""
    config = load_config()
    client = connect_reader(config)
    found: list[dict[str, Any]] = [
        {"store": one.name, "scheme": one.scheme, "state": one.state, **one.counts, "last_event": one.last_event}
        for one in store_rows(config, client).rows
    ]
    LISTING.show(found, json_=json_)
    if json_:
        return
    if not found:
        output.echo("no store is configured")
        output.next_command("storehooks stores add NAME  add one")
        return
    output.echo()
    output.line(SINCE_WHEN, indent=2)
    output.next_command(
        f"storehooks stores show {found[0]['store']}  secrets, token, subscriptions",
        "storehooks stores add NAME  add one",
    )


@stores.command("show")
@click.argument("store", required=False)
@json_option
def show_store(store: str | None, json_: bool) -> None:
    """Show one store: secrets, token, subscriptions and counts. Calls its API."""
    from workers.operations.store_status import store_status

    config = load_config()
    name = choose_store(config, store)
    standing = store_status(config, name, connect_reader(config))
    if json_:
        output.as_json(standing.as_json(datetime.now(UTC)))
        return
    _show_status(standing, datetime.now(UTC))
    output.next_command(*_next_commands(config, standing))


@stores.command("pause")
@click.argument("store")
@yes_option
def pause(store: str, yes: bool) -> None:
    """Start no more runs of a store. Its deliveries are still accepted, and wait."""
    config = load_config()
    administration = Administration(connect_server(config))
    is_paused = f"store:{choose_store(config, store)}" in administration.paused()
    output.confirm(f"pause {store}", yes=yes or is_paused, note="its runs wait until it is resumed")
    record(administration.client, "pause", store=store)
    new = administration.pause(store=store)
    output.echo(f"{store} is paused; its deliveries are accepted and wait" if new else f"{store} is already paused")
    output.next_command(f"storehooks stores resume {store}  start its runs again")


@stores.command("resume")
@click.argument("store")
@yes_option
def resume(store: str, yes: bool) -> None:
    """Start the runs of a paused store again, in their order."""
    config = load_config()
    administration = Administration(connect_server(config))
    if f"store:{store}" not in administration.paused():  # it may be one whose removal was interrupted
        output.echo(f"{choose_store(config, store)} is not paused")
        return
    waiting = administration.client.zcard(keys.HELD + store)
    output.confirm(f"resume {store}", yes=yes, note=waits(waiting, *HELD))
    record(administration.client, "resume", store=store)
    administration.resume(store=store)
    output.echo(f"{store} is resumed; {waits(waiting, *HELD)}")


def _show_status(one: StoreStatus, now: datetime) -> None:
    paused = output.state("paused" if one.paused else "on")
    output.line(output.text(one.name, "bold"), "   ", paused, f"   {one.scheme}   {one.place}")
    output.echo()
    _line("sends to", one.callback)
    for number, secret in enumerate(one.secrets):
        _line("secrets" if not number else "", f"{secret.fingerprint}  {secret.origin}{_end(secret.not_after, now)}")
    if not one.secrets:
        _line("secrets", commands_as_typed("none yet; they are learned by `storehooks subscriptions apply`"))
    _line("token", _token(one))
    for number, text in enumerate(_subscriptions(one)):
        _line("subscriptions" if not number else "", text)
    _line("last event", f"{_ago(one.last_event.received_at)}, {one.last_event.topic}" if one.last_event else "never")
    if one.counts:
        counts = [output.text(f"{name} ") + output.figure(one.counts.get(name, 0), name) for name in FIGURES]
        _line("events", output.text(", ").join(counts))
    if one.last_repair:
        _line("last repair", _repair(one.last_repair, now))
    if one.refused:
        reasons = ", ".join(f"{reason} {many:,}" for reason, many in one.refused.reasons.items())
        _line(
            "refused",
            f"{one.refused.total:,} since {clock(one.refused.first, now)}, {one.refused.with_body:,} stored: {reasons}",
        )


def _line(name: str, value: Any) -> None:
    output.field(name, value, indent=2)


def _end(end: datetime | None, now: datetime) -> str:
    if end is None:
        return ""
    return f", expired {clock(end, now)}" if end <= now else f", expires {clock(end, now)}"


def _token(one: StoreStatus) -> str:
    match one.api.state:
        case "none":
            return "no base_url, so its API is not used"
        case "fine" if one.api.token_seconds_left is not None:
            return f"{span(one.api.token_seconds_left)} left; {one.base_url} answers in {one.api.ms:.0f} ms"
        case "fine":
            return f"given in config; {one.base_url} answers in {one.api.ms:.0f} ms"
        case _:
            return f"{one.api.state}: {one.api.reason}"


def _subscriptions(one: StoreStatus) -> list[str]:
    plan = one.plan
    if plan is None:
        return ["not checked: it has no base_url or no auth"]
    if plan.unknown:
        return [f"unknown: {plan.unknown.splitlines()[0]}"]
    changes = [f"{one.action} {one.topic}: {one.reason}" for one in plan.changes]
    return [plan.summary, *changes, *plan.foreign_texts, *plan.held_back.splitlines()]


def _repair(repair: Repair, now: datetime) -> str:
    gap = f", after {span(repair.gap)} without a delivery" if repair.gap is not None else ""
    return f"{repair.action} {repair.topic} {clock(repair.at, now)}{gap}"


def _next_commands(config: Config, one: StoreStatus) -> list[str]:
    if one.paused:
        return [f"storehooks stores resume {one.name}  start its runs again"]
    if one.refused:
        return [f"storehooks verify --store {one.name} --refused last  why they were refused"]
    if one.plan and one.plan.changes:
        return [f"storehooks subscriptions apply --store {one.name}  make these changes"]
    return [
        f"storehooks events list --store {one.name}  its newest events",
        *(f"{command}  send a test event" for command in send_command(config, store=one.name)),
    ]
