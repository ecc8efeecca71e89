"""Watches the files of a config and its plugins for changes. For `dev`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from receiver.config import Config
from receiver.config.loading import included_files
from receiver.inbox import Declaration


class FileWatch:
    """A set of files. A missing file counts as unchanged: an editor may be replacing it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = dict.fromkeys(files)
        self._times = self._modification_times()

    def changed(self, files: Iterable[Path] = ()) -> bool:
        """Whether a file was saved since the last call. A new one of `files` counts as saved."""
        self.files |= dict.fromkeys(files)
        before, self._times = self._times, self._times | self._modification_times()
        return before != self._times

    def expect_change(self) -> None:
        """Report a change at the next call: after HUP the processes read the files again, even if none was saved."""
        self._times = {}

    def _modification_times(self) -> dict[Path, float]:
        found = {}
        for file in self.files:
            with contextlib.suppress(OSError):
                found[file] = file.stat().st_mtime
        return found


def config_files(config: Config) -> list[Path]:
    if config.path is None:
        return []
    return [config.path, *included_files(config.path, config.include)]


def plugin_files(config: Config, handlers: Iterable[Declaration]) -> list[Path]:
    """The files of the handlers, and the plugin files that the config names."""
    base = config.path.parent if config.path else Path()
    named = [(base / name).absolute() for name in config.workers.plugins if name.endswith(".py")]
    return [*dict.fromkeys([*named, *(Path(one.details["file"]) for one in handlers)])]
