"""subscriptions: what stores tell us of, what they should, and the changes between."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from typing import IO, Any, TypeVar

import click
from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.inbox.subscription_checks import Checked, Repair, SubscriptionChecks
from workers.cli import output
from workers.cli.options import Noun, choose_store, connect_server, load_config, with_config
from workers.formatting import span
from workers.storeapi.configured_client import sandbox_hint
from workers.subscriptions.apply import ChangeResult, apply_changes
from workers.subscriptions.managed_store import ManagedStore, declared_handlers, is_managed, require_managed
from workers.subscriptions.plan import Change, Handlers, Plan, duration
from workers.subscriptions.repair import check_result

AT_ONCE = 8
MANY = 4
_SIGNS = {"create": "+ create", "enable": "~ enable", "update": "~ update", "delete": "- delete"}
T = TypeVar("T")


@click.group(cls=Noun)
@with_config
def subscriptions() -> None:
    """Subscriptions at the stores: list, plan, apply, rotate."""


@subscriptions.command("list")
@click.option("--store", help="Only of this store.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_subscriptions(store: str | None = None, json_: bool = False) -> None:
    """What the last look at each store found, and what was mended. Asks no store."""
    config = load_config()
    checks = SubscriptionChecks(connect_server(config))
    names = [choose_store(config, store)] if store else sorted(config.stores)
    last = checks.last(names)
    repairs = {name: checks.repairs(name) for name in names}
    removed = checks.removed()
    states = {name: _state(config, name, last.get(name), name in removed) for name in names}
    if json_:
        output.as_json(
            [_as_json(name, states[name], last.get(name), repairs[name], checks.repair_count(name)) for name in names]
        )
        return
    rows = [_row(name, states[name], last.get(name), repairs[name], checks.repair_count(name)) for name in names]
    headings = ("STORE", "WANTED", "EXISTING", "STATE", "LOOKED AT", "REPAIRS", "LAST REPAIR", "ITS GAP")
    output.table(headings, rows, drop=("ITS GAP", "LAST REPAIR", "REPAIRS"), shorten=("STATE",))
    for name in names:
        _tell_of_trouble(last.get(name))
    output.next_command("storehooks subscriptions plan      what is to be done, asked now")


@subscriptions.command("plan")
@click.option("--store", help="Only of this store.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def plan_subscriptions(store: str | None, json_: bool) -> None:
    """What would be changed at the stores. Changes nothing; exit 1 if there is anything."""
    config = load_config()
    redis = connect_server(config)
    handlers = declared_handlers(redis)
    plans = _look(config, redis, handlers, _chosen(config, store))
    if json_:
        changes = [{"store": one.store, **_change(change)} for one in plans for change in one.changes]
        output.as_json({"changes": changes, "stores": [one.as_json() for one in plans]})
    else:
        _show(plans, handlers)
        if any(one.changes for one in plans):
            click.echo(by_itself(config))
    if any(one.changes or one.unknown for one in plans):
        raise click.exceptions.Exit(1)


@subscriptions.command("apply")
@click.option("--store", help="Only at this store.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--no-delete", is_flag=True, help="Create, enable and update only.")
@with_config
def apply_plan(store: str | None, yes: bool, no_delete: bool) -> None:
    """Make the stores' subscriptions what the handlers want. May be repeated, and interrupted."""
    config = load_config()
    redis = connect_server(config)
    handlers = declared_handlers(redis)
    plans = _look(config, redis, handlers, _chosen(config, store))
    _show(plans, handlers, ends=False)
    shown = {one.store: one for one in plans if (one.without_deletions if no_delete else one.changes)}
    todo = list(shown)
    if todo:
        _ask(f"\nMake {_count(plans, no_delete)} at {len(todo)} {_plural('store', len(todo))}?", yes)
    if store:
        SubscriptionChecks(redis).welcome(store)  # whoever names it wants it, also if it was removed once
    if not todo:
        click.echo("\nnothing to do")
        raise click.exceptions.Exit(1 if any(one.unknown for one in plans) else 0)
    results = with_a_bar("applying", todo, lambda name: _apply_at(config, redis, handlers, shown[name], no_delete))
    failed = _tell_results(dict(zip(todo, results, strict=True)))
    if failed or any(one.unknown for one in plans):
        output.next_command("storehooks subscriptions plan      what is left")
        raise click.exceptions.Exit(1)
    output.next_command("storehooks subscriptions      how they are")


@subscriptions.command("rotate")
@click.option("--store", help="Whose secrets; with one store it need not be said.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_config
def rotate(store: str | None, yes: bool) -> None:
    """Have the store make new signing secrets. Deliveries go on; the old ones count for a while."""
    config = load_config()
    name = choose_store(config, store)
    require_managed(config, name)
    redis = connect_server(config)
    managed = ManagedStore(config, name, redis)
    managed.keyring.require_key(name)
    many = len(managed.rotate_changes())
    if not many:
        raise ConfigError(f"{name} has no subscription of ours; `storehooks subscriptions apply` makes them")
    _ask(f"Rotate the secrets of {many} {_plural('subscription', many)} at {name}?", yes)
    with SubscriptionChecks(redis).alone(name) as hold:  # after the question: while somebody thinks, others may mend
        done = list(apply_changes(managed, managed.rotate_changes(), hold=hold))
    failed = _tell_results({name: done})
    old = duration(config.secrets.overlap)
    click.echo(f"old ones that were learned count for {old} more; those of config, as config says")
    output.next_command(f"storehooks subscriptions list --store {name}")
    if failed:
        raise click.exceptions.Exit(1)


# Looking and changing


def _chosen(config: Config, store: str | None) -> list[str]:
    if store:
        require_managed(config, choose_store(config, store))
        return [store]
    found = [name for name in sorted(config.stores) if is_managed(config, name)]
    if not found and len(config.stores) == 1:
        require_managed(config, next(iter(config.stores)))
    if not found:
        raise ConfigError(
            "no store has both base_url and auth in its [stores.NAME], so there is no API to ask. "
            f"{sandbox_hint(config)}"
        )
    return found


def _look(config: Config, redis: Redis, handlers: Handlers, stores: list[str]) -> list[Plan]:
    return with_a_bar("looking", stores, lambda name: ManagedStore(config, name, redis).plan(handlers))


def _apply_at(
    config: Config, redis: Redis, handlers: Handlers, shown: Plan, no_delete: bool
) -> list[ChangeResult] | str:
    """Look again under the lock, so that nothing is done twice; a sentence where nothing could be done."""
    store = shown.store
    checks, managed = SubscriptionChecks(redis), ManagedStore(config, store, redis)
    try:
        with checks.alone(store) as hold:
            plan = managed.plan(handlers, locked=True)
            if plan.unknown:
                return plan.unknown
            managed.end_orphaned_secrets(plan, hold=hold)
            changes = plan.without_deletions if no_delete else agreed(plan, shown)
            done = list(apply_changes(managed, changes, hold=hold))
            checks.found(check_result(plan, done, before=checks.last([store]).get(store), by="apply"))
            return done
    except StorehooksError as error:
        return str(error)


def agreed(now: Plan, shown: Plan) -> list[Change]:
    """What is to be done now. Of deletes only those that were shown: nobody has agreed to another."""
    seen = {change.id for change in shown.changes if change.action == "delete"}
    return [change for change in now.changes if change.action != "delete" or change.id in seen]


def with_a_bar(label: str, names: list[str], work: Callable[[str], T]) -> list[T]:
    """Several stores at once; a bar on a terminal where there are many."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(work, names)
        if len(names) < MANY or not on_a_terminal(sys.stderr):
            return list(found)
        with click.progressbar(found, length=len(names), label=label, show_pos=True, file=sys.stderr) as bar:
            return list(bar)


def on_a_terminal(stream: IO[str]) -> bool:
    return stream.isatty()


def _ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not on_a_terminal(sys.stdin):
        raise ConfigError("this changes things at stores; on a terminal it asks first, elsewhere say --yes")
    click.confirm(question, abort=True)


# Showing


def _show(plans: list[Plan], handlers: Handlers, *, ends: bool = True) -> None:
    many = len({one.handler for one in handlers.present})
    said = f"topics of {many} {_plural('handler', many)}" if handlers.known else "no worker has spoken yet; only"
    click.echo(f"wanted: {said} and [stores.*] subscribe\n")
    wide = max(len(one.store) for one in plans)
    for one in plans:
        _show_store(one, wide)
    if ends:
        _show_end(plans)


def _show_store(plan: Plan, wide: int) -> None:
    name = plan.store.ljust(wide)
    if plan.unknown:
        first, *rest = plan.unknown.splitlines()
        click.echo(f"{name}   unknown: {output.harmless(first)}")
        for line in rest:
            click.echo(f"{' ' * wide}   {output.harmless(line)}")
        return
    assert plan.wanted is not None
    told = f"{name}   {len(plan.wanted.names)} wanted, {len(plan.existing)} there"
    click.echo(told if plan.changes else f"{told}, nothing to do")
    lines = [(_SIGNS[change.action], change.topic, f'"{change.theirs}"', change.reason) for change in plan.changes]
    for row in _aligned(lines):
        click.echo(f"  {row}")
    for host, many in sorted(plan.foreign.items()):
        verbs = ("is", "stays") if many == 1 else ("are", "stay")
        click.echo(f"    {many} of {output.harmless(host)} {verbs[0]} not ours and {verbs[1]}")
    for missing in plan.wanted.unoffered:
        click.echo(f"    {output.harmless(missing.pattern)}, {missing.why}: the store offers no such topic")
    if plan.wanted.note:
        click.echo(f"    {output.harmless(plan.wanted.note)}")


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    clean = [[output.harmless(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in clean) for at in range(len(clean[0]))] if clean else []
    return ["  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in clean]


def _show_end(plans: list[Plan]) -> None:
    unknown = sum(1 for one in plans if one.unknown)
    changed = sum(1 for one in plans if one.changes)
    parts = [f"{_count(plans)} at {changed} {_plural('store', changed)}"] if changed else ["nothing to do"]
    parts += [f"{unknown} {_plural('store', unknown)} unknown"] if unknown else []
    click.echo(f"\n{', '.join(parts)}.{' Apply: storehooks subscriptions apply' if changed else ''}")


def by_itself(config: Config) -> str:
    """What becomes of a plan that nobody applies."""
    if not config.subscriptions.check:
        return "Nothing is done by itself: [subscriptions] check is off."
    late = span(config.subscriptions.prune_after)
    return (
        f"The scheduled check does + and ~ by itself, and - once the last handler that wanted it was gone for {late}."
    )


def _tell_results(results: dict[str, list[ChangeResult] | str]) -> int:
    """A line for each change; gives how many were not made."""
    click.echo()
    rows: list[tuple[str, ...]] = []
    failed = 0
    for store, done in results.items():
        if isinstance(done, str):
            failed += 1
            click.echo(f"{store}: {output.harmless(done)}")
            continue
        failed += sum(1 for one in done if one.error)
        rows += [(store, _sign(one), one.change.topic, _told(one)) for one in done]
    for line in _aligned(rows):
        click.echo(line)
    return failed


def _sign(done: ChangeResult) -> str:
    return "~ rotate" if done.change.rotate else _SIGNS[done.change.action]


def _told(done: ChangeResult) -> str:
    if done.error:
        return f"FAILED: {done.error}"
    return f"done, secret {done.fingerprint}" if done.fingerprint else "done"


def _count(plans: list[Plan], no_delete: bool = False) -> str:
    many = sum(len(one.without_deletions if no_delete else one.changes) for one in plans)
    return f"{many} {_plural('change', many)}"


def _plural(word: str, many: int) -> str:
    return word if many == 1 else f"{word}s"


def _change(change: Any) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("action", "topic", "theirs", "reason")}


def _state(config: Config, name: str, last: Checked | None, removed: bool) -> str:
    if not is_managed(config, name):
        return "by hand: no base_url or auth"
    if removed:
        return f"removed: nothing is mended until `storehooks subscriptions apply --store {name}`"
    if last is None:
        return "not looked at yet"
    if last.unknown:
        return "unknown"
    return f"{len(last.pending)} to do" if last.pending else "fine"


def _row(name: str, state: str, last: Checked | None, repairs: list[Repair], many: int) -> tuple[Any, ...]:
    looked = f"{duration(time.time() - last.at)} ago" if last else ""
    figures: tuple[Any, ...] = (last.wanted, len(last.existing)) if last and not last.unknown else ("", "")
    gap = repairs[0].gap if repairs else None
    when = datetime.fromtimestamp(repairs[0].at, UTC) if repairs else None
    return (name, *figures, state, looked, many, when, duration(gap) if gap is not None else "")


def _tell_of_trouble(last: Checked | None) -> None:
    if last is None or not (last.unknown or last.pending):
        return
    click.echo()
    if last.unknown:
        click.echo(f"{last.store}: {output.harmless(last.unknown)}")
    for line in _aligned([(last.store, one["action"], one["topic"], one["why"]) for one in last.pending]):
        click.echo(line)


def _as_json(name: str, state: str, last: Checked | None, repairs: list[Repair], many: int) -> dict[str, Any]:
    return {
        "store": name,
        "state": state,
        "looked_at": datetime.fromtimestamp(last.at, UTC) if last else None,
        "wanted": last.wanted if last else None,
        "existing": list(last.existing) if last else [],
        "pending": list(last.pending) if last else [],
        "foreign": last.foreign if last else None,
        "unknown": (last.unknown or None) if last else None,
        "repair_count": many,
        "repairs": [{**asdict(one), "gap": one.gap} for one in repairs],
    }
