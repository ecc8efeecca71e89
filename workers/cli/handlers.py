"""handlers: list the handlers of this config; pause, resume and retire them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, waits
from receiver.contract.errors import ServerUnusable
from receiver.contract.topics import matches
from receiver.inbox import Administration, Declaration, keys
from receiver.inbox.queries.handlers import AbsentHandler, HandlerQueries
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.handlers_certify import certify
from workers.cli.handlers_explain import explain
from workers.cli.handlers_run import run_here
from workers.cli.options import (
    Noun,
    connect_reader,
    connect_server,
    json_option,
    load_config,
    require_handler,
    yes_option,
)
from workers.operations.explain_handlers import START_OR_RELOAD


@click.group(cls=Noun)
def handlers() -> None:
    """List, explain, run, certify, pause and retire handlers."""


handlers.add_command(explain)
handlers.add_command(run_here)
handlers.add_command(certify)


@handlers.command("list")
@json_option
def list_handlers(json_: bool = False) -> None:
    """List the handlers of this config and environment. Needs no server."""
    from workers.plugins.discovery import declarations, load
    from workers.plugins.validation import missing_limits

    config = load_config()
    found = declarations(config, load(config))
    paused, absent = _server_state(config)
    if json_:
        output.as_json(
            [{**_handler_json(one), "paused": None if paused is None else one.handler in paused} for one in found]
        )
        return
    if not found:
        output.echo("no handlers: no plugin is installed, and [workers] plugins is empty")
        return
    _show_handlers(found, paused)
    for limit, limited in missing_limits(config, found).items():
        output.warn(
            f"\nconfig has no [limits.{limit}], which {', '.join(limited)} names: its runs are done one at a time; "
            f'write [limits.{limit}] with concurrency = 2 or rate = "5/s"'
        )
    _show_absent(absent, {one.handler for one in found})
    held = [one.handler for one in found if one.handler in (paused or ())]
    topics = [topic for one in found for topic in one.topics]
    taken = "order.created" if any(matches(topic, "order.created") for topic in topics) else topics[0]
    output.next_command(
        *([f"storehooks send {taken}  send an event to them"] if "*" not in taken else []),
        *(f"storehooks handlers resume {name}  start its runs again" for name in held),
    )


def _show_handlers(found: list[Declaration], paused: set[str] | None) -> None:
    rows = [
        (
            one.handler,
            output.state("?" if paused is None else "paused" if one.handler in paused else "on"),
            ", ".join(one.topics),
            ", ".join(one.stores),
            _retries(one),
            f"{one.details['timeout']:g} s",
            one.version,
            _conditions(one),
        )
        for one in found
    ]
    headings = ("HANDLER", "STATE", "TOPICS", "STORES", "RETRIES", "TIMEOUT", "VERSION", "WHEN")
    output.table(headings, rows, drop=("VERSION", "TIMEOUT", "RETRIES", "STORES"), shorten=("WHEN", "TOPICS"))


def _show_absent(absent: Mapping[str, AbsentHandler], here: set[str]) -> None:
    """Handlers that no worker has any more, although this config may have them."""
    for name, one in absent.items():
        waiting = f"; {waits(one.waiting, 'run', or_more=one.or_more)} for it" if one.waiting else ""
        output.echo()
        output.line(output.text(name, "bold"), output.state("warn", f": no worker has this handler{waiting}"))
        retire = f"if it was removed for good: {output.our_name()} handlers retire {name}"
        fix = START_OR_RELOAD if name in here else f"start a worker that has its plugin; {retire}"
        output.line("  ", fix, whole=True)


def _server_state(config: Config) -> tuple[set[str] | None, dict[str, AbsentHandler]]:
    """The paused handlers, and those that no worker has. None and nothing if there is no server."""
    try:
        client = connect_reader(config)
        names = Administration(client).paused()
        paused = {name.removeprefix("handler:") for name in names if name.startswith("handler:")}
        return paused, HandlerQueries(client).absent()
    except (ServerUnusable, RedisError):
        return None, {}


@handlers.command("pause")
@click.argument("handler")
def pause(handler: str) -> None:
    """Start no more runs of a handler. They wait, and no attempt is used up."""
    administration = _administration_with(handler)
    record(administration.client, "pause", handler=handler)
    output.echo(f"{handler} is paused" if administration.pause(handler=handler) else f"{handler} is already paused")
    output.next_command(f"storehooks handlers resume {handler}  start its runs again")


@handlers.command("resume")
@click.argument("handler")
def resume(handler: str) -> None:
    """Start the runs of a paused handler again, in their order."""
    administration = _administration_with(handler)
    if f"handler:{handler}" not in administration.paused():
        output.echo(f"{handler} is not paused")
        return
    waiting = administration.client.zcard(keys.READY + handler)
    record(administration.client, "resume", handler=handler)
    administration.resume(handler=handler)
    output.echo(f"{handler} is resumed; {waits(waiting, 'run')}")


@handlers.command("retire")
@click.argument("handler")
@yes_option
def retire(handler: str, yes: bool) -> None:
    """Remove a handler for good: its waiting runs fail, and no events are routed to it."""
    administration = _administration_with(handler)
    queries = HandlerQueries(administration.client)
    waiting, still_there = queries.waiting([handler])[handler], handler in queries.present()
    least = "at least " if waiting.or_more else ""
    question = f"Fail {least}{counted(waiting.runs, 'waiting run')} of {handler}?"
    had = "a worker had this handler within the last 20 s; if it still has it, new events are routed to it again"
    if still_there:
        output.require_yes(question, yes=yes, why=had)
    else:
        output.confirm_on_terminal(question, needed=not yes and waiting != (0, False))
    record(administration.client, "retire", count=waiting.runs, handler=handler)
    ended = administration.retire(handler)
    output.echo(f"{handler} is retired; {counted(ended, 'waiting run')} failed")
    if still_there:
        output.warn(had)
    output.next_command("storehooks failures  the failed runs")


def _administration_with(handler: str) -> Administration:
    """The administration of the inbox. Raises NotFound for an unknown handler."""
    client = connect_server(load_config())
    require_handler(client, handler)
    return Administration(client)


def _conditions(one: Declaration) -> str:
    """The conditions for a run to start: when, delay, limit and order."""
    details = one.details
    parts = [details["when"], f"{details['delay']:g} s after arrival" if details["delay"] else None]
    parts.append(f"limit {details['limit']}" if details["limit"] else None)
    parts.append(f"in order by {details['order_by']}" if details["order_by"] else None)
    return ", ".join(filter(None, parts))


def _retries(one: Declaration) -> str:
    retries = one.details["retries"]
    return str(retries) if isinstance(retries, int) else "/".join(f"{delay:g}" for delay in retries) + " s"


def _handler_json(one: Declaration) -> dict[str, Any]:
    shown = ("plugin", "retries", "timeout", "limit", "order_by", "on_failure", "stale", "coalesce", "file", "line")
    details = {name: one.details[name] for name in shown}
    return {"handler": one.handler, "topics": one.topics, "stores": one.stores, "version": one.version, **details}
