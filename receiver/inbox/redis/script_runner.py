"""Runs our scripts as functions of the server (FCALL), a group in one round trip.

Where the server does not know them, they are loaded and the calls are sent again. Every server since Redis 7.0 has
functions, managed ones included. One case needs another way: a server that has reached maxmemory refuses FUNCTION LOAD,
and a new version of storehooks must still be able to do the work there that frees memory. For that case alone each call
sends its script with EVAL, until the library can be loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from receiver.inbox.keys import PREFIX
from receiver.inbox.redis.raw_connection import Argument, DirectConnection
from receiver.inbox.redis.script_library import LIBRARY_PREFIX, function, library, script

MAX_OLD_LIBRARIES = 3
"""Libraries of other versions that may stay: an old version calls its own until its last process has ended."""
REPLICA_MS = 400
_NOT_FOUND = re.compile(r"(ERR )?Function not found")

Command = tuple[Argument, ...]


class ScriptCall(NamedTuple):
    name: str
    arguments: Sequence[Argument]

    @property
    def command(self) -> Command:
        return ("FCALL", function(self.name), 1, PREFIX, *self.arguments)

    @property
    def eval_command(self) -> Command:
        return ("EVAL", script(self.name), 1, PREFIX, *self.arguments)


class NotReplicatedError(RedisError):
    """The server has stored it, but too few of its replicas have."""


class _OldLibraries:
    removed = False
    """Once in a process. One that comes back is in use, and two versions would remove each other's for ever."""


def run(client: Redis | DirectConnection, calls: Sequence[ScriptCall], *, replicas: int = 0) -> list[Any]:
    """Run scripts in one round trip, in order, and return their replies. The first error is raised.

    Calls of an unknown function are sent again after the library was loaded. They changed nothing the first time, so
    this does not repeat a write. With `replicas`, that number of replicas must have acknowledged all of it: WAIT covers
    what the same connection has written before.
    """
    replies = run_each(client, calls, replicas=replicas)
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies


def run_one(client: Redis | DirectConnection, name: str, *arguments: Argument) -> Any:
    return run(client, [ScriptCall(name, arguments)])[0]


def run_each(client: Redis | DirectConnection, calls: Sequence[ScriptCall], *, replicas: int = 0) -> list[Any]:
    """Like `run`, but an error of one script is returned as its reply."""
    replies = _send(client, [call.command for call in calls], replicas)
    unknown = [at for at, reply in enumerate(replies) if _is_unknown(reply)]
    if unknown:
        again = _load_and_send(client, [calls[at] for at in unknown], replicas)
        for at, reply in zip(unknown, again, strict=True):
            replies[at] = reply
    if any(isinstance(reply, ReadOnlyError) for reply in replies):
        _reconnect(client)
    return replies


def _load_and_send(client: Redis | DirectConnection, calls: Sequence[ScriptCall], replicas: int) -> list[Any]:
    """An error of loading is the reply to each call."""
    try:
        _load(client.client if isinstance(client, DirectConnection) else client)
    except OutOfMemoryError:
        return _send(client, [call.eval_command for call in calls], replicas)
    except ResponseError as error:
        return [error] * len(calls)
    replies = _send(client, [call.command for call in calls], replicas)
    if any(map(_is_unknown, replies)):  # another server has loaded it: the address leads to a new primary
        _reconnect(client)
    return replies


def _is_unknown(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and _NOT_FOUND.fullmatch(str(reply)) is not None


def _load(client: Redis) -> None:
    try:
        client.function_load(library().text)
    except ResponseError as error:
        if "already exists" not in str(error):  # another process has just loaded it
            raise
    else:
        _remove_old_libraries(client)


def _remove_old_libraries(client: Redis) -> None:
    """The server would keep them for ever. Where an old version still runs, it loads its own again."""
    if _OldLibraries.removed:
        return
    with suppress(ResponseError):  # not permitted: they only take some memory
        listed: Any = client.function_list(f"{LIBRARY_PREFIX}*")
        names = {one[one.index(b"library_name") + 1].decode() for one in listed} - {library().name}
        if len(names) >= MAX_OLD_LIBRARIES:
            _OldLibraries.removed = True
            for name in names:
                client.function_delete(name)


def _reconnect(client: Redis | DirectConnection) -> None:
    """The server is not the primary any more. Its address may lead to another by now, which a new connection finds."""
    if isinstance(client, DirectConnection):
        client.close()
        client = client.client
    client.connection_pool.disconnect(inuse_connections=False)


def _send(client: Redis | DirectConnection, commands: Sequence[Command], replicas: int = 0) -> list[Any]:
    if isinstance(client, DirectConnection):
        return client.send(commands)
    if len(commands) == 1 and not replicas:
        try:
            return [client.execute_command(*commands[0])]
        except ResponseError as error:
            return [error]
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    if replicas:
        pipeline.wait(replicas, REPLICA_MS)
    replies = pipeline.execute(raise_on_error=False)
    if replicas:
        check_replicated(replies.pop(), replicas, replies)
    return replies


def wait_command(replicas: int) -> Command:
    """Waits until this number of replicas has what the same connection has written before."""
    return ("WAIT", replicas, REPLICA_MS)


def check_replicated(reply: Any, replicas: int, replies: Sequence[Any]) -> None:
    """Raise if the reply to WAIT says that too few replicas have it, unless calls must be sent again anyway."""
    if not (isinstance(reply, int) and reply >= replicas) and not any(map(_is_unknown, replies)):
        raise NotReplicatedError(f"fewer than {replicas} replicas have it after {REPLICA_MS} ms")
