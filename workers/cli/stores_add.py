"""stores add: check a new store's config and token, write its file, and subscribe."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.contract.signing.grammar import encode_secret
from receiver.contract.signing.signatures import PRESETS, STANDARD_WEBHOOKS
from receiver.inbox import EventQueries
from receiver.inbox.model import from_ms
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.subscription_checks import SubscriptionChecks
from workers.cli import output
from workers.cli.auditing import record_if_reachable
from workers.cli.options import (
    SPAN,
    Command,
    connect_server,
    json_option,
    load_config,
    require_store_name,
    yes_option,
)
from workers.cli.send_hint import send_command
from workers.cli.store_steps import SEND_HUP, Steps, first_line, reload_processes
from workers.operations.store_files import Draft, as_toml, file_of, path_for

if TYPE_CHECKING:  # these import an HTTP client, and `stores list` needs none
    from workers.subscriptions.managed_store import ManagedStore

TOKEN_SECONDS = 10.0
LOCK_SECONDS = 15.0
"""How long to wait while another process changes the store's subscriptions."""
POLL_SECONDS = 0.05
PROBE_AGAIN_SECONDS = 0.5
TEST_AGAIN_SECONDS = 2.0
"""After this long, the store is asked for another test event: some send it only once."""


def _check_reference(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001  click's signature
    """Refuse a secret on the command line: every user of the host could read it in the list of processes."""
    for one in value if isinstance(value, tuple) else (value,):
        if one and one != "new" and not one.startswith(("env:", "file:")):
            raise click.BadParameter('do not write a secret on the command line; use "env:NAME" or "file:PATH"')
    return value


@click.command("add", cls=Command)
@click.argument("name")
@click.option("--base-url", help="The URL of the store's API. Without it, the API is not used.")
@click.option("--scheme", help="How the store signs: a preset, or a [schemes.NAME] of the config.")
@click.option(
    "--secret",
    "signing_secrets",
    multiple=True,
    callback=_check_reference,
    help='The signing secret: "env:NAME", "file:PATH" or "new".',
)
@click.option("--client-id", help="The OAuth client id, from the store's developer portal.")
@click.option("--client-secret", callback=_check_reference, help='The OAuth client secret: "env:NAME" or "file:PATH".')
@click.option("--auth-url", default="/oauth/token", show_default=True, help="The URL that issues tokens.")
@click.option("--auth-style", type=click.Choice(["basic", "body", "json"]), help="How the credentials are sent to it.")
@click.option("--token", callback=_check_reference, help='A fixed token instead of OAuth: "env:NAME" or "file:PATH".')
@click.option("--domain", help="The store's domain in its deliveries.")
@click.option("--rate-limit", help='Maximum rate of API calls, such as "5/s".')
@click.option("--allow-private", is_flag=True, help="Allow a private address.")
@click.option("--no-subscribe", is_flag=True, help="Do not send a probe, and do not subscribe.")
@click.option("--no-reload", is_flag=True, help="Do not reload running processes.")
@click.option(
    "--test-event",
    is_flag=True,
    help="Have the store send a test event, which handlers get like any other, and wait for it.",
)
@click.option(
    "--wait",
    type=SPAN,
    default=15.0,
    metavar="TIME",
    help="Maximum time to wait for the probe, and for the test event. Default: 15s.",
)
@yes_option
@json_option
def add(
    name: str,
    yes: bool,
    json_: bool,
    no_subscribe: bool,
    no_reload: bool,
    test_event: bool,
    wait: float,
    **given: Any,
) -> None:
    """Add a store, and subscribe.

    On a terminal it asks for missing options. If the config or the token is invalid, nothing is written.
    """
    from workers.subscriptions.managed_store import is_managed

    config = load_config()
    _check_name(config, name)
    steps, created, hints = Steps(json_), "", []
    if sys.stdin.isatty():
        _ask_for_missing(given)
    where = f"write {path_for(config, name)}"
    subscribes = bool(given["base_url"]) and not no_subscribe
    if test_event and not subscribes:
        raise ConfigError("--test-event needs a subscription: use it with --base-url and without --no-subscribe")
    output.confirm(f"{where} and subscribe at the store" if subscribes else where, yes=yes)
    record_if_reachable(config, "add store", store=name)
    if "new" in given["signing_secrets"] or not (given["signing_secrets"] or _can_learn_secret(config, given)):
        created = _create_secret(config, given)
    now = _write_file(config, name, given, steps)
    if created:
        use = "give it to the store" + (", unless it got it with a subscription" if is_managed(now, name) else "")
        steps.report("secret", f"{created}   {use}; it is in the file, and not shown again", created)
    is_served = reload_processes(now, steps, no_reload)
    _enable_repairs(now, name, steps)
    if not no_subscribe and is_served:
        hints = _start_deliveries(now, name, steps, wait, test_event)
    elif not no_subscribe and is_managed(now, name):  # its deliveries would be refused
        steps.left.append(f"storehooks subscriptions apply --store {name}")
    if not steps.left and not json_:
        output.next_command(
            f"storehooks stores show {name}  its state",
            *(f"{command}  send an event in its name; handlers get it" for command in send_command(now, store=name)),
            *hints,
        )
    steps.finish()


def _check_name(config: Config, name: str) -> None:
    require_store_name(name)
    if name in config.stores:
        raise ConfigError(f"{config.place('stores', name)}: store {name} already exists{_how_to_finish(config, name)}")


def _how_to_finish(config: Config, name: str) -> str:
    """What may be left to do for a store with its own file: an earlier `stores add` may have ended after writing it."""
    from workers.subscriptions.managed_store import is_managed

    if file_of(config, name) is None:
        return ""
    apply = f"; then storehooks subscriptions apply --store {name}" if is_managed(config, name) else ""
    return f". To finish a `stores add` that was interrupted: {SEND_HUP}{apply}"


def _ask_for_missing(given: dict[str, Any]) -> None:
    """Ask on the terminal for options that were not given."""
    if given["base_url"] is None:
        given["base_url"] = click.prompt("URL of its API (empty: none)", default="", show_default=False)
    if given["scheme"] is None:
        given["scheme"] = click.prompt(
            "signing scheme", default="standard-webhooks", type=click.Choice(sorted(PRESETS))
        )
    if not given["signing_secrets"]:
        secret = click.prompt(
            "signing secret (empty: create one, or use the one that the store returns)",
            default="",
            hide_input=True,
            show_default=False,
        )
        given["signing_secrets"] = (secret,) if secret else ()
    if given["base_url"] and given["client_id"] is None and given["token"] is None:
        given["client_id"] = click.prompt("client id for its API")
    if given["client_id"] and given["client_secret"] is None:
        given["client_secret"] = click.prompt("client secret", hide_input=True)


def _can_learn_secret(config: Config, given: dict[str, Any]) -> bool:
    """Whether the store will return its secret when we subscribe."""
    return bool(config.secrets.key.get_secret_value() and given["base_url"])


def _create_secret(config: Config, given: dict[str, Any]) -> str:
    """A new secret in the form that the scheme uses. An unknown scheme is reported later."""
    scheme = config.known_schemes.get(given["scheme"] or STANDARD_WEBHOOKS.name, STANDARD_WEBHOOKS)
    created = encode_secret(scheme, secrets.token_bytes(24))
    given["signing_secrets"] = (created, *(one for one in given["signing_secrets"] if one != "new"))
    return created


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    auth = {"token": given["token"]} if given["token"] else {}
    if given["client_id"]:
        names = {"url": "auth_url", "client_id": "client_id", "client_secret": "client_secret", "style": "auth_style"}
        auth = {name: given[key] for name, key in names.items() if given[key]}
    plain = ("base_url", "scheme", "signing_secrets", "domain", "rate_limit", "allow_private")
    return {**{name: given[name] for name in plain}, "auth": auth}


def _write_file(config: Config, name: str, given: dict[str, Any], steps: Steps) -> Config:
    """Write the store's file if the config with it is valid and the store issues a token. Otherwise leave nothing."""
    draft = Draft(path_for(config, name), as_toml(name, _fields(given)), like=config.path)
    try:
        tried = draft.validate(config, os.environ)
        _check_token(tried, name, steps)
        draft.publish()
    finally:
        draft.discard()
    steps.report("wrote", str(draft.path))
    return tried


def _check_token(config: Config, name: str, steps: Steps) -> None:
    from workers.operations.doctor.network_facts import probe_store

    api = probe_store(config, name, None, TOKEN_SECONDS)
    if api.state == "none":
        steps.report("token", "not needed: no base_url, so its API is not used")
    elif api.state == "fine":
        steps.report("token", f"ok; {config.stores[name].base_url} answers in {api.ms:.0f} ms")
    else:
        output.error(f"{name}: {api.reason}\nnothing was written")
        raise click.exceptions.Exit(1)


def _enable_repairs(config: Config, name: str, steps: Steps) -> None:
    """Repair its subscriptions again: a store of this name may have been removed before."""
    from workers.subscriptions.managed_store import is_managed

    try:
        SubscriptionChecks(connect_server(config)).restore(name)
    except (StorehooksError, RedisError) as error:
        if is_managed(config, name):
            steps.left.append(
                f"storehooks subscriptions apply --store {name}, when Redis is available: {first_line(error)}"
            )


def _start_deliveries(config: Config, name: str, steps: Steps, wait: float, test_event: bool) -> list[str]:
    """Check that the receiver knows the store, subscribe, and with `test_event` check that the store's deliveries
    arrive. Returns the command that does so later: handlers may fail on the data of a test event, or store it."""
    from workers.subscriptions.managed_store import ManagedStore, is_managed

    managed = is_managed(config, name)
    until = time.monotonic() + wait
    try:
        client = connect_server(config)
        if config.known_stores[name].secrets:
            _wait_for_receiver(config, name, client, steps, until)
        if managed:
            _subscribe(ManagedStore(config, name, client), steps)
            store = ManagedStore(config, name, client)
            ours = [one.id for one in store.subscriptions() if one.is_ours and one.enabled]
            if test_event:
                _wait_for_test_event(store, ours, steps, time.monotonic() + wait)
            elif ours:
                command = f"storehooks api webhooks send_test {shlex.quote(str(ours[0]))} --store {name}"
                return [f"{command}  have the store send a test event; handlers get it like any other"]
        else:
            steps.report(
                "subscriptions", f"create them in the store's own settings, for {config.public_url_of(name)}", []
            )
    except (StorehooksError, RedisError) as error:
        steps.left.append(first_line(error))
        steps.left += [f"storehooks subscriptions apply --store {name}"] if managed else []
    return []


def _wait_for_receiver(config: Config, name: str, client: Redis, steps: Steps, until: float) -> None:
    """Send a probe, which no handler gets, until it is accepted: the store must not get a URL that refuses it."""
    from workers.subscriptions.probe import ProbeFailed, probe

    store = config.known_stores[name]
    while True:
        try:
            took = probe(store, client, network=config.network)
        except ProbeFailed as error:
            if time.monotonic() > until:
                raise ProbeFailed(
                    f"{error}; check the log of each `storehooks web`: it may not have reloaded the config"
                ) from None
            time.sleep(PROBE_AGAIN_SECONDS)
        else:
            steps.report("receiver", f"accepted a probe at {store.url} in {took * 1000:.0f} ms", round(took, 3))
            return


def _subscribe(managed: ManagedStore, steps: Steps) -> None:
    from workers.subscriptions.apply import apply_changes
    from workers.subscriptions.managed_store import declared_handlers
    from workers.subscriptions.repair import check_result

    checks = SubscriptionChecks(managed.redis)
    with checks.lock(managed.name, within=LOCK_SECONDS) as hold:
        plan = managed.plan(declared_handlers(managed.redis), locked=True)
        if plan.unknown:
            raise ConfigError(plan.unknown)
        done = list(apply_changes(managed, plan.without_deletions, hold=hold))
        checks.store_result(check_result(plan, done, by="stores add"))
    made = [one.change for one in done if not one.error]
    created = sum(one.action == "create" for one in made)
    in_place = f"{len(plan.existing) + created} in place" + (f", {created} of them created now" if created else "")
    nothing = not (made or plan.existing)
    steps.report("subscriptions", "none needed" if nothing else in_place, [one.topic for one in made])
    steps.left += [f"{one.change.action} {one.change.topic}: {first_line(one.error)}" for one in done if one.error]


def _wait_for_test_event(managed: ManagedStore, ours: list[int | str], steps: Steps, until: float) -> None:
    """Ask the store for a test event, repeatedly."""
    started, began, queries = from_ms(server_ms(managed.redis)), time.monotonic(), EventQueries(managed.redis)
    if not ours:
        steps.report("test_event", "none: there is no subscription, because no handler needs one", "")
        return
    while time.monotonic() < until:
        managed.client.webhooks.send_test(ours[0])
        again = min(until, time.monotonic() + TEST_AGAIN_SECONDS)
        while time.monotonic() < again:
            if found := queries.events(store=managed.name, since=started, limit=1):
                took = time.monotonic() - began
                steps.report(
                    "test_event", f"{found[0].topic} arrived after {took:.1f} s, event {found[0].id}", found[0].id
                )
                return
            time.sleep(POLL_SECONDS)
    raise ConfigError(
        f"the store's test event did not arrive; see `storehooks refused --store {managed.name}` and "
        f"`storehooks api webhooks list_deliveries {ours[0]} --store {managed.name}`"
    )
