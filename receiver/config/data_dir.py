"""Where `data_dir` is. No process takes it from its working directory, unless it has our data there from before.

A relative path is relative to the config file. Without one, it is $STATE_DIRECTORY, which systemd sets for a unit with
StateDirectory=, else the folder `data` beside the config file, and without a config file the user's state directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from receiver.config.source_files import Place

DEFAULT = "data"
_OUR_FILES = ("run", "known_data")
"""Each long-running process has made one of them at its start."""


def find_data_dir(
    given: str, place: Place | None, *, config_file: Path | None, environ: Mapping[str, str]
) -> tuple[Path, Place | None]:
    """Return the directory, and what decided it, which is None for a default."""
    found, decided_by = _configured(given, place, config_file, environ)
    earlier = Path(given or DEFAULT)
    if earlier.absolute() != found.absolute() and _has_our_data(earlier) and not _has_our_data(found):
        return earlier.absolute(), Place("the working directory, which has its data from before")
    return found, decided_by


def _configured(
    given: str, place: Place | None, config_file: Path | None, environ: Mapping[str, str]
) -> tuple[Path, Place | None]:
    if given:
        is_variable = place is not None and place.source.startswith("$")
        return (Path(given) if is_variable or config_file is None else config_file.parent / given), place
    if folder := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(folder), Place("$STATE_DIRECTORY")
    if config_file is not None:
        return config_file.parent / DEFAULT, None
    if (state := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state) / "storehooks", Place("$XDG_STATE_HOME")
    return Path(environ.get("HOME") or "/") / ".local/state/storehooks", Place("$HOME")


def _has_our_data(folder: Path) -> bool:
    try:
        return any((folder / name).exists() for name in _OUR_FILES)
    except OSError:  # it belongs to another user
        return False
