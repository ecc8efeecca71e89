"""What commands share: options, types of arguments, the config, the store and the connection to Redis."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import EXAMPLE, Config, load, load_from_environment
from receiver.config.errors import did_you_mean
from receiver.config.values import is_store_name, parse_duration, parse_rate, parse_size
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError, NotFound, ServerUnreachable, ServerUnusable, StorehooksError
from receiver.inbox import Inbox, connect_to, keys
from receiver.inbox.queries.cursors import parse_cursor
from receiver.inbox.queries.damage import PartialReader
from receiver.inbox.redis.connecting import check
from receiver.process.disk_try import require_answer
from receiver.process.earlier_data import describe_earlier_data
from receiver.spool import REFUSED_FILE, Refusals, open_existing_refusals
from workers.cli import output

if TYPE_CHECKING:
    from workers.operations.all_events import AllEvents

UNREADABLE_HINT = (
    "these deliveries could not be read, so no handler was called; correct the store's scheme, then "
    "`storehooks events reread` reads them again and routes them"
)
"""For commands that are about runs of handlers."""
MAX_DAMAGED_SHOWN = 10
T = TypeVar("T")
COMPLETE_VARIABLE = "_STOREHOOKS_COMPLETE"
"""A shell sets this variable to ask for completions."""

before_option = click.option(
    "--before",
    metavar="CURSOR",
    callback=lambda _context, _option, text: parse_cursor(text) if text else None,
    help="Go on where a list ended.",
)
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Needed without a terminal.")
"""For every command that changes something; see `output.confirm`."""


class ConfiguredName(StringParamType):
    """A name that a shell completes, such as that of a store of the config."""

    def __init__(self, names: Callable[[Config], Iterable[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        try:
            with ctx.scope(cleanup=False):
                names = sorted(self._names(load_from_environment(given_config() or None)))
        except (StorehooksError, RedisError):  # nothing is printed while a person types
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


COMPLETED = {
    "store": ConfiguredName(lambda config: config.stores),
    "handler": ConfiguredName(
        lambda config: {one.handler for one in Inbox(connect_server(config)).declarations().handlers}
    ),
}
"""Names of arguments and options -> their values."""


class Command(click.Command):
    """A command with `--config FILE`. If it is given twice, the last one wins."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        config = click.Option(["--config"], metavar="FILE", expose_value=False, callback=_remember_config)
        config.help = "The config file (TOML)."
        self.params.append(config)
        for one in self.params:
            if one.name in COMPLETED and one.type is click.STRING:
                one.type = COMPLETED[one.name]


def _remember_config(context: click.Context, _: click.Parameter, file: str | None) -> None:
    if file:
        context.ensure_object(dict)["config"] = file


class CommandGroup(Command, click.Group):
    command_class = Command


class Noun(CommandGroup):
    """A noun and its commands. Without a command it runs `list`, with the options of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        wants_help = any(one in ctx.help_option_names for one in args)
        names_a_command = any(one in self.commands for one in args) or bool(args and not args[0].startswith("-"))
        if ctx.resilient_parsing and not args:  # a shell completes the next word, which may be a command
            return super().parse_args(ctx, args)
        return super().parse_args(ctx, args if wants_help or names_a_command else [self.default(args), *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, and the options of the one that is run without a command."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            command = self.commands[self.default([incomplete])]
            found += command.shell_complete(click.Context(command, parent=ctx), incomplete)
        return list({one.value: one for one in found}.values())

    def default(self, args: list[str]) -> str:  # noqa: ARG002  for a noun with two lists
        """The command that is run without one."""
        return "list"


def given_config() -> str:
    """The value of --config; empty without it."""
    return (click.get_current_context().find_object(dict) or {}).get("config") or ""


def load_config() -> Config:
    """Read the config that this command uses. A command also works where a long-running process would not start."""
    config = load_from_environment(given_config() or None)
    if earlier := describe_earlier_data(config):
        output.warn(f"warning: {earlier}")
    return config


def load_config_or_defaults() -> Config:
    """The same, or the defaults if there is no config file. For commands that need no configured store."""
    named = given_config() or os.environ.get("STOREHOOKS_CONFIG")
    if named or any(Path(name).is_file() for name in ("config.toml", EXAMPLE)):
        return load_config()
    return load(None, os.environ)


def connect_server(config: Config) -> Redis:
    """A checked connection to Redis. Raises ServerUnusable."""
    client = connect_to(config.redis, timeout=max(config.redis.timeout, 5.0))
    try:
        check(client, runs_scripts=False)
    except ServerUnreachable as error:
        if not config.redis.embedded:
            raise
        # Another data_dir is another server, such as that of a relative path in a variable.
        where = f"data_dir is {config.data_dir}, by {config.data_dir_set_by}"
        raise ServerUnreachable(f"{error}. It is the embedded server: {where}") from None
    return client


def connect_reader(config: Config) -> Redis:
    """The same for commands that only show: a damaged key is read as if it did not exist. The command goes on, says at
    its end which keys are damaged, and exits with 1."""
    reader = PartialReader(connect_server(config))
    click.get_current_context().with_resource(_report_damage(reader))
    return reader


def all_events(config: Config, client: Redis) -> AllEvents:
    """The events in Redis and in the history."""
    from workers.history.configured_history import open_history  # most commands do not need it
    from workers.operations.all_events import AllEvents

    return AllEvents(client, open_history(config, client))


def connect_to_list_hosts(config: Config) -> Redis:
    """The same, but without the server the error says what waits on this host."""
    from workers.operations.host_spools import spooled_here  # most commands do not need it

    try:
        return connect_reader(config)
    except ServerUnusable as error:
        raise type(error)(f"{error}. {spooled_here(config)}") from None


@contextmanager
def _report_damage(reader: PartialReader) -> Iterator[None]:
    try:
        yield
    finally:
        for name, field in list(reader.damaged.items())[:MAX_DAMAGED_SHOWN]:
            what = f"the field {field} of the key {name}" if field else f"the key {name}"
            output.error(f"{what} is damaged and is left out; `storehooks doctor` says what to do")
    if reader.damaged:
        raise click.exceptions.Exit(1)


def refused_deliveries(config: Config) -> Refusals:
    """The refused deliveries that are stored on this host."""
    try:
        require_answer(config.data_dir)
        found = open_existing_refusals(config.data_dir)
        if damaged := found.count_damaged():
            output.warn(f"left out: {counted(damaged, 'damaged row')} of {REFUSED_FILE}")
        return found
    except StorehooksError:  # a sentence already: another version has written the file
        raise
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"cannot open the refused deliveries in {config.data_dir}: {error}; check [redis] data_dir and its owner"
        ) from None


def read_secret(reference: str) -> str:
    """The secret that `env:NAME` or `file:PATH` refers to. Other users can read the arguments of a command."""
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        if value := os.environ.get(name):
            return value
        raise ConfigError(f"--secret: the environment variable {name} is not set; set it, or use file:PATH")
    if kind == "file" and name:
        try:
            return Path(name).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"--secret: cannot read the secret from {name}") from None
    raise ConfigError(
        "--secret takes env:NAME or file:PATH, not the secret itself: other users can read the arguments of a command"
    )


def choose_store(config: Config, name: str | None) -> str:
    """The name of the store to work with. Optional if only one store is configured."""
    if name is None:
        if len(config.stores) == 1:
            return next(iter(config.stores))
        if not config.stores:
            raise ConfigError("no store is configured; `storehooks stores add NAME` adds one")
        raise ConfigError(f"several stores are configured; choose one with --store: {', '.join(sorted(config.stores))}")
    if name not in config.stores:
        raise NotFound(f"no store {name}; configured stores: {', '.join(sorted(config.stores)) or 'none'}")
    return name


def require_store_name(name: str) -> None:
    if not is_store_name(name):
        raise ConfigError(
            f"{name[:64]}: a store's name has only lower-case letters, digits, - and _, and at most 63 characters"
        )


def require_handler(client: Redis, name: str) -> None:
    """Raise NotFound for a handler that no worker declared and that has no runs."""
    if name == keys.INTAKE:
        raise ConfigError(f"{name} is not a handler: {UNREADABLE_HINT}")
    if unknown := unknown_handler(client, name):
        raise NotFound(unknown)


def unknown_handler(client: Redis, name: str) -> str:
    """Says that no worker declared this handler and that it has no runs; empty if it is known."""
    known = {one.handler for one in Inbox(client).declarations().handlers}
    if name in known or client.hexists(keys.LANES, name):
        return ""
    return f"no worker has a handler {name}{did_you_mean(name, known, cutoff=0.6)}"


class Parsed(click.ParamType[T]):
    """A value that a function reads from text. The function raises ValueError, with the reason."""

    def __init__(self, name: str, parse: Callable[[Any], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_rate(value: str) -> float:
    rate = parse_rate(value)
    if not rate:
        raise ValueError("the rate must be more than 0")
    return rate


def _parse_octets(value: Any) -> int:
    text = str(value)
    return int(text) if text.isdecimal() else parse_size(text if text.lower().endswith("b") else f"{text}B")


def _parse_moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if re.fullmatch(r"[\d.]+[a-z]+", value):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(value))
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError:
        raise ValueError('use "2026-11-15T03:00", or a duration before now: "90m", "7d"') from None


RATE = Parsed("RATE", _parse_rate)
"""A number a second or a minute: `10/s`, `30/m`."""
SPAN = Parsed("TIME", parse_duration)
"""A duration: `500ms`, `10s`, `5m`."""
OCTETS = Parsed("SIZE", _parse_octets)
"""A size in bytes: `800`, `2k`, `1MB`."""
MOMENT = Parsed("TIME", _parse_moment)
"""A time: `2026-11-15`, `2026-11-15T03:00`, or a duration before now: `90m`, `7d`."""
MOMENT_FORMS = "TIME is 2026-11-15 or 2026-11-15T03:00, your local time, or how long ago: 90m, 7d."
