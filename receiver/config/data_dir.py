"""Where `data_dir` is. No process takes it from its working directory.

A relative path is relative to the config file. Without one, it is $STATE_DIRECTORY, which systemd sets for a unit with
StateDirectory=, else the folder `data` beside the config file, and without a config file the user's state directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from receiver.config.source_files import Place
from receiver.contract.errors import ConfigError

DEFAULT = "data"


def find_data_dir(
    given: str, place: Place | None, *, config_file: Path | None, environ: Mapping[str, str]
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
        return config_file.parent / DEFAULT, None
    if (state := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state) / "storehooks", Place("$XDG_STATE_HOME")
    return Path(environ.get("HOME") or "/") / ".local/state/storehooks", Place("$HOME")


def _absolute(given: str, place: Place) -> Path:
    if not given.startswith("/"):
        what = f"has {given!r}, a relative path" if given else "is empty"
        raise ConfigError(f"{place} {what}; set an absolute path, such as /var/lib/storehooks, or unset the variable")
    return Path(given)
