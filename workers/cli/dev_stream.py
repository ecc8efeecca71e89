"""Stream: what happens, a line for each, while somebody watches. For `dev`."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import orjson
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.spool import FILE, Refusal, Refusals, open_refusals
from workers.cli import output

LOOK_AT_REFUSALS_EVERY = 1.0
MOST_REFUSALS = 4
"""So many are shown of each look; the others are counted. Whoever sends rubbish must not flood the terminal."""


class RunStream:
    """What handlers have done, as it happens."""

    def __init__(self, client: Redis) -> None:
        self._pubsub: PubSub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(keys.JOURNAL)
        self.fileno = int(self._pubsub.connection._sock.fileno())

    def lines(self) -> Iterator[str]:
        """A line for each outcome that has come."""
        while self._pubsub.connection is not None and self._pubsub.connection.can_read(timeout=0):
            message = self._pubsub.get_message(timeout=0)
            if message:
                yield from map(_outcome, orjson.loads(message["data"]))

    def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            self._pubsub.close()


class RefusalStream:
    """Deliveries that were not let in since we began to look."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._refusals: Refusals | None = None
        self._last = 0
        self._look_at = 0.0
        with contextlib.suppress(sqlite3.Error, OSError):
            self._last = max((one.id for one in self._newest(1)), default=0)

    def lines(self) -> Iterator[str]:
        """A line for each of the newest, and how many more there are; nothing where the file cannot be read now."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_AT_REFUSALS_EVERY
        try:
            new = [one for one in self._newest(MOST_REFUSALS) if one.id > self._last]
        except (sqlite3.Error, OSError):
            self.close()
            return
        if not new:
            return
        more = new[0].id - self._last - len(new)  # ids are given one after the other
        self._last = new[0].id
        yield from map(_refusal, reversed(new))
        also = f"{more:,} more refused; " if more else ""
        yield f"{datetime.now():%H:%M:%S}  -- {also}why: {output.our_name()} verify --refused {new[0].id}"

    def close(self) -> None:
        if self._refusals is not None:
            self._refusals.close()
            self._refusals = None

    def _newest(self, limit: int) -> list[Refusal]:
        if self._refusals is None and (self._data_dir / FILE).exists():
            self._refusals = open_refusals(self._data_dir)
        return self._refusals.newest(limit=limit) if self._refusals else []


def _outcome(told: list[str]) -> str:
    item, outcome, store, topic, resource, detail = told
    about = orjson.loads(detail)
    handler = keys.split_item(item)[1]
    result = about.get("error") or ("" if about.get("result") is None else f'"{about["result"]}"')
    took = f"{about.get('ms', 0):.0f} ms"
    text = f"{store}  {topic:<15}  {resource:<4}  {handler:<11}  {outcome:<4}  {took:<4}"
    return _line(datetime.now(), text, result)


def _refusal(one: Refusal) -> str:
    return _line(one.moment.astimezone(), f"{one.name}  {'refused':<15}  {one.id:<4}", one.reason)


def _line(moment: datetime, text: str, tail: str) -> str:
    start = f"{moment:%H:%M:%S}  "
    return output.beside(start + output.harmless(text), tail, len(start))
