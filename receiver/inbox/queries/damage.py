"""Damage: reads past a record that is damaged, so that it does not hide the others."""

from __future__ import annotations

from typing import Any

from redis.client import Pipeline
from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError

DAMAGED = "damaged"
"""The status of an event whose record cannot be read."""


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
        if isinstance(reply, RedisError) and not str(reply).startswith("WRONGTYPE"):
            raise reply
    return [None if isinstance(reply, RedisError) else reply for reply in replies]
