"""References to secrets: "env:NAME" and "file:PATH" as values of a config file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from receiver.config.source_files import KeyPath, Places, dotted
from receiver.contract.errors import ConfigError


def find_references(value: Any, key: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the keys whose values are written as "env:NAME" or "file:PATH"."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from find_references(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_references(item, (*key, index))
    elif isinstance(value, str) and value.startswith(("env:", "file:")):
        yield key


def resolve(value: Any, key: KeyPath, *, base: Path, environ: Mapping[str, str], places: Places) -> Any:
    """Return the value with "env:NAME" and "file:PATH" replaced by the variable's or the file's content."""
    if isinstance(value, dict):
        items = value.items()
        return {name: resolve(item, (*key, name), base=base, environ=environ, places=places) for name, item in items}
    if isinstance(value, list):
        pairs = enumerate(value)
        return [resolve(item, (*key, index), base=base, environ=environ, places=places) for index, item in pairs]
    if not isinstance(value, str):
        return value
    where = places.nearest(key) or "config"
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if not environ.get(name):
            raise ConfigError(f"{where}: {dotted(key)} refers to ${name}, which is not set")
        return environ[name]
    if value.startswith("file:"):
        path = base / value.removeprefix("file:")
        try:
            return path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"{where}: {dotted(key)} refers to {path}, which cannot be read: {reason}") from None
    return value
