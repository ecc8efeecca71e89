"""Finds the config file, merges included files and the environment, and returns the validated Config.

No process takes `data_dir` from its working directory. A relative path is relative to the config file. Without one, it
is $STATE_DIRECTORY, which systemd sets for a unit with StateDirectory=, else the folder `data` beside the config file,
and without a config file the user's state directory.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from receiver.config.config import Config
from receiver.config.environment import read_environment, sets_keys
from receiver.config.references import find_references, resolve
from receiver.config.settings import FileSettings, RedisSettings
from receiver.config.source_files import KeyPath, Place, Places, dotted, merge, read_file, read_key
from receiver.contract.errors import ConfigError, StorehooksError

EXAMPLE = "config.example.toml"
DATA_DIR = "data"
_DATA_DIR_KEY = ("redis", "data_dir")


def find_config_file(explicit: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return --config, $STOREHOOKS_CONFIG or ./config.toml, whichever is set first; in a checkout, the example.

    None if there is no file and variables have the config.
    """
    for name in (explicit, environ.get("STOREHOOKS_CONFIG")):
        if name:
            if not Path(name).is_file():
                raise ConfigError(f"config file {name} does not exist")
            return Path(name)
    for name in ("config.toml", EXAMPLE):
        if Path(name).is_file():
            return Path(name)
    if sets_keys(environ):
        return None
    raise ConfigError(
        f"no config file found: tried --config, $STOREHOOKS_CONFIG, ./config.toml and ./{EXAMPLE}; "
        "`storehooks init` writes one. Without a file, set keys by variables such as STOREHOOKS_REDIS__URL"
    )


def load(
    path: Path | None, environ: Mapping[str, str], *, also: Path | None = None, without: Path | None = None
) -> Config:
    """Read, merge and validate. Environment variables override files.

    `also` is one more file, read after the others, and `without` an included one that is left out: `stores add` and
    `stores remove` validate what the config will be.
    """
    values, places = _read(path, environ, also, without)
    _apply_store_defaults(values)
    references = frozenset(find_references(values))
    resolved = resolve(values, (), base=path.parent if path else Path(), environ=environ, places=places)
    earlier = _find_data_dir(resolved, places, path, environ)
    _find_ca_file(resolved, path)
    return Config.build(resolved, path=path, places=places, references=references, earlier_data_dir=earlier)


def _read(
    path: Path | None, environ: Mapping[str, str], also: Path | None = None, without: Path | None = None
) -> tuple[dict[str, Any], Places]:
    """The merged values, not validated, and the place of each."""
    values: dict[str, Any] = {}
    places = Places()
    if path is not None:
        read_file(path, into=values, places=places)
        for file in included_files(path, _include_patterns(path, values)):
            if file != without:
                read_file(file, into=values, places=places)
    if also is not None:
        read_file(also, into=values, places=places)
    merge(values, read_environment(environ, places))
    return values, places


def data_dir_from_environment(explicit: str | None = None) -> Path:
    """Only the data directory. A mistake elsewhere in the config, or a missing secret, does not matter for it.

    Raises ConfigError if it is not known: there is no config file, or the mistake is where the file may set it.
    """
    with _any_error_as_config_error(explicit):
        return _data_dir(explicit, os.environ)


def _data_dir(explicit: str | None, environ: Mapping[str, str]) -> Path:
    key, places = _DATA_DIR_KEY, Places()
    redis = read_environment(environ, places).get("redis")
    given, path = redis.get("data_dir") if isinstance(redis, dict) else None, None
    if given is None:  # a variable overrides files
        path = find_config_file(explicit, environ)
        given = _read_data_dir(path, places) if path else ""
        if path and not given:
            _require_known_names(path)
    given = resolve(given, key, base=path.parent if path else Path(), environ=environ, places=places)
    if not isinstance(given, str):
        raise ConfigError(f"{places.nearest(key)}: {dotted(key)} is not a text")
    return _choose_data_dir(given, _place_of(key, places), path, environ)[0].absolute()


def _read_data_dir(path: Path, places: Places) -> Any:
    """What a config file, or one that it includes, sets; empty without it."""
    for file in _files_of(path):
        if (given := read_key(file, _DATA_DIR_KEY)) is not None:
            places.setdefault(_DATA_DIR_KEY, Place(str(file)))
            return given
    return ""


def _require_known_names(path: Path) -> None:
    """Raise ConfigError if a misspelt name, such as `[reddis]` or `data_dirs = ...`, may hide the data directory."""
    values: dict[str, Any] = {}
    with suppress(ConfigError):  # a file that is not valid TOML: `read_key` has looked at its lines
        for file in _files_of(path):
            read_file(file, into=values, places=Places())
    redis = values.get("redis", {})
    if not isinstance(redis, dict):
        raise ConfigError(f"{path}: redis is not a table")
    unknown = (values.keys() - FileSettings.model_fields.keys()) | (redis.keys() - RedisSettings.model_fields.keys())
    if unknown:
        raise ConfigError(f"{path}: {min(unknown)} is unknown, and may be a mistake where data_dir is meant")


def _files_of(path: Path) -> Iterator[Path]:
    """The config file, then those that it includes; a file that was not asked for is not read."""
    yield path
    include = read_key(path, ("include",))
    yield from included_files(path, _include_patterns(path, {} if include is None else {"include": include}))


def load_from_environment(explicit: str | None = None) -> Config:
    """Find the config file and load it with this process's environment. Every process calls this at its start, and
    when it reads the config again: ConfigError is raised for whatever is wrong, and ends no running process."""
    with _any_error_as_config_error(explicit):
        return load(find_config_file(explicit, os.environ), os.environ)


@contextmanager
def _any_error_as_config_error(explicit: str | None) -> Iterator[None]:
    try:
        yield
    except StorehooksError:
        raise
    except Exception as error:  # noqa: BLE001  a folder that may not be entered, a number that no parser expects, ...
        place = explicit or os.environ.get("STOREHOOKS_CONFIG") or "the config"
        raise ConfigError(f"{place} cannot be read: {error or type(error).__name__}") from None


def included_files(path: Path, patterns: Iterable[str]) -> list[Path]:
    """The files that `include` names, relative to the config file and in alphabetical order for each pattern."""
    return [Path(name) for pattern in patterns for name in sorted(_matching(path.parent / pattern))]


def _matching(pattern: Path) -> list[str]:
    """Raises ConfigError for a folder that may not be read: `glob` finds nothing there, so stores would be gone."""
    folders = _matching(pattern.parent) if glob.has_magic(str(pattern.parent)) else [str(pattern.parent)]
    for folder in folders:
        try:
            os.listdir(folder) if glob.has_magic(pattern.name) else os.lstat(Path(folder, pattern.name))
        except PermissionError:
            raise ConfigError(f"{folder}: this user may not read the folder, which `include` names") from None
        except OSError:
            continue  # it does not exist, or is a file
    return glob.glob(str(pattern))


def _include_patterns(path: Path, values: Mapping[str, Any]) -> list[str]:
    patterns = values.get("include", list(FileSettings.model_fields["include"].default))
    if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
        raise ConfigError(f'{path}: include is a list of file patterns, such as ["stores.d/*.toml"]')
    return patterns


def _find_data_dir(values: dict[str, Any], places: Places, path: Path | None, environ: Mapping[str, str]) -> Path:
    """Set the data directory; return where it was while a relative path was that of the working directory."""
    redis, key = values.setdefault("redis", {}), _DATA_DIR_KEY
    given = redis.get("data_dir", "") if isinstance(redis, dict) else None
    if isinstance(given, str):  # else it is refused, with its place
        found, place = _choose_data_dir(given, _place_of(key, places), path, environ)
        redis["data_dir"] = str(found)
        places[key] = place or Place("default")
    return Path(given if given and isinstance(given, str) else DATA_DIR)


def _choose_data_dir(
    given: str, place: Place | None, config_file: Path | None, environ: Mapping[str, str]
) -> tuple[Path, Place | None]:
    """Return the directory, and what decided it, which is None for a default. Raises ConfigError for a variable that
    leaves it to the working directory."""
    if place is not None and place.source.startswith("$"):
        return _absolute(environ.get(place.source[1:], "") and given, place), place
    if given:
        return (Path(given) if config_file is None else config_file.parent / given), place
    if folder := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        place = Place("$STATE_DIRECTORY")
        return _absolute(folder, place), place
    if config_file is not None:
        return config_file.parent / DATA_DIR, None
    if (state := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state) / "storehooks", Place("$XDG_STATE_HOME")
    return Path(environ.get("HOME") or "/") / ".local/state/storehooks", Place("$HOME")


def _absolute(given: str, place: Place) -> Path:
    if not given.startswith("/"):
        what = f"has {given!r}, a relative path" if given else "is empty"
        raise ConfigError(f"{place} {what}; set an absolute path, such as /var/lib/storehooks, or unset the variable")
    return Path(given)


def _place_of(key: KeyPath, places: Places) -> Place | None:
    """Of a key, or of the variable that sets its whole table."""
    return places.get(key) or (table if (table := places.nearest(key)) and table.source.startswith("$") else None)


def _find_ca_file(values: dict[str, Any], path: Path | None) -> None:
    """Like data_dir and `file:`, it is relative to the config file, whatever the working directory of a process is."""
    network = values.get("network")
    if path is None or not isinstance(network, dict):
        return
    if isinstance(given := network.get("ca_file"), str) and given:
        network["ca_file"] = str(path.parent / given)


def _apply_store_defaults(values: dict[str, Any]) -> None:
    """Put `[store_defaults]` under every `[stores.NAME]`."""
    defaults = values.get("store_defaults")
    stores = values.get("stores")
    if isinstance(defaults, dict) and isinstance(stores, dict):
        for name, store in stores.items():
            if isinstance(store, dict):
                merged: dict[str, Any] = {}
                merge(merged, defaults)
                merge(merged, store)
                stores[name] = merged
