"""failures: failed and retrying runs, grouped by cause; replay them, or drop them with a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import Administration, FailureQueries, Inbox, keys
from receiver.inbox.administration import NOT_DROPPED, DropResult
from receiver.inbox.bulk_actions import BulkAction, BulkActions
from receiver.inbox.model import from_ms
from receiver.inbox.queries.cursors import Cursor
from receiver.inbox.queries.failures import FailureGroup
from receiver.inbox.queries.runs import RunQueries
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.listing import RowList, follow_option
from workers.cli.options import (
    RATE,
    UNREADABLE_HINT,
    Noun,
    all_events,
    before_option,
    connect_reader,
    connect_server,
    json_option,
    load_config,
    yes_option,
)
from workers.cli.replay_run import run_replay
from workers.operations.all_events import AllEvents
from workers.operations.arrivals import FailureArrivals
from workers.operations.given_ids import NEWEST, choose
from workers.operations.replay import RUNS_AT_ONCE, Replay
from workers.plugins.effects import IN_DOUBT

REREAD = "storehooks events reread --dry-run  what can be read after you have corrected the scheme"
MAX_SENTENCES = 10
"""Maximum number of groups with a sentence about their versions."""


class FailuresNoun(Noun):
    """Without a command it shows the groups, and with options that only `list` has, the runs."""

    def default(self, args: list[str]) -> str:
        known = {name for one in self.commands["groups"].params for name in one.opts}
        return "groups" if all(one.partition("=")[0] in known for one in args if one.startswith("-")) else "list"


GROUPS = RowList(
    cells={
        "retrying": lambda number: output.figure(number, "retrying"),
        "failed": lambda number: output.figure(number, "failed"),
        "at": lambda place: place.rpartition("/")[2],
        "versions": ", ".join,
    },
    drop=("example", "versions", "stores", "first_at", "at", "last_at"),
    shorten=("error",),
)
RUNS = RowList(
    cells={"status": output.state},
    drop=("group", "version", "handler", "topic", "attempts", "failed_at", "store", "next_at"),
    shorten=("error",),
)

ACTIONS = RowList(
    cells={
        "state": output.state,
        "rate": lambda rate: f"{rate:g}/s" if rate else "",
        "selection": lambda chosen: ", ".join(f"{name} {value}" for name, value in chosen.items()) or "all",
    },
    drop=("reason", "first", "rate", "who", "ended_at", "why"),
    shorten=("selection", "why"),
)


@click.group(cls=FailuresNoun)
def failures() -> None:
    """List, show, replay and drop failures. Without a command: the groups."""


@failures.command("groups")
@before_option
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of groups.")
@json_option
def list_groups(before: Cursor | None, limit: int, json_: bool) -> None:
    """List failures grouped by cause, latest first."""
    client = connect_reader(load_config())
    page = FailureQueries(client).groups(before=before, limit=limit)
    groups = page.entries
    GROUPS.show([_group_row(one) for one in groups], json_=json_)
    if page.next:
        output.warn(f"these are {counted(limit, 'group')}; for more, add --before {page.next}")
    if json_:
        return
    if not groups:
        output.echo("no failures")
        return
    _show_versions(groups)
    # Those that only retry come last: they may end well by themselves.
    worst = max(groups, key=lambda one: (one.failed > 0, one.retrying + one.failed))
    show = f"storehooks failures show {worst.id}  traceback and an example event"
    if worst.handler == keys.INTAKE:
        output.next_command(show, REREAD)
        return
    if _has_no_handler(worst) or _is_in_doubt(worst):
        output.next_command(show, *_replay_or_drop(worst))
        return
    paused = f"handler:{worst.handler}" in Administration(client).paused()
    replay = _replay_or_drop(worst)[0]
    if paused:  # the first five begin although it is paused: resume only if they succeed
        output.next_command(show, replay, f"storehooks handlers resume {worst.handler}  then start its runs again")
    else:
        pause = f"storehooks handlers pause {worst.handler}  stop its runs for now; nothing is lost"
        output.next_command(show, pause, replay)


@failures.command("list")
@click.option("--group", metavar="GROUP", help="Only the runs of this group.")
@before_option
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of runs.")
@follow_option
@json_option
def list_failures(group: str | None, before: Cursor | None, limit: int, follow: bool, json_: bool) -> None:
    """List failed and retrying runs, by group, latest first.

    With --follow the newest is the last, and each attempt that fails from then on comes after it.
    """
    reader = FailureQueries(connect_reader(load_config()))
    group = _the_group(reader, group).id if group else None
    if before and not group:
        raise ConfigError("--before goes on in the list of one group; add --group GROUP")
    arrivals = FailureArrivals(reader, group=group)
    page = reader.in_group(group, before=before, limit=limit) if group else None
    found = page.entries if page else reader.latest(limit=limit)
    if follow:
        listed = sorted(
            (one for one in found if one.failed_at < from_ms(arrivals.started)), key=lambda one: one.failed_at
        )
        RUNS.follow(map(asdict, listed), lambda: map(asdict, arrivals.new()), json_=json_)
        return
    RUNS.show([asdict(one) for one in found], json_=json_)
    if page and page.next:
        output.warn(f"these are {counted(limit, 'run')}; for more, add --before {page.next}")
    elif not page and len(found) == limit:
        output.warn(f"only the latest {counted(limit, 'run')}; --limit N prints more")
    if json_:
        return
    if not found:
        output.echo("no failures")
        return
    output.next_command(f"storehooks failures show {found[0].group}  traceback and an example event")


@failures.command("show")
@click.argument("group")
@json_option
def show_group(group: str, json_: bool) -> None:
    """Show one group: counts, versions, traceback and an example event."""
    reader = FailureQueries(connect_reader(load_config()))
    found = _the_group(reader, group)
    if json_:
        output.as_json({**_group_row(found), "traceback": reader.traceback(found.example)})
        return
    event_id, handler = keys.split_item(found.example)
    output.line(output.text(found.handler, "bold"))
    output.field("group", found.id, wide=10)
    retrying, failed = output.figure(found.retrying, "retrying"), output.figure(found.failed, "failed")
    output.field("runs", retrying + " retrying, " + failed + f" failed, {counted(found.stores, 'store')}", wide=10)
    output.field("since", f"{output.clock(found.first_at)}, last {output.clock(found.last_at)}", wide=10)
    attempts = ((version, counted(count, "failed attempt")) for version, count in found.versions.items())
    versions = ", ".join(f"{version} ({number})" for version, number in attempts)
    output.field("versions", versions, wide=10)
    output.field("example", event_id, wide=10)
    output.echo()
    output.line(output.text(found.error, "red"))
    for line in reader.traceback(found.example).splitlines():
        output.line("  ", line, whole=True)
    replay, drop = _replay_or_drop(found)
    if handler == keys.INTAKE:
        output.next_command(f"storehooks events show {event_id}  the delivery as it came", REREAD, drop)
    elif _has_no_handler(found) or _is_in_doubt(found):
        output.next_command(replay, drop)
    else:
        output.next_command(
            f"storehooks handlers run {handler} --event {event_id}  run it here, with your fix", replay, drop
        )


@failures.command("replay")
@click.option("--group", metavar="GROUP", help="All runs of this group.")
@click.option("--event", "event_id", metavar="ID", help="The failed runs of this event.")
@click.option("--first", type=click.IntRange(1), metavar="N", help="Maximum number of runs.")
@click.option("--rate", type=RATE, help="Maximum rate, such as 10/s.")
@yes_option
def replay_failures(group: str | None, event_id: str | None, first: int | None, rate: float | None, yes: bool) -> None:
    """Run failed runs again. If it is interrupted, the same command continues.

    Runs of a paused handler wait until it is resumed, but those chosen with --first or --event begin at once.
    """
    config = load_config()
    client = connect_server(config)
    chosen = _choose(config, FailureQueries(client), group, event_id)
    if chosen.unreadable:
        raise ConfigError(UNREADABLE_HINT)
    total = min(chosen.total, first or chosen.total)
    output.confirm(f"replay {counted(total, 'run')}", yes=yes)
    replay = Replay(Inbox(client), AllEvents(client, None), rate=rate, first=first, urgent=bool(first or event_id))
    work = partial(replay.group, chosen.group.id) if chosen.group else partial(replay.failures, chosen.items)
    record(client, "replay", count=total, group=group, event=event_id, first=first)
    run_replay(replay, work, total=total)


@failures.command("drop")
@click.option("--group", metavar="GROUP", help="All runs of this group.")
@click.option("--event", "event_id", metavar="ID", help="The failed runs of this event.")
@click.option("--reason", required=True, help="The reason; stored with each run.")
@yes_option
def drop_failures(group: str | None, event_id: str | None, reason: str, yes: bool) -> None:
    """Give up on failed runs, with a reason."""
    config = load_config()
    client = connect_server(config)
    reader, administration = FailureQueries(client), Administration(client)
    chosen = _choose(config, reader, group, event_id)
    output.confirm(f"drop {counted(chosen.total, 'run')}", yes=yes)
    record(client, "drop", count=chosen.total, group=group, event=event_id, reason=reason)
    items = reader.runs_of(chosen.group.id, until=chosen.group.last_at) if chosen.group else iter(chosen.items)
    counts: Counter[DropResult] = Counter()
    with output.progress("dropping", chosen.total) as bar:
        while page := list(islice(items, RUNS_AT_ONCE)):
            counts.update(administration.drop(page, reason=reason))
            bar.advance(len(page))
    output.echo(f"{counted(counts[DropResult.DROPPED], 'run')} dropped")
    for result, why in NOT_DROPPED.items():
        if counts[result]:
            output.echo(f"{counted(counts[result], 'run')} not dropped: {why}")


@failures.command("actions")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of actions.")
@json_option
def list_actions(limit: int, json_: bool) -> None:
    """List bulk actions, which the console starts: replays and drops of many failures, latest first."""
    found = BulkActions(connect_reader(load_config())).newest(limit)
    ACTIONS.show([_action_row(one) for one in found], json_=json_)
    if json_:
        return
    if not found:
        output.echo("no bulk actions")
    for one in found:
        if one.state.is_at_work:
            output.next_command(f"storehooks failures stop {one.id}  replay or drop no further runs")
            break


@failures.command("stop")
@click.argument("action")
@yes_option
def stop_action(action: str, yes: bool) -> None:
    """Stop a bulk action. What it has changed stays changed."""
    client = connect_server(load_config())
    actions, missing = BulkActions(client), f"no bulk action {action[:64]!r}; `storehooks failures actions` lists them"
    newest = [one.id for one in actions.newest(NEWEST)]
    found = actions.find(choose(action, newest, kind="bulk actions", missing=missing))
    if found is None:
        raise NotFound(missing)
    if found.state.is_at_work:
        output.confirm(f"stop the bulk {found.action} {found.id}", yes=yes)
        record(client, "stop", bulk=found.id)
        actions.stop(found.id)
    output.echo((actions.find(found.id) or found).result)


@dataclass(frozen=True)
class _Chosen:
    """The failures that a command is for: those of a group, or of one event."""

    total: int
    group: FailureGroup | None = None
    items: list[str] = field(default_factory=list)

    @property
    def unreadable(self) -> bool:
        """Whether they are deliveries that could not be read, and so have no handler."""
        example = self.group.example if self.group else self.items[0]
        return keys.split_item(example)[1] == keys.INTAKE


def _choose(config: Config, reader: FailureQueries, group: str | None, event_id: str | None) -> _Chosen:
    if bool(group) == bool(event_id):
        raise ConfigError("give either --group GROUP or --event ID; `storehooks failures` lists the groups")
    if group:
        found = _the_group(reader, group)
        return _Chosen(found.retrying + found.failed, group=found)
    found_id = all_events(config, reader.client).find_id(str(event_id))
    event = RunQueries(reader.client).of_event(found_id)
    items = event.failures() if event else []
    if not items:
        raise NotFound(f"event {found_id} has no failed run; `storehooks failures` lists them")
    return _Chosen(len(items), items=items)


def _has_no_handler(group: FailureGroup) -> bool:
    return group.error.startswith("no-such-handler")


def _is_in_doubt(group: FailureGroup) -> bool:
    """Whether a call of `ctx.once` may have been made. Only a replay with --again makes it again."""
    return IN_DOUBT in group.error


def _replay_or_drop(group: FailureGroup) -> tuple[str, str]:
    when = "once a worker has the handler again" if _has_no_handler(group) else "try a few after your fix"
    replay = f"storehooks failures replay --group {group.id} --first 5  {when}"
    if _is_in_doubt(group):
        event_id, handler = keys.split_item(group.example)
        replay = f"storehooks events replay {event_id} --handler {handler} --again  if its call was not made: make it"
    return replay, f"storehooks failures drop --group {group.id} --reason TEXT  give up on them"


def _the_group(reader: FailureQueries, which: str) -> FailureGroup:
    missing = (
        f"no failure group {which[:64]!r}; if it was listed before, nothing is left to replay or drop. "
        "`storehooks failures` lists the groups. If a handler has 200 groups, its further causes are in one more, "
        '"other causes"'
    )
    found = reader.group(choose(which, reader.newest_group_ids(NEWEST), kind="failure groups", missing=missing))
    if found is None:
        raise NotFound(missing)
    return found


def _action_row(one: BulkAction) -> dict[str, Any]:
    selection = {name: value for name, value in asdict(one.selection).items() if value}
    names = ("began_at", "ended_at", "count", "changed", "rate", "first", "who", "reason", "why")
    return {
        "id": one.id,
        "action": one.action,
        "state": one.state.value,
        "selection": selection,
        **{name: getattr(one, name) for name in names},
    }


def _group_row(one: FailureGroup) -> dict[str, Any]:
    names = ("handler", "retrying", "failed", "stores", "first_at", "last_at", "error", "at", "versions")
    fields = {name: getattr(one, name) for name in names}
    return {"group": one.id, **fields, "example": keys.split_item(one.example)[0]}


def _show_versions(groups: list[FailureGroup]) -> None:
    runs = sum(one.retrying + one.failed for one in groups)
    output.echo(f"\n{counted(runs, 'run')}.")
    for one in groups[:MAX_SENTENCES]:
        version = next(iter(one.versions)) if len(one.versions) == 1 else "?"
        if version != "?" and one.handler != keys.INTAKE:
            output.echo(f"All of {one.id} ran {one.handler} {version}.")
