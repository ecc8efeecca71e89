"""Logs: one line for each event, as JSON unless stderr is a terminal. Never a secret or a payload."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

import structlog

REPEAT_SECONDS = 60.0


def setup(process: str) -> None:
    """Send every log line of this process, also those of libraries, through one formatter to stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[without_messages, structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


class ThrottledLog:
    """Logs each event at most once a minute, because the same problem may come up with every delivery."""

    def __init__(self, logger: structlog.stdlib.BoundLogger) -> None:
        self._logger = logger
        self._next: dict[str, float] = {}

    def error(self, event: str, **fields: Any) -> None:
        if self._is_due(event):
            self._logger.error(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._is_due(event):
            self._logger.info(event, **fields)

    def _is_due(self, event: str) -> bool:
        now = time.monotonic()
        if now < self._next.get(event, 0.0):
            return False
        self._next[event] = now + REPEAT_SECONDS
        return True


def without_messages(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace an exception by its type and its place in the code. Its message may quote a payload or a secret."""
    info = line.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        line["exception"] = type(error).__name__
        line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return line
