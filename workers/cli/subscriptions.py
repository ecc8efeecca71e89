"""subscriptions: list, plan, apply and rotate the subscriptions at the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from redis import Redis

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, span
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.inbox.subscription_checks import CheckResult, Repair, SubscriptionChecks
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.listing import RowList
from workers.cli.options import Noun, choose_store, connect_reader, connect_server, json_option, load_config, yes_option
from workers.cli.subscriptions_display import (
    count_changes,
    scheduled_check,
    show_changes,
    show_plans,
    show_results,
    sign,
)
from workers.cli.typed_commands import commands_as_typed
from workers.storeapi.configured_client import sandbox_hint
from workers.subscriptions.apply import ChangeResult, apply_changes
from workers.subscriptions.managed_store import (
    ManagedStore,
    declared_handlers,
    is_managed,
    require_managed,
    url_has_changed,
)
from workers.subscriptions.plan import Change, Existing, Handlers, Plan, held_back_texts
from workers.subscriptions.repair import check_result

AT_ONCE = 8
"""How many stores are asked at the same time."""
ENOUGH_FOR_A_BAR = 4
"""From this number of stores on there is a progress bar."""
T = TypeVar("T")


def _last_repair(repairs: list[dict[str, Any]]) -> str:
    if not repairs:
        return ""
    when, gap = datetime.fromtimestamp(repairs[0]["at"], UTC), repairs[0]["gap"]
    return f"last {output.clock(when)}" + (f", gap {span(gap)}" if gap is not None else "")


LISTING = RowList(
    cells={
        "state": lambda state: output.state("ok" if state == "ok" else "warn", commands_as_typed(state)),
        "existing": lambda topics: "" if topics is None else len(topics),
        "pending": lambda changes: len(changes) or "",
        "checked_at": lambda at: f"{span((datetime.now(UTC) - at).total_seconds())} ago" if at else "",
        "repairs": _last_repair,
        "held_back": lambda text: "yes" if text else "",
        "unknown": lambda text: "yes" if text else "",
    },
    drop=("unknown", "held_back", "repairs", "repair_count", "foreign", "pending"),
    shorten=("state",),
)


@click.group(cls=Noun)
def subscriptions() -> None:
    """List, plan, apply and rotate subscriptions at stores."""


@subscriptions.command("list")
@click.option("--store", help="Only this store.")
@json_option
def list_subscriptions(store: str | None = None, json_: bool = False) -> None:
    """List the result of the last check of each store. Calls no store."""
    config = load_config()
    checks = SubscriptionChecks(connect_reader(config))
    names = [choose_store(config, store)] if store else sorted(config.stores)
    last = checks.last_results(names)
    repairs = {name: checks.repairs(name) for name in names}
    removed = checks.removed()
    states = {name: _state(config, name, last.get(name), name in removed) for name in names}
    rows = [_row(name, states[name], last.get(name), repairs[name], checks.repair_count(name)) for name in names]
    LISTING.show(rows, json_=json_)
    if json_:
        return
    if not names:
        output.echo("no store is configured")
        output.next_command("storehooks stores add NAME  add one")
        return
    if any(repairs.values()):
        output.echo("\nRepair count is of all time; the last of them are listed.")
    for name in names:
        _show_problems(last.get(name))
    if any(is_managed(config, name) for name in names):
        output.next_command("storehooks subscriptions plan  ask the stores now")


@subscriptions.command("plan")
@click.option("--store", help="Only this store.")
@json_option
def plan_subscriptions(store: str | None, json_: bool) -> None:
    """Show what `apply` would change at the stores. Exit 1 if anything."""
    config = load_config()
    redis = connect_server(config)
    handlers = declared_handlers(redis)
    plans = _look(config, redis, handlers, _chosen(config, store))
    if json_:
        changes = [{"store": one.store, **_change(change)} for one in plans for change in one.changes]
        output.as_json({"changes": changes, "stores": [one.as_json() for one in plans]})
    else:
        show_plans(plans, handlers)
        if any(one.changes for one in plans):
            output.line(scheduled_check(config), indent=2)
            output.next_command("storehooks subscriptions apply  make these changes")
    if any(one.changes or one.unknown or one.held_back for one in plans):
        raise click.exceptions.Exit(1)


@subscriptions.command("apply")
@click.option("--store", help="Only this store.")
@yes_option
@click.option("--no-delete", is_flag=True, help="Only create, enable and update.")
def apply_plan(store: str | None, yes: bool, no_delete: bool) -> None:
    """Change the subscriptions at the stores to what handlers need.

    It can be interrupted and repeated.
    """
    config = load_config()
    redis = connect_server(config)
    handlers = declared_handlers(redis)
    plans = _look(config, redis, handlers, _chosen(config, store))
    show_plans(plans, handlers, summary=False)
    shown = {one.store: one for one in plans if (one.without_deletions if no_delete else one.changes)}
    if shown:
        output.echo()
        output.confirm(f"make {count_changes(plans, no_delete)} at {counted(len(shown), 'store')}", yes=yes)
    if store:
        SubscriptionChecks(redis).restore(store)  # naming a removed store means that it is wanted again
    shown |= {one.store: one for one in plans if one.held_back}  # its result is stored, for `doctor`
    todo = list(shown)
    if not todo:
        output.echo("\nnothing to do")
        raise click.exceptions.Exit(1 if any(one.unknown for one in plans) else 0)
    record(redis, "apply subscriptions", count=len(todo), stores=todo[:20])
    results = for_each_store("applying", todo, lambda name: _apply_at(config, redis, handlers, shown[name], no_delete))
    failed = show_results(dict(zip(todo, results, strict=True)))
    if failed or any(one.unknown or one.held_back for one in plans):
        output.next_command("storehooks subscriptions plan  what is left to do")
        raise click.exceptions.Exit(1)
    output.next_command("storehooks subscriptions  their state")


@subscriptions.command("rotate")
@click.option("--store", help="The store. Optional if only one store is configured.")
@yes_option
def rotate(store: str | None, yes: bool) -> None:
    """Rotate the signing secrets of a store's subscriptions.

    Deliveries continue: the old secrets stay valid for [secrets] overlap.
    """
    config = load_config()
    name = choose_store(config, store)
    require_managed(config, name)
    redis = connect_server(config)
    managed = ManagedStore(config, name, redis)
    managed.keyring.require_key(name)
    number, left_out = len(managed.rotate_changes()), managed.held_back()
    if not number:
        if not left_out:
            raise ConfigError(f"{name} has no subscriptions of ours; `storehooks subscriptions apply` creates them")
        _show_left_out(name, left_out)
        raise click.exceptions.Exit(1)
    output.confirm(f"rotate the secrets of {counted(number, 'subscription')} at {name}", yes=yes)
    record(redis, "rotate secrets", count=number, store=name)
    # The lock is taken after the question, so that repairs are not blocked while the user thinks.
    with SubscriptionChecks(redis).lock(name) as hold:
        done = list(apply_changes(managed, managed.rotate_changes(), hold=hold))
    failed = show_results({name: done})
    output.line(f"Old learned secrets stay valid for {span(config.secrets.overlap)}; those of the config as it says.")
    if left_out:
        _show_left_out(name, left_out)
    output.next_command(f"storehooks subscriptions list --store {name}  their state")
    if failed or left_out:
        raise click.exceptions.Exit(1)


def _show_left_out(store: str, left_out: Sequence[Existing]) -> None:
    which, fix = held_back_texts(store, left_out)
    output.line(f"{which}: not rotated, and no secret ends that they may use")
    output.line(fix)


# Checking and changing


def _chosen(config: Config, store: str | None) -> list[str]:
    if store:
        require_managed(config, choose_store(config, store))
        return [store]
    found = [name for name in sorted(config.stores) if is_managed(config, name)]
    if not found and len(config.stores) == 1:
        require_managed(config, next(iter(config.stores)))
    if not found:
        raise ConfigError(
            f"no store has both base_url and auth in [stores.NAME], so there is no API to call. {sandbox_hint(config)}"
        )
    return found


def _look(config: Config, redis: Redis, handlers: Handlers, stores: list[str]) -> list[Plan]:
    return for_each_store("checking", stores, lambda name: ManagedStore(config, name, redis).plan(handlers))


def _apply_at(
    config: Config, redis: Redis, handlers: Handlers, shown: Plan, no_delete: bool
) -> list[ChangeResult] | str:
    """Plan again under the lock, so that nothing is done twice, and apply. Returns a sentence if that is impossible."""
    store = shown.store
    checks, managed = SubscriptionChecks(redis), ManagedStore(config, store, redis)
    try:
        with checks.lock(store) as hold:
            plan = managed.plan(handlers, locked=True)
            if plan.unknown:
                return plan.unknown
            managed.end_orphaned_secrets(plan, hold=hold)
            changes = plan.without_deletions if no_delete else agreed(plan, shown)
            done = list(apply_changes(managed, changes, hold=hold))
            checks.store_result(check_result(plan, done, before=checks.last_results([store]).get(store), by="apply"))
            return done
    except StorehooksError as error:
        return str(error)


def agreed(now: Plan, shown: Plan) -> list[Change]:
    """The changes to make now. Deletes only if they were shown: the user has not confirmed others."""
    seen = {change.id for change in shown.changes if change.action == "delete"}
    return [change for change in now.changes if change.action != "delete" or change.id in seen]


def for_each_store(label: str, names: list[str], work: Callable[[str], T]) -> list[T]:
    """Do the work for several stores at the same time. Many stores get a progress bar."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(work, names)
        if len(names) < ENOUGH_FOR_A_BAR:
            return list(results)
        with output.progress(label, len(names)) as bar:
            done = []
            for result in results:
                done.append(result)
                bar.advance()
            return done


def _change(change: Any) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("action", "topic", "theirs", "reason")}


def _state(config: Config, name: str, last: CheckResult | None, removed: bool) -> str:
    if not is_managed(config, name):
        return "manual: no base_url or auth"
    if removed:
        return f"removed: no repairs until `storehooks subscriptions apply --store {name}`"
    if last is None or last.unknown:
        return "unknown" if last else "not checked yet"
    if url_has_changed(config, last):
        return "checked before its URL changed"
    if last.held_back:
        return "held back"
    return f"{len(last.pending)} to do" if last.pending else "ok"


def _show_problems(last: CheckResult | None) -> None:
    if last is None or not (last.unknown or last.pending or last.held_back):
        return
    output.echo()
    if text := last.unknown or last.held_back:
        output.line(f"{last.store}: {text}", indent=2)
    show_changes([(last.store, sign(one["action"]), one["topic"], one["why"]) for one in last.pending])


def _row(name: str, state: str, last: CheckResult | None, repairs: list[Repair], count: int) -> dict[str, Any]:
    return {
        "store": name,
        "state": state,
        "wanted": last.wanted if last else None,
        "existing": list(last.existing) if last and not last.unknown else None,
        "pending": list(last.pending) if last else [],
        "foreign": last.foreign if last else None,
        "checked_at": datetime.fromtimestamp(last.at, UTC) if last else None,
        "repair_count": count,
        "repairs": [{**asdict(one), "gap": one.gap} for one in repairs],
        "held_back": (last.held_back or None) if last else None,
        "unknown": (last.unknown or None) if last else None,
    }
