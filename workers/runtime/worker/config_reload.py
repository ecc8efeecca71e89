"""New config: HUP reads it and has the plugins judged, beside the work; a bad one is refused, and the old stays."""

from __future__ import annotations

from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import Declaration
from workers.plugins.loading import ValidationProcess

log = logs.get("worker")


class NewConfig:
    """While a judge is at work, its descriptor is in the selector; when that is readable, ask for the verdict."""

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        self._judge: ValidationProcess | None = None

    def begin(self, path: Path | None) -> bool:
        """False while another one is under way: it is to be asked again after that."""
        if self._judge is not None:
            return False
        try:
            self._judge = ValidationProcess(load_from_environment(str(path) if path else None))
        except StorehooksError as error:
            _refused(error)
        else:
            self._selector.register(self._judge, EVENT_READ, self)
        return True

    def verdict(self) -> tuple[Config, list[Declaration]] | None:
        """The new config and its handlers, or None if they are no good."""
        assert self._judge is not None
        judge, self._judge = self._judge, None
        self._selector.unregister(judge)
        try:
            return judge.config, judge.verdict()
        except StorehooksError as error:
            _refused(error)
            return None


def _refused(error: StorehooksError) -> None:
    log.error("reload refused, the old config and plugins stay", why=str(error))
