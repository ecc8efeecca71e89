"""Known data: whether the server still has the data that this host knows, or was emptied, replaced or restored.

The data has an id. Each host keeps it in data_dir/known_data, and its processes compare twice a second. They notice

- other data: the server has another id. It is not learned, since it may be wrong by mistake;
- elsewhere: the former data is back, and deliveries of this host were stored in other data meanwhile;
- older data: the same id, and `seen`, which each process writes whenever it has seen events accepted, went back.
  With ack = "replica" that is no loss: what a new primary lacks was not answered, or is in a spool.

The last two stay in the host's file until an operator accepts them. Accepting gives the data a new id, followed by
those that it replaces: hosts that know one of these learn the new one, and a copy from before is noticed again.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.inbox import keys
from receiver.inbox.keyring.host_files import remove_leftovers, replace_file
from receiver.inbox.model import from_ms, to_number
from receiver.inbox.redis.connecting import server_ms

FILE = "known_data"
MOST_PROCESSES = 1000
"""Of so many `seen` is kept. Those that run have the highest."""


class DataChange(StrEnum):
    OTHER = "other"
    ELSEWHERE = "elsewhere"
    OLDER = "older"


class DataNotice(NamedTuple):
    """What a host has noticed."""

    known_id: str
    """The id of the data that it knows."""
    change: str = ""
    at_ms: float = 0

    @property
    def at(self) -> datetime:
        return from_ms(self.at_ms)

    def __str__(self) -> str:
        return f"{self.known_id} {self.change} {self.at_ms:.0f}" if self.change else self.known_id


class _Found(NamedTuple):
    """What the server has."""

    id: str
    replaces: list[str]
    accepted_until: float
    seen: float
    notice: DataNotice


class KnownData:
    def __init__(self, data_dir: Path, log: structlog.stdlib.BoundLogger, *, ack: str) -> None:
        self._file, self._host = data_dir / FILE, keys.host_of(data_dir)
        self._notices_older = ack != "replica"
        self._name = f"{self._host} {secrets.token_hex(4)}"
        self._seen, self._seen_id = 0.0, ""
        """Until when the data of this id had events when this process last looked."""
        self._other: _Found | None = None
        """Other data, when this process first saw it."""
        self._problems = logs.ThrottledLog(log)
        self._changed = logs.OutageLog(
            log,
            level="error",
            begins="accepted events may be missing from Redis; see `storehooks doctor`",
            ends="the data in Redis was accepted, or the former is there again",
        )

    def compare(self, client: Redis) -> None:
        """Compare the data in the server with what this host knows. If one of them cannot be read now, that is done
        later."""
        try:
            known = self._known()
        except OSError as error:  # what an operator must accept may be in the file
            self._problems.error("known_data cannot be read; the data in Redis is not compared with it", why=str(error))
            return
        with suppress(RedisError):
            self._compare(client, known)

    def _compare(self, client: Redis, known: DataNotice) -> None:
        found = self._read(client)
        if self._seen_id != known.known_id:  # perhaps another process of this host has learned it
            self._seen, self._seen_id, self._other = 0.0, known.known_id, None
        if not found.id:
            client.set(keys.DATA, _new_id(client), nx=True)
        elif not known.known_id or known.known_id in found.replaces:
            self._keep(DataNotice(found.id))
        elif known.known_id != found.id:
            self._report(client, found, _now(known, DataChange.OTHER))
            if not known.change and self._stored_in(found):
                self._keep(_now(known, DataChange.ELSEWHERE))
        elif known.change:
            self._report(client, found, known)
        elif self._notices_older and found.seen < self._seen != found.accepted_until:
            older = _now(known, DataChange.OLDER)
            self._report(client, found, older)
            self._keep(older)
        else:
            if found.notice.change == DataChange.OTHER:  # restored key by key
                client.hdel(keys.REPLACED, self._host)
            if found.accepted_until > found.seen:
                client.zadd(keys.SEEN, {self._name: found.accepted_until})
                client.zremrangebyrank(keys.SEEN, 0, -MOST_PROCESSES - 1)
            self._seen, self._other = found.accepted_until, None
            self._changed.worked()

    def _stored_in(self, found: _Found) -> bool:
        """Whether events were accepted in other data while this process had it."""
        if self._other is None or self._other.id != found.id:
            self._other = found
        return found.accepted_until > (self._seen or self._other.accepted_until)

    def _report(self, client: Redis, found: _Found, notice: DataNotice) -> None:
        if found.notice[:2] != notice[:2]:
            client.hset(keys.REPLACED, self._host, str(notice))  # raises if this is only a replica, which may lag
        self._changed.failed()

    def _read(self, client: Redis) -> _Found:
        pipeline = client.pipeline(transaction=False)
        pipeline.mget(keys.DATA, keys.ACCEPTED_UNTIL)
        pipeline.zscore(keys.SEEN, self._name)
        pipeline.hget(keys.REPLACED, self._host)
        (data, accepted_until), seen, notice = pipeline.execute()
        id_, *replaces = _text(data).split() or [""]
        return _Found(id_, replaces, to_number(accepted_until), seen or 0.0, _parsed(notice))

    def _known(self) -> DataNotice:
        """From the file each time: another process of this host may have written it."""
        with suppress(FileNotFoundError):
            return _parsed(self._file.read_bytes())
        return DataNotice("")

    def _keep(self, known: DataNotice) -> None:
        remove_leftovers(self._file)
        with suppress(OSError):  # the spool's own log says why data_dir cannot be written
            replace_file(self._file, str(known).encode())


def data_notices(client: Redis) -> dict[str, DataNotice]:
    """The hosts that have noticed other, older or missing data."""
    found: Any = client.hgetall(keys.REPLACED)
    return {keys.host_name(host): _parsed(text) for host, text in found.items()}


def accept_data(client: Redis) -> None:
    """Let all hosts that have noticed something learn the server's data as it is."""
    replaced = {notice.known_id for notice in data_notices(client).values()}
    replaced.update(_text(client.get(keys.DATA)).split())
    pipeline = client.pipeline(transaction=True)
    pipeline.set(keys.DATA, " ".join((_new_id(client), *sorted(replaced))))
    pipeline.delete(keys.REPLACED)
    pipeline.execute()


def _parsed(text: Any) -> DataNotice:
    known_id, change, at = (*_text(text).split(), "", "", "")[:3]
    return DataNotice(known_id, change, to_number(at))


def _now(known: DataNotice, change: DataChange) -> DataNotice:
    return DataNotice(known.known_id, change, time.time() * 1000)


def _text(value: Any) -> str:
    return (value or b"").decode("utf-8", "replace")


def _new_id(client: Redis) -> str:
    return f"{server_ms(client) * 1000:.0f}"
