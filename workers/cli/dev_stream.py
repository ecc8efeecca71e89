"""The lines that `dev` prints while it runs: finished runs and refused deliveries."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.inbox.outcomes import OutcomeKind
from receiver.spool import REFUSED_FILE, Refusal, Refusals, open_refusals
from workers.cli import output
from workers.cli.typed_commands import as_typed

if TYPE_CHECKING:
    from rich.text import Text

REFUSALS_EVERY = 1.0
MAX_REFUSALS = 4
"""How many are shown each time. The others are only counted: bad deliveries must not flood the terminal."""
MAX_WIDTH = 40
"""How wide a column grows."""


class RunStream:
    """Finished runs, read from the journal's channel."""

    def __init__(self, client: Redis) -> None:
        self._pubsub: PubSub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(keys.JOURNAL)
        self._widths = [4, 16, 4, 11]
        """Of store, topic, resource and handler; they grow with what is printed."""
        self.fileno = int(self._pubsub.connection._sock.fileno())

    def lines(self) -> Iterator[Text]:
        """One line for each run that finished since the last call."""
        while self._pubsub.connection is not None and self._pubsub.connection.can_read(timeout=0):
            message = self._pubsub.get_message(timeout=0)
            if message:
                yield from map(self._line, _finished_runs(message["data"]))

    def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            self._pubsub.close()

    def _line(self, run: _FinishedRun) -> Text:
        parts = (run.store, run.topic, run.resource, run.handler)
        self._widths = [max(wide, min(len(part), MAX_WIDTH)) for wide, part in zip(self._widths, parts, strict=True)]
        padded = "  ".join(f"{part:<{wide}}" for part, wide in zip(parts, self._widths, strict=True))
        shown = output.state(run.outcome, f"{run.outcome:<7}")
        return _line(datetime.now(), f"{padded}  ", shown, f"{run.took:>6}  {run.result}")


class _FinishedRun(NamedTuple):
    store: str
    topic: str
    resource: str
    handler: str
    outcome: str
    took: str
    result: str


def _finished_runs(data: bytes) -> Iterator[_FinishedRun]:
    """The runs in a message. Any program can publish on the channel, so what is not a run is skipped."""
    with contextlib.suppress(ValueError, TypeError):
        for fields in orjson.loads(data):
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                if all(isinstance(field, str) for field in fields):
                    yield _finished_run(*fields)


def _finished_run(item: str, outcome: str, store: str, topic: str, resource: str, detail: str) -> _FinishedRun:
    about = orjson.loads(detail)
    result = about.get("error") or ("" if about.get("result") is None else f'"{about["result"]}"')
    took = f"{about.get('ms', 0):.0f} ms"
    return _FinishedRun(store, topic, resource, keys.split_item(item)[1], OutcomeKind(outcome), took, str(result))


class RefusalStream:
    """Deliveries refused since the start, read from this host's file."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._refusals: Refusals | None = None
        self._last = 0
        self._next_read = 0.0
        with contextlib.suppress(sqlite3.Error, OSError):
            self._last = max((one.id for one in self._newest(1)), default=0)

    def lines(self) -> Iterator[Text]:
        """One line for each of the newest, and how many more there are. Nothing while the file cannot be read."""
        if time.monotonic() < self._next_read:
            return
        self._next_read = time.monotonic() + REFUSALS_EVERY
        try:
            new = [one for one in self._newest(MAX_REFUSALS) if one.id > self._last]
        except (sqlite3.Error, OSError):
            self.close()
            return
        if not new:
            return
        more = new[0].id - self._last - len(new)  # ids are given one after the other
        self._last = new[0].id
        yield from map(_refusal, reversed(new))
        also = f"{more:,} more refused; " if more else ""
        why = as_typed(f"storehooks verify --refused {new[0].id}")
        yield output.text(f"{datetime.now():%H:%M:%S}  -- {also}why: {why}")

    def close(self) -> None:
        if self._refusals is not None:
            self._refusals.close()
            self._refusals = None

    def _newest(self, limit: int) -> list[Refusal]:
        if self._refusals is None and (self._data_dir / REFUSED_FILE).exists():
            self._refusals = open_refusals(self._data_dir)
        return self._refusals.newest(limit=limit) if self._refusals else []


def _refusal(one: Refusal) -> Text:
    refused = output.state("refused", f"{'refused':<15}")
    return _line(one.moment.astimezone(), f"{one.name}  ", refused, f"  {one.id:<4}  ", one.reason)


def _line(moment: datetime, *parts: Any) -> Text:
    return output.joined(output.text(f"{moment:%H:%M:%S}  ", "dim"), *parts)
