"""Known data: whether the server still has the data that this host knows, or was emptied or replaced meanwhile.

The data has an id. Each host keeps it in data_dir/known_data, and each process compares twice a second. If the server
has another id, accepted events are missing from it. The host reports that, and keeps its own id until an operator
accepts the other: a server that was wrong by mistake is not learned. An older copy of the data has the same id. A
process that runs notices it because the event that was the last one is gone, and gives the copy an id of its own. With
ack = "replica" that is no loss: what a new primary lacks was not answered, or is in a spool.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config.settings import RetentionSettings
from receiver.inbox import keys
from receiver.inbox.keyring.host_files import replace_file
from receiver.inbox.model import from_ms, to_number
from receiver.inbox.redis.connecting import server_ms

FILE = "known_data"
DAY = 86400.0


class KnownData:
    def __init__(
        self, data_dir: Path, log: structlog.stdlib.BoundLogger, *, ack: str, retention: RetentionSettings
    ) -> None:
        self._file, self._host = data_dir / FILE, keys.host_of(data_dir)
        self._notices_older = ack != "replica"
        self._removed_after = min(DAY, retention.records, retention.failures or DAY) / 2
        self._known = ""
        self._last_event = b""
        """The last event in the server, if it is too young to be removed by age."""
        self._replaced = logs.OutageLog(
            log,
            level="error",
            begins="Redis has other data than before; accepted events are missing; see `storehooks doctor`",
            ends="the other data in Redis was accepted, or the former is there again",
        )

    def compare(self, client: Redis) -> None:
        """Compare the data in the server with what this host knows. A server that refuses it is asked again later."""
        with suppress(RedisError):
            self._compare(client)

    def _compare(self, client: Redis) -> None:
        if not self._known:  # not before: another process of this host may have learned it meanwhile
            with suppress(OSError, ValueError):
                self._known = self._file.read_text()
        found, noticed, last_is_there, newest, (seconds, _) = self._read(client)
        id_, *accepted = (found or b"").decode("utf-8", "replace").split() or [""]
        young = (event for event, accepted_us in newest if seconds - accepted_us / 1e6 < self._removed_after)
        last = next(young, b"")
        if not id_:
            client.set(keys.DATA, _new_id(client), nx=True)
        elif not self._known or self._known in accepted:
            self._learn(id_)
        elif self._known != id_:
            self._replaced.failed()
            if not (noticed or b"").startswith(self._known.encode()):
                client.hset(keys.REPLACED, self._host, f"{self._known} {time.time() * 1000:.0f}")
            self._last_event = last or self._last_event
        elif self._notices_older and self._last_event and last_is_there is None:
            client.set(keys.DATA, _new_id(client))
        else:
            self._last_event = last
            self._replaced.worked()
            if noticed:  # in a copy from before that was accepted
                client.hdel(keys.REPLACED, self._host)

    def _read(self, client: Redis) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        pipeline.get(keys.DATA)
        pipeline.hget(keys.REPLACED, self._host)
        pipeline.zscore(keys.INDEX, self._last_event)
        pipeline.zrange(keys.INDEX, 0, 0, desc=True, withscores=True)
        pipeline.time()
        return pipeline.execute()

    def _learn(self, id_: str) -> None:
        self._known, self._last_event = id_, b""
        with suppress(OSError):  # the spool's own log says why data_dir cannot be written
            replace_file(self._file, id_.encode())


def hosts_with_other_data(client: Redis) -> dict[str, datetime]:
    """The hosts that know other data than the server has, and when each noticed it."""
    found: Any = client.hgetall(keys.REPLACED)
    return {keys.host_name(host): from_ms(to_number(text.partition(b" ")[2])) for host, text in found.items()}


def accept_data(client: Redis) -> None:
    """Let all hosts that have reported other data learn the server's."""
    found: Any = client.hvals(keys.REPLACED)
    pipeline = client.pipeline(transaction=True)
    pipeline.append(keys.DATA, b"".join(b" " + text.partition(b" ")[0] for text in found))
    pipeline.delete(keys.REPLACED)
    pipeline.execute()


def _new_id(client: Redis) -> str:
    return f"{server_ms(client) * 1000:.0f}"
