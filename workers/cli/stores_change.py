"""stores add and remove: a store comes or goes, without a restart of anything."""

from __future__ import annotations

import base64
import os
import secrets
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.config.values import is_store_name
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.contract.signing.signatures import PRESETS, STANDARD_WEBHOOKS
from receiver.contract.stores import Store
from receiver.inbox import Administration, EventQueries
from receiver.inbox.subscription_checks import SubscriptionChecks
from workers.cli import output
from workers.cli.options import Span, choose_store, connect_server, load_config, with_config
from workers.operations.store_files import Draft, as_toml, file_of, path_for
from workers.runtime.reload import reload

if TYPE_CHECKING:  # these bring an HTTP client along, and `stores list` needs none
    from workers.subscriptions.managed_store import ManagedStore
    from workers.subscriptions.plan import Change

TOKEN_SECONDS = 10.0
PATIENCE = 15.0
"""How long to wait for whoever else is changing a store's subscriptions."""
LOOK_EVERY = 0.05
PROBE_AGAIN = 0.5
SEND_AGAIN = 2.0
"""A store that sends its test once only is asked again after so long."""


@dataclass
class Steps:
    """What was done, told as it happens, and what is left to do."""

    quiet: bool
    done: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def tell(self, name: str, text: str, value: Any = None) -> None:
        self.done[name] = text if value is None else value
        if not self.quiet:
            click.echo(f"{name.replace('_', ' '):<15}{output.harmless(text)}")

    def end(self) -> None:
        """Say what is left; that is a finding."""
        if self.quiet:
            output.as_json({**self.done, "left": self.left})
        elif self.left:
            click.echo("\nleft to do:")
            for line in self.left:
                click.echo(f"  {line}")
        if self.left:
            raise click.exceptions.Exit(1)


def _reference(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001  click's signature
    """A secret on a command line is seen by all who can list processes."""
    for one in value if isinstance(value, tuple) else (value,):
        if one and one != "new" and not one.startswith(("env:", "file:")):
            raise click.BadParameter('a secret is not written on a command line; say "env:NAME" or "file:PATH"')
    return value


@click.command("add")
@click.argument("name")
@click.option("--base-url", help="The address of the store's API; without one there is no API.")
@click.option("--scheme", help="How it signs: a preset, or a [schemes.NAME] of the config.")
@click.option(
    "--secret", "signing_secrets", multiple=True, callback=_reference, help='"env:NAME", "file:PATH" or "new".'
)
@click.option("--client-id", help="For a token, from the store's developer portal.")
@click.option("--client-secret", callback=_reference, help='"env:NAME" or "file:PATH".')
@click.option("--auth-url", default="/oauth/token", show_default=True, help="Where tokens are fetched.")
@click.option("--auth-style", type=click.Choice(["basic", "body"]), help="How the credentials are sent there.")
@click.option("--token", callback=_reference, help='A token that was given to us: "env:NAME" or "file:PATH".')
@click.option("--domain", help="What the store calls itself in its deliveries.")
@click.option("--rate-limit", help='How often its API may be called, such as "5/s".')
@click.option("--allow-private", is_flag=True, help="The store is on a private address.")
@click.option("--no-subscribe", is_flag=True, help="Leave its subscriptions alone, and wait for nothing.")
@click.option("--no-reload", is_flag=True, help="Tell no process to read the config again.")
@click.option("--wait", type=Span(), default=15.0, metavar="TIME", help="How long to wait for the test event; 15s.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def add(name: str, json_: bool, no_subscribe: bool, no_reload: bool, wait: float, **given: Any) -> None:
    """Add a store: try its config and token, write its file, have it read, subscribe, and wait for a test event.

    Asks for what is not said, on a terminal. When config or token are no good, nothing is written.
    """
    from workers.subscriptions.managed_store import is_managed

    config = load_config()
    _refuse_a_known_name(config, name)
    steps, shown = Steps(json_), ""
    if sys.stdin.isatty():
        _ask(given)
    if "new" in given["signing_secrets"] or not (given["signing_secrets"] or _may_learn(config, given)):
        shown = _fresh_secret(config, given)
    now = _written(config, name, given, steps)
    if shown and not is_managed(now, name):
        steps.tell("secret", f"{shown}      give it to the store; it is in the file and shown only now", shown)
    _have_it_read(now, steps, no_reload)
    _welcome(now, name, steps)
    if not no_subscribe:
        _begin(now, name, steps, wait)
    if not steps.left and not json_:
        output.next_command(f"storehooks stores show {name}", f"storehooks send order.created --store {name}")
    steps.end()


def _refuse_a_known_name(config: Config, name: str) -> None:
    if not is_store_name(name):
        raise ConfigError(f"{name[:64]}: a store's name is lower-case letters, digits, - and _, at most 63")
    if name in config.stores:
        raise ConfigError(f"{config.place('stores', name)}: there is a store {name} already")


def _ask(given: dict[str, Any]) -> None:
    """What was not said, from whoever sits at the terminal."""
    if given["base_url"] is None:
        given["base_url"] = click.prompt("address of its API (empty: none)", default="", show_default=False)
    if given["scheme"] is None:
        given["scheme"] = click.prompt("how it signs", default="standard-webhooks", type=click.Choice(sorted(PRESETS)))
    if not given["signing_secrets"]:
        secret = click.prompt(
            "signing secret (empty: a new one, or the one that the store shows)",
            default="",
            hide_input=True,
            show_default=False,
        )
        given["signing_secrets"] = (secret,) if secret else ()
    if given["base_url"] and given["client_id"] is None and given["token"] is None:
        given["client_id"] = click.prompt("client id for its API")
    if given["client_id"] and given["client_secret"] is None:
        given["client_secret"] = click.prompt("client secret", hide_input=True)


def _may_learn(config: Config, given: dict[str, Any]) -> bool:
    """Whether the store will show us its secret when we subscribe."""
    return bool(config.secrets.key.get_secret_value() and given["base_url"])


def _fresh_secret(config: Config, given: dict[str, Any]) -> str:
    """One that the scheme can use; an unknown scheme is told of later."""
    scheme = config.known_schemes.get(given["scheme"] or STANDARD_WEBHOOKS.name, STANDARD_WEBHOOKS)
    key = secrets.token_bytes(24)
    coded = base64.b64encode(key).decode() if scheme.secret_encoding.startswith("base") else key.hex()
    fresh = scheme.secret_prefix + coded
    given["signing_secrets"] = (fresh, *(one for one in given["signing_secrets"] if one != "new"))
    return fresh


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    auth = {"token": given["token"]} if given["token"] else {}
    if given["client_id"]:
        names = {"url": "auth_url", "client_id": "client_id", "client_secret": "client_secret", "style": "auth_style"}
        auth = {name: given[key] for name, key in names.items() if given[key]}
    plain = ("base_url", "scheme", "signing_secrets", "domain", "rate_limit", "allow_private")
    return {**{name: given[name] for name in plain}, "auth": auth}


def _written(config: Config, name: str, given: dict[str, Any], steps: Steps) -> Config:
    """Write the file if the config with it is good and the store gives us a token; else leave nothing."""
    draft = Draft(path_for(config, name), as_toml(name, _fields(given)), like=config.path)
    try:
        tried = draft.validate(config, os.environ)
        _test_the_token(tried, name, steps)
        draft.publish()
    finally:
        draft.discard()
    steps.tell("wrote", str(draft.path))
    return tried


def _test_the_token(config: Config, name: str, steps: Steps) -> None:
    from workers.operations.doctor.network_facts import probe_store

    api = probe_store(config, name, None, TOKEN_SECONDS)
    if api.state == "none":
        steps.tell("token", "none wanted: no base_url, so its API is not used")
    elif api.state == "fine":
        steps.tell("token", f"good; {config.stores[name].base_url} answers in {api.ms:.0f} ms")
    else:
        output.warn(f"storehooks: {name}: {api.reason}\nnothing was written")
        raise click.exceptions.Exit(1)


def _have_it_read(config: Config, steps: Steps, no_reload: bool) -> None:
    reloaded = None if no_reload else reload(config.data_dir)
    if reloaded and reloaded.signalled:
        names = ", ".join(f"{one.role} {one.pid}" for one in reloaded.signalled)
        steps.tell("read_again_by", names, [{"name": one.role, "pid": one.pid} for one in reloaded.signalled])
        if not reloaded.wait(PATIENCE):
            steps.left.append(f"the web here still serves the old config after {PATIENCE:.0f} s; its log says why")
        if reloaded.signalled[0].role != "dev":
            steps.tell("other_hosts", "where there are any: the same change of their file, then HUP to web and worker")
    else:
        steps.tell("read_again_by", "no process: none on this host uses this data_dir", [])
        steps.left.append("HUP to `storehooks web` and `storehooks worker`, on each host: they read the config again")


def _welcome(config: Config, name: str, steps: Steps) -> None:
    """A store of this name may have been removed before: it is mended again."""
    from workers.subscriptions.managed_store import is_managed

    try:
        SubscriptionChecks(connect_server(config)).welcome(name)
    except (StorehooksError, RedisError) as error:
        if is_managed(config, name):
            steps.left.append(
                f"storehooks subscriptions apply --store {name}, when the server is there: {_sentence(error)}"
            )


def _begin(config: Config, name: str, steps: Steps, wait: float) -> None:
    """See that the receiver knows the store, subscribe, and see that what the store sends comes in."""
    from workers.subscriptions.managed_store import ManagedStore, is_managed

    managed = is_managed(config, name)
    until = time.monotonic() + wait
    try:
        client = connect_server(config)
        if config.known_stores[name].secrets:
            _await_the_receiver(config.known_stores[name], client, steps, until)
        if managed:
            _subscribe(ManagedStore(config, name, client), steps)
            _await_a_test(ManagedStore(config, name, client), steps, time.monotonic() + wait)
        else:
            steps.tell("subscriptions", f"to be made in the store's own pages, for {config.public_url_of(name)}", [])
    except (StorehooksError, RedisError) as error:
        steps.left.append(_sentence(error))
        steps.left += [f"storehooks subscriptions apply --store {name}"] if managed else []


def _await_the_receiver(store: Store, client: Redis, steps: Steps, until: float) -> None:
    """An event of our own, by the public URL, until it is taken: a store must not be told of a URL that refuses it."""
    from workers.subscriptions.probe import ProbeFailed, probe

    while True:
        try:
            took = probe(store, client)
        except ProbeFailed as error:
            if time.monotonic() > until:
                raise ProbeFailed(f"{error}; has each `storehooks web` read the config? Their logs say") from None
            time.sleep(PROBE_AGAIN)
        else:
            steps.tell("receiver", f"took an event of our own at {store.url} in {took * 1000:.0f} ms", round(took, 3))
            return


def _subscribe(managed: ManagedStore, steps: Steps) -> None:
    from workers.subscriptions.apply import apply_changes
    from workers.subscriptions.managed_store import declared_handlers
    from workers.subscriptions.repair import check_result

    checks = SubscriptionChecks(managed.redis)
    with checks.alone(managed.name, within=PATIENCE) as hold:
        plan = managed.plan(declared_handlers(managed.redis), locked=True)
        if plan.unknown:
            raise ConfigError(plan.unknown)
        done = list(apply_changes(managed, plan.without_deletions, hold=hold))
        checks.found(check_result(plan, done, by="stores add"))
    made, there = [one.change.topic for one in done if not one.error], len(plan.existing)
    steps.tell("subscriptions", f"{len(made)} made, {there} were there" if made or there else "none wanted", made)
    steps.left += [f"{one.change.action} {one.change.topic}: {_sentence(one.error)}" for one in done if one.error]


def _await_a_test(managed: ManagedStore, steps: Steps, until: float) -> None:
    """The store is asked to send one; more than once, since some send a test only once."""
    started, ledger = datetime.now(UTC), EventQueries(managed.redis)
    ours = [one for one in managed.subscriptions() if one.is_ours and one.enabled]
    if not ours:
        steps.tell("test_event", "none: there is no subscription to send one for; no handler wants anything", "")
        return
    while time.monotonic() < until:
        managed.client.webhooks.send_test(ours[0].id)
        again = min(until, time.monotonic() + SEND_AGAIN)
        while time.monotonic() < again:
            if found := ledger.events(store=managed.name, since=started, limit=1):
                took = (datetime.now(UTC) - started).total_seconds()
                steps.tell("test_event", f"{found[0].topic} came after {took:.1f} s, event {found[0].id}", found[0].id)
                return
            time.sleep(LOOK_EVERY)
    raise ConfigError(
        f"no test event of the store came: storehooks refused --store {managed.name}, and "
        f"storehooks api webhooks list_deliveries {ours[0].id} --store {managed.name}"
    )


def _sentence(error: object) -> str:
    return str(error).splitlines()[0]


# Removing


@click.command("remove")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-subscriptions", is_flag=True, help="Leave its subscriptions; for a store whose API is gone.")
@click.option("--no-reload", is_flag=True, help="Tell no process to read the config again.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def remove(name: str, yes: bool, keep_subscriptions: bool, no_reload: bool, json_: bool) -> None:
    """Remove a store: end its subscriptions, then its config; nothing of it is mended any more. Its events stay."""
    from workers.subscriptions.managed_store import is_managed

    config = load_config()
    choose_store(config, name)
    client = connect_server(config)
    waiting = EventQueries(client).counters().stores.get(name, {}).get("open", 0)
    if not yes:
        _ask_to_remove(config, name, waiting)
    steps = Steps(json_)
    SubscriptionChecks(client).remove(name)
    if not keep_subscriptions and is_managed(config, name):
        _unsubscribe(config, name, client, steps)
    _forget(config, name, client, steps)
    _have_it_read(config, steps, no_reload)
    Administration(client).resume(store=name)  # nobody could do it later
    if waiting:
        steps.tell("open_events", f"{waiting:,} are still handled; ctx.api has no credentials for them", waiting)
    steps.end()


def _ask_to_remove(config: Config, name: str, waiting: int) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(f"removing {name} ends its subscriptions; say --yes where nobody can be asked")
    more = f" {waiting:,} of its events are still open." if waiting else ""
    where = file_of(config, name) or config.place("stores", name)
    click.confirm(f"Remove {name} ({where}) and its subscriptions?{more}", abort=True)


def _unsubscribe(config: Config, name: str, client: Redis, steps: Steps) -> None:
    """First of all: a store that goes on sending to us would be refused, and would give us up in its own way."""
    try:
        changes = _ended(config, name, client)
    except BaseException as error:  # interrupted, too: it stays, so it is mended as before
        SubscriptionChecks(client).welcome(name)
        if not isinstance(error, StorehooksError):
            raise
        output.warn(
            f"storehooks: {name}: its subscriptions could not be ended, so it stays: {_sentence(error)}\n"
            "where its API is gone for good, say --keep-subscriptions"
        )
        raise click.exceptions.Exit(1) from None
    steps.tell("subscriptions", f"{len(changes)} ended", [one.topic for one in changes])


def _ended(config: Config, name: str, client: Redis) -> list[Change]:
    from workers.subscriptions.apply import apply_changes
    from workers.subscriptions.managed_store import ManagedStore

    managed = ManagedStore(config, name, client)
    with SubscriptionChecks(client).alone(name, within=PATIENCE) as hold:
        changes = managed.unsubscribe_changes()
        failed = [one.error for one in apply_changes(managed, changes, hold=hold) if one.error]
    if failed:
        raise StorehooksError(failed[0])
    return changes


def _forget(config: Config, name: str, client: Redis, steps: Steps) -> None:
    """Its file, the secrets it showed us, what was found and mended there."""
    from workers.subscriptions.managed_store import keyring_of

    keyring = keyring_of(config, client)
    if learned := keyring.secrets_of(name):
        keyring.remove(name, [one.fingerprint for one in learned])
        steps.tell("secrets", f"{len(learned)} learned ones forgotten")
    SubscriptionChecks(client).forget(name)
    if file := file_of(config, name):
        file.unlink()
        steps.tell("deleted", str(file))
    else:
        where = config.place("stores", name)
        steps.left.append(
            f"[stores.{name}] ({where}) and what belongs to it: delete it there, then HUP to web and worker"
        )
