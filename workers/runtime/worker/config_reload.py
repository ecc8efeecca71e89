"""Reload on HUP: read the new config and validate its plugins while the work goes on. A bad config is refused."""

from __future__ import annotations

from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import Declaration
from workers.plugins.validation_process import ValidationProcess

log = logs.get("worker")


class ConfigReload:
    """While plugins are validated, a descriptor is in the selector; when that is readable, ask for the result."""

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        self._validation: ValidationProcess | None = None

    def begin(self, path: Path | None) -> bool:
        """Begin a reload. False while another one is under way: try again after that."""
        if self._validation is not None:
            return False
        try:
            self._validation = ValidationProcess(load_from_environment(str(path) if path else None))
        except StorehooksError as error:
            _log_refusal(error)
        else:
            self._selector.register(self._validation, EVENT_READ, self)
        return True

    def result(self) -> tuple[Config, list[Declaration]] | None:
        """The new config and its handlers, or None if they are not valid."""
        assert self._validation is not None
        validation, self._validation = self._validation, None
        self._selector.unregister(validation)
        try:
            return validation.config, validation.result()
        except StorehooksError as error:
            _log_refusal(error)
            return None


def _log_refusal(error: StorehooksError) -> None:
    log.error("reload refused, the old config and plugins stay", why=str(error))
