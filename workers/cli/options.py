"""What commands share: `--config` before or after the name, the store that may be left out, the connection."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from redis import Redis

from receiver.config import EXAMPLE, Config, load, load_from_environment
from receiver.config.values import parse_duration, parse_rate
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.stores import Store
from receiver.inbox import connect_to
from receiver.inbox.redis.connecting import check
from receiver.spool import Refusals, open_existing_refusals

F = TypeVar("F", bound=Callable[..., Any])


class Noun(click.Group):
    """A noun and its commands. A bare noun lists, with every option that its `list` takes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = any(one in ctx.help_option_names for one in args)
        names_a_command = any(one in self.commands for one in args) or bool(args and not args[0].startswith("-"))
        return super().parse_args(ctx, args if asks_for_help or names_a_command else ["list", *args])


def with_config(function: F) -> F:
    """Give a command `--config FILE`. What is said last, nearest to the command, counts."""

    @click.pass_context
    def remember(context: click.Context, /, config_file: str | None, **given: Any) -> Any:
        if config_file:
            context.ensure_object(dict)["config"] = config_file
        return context.invoke(function, **given)

    option = click.option("--config", "config_file", metavar="FILE", help="The TOML file to use.")
    return option(update_wrapper(remember, function))  # type: ignore[return-value]


def load_config() -> Config:
    """The config this command was told to use, read now."""
    given = click.get_current_context().find_object(dict) or {}
    return load_from_environment(given.get("config"))


def load_config_or_defaults() -> Config:
    """The same; where no config is named and none is here, the defaults. For what needs no store of one's own."""
    given = click.get_current_context().find_object(dict) or {}
    named = given.get("config") or os.environ.get("STOREHOOKS_CONFIG")
    if named or any(Path(name).is_file() for name in ("config.toml", EXAMPLE)):
        return load_config()
    return load(None, os.environ)


def connect_server(config: Config) -> Redis:
    """A connection to the server that works, or ServerUnusable."""
    client = connect_to(config.redis, timeout=max(config.redis.timeout, 5.0))
    check(client)
    return client


def stores_with_secrets(config: Config) -> Mapping[str, Store]:
    """Every store with the secrets of config and those this host has learned; needs no server."""
    key = config.secrets.key.get_secret_value()
    if not key:
        return config.known_stores
    from receiver.inbox.keyring.learned_secrets import with_local_secrets  # the cipher takes a while to load

    return with_local_secrets(config.known_stores, config.data_dir, key)


def refused_deliveries(config: Config) -> Refusals:
    """The refused deliveries that this host keeps."""
    try:
        return open_existing_refusals(config.data_dir)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(
            f"the spool file in {config.data_dir} cannot be opened: {error}; is [redis] data_dir right, and yours?"
        ) from None


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


class Rate(click.ParamType[float]):
    """So many a second or a minute: `10/s`, `30/m`."""

    name = "RATE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_rate(value) or self.fail("a rate of 0 would never end", param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Span(click.ParamType[float]):
    """How long: `500ms`, `10s`, `5m`."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[datetime]):
    """A time: `2026-11-15`, `2026-11-15T03:00`, or so long ago: `90m`, `7d`."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if re.fullmatch(r"[\d.]+[a-z]+", value):
            try:
                return datetime.now(UTC) - timedelta(seconds=parse_duration(value))
            except ValueError as error:
                self.fail(str(error), param, ctx)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail('write "2026-11-15T03:00" or how long ago: "90m", "7d"', param, ctx)
        return moment.astimezone()
