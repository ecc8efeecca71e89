"""failures: what went wrong, grouped by cause; again with a fix, or given up with a reason."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import Administration, FailureQueries, Inbox, keys
from receiver.inbox.model import Declarations
from receiver.inbox.queries.failures import Failure, FailureGroup
from receiver.inbox.queries.runs import RunQueries
from workers.cli import output
from workers.cli.options import Noun, Rate, connect_server, load_config, with_config
from workers.formatting import counted
from workers.operations.replay import PAGE, Replay


@click.group(cls=Noun)
@with_config
def failures() -> None:
    """Failures: list, show, replay, drop."""


@failures.command("list")
@click.option("--group", metavar="GROUP", help="Only of this group, run by run.")
@click.option("--limit", default=100, show_default=True, help="At most so many runs.")
@click.option("--json", "json_", is_flag=True, help="For scripts: run by run.")
@with_config
def list_failures(group: str | None = None, limit: int = 100, json_: bool = False) -> None:
    """Groups of failures, the latest first."""
    client = connect_server(load_config())
    reader = FailureQueries(client)
    if group or json_:
        found = reader.latest(group=_the_group(reader, group).id if group else None, limit=limit)
        if json_:
            output.as_json([asdict(one) for one in found])
        else:
            _show_runs(found)
        return
    groups = reader.groups()
    if not groups:
        click.echo("no failures")
        return
    _show_groups(groups)
    _say_versions(groups, Inbox(client).declarations())
    worst = max(groups, key=lambda one: one.retrying + one.failed)
    output.next_command(
        f"storehooks handlers pause {worst.handler}  stop the bleeding, nothing is lost",
        f"storehooks failures show {worst.id}  traceback, one example event",
        f"storehooks failures replay --group {worst.id} --first 5  a few, with your fix",
    )


@failures.command("show")
@click.argument("group")
@with_config
def show_group(group: str) -> None:
    """One group: who, since when, the traceback, an example."""
    reader = FailureQueries(connect_server(load_config()))
    found = _the_group(reader, group)
    figures = f"{found.retrying:,} retrying, {found.failed:,} failed, {counted(found.stores, 'store')}"
    click.echo(f"{found.id}  {found.handler}   {figures}")
    click.echo(f"since {output.clock(found.first)}, last {output.clock(found.last)}")
    click.echo("versions  " + ", ".join(f"{version} ({count:,})" for version, count in found.versions.items()))
    click.echo(f"\n{output.harmless(found.error)}\n")
    for line in reader.traceback(found.example).splitlines():
        click.echo(f"  {output.harmless(line)}")
    event_id, handler = keys.split_item(found.example)
    output.next_command(
        f"storehooks handlers run {handler} --event {event_id}",
        f"storehooks failures replay --group {found.id} --first 5",
        f"storehooks failures drop --group {found.id} --reason TEXT",
    )


@failures.command("replay")
@click.option("--group", metavar="GROUP", help="All runs of this group.")
@click.option("--event", "event_id", metavar="ID", help="The failed runs of this event.")
@click.option("--first", type=click.IntRange(1), metavar="N", help="At most so many.")
@click.option("--rate", type=Rate(), help="Not faster than this, such as 10/s.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def replay_failures(group: str | None, event_id: str | None, first: int | None, rate: float | None, yes: bool) -> None:
    """Have failed runs done again. Interrupted, the same command goes on."""
    client = connect_server(load_config())
    reader = FailureQueries(client)
    items = _chosen_items(reader, group, event_id)
    found = _the_group(reader, group) if group else None
    total = min(found.retrying + found.failed if found else len(items), first or 1 << 60)
    _confirm(f"Replay {counted(total, 'run')}?", total, yes)
    with click.progressbar(length=total, label="replaying", show_pos=True) as bar:
        replay = Replay(Inbox(client), rate=rate, first=first, told=bar.update)
        try:
            counts = replay.group(found.id) if found else replay.items(items)
        except KeyboardInterrupt:
            click.echo(f"\ninterrupted after {replay.counts['reopened']:,}; the same command goes on")
            raise click.exceptions.Exit(1) from None
    output.replay_counts(counts)


@failures.command("drop")
@click.option("--group", metavar="GROUP", help="All runs of this group.")
@click.option("--event", "event_id", metavar="ID", help="The failed runs of this event.")
@click.option("--reason", required=True, help="Why; it stays with the run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def drop_failures(group: str | None, event_id: str | None, reason: str, yes: bool) -> None:
    """Give failures up, with a reason."""
    client = connect_server(load_config())
    reader, administration = FailureQueries(client), Administration(client)
    items = _chosen_items(reader, group, event_id)
    found = _the_group(reader, group) if group else None
    total = found.retrying + found.failed if found else len(items)
    _confirm(f"Give {counted(total, 'run')} up?", total, yes)
    dropped = 0
    with click.progressbar(length=total, label="dropping", show_pos=True) as bar:
        while items:
            replies = administration.drop(items[:PAGE], reason=reason)
            dropped += replies.count("dropped")
            bar.update(len(replies))
            items = items[PAGE:] or (_page(reader, found) if found and "dropped" in replies else [])
    click.echo(f"{counted(dropped, 'run')} dropped")


def _chosen_items(reader: FailureQueries, group: str | None, event_id: str | None) -> list[str]:
    if bool(group) == bool(event_id):
        raise ConfigError("say which: --group GROUP or --event ID; `storehooks failures` lists them")
    if group:
        return _page(reader, _the_group(reader, group))
    event = RunQueries(reader.client).of_event(str(event_id))
    items = event.failures() if event else []
    if not items:
        raise NotFound(f"event {str(event_id)[:64]!r} has no failed run; `storehooks failures` lists them")
    return items


def _page(reader: FailureQueries, group: FailureGroup) -> list[str]:
    return reader.page(group.id, until=group.last, skip=0, many=PAGE)


def _the_group(reader: FailureQueries, start: str | None) -> FailureGroup:
    found = reader.find(start or "")
    if found is None:
        raise NotFound(f"no failure group {str(start)[:64]!r}; `storehooks failures` lists them")
    return found


def _confirm(question: str, total: int, yes: bool) -> None:
    if not yes and total > 1 and sys.stdin.isatty():
        click.confirm(question, abort=True)


def _show_groups(groups: list[FailureGroup]) -> None:
    rows = [
        (one.id[:4], one.handler, one.retrying, one.failed, one.stores, one.first, one.last, _where(one))
        for one in groups
    ]
    output.table(
        ("GROUP", "HANDLER", "RETRYING", "FAILED", "STORES", "SINCE", "LAST", "ERROR"),
        rows,
        drop=("STORES", "SINCE", "LAST"),
        shorten=("ERROR",),
    )


def _where(group: FailureGroup) -> str:
    place = "/".join(group.at.split("/")[-1:])
    return f"{group.error[:60]}  {place}".rstrip()


def _show_runs(found: list[Failure]) -> None:
    rows = [(f.event, f.store, f.topic, f.handler, f.status, f.attempts, f.next_at, f.error[:60]) for f in found]
    output.table(
        ("EVENT", "STORE", "TOPIC", "HANDLER", "STATUS", "ATTEMPTS", "NEXT", "ERROR"),
        rows,
        drop=("HANDLER", "TOPIC", "ATTEMPTS", "STORE", "NEXT"),
        shorten=("ERROR",),
    )


def _say_versions(groups: list[FailureGroup], declared: Declarations) -> None:
    runs = sum(one.retrying + one.failed for one in groups)
    click.echo(f"\n{counted(runs, 'run')}.")
    for one in groups:
        others = sorted({d.version for d in declared.handlers if d.handler == one.handler} - set(one.versions))
        if len(one.versions) == 1:
            clean = f"; {', '.join(others)} had no such error" if others else ""
            click.echo(f"All of {one.id[:4]} ran {one.handler} {next(iter(one.versions))}{clean}.")
