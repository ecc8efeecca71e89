"""stores remove: delete a store's subscriptions, learned secrets and config. Its events stay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from redis import Redis

from receiver.config import Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import Administration, EventQueries
from receiver.inbox.subscription_checks import SubscriptionChecks
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.options import Command, choose_store, connect_server, json_option, load_config, yes_option
from workers.cli.store_steps import Steps, first_line, reload_processes
from workers.operations.store_files import check_folder, check_without, file_of

if TYPE_CHECKING:  # it imports an HTTP client, and `stores list` needs none
    from workers.subscriptions.plan import Change

LOCK_SECONDS = 15.0
"""How long to wait while another process changes the store's subscriptions."""


@click.command("remove", cls=Command)
@click.argument("name")
@yes_option
@click.option(
    "--keep-subscriptions", is_flag=True, help="Do not delete its subscriptions, for a store whose API is gone."
)
@click.option("--no-reload", is_flag=True, help="Do not reload running processes.")
@json_option
def remove(name: str, yes: bool, keep_subscriptions: bool, no_reload: bool, json_: bool) -> None:
    """Remove a store: its subscriptions, then its config. Its events stay."""
    from workers.subscriptions.managed_store import is_managed

    config = load_config()
    choose_store(config, name)
    if file := file_of(config, name):
        check_folder(file)
        check_without(config, file, os.environ)
    client = connect_server(config)
    waiting = EventQueries(client).counters().stores.get(name, {}).get("open", 0)
    where = file or config.place("stores", name)
    more = f"{waiting:,} of its events are open" if waiting else ""
    output.confirm(f"remove {name} ({where}) and its subscriptions", yes=yes, note=more)
    steps = Steps(json_)
    record(client, "remove store", store=name)
    SubscriptionChecks(client).remove(name)
    if not keep_subscriptions and is_managed(config, name):
        _delete_subscriptions(config, name, client, steps)
    _delete_config(config, name, client, steps)
    reload_processes(config, steps, no_reload)
    Administration(client).resume(store=name)  # a removed store cannot be resumed later
    if waiting:
        without = "without ctx.api and the properties of event.record, which need the store's config"
        steps.report("open_events", f"{waiting:,} will still be handled, {without}", waiting)
    steps.finish()


def _delete_subscriptions(config: Config, name: str, client: Redis, steps: Steps) -> None:
    """This comes first: deliveries of a removed store would be refused, and the store would disable the endpoint."""
    try:
        changes = _deleted(config, name, client)
    except BaseException as error:  # also when interrupted: the store stays, so its repairs go on
        SubscriptionChecks(client).restore(name)
        if not isinstance(error, StorehooksError):
            raise
        output.error(
            f"{name} was not removed, its subscriptions could not be deleted: {first_line(error)}\n"
            "if its API is gone for good, use --keep-subscriptions"
        )
        raise click.exceptions.Exit(1) from None
    steps.report("subscriptions", f"{len(changes)} deleted", [one.topic for one in changes])


def _deleted(config: Config, name: str, client: Redis) -> list[Change]:
    from workers.subscriptions.apply import apply_changes
    from workers.subscriptions.managed_store import ManagedStore

    managed = ManagedStore(config, name, client)
    with SubscriptionChecks(client).lock(name, within=LOCK_SECONDS) as hold:
        changes = managed.unsubscribe_changes()
        failed = [one.error for one in apply_changes(managed, changes, hold=hold) if one.error]
    if failed:
        raise StorehooksError(failed[0])
    return changes


def _delete_config(config: Config, name: str, client: Redis, steps: Steps) -> None:
    """Delete its file, its learned secrets with the notice of a rotation that was killed, and the results of its
    subscription checks."""
    from workers.subscriptions.managed_store import keyring_of

    keyring = keyring_of(config, client)
    if learned := keyring.secrets_of(name):
        keyring.remove(name, [one.fingerprint for one in learned])
        steps.report("secrets", f"{len(learned)} learned secrets deleted")
    keyring.withdraw_change(name)  # a store of this name that is added later has other secrets
    SubscriptionChecks(client).forget(name)
    if file := file_of(config, name):
        file.unlink()
        steps.report("deleted", str(file))
    else:
        where = config.place("stores", name)
        steps.left.append(f"delete [stores.{name}] ({where}) and its sub-tables, then send HUP to web and worker")
