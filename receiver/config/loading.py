"""Config: TOML files and the environment in, one checked `Config` out, or a ConfigError that says the fix.

Law of this room: it reads files and is handed the environment; it starts nothing and connects to nothing.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, PrivateAttr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from receiver.config import settings
from receiver.config.source_files import KeyPath, Place, dotted, overlay, place_of, read_into, references, resolve
from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import extend
from receiver.contract.signing.signatures import MAX_SECRETS, PRESETS, Scheme, SchemeError, Secret
from receiver.contract.stores import Store

PREFIX = "STOREHOOKS_"
NOT_SETTINGS = {"STOREHOOKS_CONFIG"}
EXAMPLE = "config.example.toml"
SANDBOX_SECRET = "whsec_c2FuZGJveCBvbmx5LCBuZXZlciBpbiBwcm9kdWN0aW9u"  # noqa: S105  "sandbox only, never in production"


class Config(BaseSettings):
    """The whole config, checked. Built by `load`, never by hand."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )
    include: tuple[str, ...] = ("stores.d/*.toml",)
    redis: settings.RedisSettings = settings.RedisSettings()
    receiver: settings.ReceiverSettings = settings.ReceiverSettings()
    workers: settings.WorkersSettings = settings.WorkersSettings()
    retention: settings.RetentionSettings = settings.RetentionSettings()
    limits: dict[str, settings.LimitSettings] = {}
    plugins: dict[str, settings.PluginSettings] = {}
    store_defaults: dict[str, Any] = {}
    schemes: dict[str, settings.SchemeSettings] = {}
    stores: dict[settings.StoreName, settings.StoreSettings] = {}
    catalogue: settings.CatalogueSettings = settings.CatalogueSettings()
    secrets: settings.SecretsSettings = settings.SecretsSettings()
    subscriptions: settings.SubscriptionsSettings = settings.SubscriptionsSettings()
    api: settings.ApiSettings = settings.ApiSettings()
    sandbox: settings.SandboxSettings = settings.SandboxSettings()

    _path: Path | None = PrivateAttr(default=None)
    _places: dict[KeyPath, Place] = PrivateAttr(default_factory=dict)
    _schemes: dict[str, Scheme] = PrivateAttr(default_factory=dict)
    _stores: dict[str, Store] = PrivateAttr(default_factory=dict)
    _referred: set[KeyPath] = PrivateAttr(default_factory=set)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @property
    def path(self) -> Path | None:
        """The file this was read from; None when there was none."""
        return self._path

    @property
    def data_dir(self) -> Path:
        return Path(self.redis.data_dir).absolute()

    @property
    def known_stores(self) -> Mapping[str, Store]:
        """Every configured store, ready to verify with."""
        return self._stores

    @property
    def known_schemes(self) -> Mapping[str, Scheme]:
        """The presets, and every scheme of this config; one of the config hides a preset of its name."""
        return {**PRESETS, **self._schemes}

    def place(self, *key: str | int) -> Place | None:
        """Where the value at `key`, or the nearest table above it, was written."""
        while key:
            if key in self._places:
                return self._places[key]
            key = key[:-1]
        return None

    def is_referred(self, *key: str | int) -> bool:
        """Whether the value at `key` was written as "env:NAME" or "file:PATH": then it is likely a secret."""
        return key in self._referred

    def public_url_of(self, store: str) -> str:
        return self.stores[store].url or f"{self.receiver.public_url.rstrip('/')}/webhooks/{store}"


def find(explicit: str | None, environ: Mapping[str, str]) -> Path:
    """The config file: --config, $STOREHOOKS_CONFIG, ./config.toml, or in a checkout the example."""
    for name in (explicit, environ.get("STOREHOOKS_CONFIG")):
        if name:
            if not Path(name).is_file():
                raise ConfigError(f"config file {name} does not exist")
            return Path(name)
    for name in ("config.toml", EXAMPLE):
        if Path(name).is_file():
            return Path(name)
    raise ConfigError(
        "no config: looked for --config, $STOREHOOKS_CONFIG and ./config.toml; `storehooks init` writes one"
    )


def load(path: Path | None, environ: Mapping[str, str], *, also: Path | None = None) -> Config:
    """Read, merge and check; the environment wins over the files. `also` is one more file, on trial."""
    data: dict[str, Any] = {}
    places: dict[KeyPath, Place] = {}
    base = Path()
    if path is not None:
        base = path.parent
        read_into(data, places, path)
        for pattern in _include_patterns(data, path):
            for name in sorted(glob.glob(str(base / pattern))):
                read_into(data, places, Path(name))
    if also is not None:
        read_into(data, places, also)
    overlay(data, _from_environment(environ, places))
    _apply_store_defaults(data)
    referred = set(references(data))
    resolved = resolve(data, (), base, environ, places)
    try:
        config = Config(**resolved)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem, places) for problem in error.errors())) from None
    config._path = path
    config._places = places
    config._referred = referred
    config._schemes = {name: _scheme(config, name, config.place("schemes", name)) for name in config.schemes}
    config._stores = {name: _store(config, name) for name in config.stores}
    _refuse_the_sandbox_secret_in_public(config)
    _refuse_a_spool_older_than_the_window(config)
    return config


# Reading


def _include_patterns(data: Mapping[str, Any], path: Path) -> list[str]:
    patterns = data.get("include", list(Config.model_fields["include"].default))
    if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
        raise ConfigError(f'{path}: include is a list of file patterns, such as ["stores.d/*.toml"]')
    return patterns


# The environment


class _Environment(EnvSettingsSource):
    """pydantic-settings' reading of STOREHOOKS_A__B, from a mapping it is handed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Config)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items() if value != ""}


def _from_environment(environ: Mapping[str, str], places: dict[KeyPath, Place]) -> dict[str, Any]:
    for name in environ:
        if name.startswith(PREFIX) and name not in NOT_SETTINGS:
            key = tuple(step.lower() for step in name.removeprefix(PREFIX).split("__"))
            if key[0] not in Config.model_fields:
                raise ConfigError(f"${name}: unknown key {key[0]}{_nearest(key[0], Config.model_fields)}")
            places[key] = Place(f"${name}")
    try:
        found: dict[str, Any] = _Environment(environ)()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from None
    if url := environ.get("REDIS_URL"):
        found.setdefault("redis", {}).setdefault("url", url)
        places.setdefault(("redis", "url"), Place("$REDIS_URL"))
    if port := environ.get("PORT"):
        found.setdefault("receiver", {}).setdefault("bind", f"0.0.0.0:{port}")
        places[("receiver", "bind")] = Place("$PORT")
    if count := environ.get("WEB_CONCURRENCY"):
        found.setdefault("receiver", {}).setdefault("processes", count)
        places[("receiver", "processes")] = Place("$WEB_CONCURRENCY")
    return found


# Values


def _apply_store_defaults(data: dict[str, Any]) -> None:
    defaults = data.get("store_defaults")
    stores = data.get("stores")
    if isinstance(defaults, dict) and isinstance(stores, dict):
        for name, store in stores.items():
            if isinstance(store, dict):
                merged: dict[str, Any] = {}
                overlay(merged, defaults)
                overlay(merged, store)
                stores[name] = merged


def _store(config: Config, name: str) -> Store:
    given = config.stores[name]
    scheme = _scheme(config, given.scheme, config.place("stores", name, "scheme"))
    count = len(given.signing_secrets)
    if not count and not (config.secrets.key.get_secret_value() and given.base_url):
        where = config.place("stores", name)
        raise ConfigError(
            f"{where}: stores.{name} has no signing_secrets; without one every delivery is refused. Only a store "
            "with a base_url may do without, where [secrets] key is set: its secrets are learned from its API"
        )
    if count > MAX_SECRETS:
        where = config.place("stores", name, "signing_secrets")
        raise ConfigError(f"{where}: stores.{name} has {count} signing_secrets; keep the newest {MAX_SECRETS}")
    secrets = tuple(_secret(config, scheme, name, index) for index in range(count))
    return Store(name, scheme, secrets, url=config.public_url_of(name), domain=given.domain)


def _secret(config: Config, scheme: Scheme, store: str, index: int) -> Secret:
    window = config.stores[store].signing_secrets[index]
    place = config.place("stores", store, "signing_secrets", index)
    try:
        key = scheme.key_of(window.value.get_secret_value())
    except ValueError as error:
        raise ConfigError(
            f"{place}: stores.{store}.signing_secrets[{index}] cannot be used with {scheme.name}: {error}"
        ) from None
    return Secret(key=key, origin=str(place), not_after=window.not_after)


def _scheme(config: Config, name: str, place: Place | None, seen: tuple[str, ...] = ()) -> Scheme:
    if name in seen:
        raise ConfigError(f"{place}: schemes.{name} extends itself by way of {' -> '.join(seen)}")
    given = config.schemes.get(name)
    if given is None:
        if name in PRESETS:
            return PRESETS[name]
        raise ConfigError(f"{place}: no scheme is called {name}{_nearest(name, [*PRESETS, *config.schemes])}")
    parent = None
    if given.extends and (given.extends != name or name not in PRESETS):
        parent = _scheme(config, given.extends, config.place("schemes", name, "extends"), (*seen, name))
    elif given.extends:
        parent = PRESETS[name]
    return _extended(config, name, given, parent)


def _extended(config: Config, name: str, given: settings.SchemeSettings, parent: Scheme | None) -> Scheme:
    try:
        return extend(
            parent,
            name=name,
            changes=given.model_dump(exclude_none=True, exclude={"extends", "event", "topics"}),
            event=given.event.model_dump(exclude_none=True),
            topics=given.topics,
        )
    except SchemeError as error:
        place = config.place("schemes", name, *error.key.split("."))
        raise ConfigError(f"{place}: schemes.{name}: {error}") from None


def _refuse_the_sandbox_secret_in_public(config: Config) -> None:
    host = config.receiver.bind.rpartition(":")[0].strip("[]")
    public = urlsplit(config.receiver.public_url).hostname
    if host in settings.LOOPBACK and public in settings.LOOPBACK:
        return
    for name, store in config.stores.items():
        if any(secret.value.get_secret_value() == SANDBOX_SECRET for secret in store.signing_secrets):
            raise ConfigError(
                f"{config.place('stores', name, 'signing_secrets')}: stores.{name} uses the sandbox's "
                "secret, which all know; it serves on loopback. `storehooks init` writes a fresh one"
            )


def _refuse_a_spool_older_than_the_window(config: Config) -> None:
    given = config.receiver
    if given.spool == "on" and given.spool_age > given.dedupe_window:
        where = config._places.get(("receiver", "spool_age")) or config.place("receiver", "dedupe_window")
        raise ConfigError(
            f"{where}: receiver.spool_age ({_days(given.spool_age)}) is longer than receiver.dedupe_window "
            f"({_days(given.dedupe_window)}): a delivery could wait until its repetition is no longer known as one; "
            "shorten spool_age or lengthen dedupe_window"
        )


# Words


def _days(seconds: float) -> str:
    return f"{seconds / 86400:g} d" if seconds >= 86400 else f"{seconds:g} s"


def _explain(problem: Any, places: Mapping[KeyPath, Place]) -> str:
    key: KeyPath = tuple(problem["loc"])
    where = place_of(places, key)
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {dotted(key)}{_nearest(str(key[-1]), _fields_at(key[:-1]))}"
    return f"{where}: {dotted(key)}: {problem['msg'].removeprefix('Value error, ')}"


def _fields_at(key: KeyPath) -> list[str]:
    """The keys that are known in the table at `key`."""
    model: Any = Config
    for step in key:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
        field = model.model_fields.get(str(step))
        if field is None:
            continue  # the name of a store, a plugin, a scheme
        model = field.annotation
        arguments = get_args(model)
        if arguments:
            model = arguments[-1]
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _nearest(word: str, known: Any) -> str:
    found = difflib.get_close_matches(word, [str(item) for item in known], n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def load_from_environment(explicit: str | None = None) -> Config:
    """What every process calls at its start: find the file, read it with this process's environment."""
    return load(find(explicit, os.environ), os.environ)
