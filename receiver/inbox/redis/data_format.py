"""The format of our data in the server: written with the first data, and checked wherever the data is opened.

Versions that read the same number can run side by side on one server. A version reads the formats OLDEST to FORMAT, and
writes what the number in the server says: it does not raise it by being started, so that an upgrade can be undone. When
the number must grow is in docs/decisions.md.
"""

from __future__ import annotations

from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from receiver.inbox import keys
from receiver.inbox.redis.server_faults import ServerFault, describe

FORMAT = 1
"""The newest format that this version reads. It is written where there is no data yet."""
OLDEST = 1
"""The oldest that it reads."""
UNNUMBERED = 0
"""Data from before formats had numbers."""
_EARLIEST = 10**14
"""Microseconds in 1973: a smaller time in the index of events is one in milliseconds, of unnumbered data."""


def format_fault(client: Redis, *, write: bool = False) -> ServerFault | None:
    """Why this version cannot use the data in the server; None if it can. Raises RedisError.

    With `write` the format is written where there is none. A server that refuses writes gets it later, from the drain.
    """
    found = _read(client)
    if found is None and write:
        with suppress(RedisError):
            client.set(keys.FORMAT, FORMAT, nx=True)
    if found is None or found in read_formats():
        return None
    server = f"the data in the Redis server at {describe(client)}"
    if not found.isdecimal():
        return ServerFault(
            f"{server} has an unknown format, because the key {keys.FORMAT} is not a number",
            f"if the database is that of storehooks: redis-cli RENAME {keys.FORMAT} {keys.FORMAT}-damaged",
        )
    data, reads = f"{server} has format {found}", " to ".join(dict.fromkeys((str(OLDEST), str(FORMAT))))
    if int(found) < OLDEST:
        return ServerFault(
            f"{data}, and this version of storehooks reads format {reads}",
            "let the version that wrote it finish its work, then empty that database, or set another in [redis] url",
        )
    return ServerFault(
        f"{data}, written by a newer version of storehooks, and this version reads format {reads}",
        "upgrade storehooks on this host, or set another database in [redis] url",
    )


def read_formats() -> tuple[str, ...]:
    """The numbers that this version reads; the scripts check them too."""
    return tuple(map(str, range(OLDEST, FORMAT + 1)))


def is_format_error(error: RedisError) -> bool:
    """Whether a script was refused because of the format; see lua/shared/call.lua."""
    return str(error).startswith("FORMAT ")


def _read(client: Redis) -> str | None:
    """The value of the format as text, "?" for no text; None where there is neither a value nor unnumbered data."""
    pipeline = client.pipeline(transaction=False)
    pipeline.get(keys.FORMAT)
    pipeline.zrange(keys.INDEX, 0, 0, withscores=True)
    number, oldest = pipeline.execute(raise_on_error=False)
    if isinstance(number, ResponseError) and str(number).startswith("WRONGTYPE"):
        return "?"
    if isinstance(number, RedisError):
        raise number
    if number is not None:
        return str(number.decode("utf-8", "replace"))
    is_unnumbered = isinstance(oldest, list) and oldest and oldest[0][1] < _EARLIEST
    return str(UNNUMBERED) if is_unnumbered else None
