"""Reads config values from environment variables: STOREHOOKS_SECTION__KEY, REDIS_URL, PORT and WEB_CONCURRENCY."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_settings import EnvSettingsSource, SettingsError

from receiver.config.errors import did_you_mean
from receiver.config.settings import ENV_PREFIX, FileSettings
from receiver.config.source_files import Place, Places
from receiver.contract.errors import ConfigError

_NOT_SETTINGS = {"STOREHOOKS_CONFIG"}
_PLAIN_VARIABLES = (
    ("REDIS_URL", "redis", "url", "{}"),
    ("PORT", "receiver", "bind", "0.0.0.0:{}"),
    ("WEB_CONCURRENCY", "receiver", "processes", "{}"),
)
"""The variable, the key that it sets unless STOREHOOKS_... does, and how."""


def read_environment(environ: Mapping[str, str], places: Places) -> dict[str, Any]:
    """Return the values that variables set, nested as in the file, and record the variable of each in `places`."""
    _record_places(environ, places)
    try:
        values: dict[str, Any] = _EnvironmentSource(environ)()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from None
    for variable, section, key, form in _PLAIN_VARIABLES:
        if (value := environ.get(variable)) and key not in values.setdefault(section, {}):
            values[section][key] = form.format(value)
            places[section, key] = Place(f"${variable}")
    return values


def _record_places(environ: Mapping[str, str], places: Places) -> None:
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in _NOT_SETTINGS:
            key = tuple(step.lower() for step in name.removeprefix(ENV_PREFIX).split("__"))
            if key[0] not in FileSettings.model_fields:
                raise ConfigError(f"${name}: unknown key {key[0]}{did_you_mean(key[0], FileSettings.model_fields)}")
            places[key] = Place(f"${name}")


class _EnvironmentSource(EnvSettingsSource):
    """Reads STOREHOOKS_A__B with pydantic-settings, from a mapping instead of os.environ."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(FileSettings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items() if value != ""}
