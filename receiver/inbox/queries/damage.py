"""Damage: reads past a record or a key that is damaged, so that it does not hide the others, and notes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError
from receiver.inbox import keys

DAMAGED = "damaged"
"""The status of an event whose record cannot be read."""
_ABSENT = keys.PREFIX + "absent"
"""A key that never exists."""
_READS = "GET HGET HGETALL HKEYS HLEN HMGET HSCAN HVALS LRANGE SMEMBERS ZCARD ZCOUNT ZRANGE ZREVRANGE ZSCAN ZSCORE"


class DamagedRecord(StorehooksError):
    def __init__(self, event_id: str) -> None:
        super().__init__(
            f"the record of event {event_id[:64]} is damaged; restore the server's data from a backup, "
            "or have the store send the event again"
        )


def read_each(pipeline: Pipeline) -> list[Any]:
    """The replies of a pipeline. That of a key which has another type than ours is None."""
    replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, RedisError) and not is_wrong_type(reply):
            raise reply
    return [None if isinstance(reply, RedisError) else reply for reply in replies]


def is_wrong_type(reply: object) -> bool:
    return isinstance(reply, RedisError) and "WRONGTYPE" in str(reply)


class PartialReader(Redis):
    """A client for what is only shown: a key of another type than ours is read as if it did not exist, and noted.

    Not for what decides about a change: there a damaged key must be an error.
    """

    def __init__(self, client: Redis) -> None:
        super().__init__(connection_pool=client.connection_pool)
        self.damaged: dict[str, str] = {}
        """The keys that were found damaged so far, each with the field that is not a number, or ""."""

    def execute_command(self, *command: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*command, **options)  # type: ignore[no-untyped-call]
        except RedisError as error:
            if command[0] not in _READS.split() or not is_wrong_type(error):
                raise
            self.note(command)
            return super().execute_command(command[0], _ABSENT, *command[2:], **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _PartialPipeline(self, transaction, shard_hint)

    def note(self, command: tuple[Any, ...]) -> None:
        key = command[1]
        self.damaged[as_text(key)] = ""


class _PartialPipeline(Pipeline):
    def __init__(self, reader: PartialReader, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(reader.connection_pool, reader.response_callbacks, transaction, shard_hint)
        self._reader = reader

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        replies = super().execute(raise_on_error=False)
        for at, (reply, (command, options)) in enumerate(zip(replies, commands, strict=True)):
            if is_wrong_type(reply):
                self._reader.note(command)
            if raise_on_error and isinstance(reply, RedisError):
                replies[at] = self._reader.execute_command(*command, **options)
        return replies


def read_numbers(client: Redis, key: str, fields: Mapping[bytes, bytes]) -> dict[str, int]:
    """The fields of a hash of numbers, without those that are damaged. Those are noted, if the client is for that."""
    found = {}
    for name, value in fields.items():
        try:
            found[name.decode()] = int(value)
        except ValueError:
            if isinstance(client, PartialReader):
                client.damaged[key] = as_text(name)
    return found


def as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
