"""Reads config files: their values, and the file and line of each value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from receiver.contract.errors import ConfigError

KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """Where a value was written: a line of a file, or an environment variable."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Places(dict[KeyPath, Place]):
    """The place of every value."""

    def nearest(self, key: KeyPath) -> Place | None:
        """Return the place of the value at `key`, or of the nearest table above it; else of the first value below it,
        as in a file that only has `[stores.north.plugins.erp]`."""
        for length in range(len(key), 0, -1):
            if key[:length] in self:
                return self[key[:length]]
        return next((place for path, place in self.items() if key and path[: len(key)] == key), None)


def read_file(path: Path, *, into: dict[str, Any], places: Places) -> None:
    """Merge a TOML file into the values. A value that an earlier file has set is an error."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    own = Places((key, Place(str(path), line)) for key, line in _lines(text))
    for key in _value_paths(values):
        if _is_set(into, key):
            earlier = places.nearest(key)
            raise ConfigError(f"{own.nearest(key)}: {dotted(key)} is already set in {earlier}; remove one of the two")
    places.update(own)
    merge(into, values)


def read_key(path: Path, key: KeyPath) -> Any:
    """The value of one key in a file, or None if the file does not set it.

    A file that is not valid TOML may tell it, too: if it does not name the key, or only in one line that is valid by
    itself. Else the mistake may hide or change the value, and ConfigError is raised.
    """
    values: dict[str, Any] = {}
    try:
        read_file(path, into=values, places=Places())
    except ConfigError as fault:
        return _read_own_line(path, key, fault)
    return _value_at(values, key)


def _read_own_line(path: Path, key: KeyPath, fault: ConfigError) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        naming = [number for number, line in enumerate(lines, 1) if str(key[-1]) in line.partition("#")[0]]
        if not naming:
            return None
        if len(naming) > 1 or naming != [number for found, number in _lines(text) if found == key]:
            raise fault
        value: Any = tomllib.loads(lines[naming[0] - 1])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        raise fault from None
    while isinstance(value, dict) and len(value) == 1:  # as in `redis.data_dir = "..."`
        (value,) = value.values()
    return value


def _value_paths(values: Mapping[str, Any], table: KeyPath = ()) -> Iterator[KeyPath]:
    """The path of each value that is no table."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _value_paths(value, (*table, name))
        else:
            yield (*table, name)


def _is_set(data: Any, key: KeyPath) -> bool:
    """Whether there is a value or a table at `key`, or a value above it."""
    for step in key:
        if not isinstance(data, dict):
            return True
        if step not in data:
            return False
        data = data[step]
    return True


def _value_at(data: Any, key: KeyPath) -> Any:
    for step in key:
        data = data.get(step) if isinstance(data, dict) else None
    return data


_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.-])+)\s*=""")
_OPEN_ARRAY = re.compile(r"\s*\[\s*(?:#.*)?")
_ITEM = re.compile(r"\s*[^\s#\]]")
_STEP = re.compile(r'"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)')


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield each table, key and list item with its line number, for error messages: tomllib gives no line numbers.

    List items have their own line numbers only if each is on a line of its own.
    """
    table: KeyPath = ()
    array: KeyPath = ()
    item = 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.fullmatch(line):
            table, array = _steps(match[1]), ()
            yield table, number
        elif match := _KEY.match(line):
            key = table + _steps(match[1])
            array, item = key if _OPEN_ARRAY.fullmatch(line, match.end()) else (), 0
            yield key, number
        elif array and _ITEM.match(line):
            yield (*array, item), number
            item += 1


def _steps(dotted: str) -> KeyPath:
    return tuple(next(filter(None, found), "") for found in _STEP.findall(dotted))


def merge(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set `overrides` in `values`, table by table."""
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value


def dotted(key: KeyPath) -> str:
    """Return a key as text: `stores.north.signing_secrets[0]`."""
    text = ""
    for step in key:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")
