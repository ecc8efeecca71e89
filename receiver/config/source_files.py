"""What is written in config files: values, the line each stands in, and what they refer to. Checks nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from receiver.contract.errors import ConfigError

KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """Where a value was written: a file's line, or a variable of the environment."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


def read_into(data: dict[str, Any], places: dict[KeyPath, Place], path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for key, line in _lines(text):
        if key in places and _is_leaf(data, key):
            raise ConfigError(f"{path}:{line}: {dotted(key)} is set in {places[key]} already; keep one of the two")
        places[key] = Place(str(path), line)
    overlay(data, found)


def _is_leaf(data: Any, key: KeyPath) -> bool:
    for step in key:
        data = data.get(step) if isinstance(data, dict) else None
    return data is not None and not isinstance(data, dict)


_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.-])+)\s*=""")
_OPEN_ARRAY = re.compile(r"\s*\[\s*(?:#.*)?")
_ITEM = re.compile(r"\s*[^\s#\]]")
_STEP = re.compile(r'"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)')


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Each table, key and item of a list with its line: tomllib keeps no places, and people want to know.

    Items are told apart where each has a line of its own.
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


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            overlay(below[key], value)
        else:
            below[key] = value


# References


def references(value: Any, key: KeyPath = ()) -> Iterator[KeyPath]:
    """The keys whose values name a variable or a file."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from references(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from references(item, (*key, index))
    elif isinstance(value, str) and value.startswith(("env:", "file:")):
        yield key


def resolve(value: Any, key: KeyPath, base: Path, environ: Mapping[str, str], places: Mapping[KeyPath, Place]) -> Any:
    """Replace "env:NAME" and "file:PATH" by what they name."""
    if isinstance(value, dict):
        return {name: resolve(item, (*key, name), base, environ, places) for name, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, (*key, index), base, environ, places) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if not environ.get(name):
            raise ConfigError(f"{place_of(places, key)}: {dotted(key)} wants ${name}, which is not set")
        return environ[name]
    if value.startswith("file:"):
        path = base / value.removeprefix("file:")
        try:
            return path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"{place_of(places, key)}: {dotted(key)} wants {path}: {reason}") from None
    return value


# Words


def place_of(places: Mapping[KeyPath, Place], key: KeyPath) -> str:
    while key:
        if key in places:
            return str(places[key])
        key = key[:-1]
    return "config"


def dotted(key: KeyPath) -> str:
    text = ""
    for step in key:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.lstrip(".")
