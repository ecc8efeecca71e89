"""Store files: `stores.d/NAME.toml`, one for each store that was added by command.

A file is written under a temporary name, validated as part of the whole config, and renamed only if it is valid. So no
process ever reads a partial or an invalid file.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from receiver.config import Config, load
from receiver.config.references import find_references
from receiver.config.source_files import dotted
from receiver.contract.errors import ConfigError
from receiver.owned_files import copy_owner, make_folder


class Draft:
    """A store's file under its temporary name. `discard` leaves nothing behind."""

    def __init__(self, path: Path, text: str, *, like: Path | None = None) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.new")
        self._made_folder = not path.parent.exists()
        check_folder(path)
        if self._made_folder:
            make_folder(path.parent, like=like and like.parent)  # whatever the umask is: who reads that reads this too
        self._draft.unlink(missing_ok=True)
        descriptor = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _copy_ownership(file.fileno(), like)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def validate(self, config: Config, environ: Mapping[str, str]) -> Config:
        """Load the whole config together with this file; raises ConfigError if it or its secrets cannot be read."""
        try:
            tried = load(config.path, environ, also=self._draft)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(self._draft), str(self.path))) from None
        if config.path is not None:
            for key, path in _secret_files(self._draft, config.path.parent):
                _require_readable(path, key, config.data_dir)
        return tried

    def publish(self) -> None:
        """Rename the file to its final name. An existing file of this name is not overwritten."""
        if self.path.exists():
            raise ConfigError(f"{self.path} already exists, and is not overwritten")
        os.rename(self._draft, self.path)

    def discard(self) -> None:
        self._draft.unlink(missing_ok=True)
        if self._made_folder:
            with suppress(OSError):
                self.path.parent.rmdir()


def _copy_ownership(descriptor: int, like: Path | None) -> None:
    """Let the owner of the config read this file too, and its group if the config is readable by the group alone."""
    if like is None:
        return
    copy_owner(descriptor, like)
    if like.stat().st_mode & 0o044 == 0o040:
        os.fchmod(descriptor, 0o640)


def _secret_files(file: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """The files that a config file names for its secrets, with their keys."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    for key in find_references(content):
        value: Any = content
        for part in key:
            value = value[part]
        if value.startswith("file:"):
            yield dotted(key), base / value.removeprefix("file:")


def _require_readable(path: Path, key: str, data_dir: Path) -> None:
    """Raise ConfigError if root could read a file and the services could not: they run as the owner of data_dir."""
    if os.geteuid() != 0 or not data_dir.exists() or (owner := data_dir.stat()).st_uid == 0:
        return
    try:
        user = pwd.getpwuid(owner.st_uid)
        name, group, groups = user.pw_name, user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:  # in a container it may have no name
        name, group, groups = str(owner.st_uid), owner.st_gid, []
    command = ["/usr/bin/test", "-r", str(path)]
    try:
        tried = subprocess.run(command, check=False, user=owner.st_uid, group=group, extra_groups=groups)
    except OSError:  # root without the capability to become another user
        return
    if tried.returncode:
        raise ConfigError(
            f"{key} refers to {path}, which the services may not read: they run as {name}, the owner of {data_dir}; "
            f"let that user or its group read the file, and enter its folder"
        )


def check_folder(path: Path) -> None:
    """Raise ConfigError if this user may not create or delete the file, because of the folder it is in."""
    folder = next(one for one in path.absolute().parents if os.path.exists(one))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"this user may not write to {folder}; run the command as the user who owns it")


def check_without(config: Config, file: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigError if the config is not valid without this file: no process could start with it."""
    try:
        load(config.path, environ, without=file)
    except ConfigError as error:
        raise ConfigError(f"without {file} the config is not valid; change this first: {error}") from None


def path_for(config: Config, name: str) -> Path:
    """The path for the file of a new store: in a folder that the config includes."""
    if config.path is None:
        raise ConfigError("there is no config file to add a store to; `storehooks init` writes one")
    for pattern in config.include:
        if fnmatch.fnmatch(f"{name}.toml", Path(pattern).name):
            return config.path.parent / Path(pattern).parent / f"{name}.toml"
    raise ConfigError(f'{config.path} includes no file for {name}; add include = ["stores.d/*.toml"] at its top')


def as_toml(name: str, fields: Mapping[str, Any]) -> str:
    """The text of a store's file. Empty fields are left out, since they are the defaults."""
    head = f"# Written by `storehooks stores add {name}`, {date.today()}.\n"
    return head + tomli_w.dumps({"stores": {name: _without_empty(fields)}})


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in fields.items()}
    return {key: value for key, value in nested.items() if value not in ("", (), [], {}, False, None)}


def file_of(config: Config, name: str) -> Path | None:
    """The file that defines only this store; None if the store is defined among other settings."""
    place = config.place("stores", name)
    if place is None or not place.line or Path(place.source) == config.path:
        return None
    path = Path(place.source)
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return path if set(content) == {"stores"} and set(content["stores"]) == {name} else None
