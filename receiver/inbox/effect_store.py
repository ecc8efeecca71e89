"""The effect store: what `ctx.once` and `ctx.state` of plugins remember, for all machines.

A place is the name of a key without the prefix: `o:...` holds once marks, `st:...` a plugin's state; see `keys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import MasterDownError, NoPermissionError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from receiver.inbox import keys
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument

_REFUSES_WRITES = ("NOREPLICAS", "MISCONF", "BUSY ")


class EffectStoreAway(LostConnection):
    """The server does not answer, or takes no writes now. That is not the handler's failure."""


class EffectStoreRefused(ResponseError):
    """The server's user may not do this now. If that stays so, the runs fail, which a person sees."""


class EffectStore:
    def __init__(self, client: Redis, *, keep: float, at_work: float, replicas: int = 0) -> None:
        """Marks are kept for `keep` seconds. A mark begun less than `at_work` seconds ago is of a run at work. This
        number of `replicas` must have the mark of an effect that may not be repeated, before its call."""
        self.client = client
        self._replicas = replicas
        self._keep_ms = int(keep * 1000)
        self._at_work_ms = at_work * 1000

    def begin(self, place: str, field: str, item: str, *, in_doubt: str, word: str = "") -> list[Any]:
        """Mark that an effect begins. Returns what is known of it; see `lua/once.lua`. With the same `word` it can be
        repeated, if the answer to the first try was lost."""
        replicas = self._replicas if in_doubt == "fail" else 0
        try:
            return self._once("begin", place, field, item, self._at_work_ms, in_doubt, word, replicas=replicas)
        except script_runner.NotReplicatedError as error:
            with suppress(RedisError):  # it was not called, so it is not in doubt
                self.clear(place, field, f" {word}".encode())
            raise EffectStoreAway(f"Redis has no replica for ctx.once: {error}") from error

    def end(self, place: str, field: str, item: str, result: bytes) -> None:
        """Mark that an effect has happened, with its result."""
        self._once("end", place, field, item, result)

    def clear(self, place: str, field: str, mark: bytes) -> None:
        """Remove a mark, given whole or by its word: the effect did not happen."""
        self._once("clear", place, field, "", mark)

    def read(self, place: str, name: str) -> bytes | None:
        with _reached(self.client):
            value: Any = self.client.hget(keys.PREFIX + place, name)
        return None if value is None else bytes(value)

    def write(self, place: str, name: str, value: bytes | None) -> None:
        """Store a value of a plugin's state; None deletes it."""
        with _reached(self.client):
            if value is None:
                self.client.hdel(keys.PREFIX + place, name)
            else:
                self.client.hset(keys.PREFIX + place, name, value)

    def add(self, place: str, name: str, by: int) -> int:
        """Raises ValueError where the value or the sum is no whole number of 64 bits."""
        try:
            with _reached(self.client):
                return int(self.client.hincrby(keys.PREFIX + place, name, by))
        except ResponseError as error:
            if "integer" in str(error) or "overflow" in str(error):
                raise ValueError(str(error)) from None
            raise

    def _once(self, step: str, place: str, field: str, item: str, *more: Argument, replicas: int = 0) -> list[Any]:
        call = script_runner.ScriptCall("once", (step, place, field, item, self._keep_ms, *more))
        try:
            with _reached(self.client):
                (reply,) = script_runner.run(self.client, [call], replicas=replicas)
        except NoPermissionError as error:
            raise EffectStoreRefused(f"Redis refuses ctx.once: {error}") from error
        return [reply[0].decode(), *reply[1:]]


@contextmanager
def _reached(client: Redis) -> Iterator[None]:
    try:
        yield
    except (LostConnection, NoAnswer) as error:
        raise EffectStoreAway("Redis did not answer ctx.once or ctx.state") from error
    except ResponseError as error:
        if isinstance(error, ReadOnlyError | MasterDownError):
            client.connection_pool.disconnect(inuse_connections=False)  # its address may lead to another server by now
        elif not str(error).startswith(_REFUSES_WRITES):
            raise
        raise EffectStoreAway(f"Redis takes no writes of ctx.once or ctx.state: {error}") from error


def clear_effects(client: Redis) -> None:
    """Remove all marks, all state, and what tells echoes and stale events: as before the first run of a plugin."""
    for prefix in (keys.STATE, keys.ONCE, keys.WRITTEN, keys.NEWEST, keys.GAP):
        for key in client.scan_iter(f"{prefix}*"):
            client.delete(key)
