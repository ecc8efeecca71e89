"""Watched: which files are behind a config and its plugins, and whether one of them was saved since the last look."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from receiver.config import Config
from receiver.inbox import Declaration


class FileWatch:
    """A set of files. One that is missing just now counts as it was: an editor may be replacing it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = dict.fromkeys(files)
        self._stamps = self._look()

    def changed(self, files: Iterable[Path] = ()) -> bool:
        """Whether one was saved since the last look; of these, one that is new counts, too."""
        self.files |= dict.fromkeys(files)
        before, self._stamps = self._stamps, self._stamps | self._look()
        return before != self._stamps

    def _look(self) -> dict[Path, float]:
        found = {}
        for file in self.files:
            with contextlib.suppress(OSError):
                found[file] = file.stat().st_mtime
        return found


def config_files(config: Config) -> list[Path]:
    """The config's own file, and those it includes."""
    if config.path is None:
        return []
    return [config.path, *(file for pattern in config.include for file in sorted(config.path.parent.glob(pattern)))]


def plugin_files(config: Config, handlers: Iterable[Declaration]) -> list[Path]:
    """Where the handlers are written, and the files that config names, whatever is in them."""
    base = config.path.parent if config.path else Path()
    named = [(base / name).absolute() for name in config.workers.plugins if name.endswith(".py")]
    return [*dict.fromkeys([*named, *(Path(one.details["file"]) for one in handlers)])]
