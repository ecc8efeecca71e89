"""Config reload: validates plugins while the work goes on; on HUP, with the config read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from workers.plugins.plugin_code import ValidatedCode
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess

log = logs.get("reload")


class ConfigReload:
    """While plugins are validated, a descriptor is in the selector; when that is readable, call its data.

    Valid ones are given to `adopt`, with their config. A process that finds them invalid keeps what it has: worker
    processes and their supervisor come to the same result.
    """

    def __init__(
        self,
        selector: BaseSelector,
        path: Path | None,
        adopt: Callable[[Config, ValidatedPlugins], None],
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self._selector = selector
        self._path = str(path) if path else None
        self._adopt = adopt
        self._on_fault = on_fault
        self._validation: ValidationProcess | None = None
        self._missing = ""
        """Why plugins are validated again. Empty for a reload."""
        self._reload_follows = False
        self.fault = ""
        """Why plugins cannot be loaded by child processes, or not be validated again."""
        self.faulty: list[str] = []
        """The plugins that child processes could not load."""

    @property
    def is_under_way(self) -> bool:
        return self._validation is not None

    def begin(self) -> None:
        """Begin a reload, or have it follow the one that is under way."""
        self._reload_follows = self._validation is not None
        if not self._reload_follows:
            try:
                self._start(ValidationProcess(load_from_environment(self._path)))
            except StorehooksError as error:
                _log_refusal(error)

    def validate_again(self, config: Config, code: ValidatedCode, missing: dict[str, str]) -> None:
        """Validate the packages on disk, with the config and the copied files that are in use."""
        if self._validation is None:
            if not self.fault:
                log.warning("plugins cannot be loaded as they were validated; validating them again", plugins=missing)
            self.faulty = sorted(missing)
            why = "; ".join(f"{plugin}: {reason}" for plugin, reason in missing.items())
            try:
                self._start(ValidationProcess(config, code=code), missing=why)
            except StorehooksError as error:
                self._note_fault(error)

    def _start(self, validation: ValidationProcess, *, missing: str = "") -> None:
        self._validation, self._missing = validation, missing
        self._selector.register(validation, EVENT_READ, lambda: self._finish(validation))

    def _finish(self, validation: ValidationProcess) -> None:
        self._validation = None
        self._selector.unregister(validation)
        try:
            plugins = validation.result()
        except StorehooksError as error:
            if not self._missing:
                _log_refusal(error)
            else:
                self._note_fault(error)
        else:
            self.fault = self._missing
            self._adopt(validation.config, plugins)
        if self._reload_follows:
            self.begin()

    def _note_fault(self, error: StorehooksError) -> None:
        if self.fault != str(error):  # it is tried every few seconds, and logged once
            self.fault = str(error)
            log.error("a plugin cannot be loaded any more; child processes that have it keep it", why=error.logged)
            self._on_fault()


def _log_refusal(error: StorehooksError) -> None:
    log.error("reload refused, the old config and plugins stay", why=error.logged)
