"""handlers: list the handlers of this config; pause, resume and retire them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, waits
from receiver.contract.errors import ServerUnusable
from receiver.inbox import Administration, Declaration, Inbox, keys
from receiver.inbox.queries.handlers import AbsentHandler, HandlerQueries
from receiver.inbox.queries.health import HealthQueries
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.handlers_certify import certify
from workers.cli.handlers_explain import explain
from workers.cli.handlers_run import run_here
from workers.cli.listing import RowList
from workers.cli.options import (
    Noun,
    connect_reader,
    connect_server,
    json_option,
    load_config,
    require_handler,
    yes_option,
)
from workers.cli.send_hint import send_command
from workers.cli.typed_commands import as_typed
from workers.operations.explain_handlers import START_OR_RELOAD
from workers.plugins.validation import missing_limits, unconfigured_stores

DETAILS = (
    *("retries", "timeout", "limit", "delay", "when", "order_by", "on_failure", "stale", "coalesce"),
    *("plugin", "file", "line"),
)
RELOAD = "send HUP to `storehooks worker`: it reloads config and plugins"


@click.group(cls=Noun)
def handlers() -> None:
    """List, explain, run, certify, pause and retire handlers."""


handlers.add_command(explain)
handlers.add_command(run_here)
handlers.add_command(certify)


@handlers.command("list")
@json_option
def list_handlers(json_: bool = False) -> None:
    """List the handlers of this config, and those that workers run.

    VERSION is the code on disk, RUNNING what live workers have, each version with the number of workers. STATE is "no
    worker" while none is running, and events wait; "not loaded" if workers are running without the handler; "busy"
    while it, or its limit, is closed by Busy. Without Redis both are "unknown" (in JSON, `running` is null), which is
    said on standard error, and the exit code is 0: the handlers of this config are valid.
    """
    from workers.plugins.discovery import declarations, load

    config = load_config()
    left_out: dict[str, str] = {}
    found = declarations(config, load(config, left_out=left_out))
    live = _live_state(config)
    here = {one.handler for one in found}
    others = [one for name, one in sorted(live.declared.items()) if name in live.running and name not in here]
    rows = [_row(one, live, is_here=one.handler in here) for one in (*found, *others)]
    LISTING.show(rows, json_=json_)
    if json_:
        return
    if not rows:
        output.echo(f"no handlers: {_why_none(config, left_out)}")
    _show_warnings(config, found, left_out)
    _show_differences(rows)
    _show_busy(live, (*found, *others))
    _show_absent(live.absent, here)
    _show_not_loaded([one["handler"] for one in rows if one["state"] == "not loaded"], live.absent)
    _show_next(config, found, rows)


def _why_none(config: Config, left_out: Collection[str]) -> str:
    """Why no plugin of this config has a handler."""
    installed = "no plugin is installed"
    if left_out:
        verb = "is" if len(left_out) == 1 else "are"
        installed = f"{counted(len(left_out), 'installed plugin')} {verb} left out ({', '.join(left_out)})"
    named = "none of [workers] plugins has one" if config.workers.plugins else "[workers] plugins is empty"
    return f"{installed}, and {named}"


def _row(one: Declaration, live: _LiveState, *, is_here: bool) -> dict[str, Any]:
    details = one.details
    return {
        "handler": one.handler,
        "state": live.state_of(one),
        "topics": one.topics,
        "stores": one.stores,
        "version": one.version if is_here else None,
        "running": None if live.paused is None else dict(live.running.get(one.handler, {})),
        **{name: details.get(name) for name in DETAILS},
    }


def _running(versions: dict[str, int] | None) -> str:
    if versions is None:
        return "unknown"
    return ", ".join(f"{version} ({number})" for version, number in sorted(versions.items()))


def _retries(retries: int | list[float] | None) -> str:
    if retries is None or isinstance(retries, int):
        return "" if retries is None else str(retries)
    return "/".join(f"{delay:g}" for delay in retries) + " s"


LISTING = RowList(
    cells={
        "state": output.state,
        "running": _running,
        "retries": _retries,
        **dict.fromkeys(("timeout", "delay", "coalesce"), lambda seconds: f"{seconds:g} s" if seconds else ""),
    },
    drop=(
        *("line", "file", "plugin", "coalesce", "stale", "on_failure", "delay", "timeout", "retries", "order_by"),
        *("limit", "stores", "when"),
    ),
    shorten=("when", "topics"),
)


@dataclass(frozen=True)
class _LiveState:
    """What the server says about handlers. Without one, nothing is known."""

    paused: frozenset[str] | None = None
    has_workers: bool = False
    absent: Mapping[str, AbsentHandler] = field(default_factory=dict)
    running: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    declared: Mapping[str, Declaration] = field(default_factory=dict)
    busy: Mapping[str, datetime] = field(default_factory=dict)
    """Until when, by limit or h:HANDLER."""

    def state_of(self, one: Declaration) -> str:
        if self.paused is None:
            return "unknown"
        if one.handler in self.paused:
            return "paused"
        if one.handler not in self.running:
            return "not loaded" if self.has_workers else "no worker"
        return "busy" if self.busy_until(one) else "on"

    def busy_until(self, one: Declaration) -> datetime | None:
        return self.busy.get(keys.busy_field(one.handler, one.details.get("limit", "")))


def _live_state(config: Config) -> _LiveState:
    try:
        client = connect_reader(config)
        names = Administration(client).paused()
        paused = frozenset(name.removeprefix("handler:") for name in names if name.startswith("handler:"))
        queries = HandlerQueries(client)
        declared = {one.handler: one for one in Inbox(client).declarations().handlers}
        has_workers = bool(HealthQueries(client).workers())
        running, busy = queries.running_versions(), queries.busy_limits()
        return _LiveState(paused, has_workers, queries.absent(), running, declared, busy)
    except (ServerUnusable, RedisError) as error:
        output.warn(f"what workers run is unknown, because Redis cannot be read: {error}")
        return _LiveState()


def _show_warnings(config: Config, found: list[Declaration], left_out: Mapping[str, str]) -> None:
    for limit, limited in missing_limits(config, found).items():
        output.warn(
            f"\nconfig has no [limits.{limit}], which {', '.join(limited)} names: its runs are done one at a time; "
            f'write [limits.{limit}] with concurrency = 2 or rate = "5/s"'
        )
    for one in found:
        if not one.stores and (limits := one.details.get("store_limits")):
            output.warn(f"\n{one.handler} is for no store: {limits}")
        for pattern in unconfigured_stores(config, one):
            known = ", ".join(sorted(config.stores))
            output.warn(f"\n{one.handler} is for the store {pattern}, which is not configured; there are: {known}")
        if redacted := one.details.get("redacted"):
            output.warn(f"\n{one.handler} reads what [redact] removes: {', '.join(redacted)}")
    for name, why in left_out.items():
        output.warn(f"\nthe installed plugin {name} is left out: {why}")


def _show_differences(rows: Sequence[Mapping[str, Any]]) -> None:
    """Handlers of which workers run another version than the one on disk."""
    for row in rows:
        if row["running"] and row["version"] not in row["running"]:
            on_disk = f"is {row['version']} on disk" if row["version"] else "is not in this config"
            output.echo()
            output.line(output.text(row["handler"], "bold"), f" {on_disk}; workers run {_running(row['running'])}")
            output.line(f"  {RELOAD}", whole=True)


def _show_busy(live: _LiveState, handlers: Sequence[Declaration]) -> None:
    for one in handlers:
        if live.state_of(one) == "busy" and (until := live.busy_until(one)):
            by = f" by [limits.{limit}]" if (limit := one.details.get("limit")) else ""
            output.echo()
            output.line(output.text(one.handler, "bold"), f" is busy until {output.clock(until)}{by}; its runs wait")
            output.line(f"  {as_typed(f'storehooks handlers resume {one.handler}')}  lets them begin now", whole=True)


def _show_next(config: Config, found: list[Declaration], rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [f"{command}  send an event to them" for command in send_command(config, found)]
    if rows and all(one["state"] == "no worker" for one in rows):
        lines = ["storehooks worker  start one; until then events wait", *lines]
    lines += [
        f"storehooks handlers resume {one['handler']}  start its runs again" for one in rows if one["state"] == "paused"
    ]
    output.next_command(*lines)


def _show_absent(absent: Mapping[str, AbsentHandler], here: set[str]) -> None:
    """Handlers that no worker has any more, although this config may have them."""
    for name, one in absent.items():
        waiting = f"; {waits(one.waiting, 'run', or_more=one.or_more)} for it" if one.waiting else ""
        output.echo()
        output.line(output.text(name, "bold"), output.state("warn", f": no worker has this handler{waiting}"))
        retire = f"if it was removed for good: {as_typed(f'storehooks handlers retire {name}')}"
        fix = START_OR_RELOAD if name in here else f"start a worker that has its plugin; {retire}"
        output.line("  ", fix, whole=True)


def _show_not_loaded(names: Sequence[str], absent: Mapping[str, AbsentHandler]) -> None:
    """Handlers that were added after the workers had started."""
    for name in names:
        if name not in absent:
            output.echo()
            without = ": the running workers have not loaded it; they settle events without it"
            output.line(output.text(name, "bold"), output.state("warn", without))
            output.line(f"  {RELOAD}; or restart it", whole=True)


@handlers.command("pause")
@click.argument("handler")
@yes_option
def pause(handler: str, yes: bool) -> None:
    """Start no more runs of a handler. They wait, and no attempt is used up."""
    administration = _administration_with(handler)
    is_paused = f"handler:{handler}" in administration.paused()
    output.confirm(f"pause {handler}", yes=yes or is_paused, note="its runs wait until it is resumed")
    record(administration.client, "pause", handler=handler)
    output.echo(f"{handler} is paused" if administration.pause(handler=handler) else f"{handler} is already paused")
    output.next_command(f"storehooks handlers resume {handler}  start its runs again")


@handlers.command("resume")
@click.argument("handler")
@yes_option
def resume(handler: str, yes: bool) -> None:
    """Start the runs of a paused handler again, in their order. A limit that was closed by Busy is open again."""
    administration = _administration_with(handler)
    if f"handler:{handler}" not in administration.paused() and not administration.is_busy(handler):
        output.echo(f"{handler} is not paused")
        return
    waiting = HandlerQueries(administration.client).waiting([handler])[handler]
    runs = waits(waiting.runs, "run", or_more=waiting.or_more)
    output.confirm(f"resume {handler}", yes=yes, note=runs)
    record(administration.client, "resume", handler=handler)
    administration.resume(handler=handler)
    output.echo(f"{handler} is resumed; {runs}")


@handlers.command("retire")
@click.argument("handler")
@yes_option
def retire(handler: str, yes: bool) -> None:
    """Remove a handler for good: its waiting runs fail, and from now on no events are routed to it.

    Remove it from the plugins of all workers first: events are routed to a handler that a worker has, and for 15
    minutes after no worker has it any more.
    """
    administration = _administration_with(handler)
    queries = HandlerQueries(administration.client)
    waiting, still_there = queries.waiting([handler])[handler], handler in queries.present()
    least = "at least " if waiting.or_more else ""
    had = "a worker had this handler within the last 20 s; if it still has it, new events are routed to it again"
    note = had if still_there else ""
    runs = f"{least}{counted(waiting.runs, 'waiting run')}"
    output.confirm(f"retire {handler} and fail {runs} of it", yes=yes, note=note)
    record(administration.client, "retire", count=waiting.runs, handler=handler)
    ended = administration.retire(handler)
    output.echo(f"{handler} is retired; {counted(ended, 'waiting run')} failed")
    if still_there:
        output.warn(had)
    output.next_command(
        "storehooks failures  the failed runs",
        "storehooks subscriptions  which ones no handler wants any more",
    )


def _administration_with(handler: str) -> Administration:
    """The administration of the inbox. Raises NotFound for an unknown handler."""
    client = connect_server(load_config())
    require_handler(client, handler)
    return Administration(client)
