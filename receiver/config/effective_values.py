"""Effective values: every key of a config with its value and what set it, without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from receiver.config.alert_settings import parse_share
from receiver.config.config import Config
from receiver.config.settings import SecretWindow
from receiver.config.source_files import KeyPath, dotted
from receiver.config.values import Bounds, DurationOrWord, parse_duration, parse_rate, parse_size

HIDDEN = "(hidden)"
_FREE_TABLES = ("plugins", "extra", "headers", "params")
"""Tables whose keys are not ours: settings of plugins, headers, fields of a token request. Any text may be a secret."""
_NOT_SHOWN = ("store_defaults",)
"""It is shown in each store."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


class EffectiveValue(NamedTuple):
    key: str
    value: Any
    """As a config file has it, in JSON's types."""
    set_by: str
    """A line of a file, a variable, or "default"."""


def effective_values(config: Config) -> list[EffectiveValue]:
    """Every key, in the order of the example, and every key of each named table."""
    return [
        EffectiveValue(dotted(key), _shown(config, key, value, field), _set_by(config, key) if is_set else "default")
        for key, value, field, is_set in _leaves(config)
    ]


Leaf = tuple[KeyPath, Any, FieldInfo | None, bool]


def _leaves(table: BaseModel, key: KeyPath = ()) -> Iterator[Leaf]:
    for name, field in type(table).model_fields.items():
        if not key and name in _NOT_SHOWN:
            continue
        yield from _below((*key, field.alias or name), getattr(table, name), field, name in table.model_fields_set)
    for name, value in (table.model_extra or {}).items():
        yield from _below((*key, name), value, None, True)


def _below(key: KeyPath, value: Any, field: FieldInfo | None, is_set: bool) -> Iterator[Leaf]:
    if isinstance(value, BaseModel):
        yield from _leaves(value, key)
    elif isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _below((*key, name), item, None, is_set)
    elif value is not None:
        yield key, value, field, is_set


def _set_by(config: Config, key: KeyPath) -> str:
    exact = config.place_of_value(*key)
    if exact is None and key[0] == "stores":
        exact = config.place_of_value("store_defaults", *key[2:])
    return str(exact or config.place(*key) or "default")


def _shown(config: Config, key: KeyPath, value: Any, field: FieldInfo | None) -> Any:
    if value in ("", ()):
        return "" if value == "" else []
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    if config.is_reference(*key) or (field is None and _may_be_secret(key, value)):
        return HIDDEN
    if key[0] == "forward" and key[-1] == "url":  # its path may have a token
        parts = urlsplit(value)
        has_more = parts.path.strip("/") or parts.query
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN if has_more else ''}"
    return _as_written(value, field)


def _may_be_secret(key: KeyPath, value: Any) -> bool:
    return any(step in _FREE_TABLES for step in key[:-1]) and not isinstance(value, bool | int | float)


def _as_written(value: Any, field: FieldInfo | None) -> Any:
    """The value as a config file has it."""
    if isinstance(value, Bounds):
        return f"{_duration(value.max_age)}, {_size(value.max_bytes)}" if value else "off"
    if isinstance(value, SecretWindow):
        return HIDDEN if value.not_after is None else f"{HIDDEN} until {value.not_after.isoformat()}"
    if isinstance(value, list | tuple):
        return [_as_written(one, None) for one in value]
    if isinstance(value, str):
        return _without_credentials(value)
    return _written_by_parser(value, [getattr(one, "func", None) for one in field.metadata] if field else [])


def _without_credentials(text: str) -> str:
    """A URL's user may be a token, and its query may have a password."""
    scheme, sign, rest = text.partition("://")
    if not sign:
        return text
    address, mark, _ = rest.partition("?")
    host = address.rpartition("@")[2] if "@" in address else address
    return f"{scheme}://{f'{HIDDEN}@' if '@' in address else ''}{host}{f'?{HIDDEN}' if mark else ''}"


def _written_by_parser(value: Any, parsers: list[Any]) -> Any:
    for parser in parsers:
        if isinstance(parser, DurationOrWord):
            return _duration(value) if value else parser.word
        if write := _WRITERS.get(parser):
            return write(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _duration(seconds: float) -> str:
    if not seconds:
        return "0s"
    number, unit = next(((seconds / one, name) for one, name in _UNITS if seconds % one == 0), (seconds * 1000, "ms"))
    return f"{number:g}{unit}"


def _size(number: int) -> str | int:
    return next((f"{number // one}{name}" for one, name in _SIZES if number and number % one == 0), number)


def _rate(number: float) -> str:
    return f"{number:g}/s" if number else ""


def _share(number: float) -> str:
    return f"{number:.0%}" if number else "off"


_WRITERS: dict[Any, Callable[[Any], Any]] = {
    parse_duration: _duration,
    parse_size: _size,
    parse_rate: _rate,
    parse_share: _share,
}
"""By the parser of a key."""
