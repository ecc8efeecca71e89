"""Logs: one line for each event, as JSON unless stderr is a terminal. Never a secret or a payload."""

from __future__ import annotations

import atexit
import logging
import select
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, Literal, TextIO, TypeVar

import structlog

from receiver.contract.diagnosis.terminal_text import escaped

Level = Literal["warning", "error"]
Key = TypeVar("Key")

REPEAT_SECONDS = 60.0
BEGIN_SECONDS = 10.0
"""An outage that begins again within this time of its last line is logged after it: it may come and go each second."""
COUNT_SECONDS = 1.0
WAIT_FOR_ROOM, WAIT_AGAIN = 0.5, 10.0
LINES_A_SECOND = 100
"""Of one kind in one process. A line takes 60 microseconds, in which a worker could do a fifth of a run."""
_fields: dict[str, str] = {}
"""Of every line of this process. A context variable would be missing in other threads."""
_work: list[Callable[[], Mapping[str, Any]]] = []
"""At most one: it returns fields of every line while this process performs a run."""
HTTP_CLIENTS = ("httpx2", "httpcore2", "httpx", "httpcore", "urllib3")
"""Libraries, ours and of plugins, that log each request with its URL, which may contain a token or a customer's data.
A plugin that wants these lines sets the level itself."""
FAILED = "run failed for good; see `storehooks failures`"


def setup(process: str) -> None:
    """Send every log line of this process, also those of libraries, through one formatter to stderr."""
    _fields["process"] = process
    shared: list[structlog.typing.Processor] = [
        with_fields,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[structlog.typing.Processor] = (
        [escape_controls, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    handler = LineHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[without_messages, structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in HTTP_CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, but does not wait for a reader that hangs: no delivery would be answered meanwhile.

    A line without room waits for WAIT_FOR_ROOM, unless one did within WAIT_AGAIN. Then it is left out, and counted.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._left_out = 0
        self._waited_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if self._left_out and self._has_room():
            left_out, self._left_out = self._left_out, 0
            get("logs").warning("log lines were left out: stderr was not read", count=left_out)
            if self._left_out:  # others write to the stream, too, and this line found no room
                self._left_out = left_out
        if self._has_room():
            super().emit(record)
        else:
            self._left_out += 1

    def _has_room(self) -> bool:
        """Whether a line can be written at once. One of more than a page may still wait, where it fills a pipe."""
        try:
            poll = select.poll()
            poll.register(self.stream, select.POLLOUT)
            if poll.poll(0):
                return True
            if (now := time.monotonic()) - self._waited_at < WAIT_AGAIN:
                return False
            self._waited_at = now
            return bool(poll.poll(WAIT_FOR_ROOM * 1000))
        except (OSError, ValueError):  # not a file, or closed: writing tells
            return True


class ThrottledLog:
    """Logs each event at most once a minute for each store: the same problem may come up with every delivery."""

    def __init__(self, logger: structlog.stdlib.BoundLogger) -> None:
        self._logger = logger
        self._next: dict[tuple[str, str], float] = {}

    def error(self, event: str, **fields: Any) -> bool:
        """Return whether it was logged."""
        now, kind = time.monotonic(), (event, fields.get("store", ""))
        if now < self._next.get(kind, 0.0):
            return False
        self._next[kind] = now + REPEAT_SECONDS
        self._logger.error(event, **fields)
        return True


class OutageLog:
    """Logs an outage when it begins, once a minute while it lasts, and when it ends, with its duration.

    The duration is the time from the first failure to the last: the next call may come much later.
    """

    def __init__(
        self,
        logger: structlog.stdlib.BoundLogger,
        *,
        begins: str,
        ends: str,
        level: Level = "warning",
        at_failure: int = 1,
    ) -> None:
        """`at_failure=2` is for a call that is tried again at once: it is an outage if that fails, too."""
        self._logger, self._begins, self._ends = logger, begins, ends
        self._write_begin = getattr(logger, level)
        self._at_failure = at_failure
        self._failures = 0
        self._since = self._failed_at = 0.0
        self._logged = False
        """Whether this outage has a line already."""
        self._logged_at = float("-inf")

    def failed(self, **fields: Any) -> None:
        """Call it for each failure."""
        now = self._failed_at = time.monotonic()
        if not self._failures:
            self._since, self._logged = now, False
        self._failures += 1
        is_due = now - self._logged_at >= (REPEAT_SECONDS if self._logged else BEGIN_SECONDS)
        if self._failures >= self._at_failure and is_due:
            lasted = {"seconds": round(now - self._since)} if self._logged else {}
            self._write_begin(self._begins, **lasted, **fields)
            self._logged, self._logged_at = True, now

    @property
    def lasts(self) -> bool:
        """Whether there was no success since the last failure."""
        return bool(self._failures)

    def worked(self, *, quiet: float = 0.0) -> None:
        """Call it for each success; this costs nothing while there is no outage.

        `quiet` is for a success that proves little: then the last failure must be this many seconds ago.
        """
        if not self._failures or (quiet and time.monotonic() - self._failed_at < quiet):
            return
        self._failures = 0
        if self._logged:
            self._logger.info(self._ends, seconds=round(self._failed_at - self._since, 1))


class PeriodicCounts(Generic[Key]):
    """Counts what may happen with every request, and writes the numbers after a while. Any thread may call it.

    The keys must come from a closed set, never from a request.
    """

    def __init__(self, *, every: float | None) -> None:
        """None is for a process that forks, and so has no threads: it calls `flush` itself."""
        self._every = every
        self._counts: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        atexit.register(self.flush)

    def flush(self) -> None:
        """Write the counts. Those that cannot be written stay for the next time."""
        with self._lock:
            counts, self._counts, self._timer = self._counts, Counter(), None
        if counts and not self._write(counts):
            with self._lock:
                self._counts.update(counts)

    def _count(self, counts: Mapping[Key, int]) -> None:
        with self._lock:
            self._counts.update(counts)
            if self._counts and self._every and self._timer is None:
                timer = threading.Timer(self._every, self._flush_until_written)
                timer.daemon = True
                with suppress(RuntimeError):  # a limit of threads: the next count tries again
                    timer.start()
                    self._timer = timer

    def _flush_until_written(self) -> None:
        """Not part of `flush`: a process that ends starts no thread."""
        self.flush()
        self._count({})

    def _write(self, counts: Counter[Key]) -> bool:
        """Returns whether they were written."""
        raise NotImplementedError


LabelledEvent = tuple[Level, str, tuple[tuple[str, str], ...]]


class CountedLog(PeriodicCounts[LabelledEvent]):
    """Logs the number of each kind of event, at most once a second."""

    def __init__(self, logger: structlog.stdlib.BoundLogger, *, timer: bool = True) -> None:
        super().__init__(every=COUNT_SECONDS if timer else None)
        self._logger = logger

    def add(self, event: str, *, level: Level = "warning", **labels: str) -> None:
        self._count({(level, event, tuple(labels.items())): 1})

    def _write(self, counts: Counter[LabelledEvent]) -> bool:
        for (level, event, labels), count in counts.items():
            getattr(self._logger, level)(event, **dict(labels), count=count)
        return True


class LimitedLog:
    """Writes LINES_A_SECOND lines a second at most. The others are counted as `more`, at the same level."""

    def __init__(
        self, logger: structlog.stdlib.BoundLogger, counted: CountedLog, *, level: Level = "warning", more: str
    ) -> None:
        self._write = getattr(logger, level)
        self._counted, self._level, self._more = counted, level, more
        self._second = 0.0
        self._lines = 0

    def add(self, event: str, labels: Mapping[str, str], **fields: Any) -> None:
        """Log an event, or count it by its labels, which come from a closed set."""
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines <= LINES_A_SECOND:
            self._write(event, **labels, **fields)
        else:
            self._counted.add(self._more, level=self._level, **labels)


def describe_work(fields: Callable[[], Mapping[str, Any]] | None) -> None:
    """Add fields to every line of this process, also to those of libraries and other threads; None ends that."""
    _work[:] = [fields] if fields else []


def with_fields(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for fields in tuple(_work):
        for name, value in fields().items():
            line.setdefault(name, value)
    line.update(_fields)
    return line


def escape_controls(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For a terminal: escape what could control it. A library's message or a name may contain text from outside."""
    return {
        name: escaped(value).replace("\n", "\\n") if isinstance(value, str) else value for name, value in line.items()
    }


def without_messages(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace an exception by its type and its place in the code. Its message may quote a payload or a secret."""
    info = line.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        line["exception"] = type(error).__name__
        line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return line
