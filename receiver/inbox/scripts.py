"""Loads the Lua scripts and runs them: one round trip for a group, NOSCRIPT mended by loading and resending."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from receiver.inbox.client import ask_again, open_connection, outdated
from receiver.inbox.keys import PREFIX

Argument = str | bytes | int | float


ENDING = """
-- What was gathered is written however the script ends: a failure must not leave half a step.
local ok, answer = pcall(main)
local problem = write_gathered()
if ok and not problem then return answer end
problem = not ok and answer or problem
return type(problem) == 'table' and problem or redis.error_reply(tostring(problem))
"""


_DEFINITION = re.compile(r"^(?=local )", re.MULTILINE)


class Script(NamedTuple):
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """A script with what it uses of the library in front of it. The first line names the flags and stays first."""
    folder = resources.files(__package__) / "scripts"
    flags, _, rest = (folder / f"{name}.lua").read_text().partition("\n")
    own = f"local function main()\n{rest}\nend\n{ENDING}"
    text = f"{flags}\n{used_of((folder / 'lib.lua').read_text(), own)}\n{own}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def used_of(library: str, own: str) -> str:
    """The definitions of the library that a script needs, in their order.

    The server makes every function of a script anew for each call, and clears them away after every fiftieth: that
    held up one event in ten.
    """
    kept, needed = list[str](), own
    for definition in reversed(_DEFINITION.split(library)[1:]):  # each uses only what stands before it
        if any(re.search(rf"\b{name}\b", needed) for name in _names(definition)):
            kept.append(definition)
            needed += definition
    return "".join(reversed(kept))


def _names(definition: str) -> list[str]:
    """What it defines: `local function f(...)`, or `local a, b = ...`."""
    head = definition.partition("\n")[0].partition("=")[0].partition("(")[0]
    return re.findall(r"\w+", head.removeprefix("local ").removeprefix("function "))


class Call(NamedTuple):
    name: str
    arguments: Sequence[Argument]

    @property
    def command(self) -> tuple[Argument, ...]:
        return ("EVALSHA", script(self.name).sha, 1, PREFIX, *self.arguments)


class NotReplicatedError(RedisError):
    """The server has it, and not enough of its replicas do."""


REPLICA_MS = 400


class Direct:
    """The server by one connection, for one thread and for scripts alone: a client with a pool costs twice as much."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._connection: Connection | None = None

    def send(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """All of them in one round trip; what the server has against one is its reply."""
        ask_again(self.client)
        if self._connection and outdated(self.client, self._connection):
            self.leave()
        try:
            if self._connection is None:
                self._connection = open_connection(self.client)
                self._connection.connect()  # by itself it would not ask the sentinels where
            connection = self._connection
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            return [_reply(connection) for _ in commands]
        except BaseException:
            self.leave()  # nobody knows which replies are still to come
            raise

    def leave(self) -> None:
        """The next call makes a new connection."""
        if self._connection:
            self._connection.disconnect()
        self._connection = None


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def run(client: Redis | Direct, calls: Sequence[Call], *, replicas: int = 0) -> list[Any]:
    """Run scripts in one round trip, in order; give their replies.

    A server that was restarted or flushed does not know the scripts: those calls, and only those, are
    sent again. They changed nothing the first time, so this is no retry of a write. With `replicas`, as many must
    have acknowledged it all: WAIT covers what the same connection wrote before it.
    """
    replies = run_each(client, calls, replicas=replicas)
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies


def run_each(client: Redis | Direct, calls: Sequence[Call], *, replicas: int = 0) -> list[Any]:
    """`run`, but an error of one script is its own reply and nobody else's."""
    replies = _send(client, calls, replicas)
    unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        for name in {calls[at].name for at in unknown}:
            (client.client if isinstance(client, Direct) else client).script_load(script(name).text)
        for at, reply in zip(unknown, _send(client, [calls[at] for at in unknown], replicas), strict=True):
            replies[at] = reply
    if any(isinstance(reply, ReadOnlyError) for reply in replies):
        _leave(client)
    return replies


def _leave(client: Redis | Direct) -> None:
    """It is the primary no longer. Its name may lead to another by now, and only a new connection finds out."""
    if isinstance(client, Direct):
        client.leave()
        client = client.client
    client.connection_pool.disconnect(inuse_connections=False)


def _send(client: Redis | Direct, calls: Sequence[Call], replicas: int = 0) -> list[Any]:
    if isinstance(client, Direct):
        return client.send([call.command for call in calls])
    if len(calls) == 1 and not replicas:
        try:
            return [client.execute_command(*calls[0].command)]
        except ResponseError as error:  # NOSCRIPT is one; the server has answered, so it is this call's alone
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
