"""Runs our scripts: one round trip for a group. A server that does not know them is taught them, and asked again.

It keeps them as a library of functions. Scripts are for a server that keeps none: it gives us no right to, or it is
full, and full it must still let workers write how runs ended.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from receiver.inbox.keys import PREFIX
from receiver.inbox.redis.connecting import ask_again
from receiver.inbox.redis.raw_connection import Argument, RawConnection
from receiver.inbox.redis.script_library import NAMED, function, library, script

MOST_LIBRARIES = 3
"""Of as many versions at once: an old one is called until its last process is gone."""
_UNKNOWN = re.compile(r"(ERR )?Function not found")
_REFUSED = re.compile(r"(unknown command|no permissions to run the) 'fcall'", re.IGNORECASE)
_NOT_NOW = re.compile(r"NOREPLICAS |MISCONF |BUSY ")


class _Manner:
    functions = True
    """Until a server refuses to keep them; then, as long as this process lives, not any more."""
    forgets = True
    """Old versions, once. Those that come back are in use, and we would forget each other's for ever."""


manner = _Manner()


class ScriptCall(NamedTuple):
    name: str
    arguments: Sequence[Argument]

    @property
    def command(self) -> tuple[Argument, ...]:
        how = ("FCALL", function(self.name)) if manner.functions else ("EVALSHA", script(self.name).name)
        return (*how, 1, PREFIX, *self.arguments)


class NotReplicatedError(RedisError):
    """The server has it, and not enough of its replicas do."""


REPLICA_MS = 400


class DirectConnection:
    """The server by one connection, for one thread and for scripts alone: a client with a pool costs twice as much."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._connection: RawConnection | None = None

    def send(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """All of them in one round trip; what the server has against one is its reply."""
        ask_again(self.client)
        if self._connection and self._connection.outdated:
            self.leave()
        self._connection = self._connection or RawConnection(self.client)
        try:
            return self._connection.ask(commands)
        except BaseException:
            self.leave()  # nobody knows which replies are still to come
            raise

    def leave(self) -> None:
        """The next call makes a new connection."""
        if self._connection:
            self._connection.close()
        self._connection = None


def run(client: Redis | DirectConnection, calls: Sequence[ScriptCall], *, replicas: int = 0) -> list[Any]:
    """Run scripts in one round trip, in order; give their replies.

    A server that does not know them is taught them: those calls, and only those, are sent again. They changed nothing
    the first time, so this is no retry of a write. With `replicas`, as many must have acknowledged it all: WAIT covers
    what the same connection wrote before it.
    """
    replies = run_each(client, calls, replicas=replicas)
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies


def run_each(client: Redis | DirectConnection, calls: Sequence[ScriptCall], *, replicas: int = 0) -> list[Any]:
    """`run`, but an error of one script is its own reply and nobody else's."""
    replies = _send(client, calls, replicas)
    unknown = [at for at, reply in enumerate(replies) if _is_unknown(reply)]
    if unknown:
        refused = any(_is_refused(replies[at]) for at in unknown)
        again = _teach_and_send(client, [calls[at] for at in unknown], replicas, refused=refused)
        for at, reply in zip(unknown, again, strict=True):
            replies[at] = reply
    if any(isinstance(reply, ReadOnlyError) for reply in replies):
        _leave(client)
    return replies


def _teach_and_send(
    client: Redis | DirectConnection, calls: Sequence[ScriptCall], replicas: int, *, refused: bool
) -> list[Any]:
    """What the server has against learning is the reply to each."""
    try:
        teach(
            client.client if isinstance(client, DirectConnection) else client,
            {call.name for call in calls},
            refused=refused,
        )
    except ResponseError as error:
        return [error] * len(calls)
    replies = _send(client, calls, replicas)
    if any(map(_is_unknown, replies)):  # another server has learnt it: ours has the name no longer
        _leave(client)
    return replies


def _is_unknown(reply: Any) -> bool:
    """Whether the server knows no such script, or no functions at all."""
    if isinstance(reply, NoScriptError) or _is_refused(reply):
        return True
    return isinstance(reply, ResponseError) and _UNKNOWN.fullmatch(str(reply)) is not None


def _is_refused(reply: Any) -> bool:
    """There is no such command as FCALL, or it is not for us."""
    return isinstance(reply, ResponseError) and _REFUSED.search(str(reply)) is not None


def teach(client: Redis, names: Collection[str], *, refused: bool) -> None:
    """Have the server keep our scripts: all as functions, or, where it refuses that, those that are called."""
    if manner.functions:
        manner.functions = not refused and _load(client)
    if not manner.functions:
        for name in names:
            client.script_load(script(name).text)


def _load(client: Redis) -> bool:
    """Give the server our library; False where it takes none. Where it takes nothing at all just now, that is raised:
    scripts would fare no better."""
    try:
        client.function_load(library().text)
    except ResponseError as error:
        if isinstance(error, ReadOnlyError) or _NOT_NOW.match(str(error)):
            raise
        return "already exists" in str(error)  # somebody else has just done it
    _forget_old_libraries(client)
    return True


def _forget_old_libraries(client: Redis) -> None:
    """They are kept for ever otherwise. Where an old version still runs, it teaches the server its own again."""
    if not manner.forgets:
        return
    with suppress(ResponseError):  # no right to: nothing is lost by it
        found: Any = client.function_list(f"{NAMED}*")
        names = {one[one.index(b"library_name") + 1].decode() for one in found} - {library().name}
        if len(names) >= MOST_LIBRARIES:
            manner.forgets = False
            for name in names:
                client.function_delete(name)


def _leave(client: Redis | DirectConnection) -> None:
    """It is the primary no longer. Its name may lead to another by now, and only a new connection finds out."""
    if isinstance(client, DirectConnection):
        client.leave()
        client = client.client
    client.connection_pool.disconnect(inuse_connections=False)


def _send(client: Redis | DirectConnection, calls: Sequence[ScriptCall], replicas: int = 0) -> list[Any]:
    if isinstance(client, DirectConnection):
        return client.send([call.command for call in calls])
    if len(calls) == 1 and not replicas:
        try:
            return [client.execute_command(*calls[0].command)]
        except ResponseError as error:  # the server has answered, so it is this call's alone
            return [error]
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*call.command)
    if replicas:
        pipeline.wait(replicas, REPLICA_MS)
    replies = pipeline.execute(raise_on_error=False)
    if replicas and not _reached(replies.pop(), replicas):
        raise NotReplicatedError(f"fewer than {replicas} replicas have it after {REPLICA_MS} ms")
    return replies


def _reached(reply: Any, replicas: int) -> bool:
    return isinstance(reply, int) and reply >= replicas
