"""Reads config values from environment variables: STOREHOOKS_SECTION__KEY, REDIS_URL, PORT and WEB_CONCURRENCY."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

from receiver.config.errors import did_you_mean, known_keys
from receiver.config.settings import ENV_PREFIX, FileSettings
from receiver.config.source_files import Place, Places
from receiver.contract.errors import ConfigError

PREFIXED_CUTOFF = 0.9
"""How near a whole name must be: the prefix, which is common to all, makes any two similar."""
_NOT_SETTINGS = {"STOREHOOKS_CONFIG"}
_PLAIN_VARIABLES = (
    ("REDIS_URL", "redis", "url", "{}"),
    ("PORT", "receiver", "bind", "0.0.0.0:{}"),
    ("WEB_CONCURRENCY", "receiver", "processes", "{}"),
)
"""The variable, the key that it sets unless STOREHOOKS_... does, and how."""
_SERVICE_LINK = re.compile(
    r"STOREHOOKS_([A-Z0-9_]+_)?((SERVICE_HOST|PORT_\d+_[A-Z]+_ADDR)=[0-9a-f.:]+"
    r"|(SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_[A-Z]+_PORT)=\d+"
    r"|PORT(_\d+_[A-Z]+)?=(tcp|udp|sctp)://.+|PORT_\d+_[A-Z]+_PROTO=(tcp|udp|sctp))"
)
"""The variables that Kubernetes sets in each container for a service called storehooks, storehooks-web, ..."""


def read_environment(environ: Mapping[str, str], places: Places) -> dict[str, Any]:
    """Return the values that variables set, nested as in the file, and record the variable of each in `places`."""
    _record_places(environ, places)
    try:
        values: dict[str, Any] = _EnvironmentSource(environ)()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}") from None
    if (port := environ.get("PORT")) and not (port.isascii() and port.isdigit()):
        raise ConfigError(f"$PORT must be a number, such as 8000, and is {port[:40]!r}")
    for variable, section, key, form in _PLAIN_VARIABLES:
        if (value := environ.get(variable)) and key not in values.setdefault(section, {}):
            values[section][key] = form.format(value)
            places[section, key] = Place(f"${variable}")
    return values


def sets_keys(environ: Mapping[str, str]) -> bool:
    """Whether a variable STOREHOOKS_... sets a key, so that there may be no config file."""
    return any(map(_is_setting, environ, environ.values()))


def _is_setting(name: str, value: str) -> bool:
    return name.startswith(ENV_PREFIX) and name not in _NOT_SETTINGS and not _is_service_link(name, value)


def _record_places(environ: Mapping[str, str], places: Places) -> None:
    for name, value in environ.items():
        if _is_setting(name, value):
            key = tuple(step.lower() for step in name.removeprefix(ENV_PREFIX).split("__"))
            if key[0] not in FileSettings.model_fields:
                tables = FileSettings.model_fields
                near = did_you_mean(key[0], tables) if key[1:] else did_you_mean(name, _names(), PREFIXED_CUTOFF)
                raise ConfigError(f"${name}: unknown key {key[0]}{near}")
            places[key] = Place(f"${name}")


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has set it. A key of ours has two underscores after its section, and those have none."""
    return "__" not in name and _SERVICE_LINK.fullmatch(f"{name}={value}") is not None


def _names() -> list[str]:
    """The variables for the keys of each table."""
    return [
        f"{ENV_PREFIX}{table}__{key}".upper() for table in FileSettings.model_fields for key in known_keys((table,))
    ]


class _EnvironmentSource(EnvSettingsSource):
    """Reads STOREHOOKS_A__B with pydantic-settings, from a mapping instead of os.environ."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(FileSettings)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Lists and tables are written as JSON. Any other text is the key's own, as in a file: "48h, 64MB"."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items() if value != ""}
