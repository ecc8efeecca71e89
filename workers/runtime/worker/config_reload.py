"""Reload: validate plugins while the work goes on; on HUP, with the config read again. An invalid one is refused."""

from __future__ import annotations

from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from workers.plugins.plugin_code import ValidatedCode
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess

log = logs.get("worker")


class ConfigReload:
    """While plugins are validated, a descriptor is in the selector; when that is readable, ask for the result."""

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        self._validation: ValidationProcess | None = None
        self._again = False
        self.fault = ""
        """Why plugins could not be validated again. Empty after they were valid."""

    def begin(self, path: Path | None) -> bool:
        """Begin a reload. False while another one is under way: try again after that."""
        if self._validation is not None:
            return False
        try:
            self._start(ValidationProcess(load_from_environment(str(path) if path else None)), again=False)
        except StorehooksError as error:
            _log_refusal(error)
        return True

    def validate_again(self, config: Config, code: ValidatedCode, missing: dict[str, str]) -> None:
        """Validate the packages on disk, with the config and the copied files that are in use."""
        if self._validation is None:
            if not self.fault:
                log.warning("plugins cannot be loaded as they were validated; validating them again", plugins=missing)
            self._start(ValidationProcess(config, code=code), again=True)

    def _start(self, validation: ValidationProcess, *, again: bool) -> None:
        self._validation, self._again = validation, again
        self._selector.register(validation, EVENT_READ, self)

    def result(self) -> tuple[Config, ValidatedPlugins] | None:
        """The new config and its plugins, or None if they are not valid."""
        assert self._validation is not None
        validation, self._validation = self._validation, None
        self._selector.unregister(validation)
        try:
            valid = validation.config, validation.result()
        except StorehooksError as error:
            if not self._again:
                _log_refusal(error)
            elif self.fault != str(error):  # it is tried every few seconds, and logged once
                self.fault = str(error)
                log.error("a plugin cannot be loaded any more; child processes that have it keep it", why=error.logged)
            return None
        self.fault = ""
        return valid


def _log_refusal(error: StorehooksError) -> None:
    log.error("reload refused, the old config and plugins stay", why=error.logged)
