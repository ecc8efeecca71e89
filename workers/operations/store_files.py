"""Store files: `stores.d/NAME.toml`, one for each store that was added by command.

A file is written beside its place, tried as part of the whole config, and moved into place only when it fits: no
process ever reads half of one, and a wrong one is never there.
"""

from __future__ import annotations

import fnmatch
import json
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from receiver.config import Config, load
from receiver.contract.errors import ConfigError


class Draft:
    """A store's file that is not in its place yet. `discard` leaves nothing behind."""

    def __init__(self, path: Path, text: str, *, like: Path | None = None) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.new")
        self._made_folder = not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._draft.unlink(missing_ok=True)
        descriptor = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _give_to_whom(file.fileno(), like)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def tried(self, config: Config, environ: Mapping[str, str]) -> Config:
        """The whole config as it would be with this file, or ConfigError."""
        try:
            return load(config.path, environ, also=self._draft)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(self._draft), str(self.path))) from None

    def keep(self) -> None:
        """Into its place. Somebody else's file of this name is not overwritten."""
        if self.path.exists():
            raise ConfigError(f"{self.path} is here already, and it is not overwritten")
        os.rename(self._draft, self.path)

    def discard(self) -> None:
        self._draft.unlink(missing_ok=True)
        if self._made_folder:
            with suppress(OSError):
                self.path.parent.rmdir()


def _give_to_whom(descriptor: int, like: Path | None) -> None:
    """Who may read the config must be able to read this: its owner, and a group that it was given to on purpose."""
    if like is None:
        return
    status = like.stat()
    with suppress(PermissionError):  # only root can give it away; whoever else writes it is its reader, too
        os.fchown(descriptor, status.st_uid, status.st_gid)
    if status.st_mode & 0o044 == 0o040:
        os.fchmod(descriptor, 0o640)


def place_for(config: Config, name: str) -> Path:
    """Where the file of a new store belongs: a folder that the config includes."""
    if config.path is None:
        raise ConfigError("there is no config file to add a store to; `storehooks init` writes one")
    for pattern in config.include:
        if fnmatch.fnmatch(f"{name}.toml", Path(pattern).name):
            return config.path.parent / Path(pattern).parent / f"{name}.toml"
    raise ConfigError(
        f'{config.path}: nothing includes a file for {name}; write include = ["stores.d/*.toml"] in its first lines'
    )


def as_toml(name: str, fields: Mapping[str, Any]) -> str:
    """The file's text. What is empty is left out: it is the default."""
    lines = [f"# Written by `storehooks stores add {name}`, {date.today()}.", f"[stores.{name}]"]
    lines += [f"{key} = {_value(value)}" for key, value in fields.items() if value not in ("", (), [], {}, False, None)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item not in ("", None))
        return f"{{ {inside} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one letter where TOML is stricter


def file_of(config: Config, name: str) -> Path | None:
    """The file that holds this store and nothing else; None where other things stand in it, too."""
    place = config.place("stores", name)
    if place is None or not place.line or Path(place.source) == config.path:
        return None
    path = Path(place.source)
    held = tomllib.loads(path.read_text(encoding="utf-8"))
    return path if set(held) == {"stores"} and set(held["stores"]) == {name} else None
