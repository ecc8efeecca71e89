"""Needed commands: those that our scripts and processes use, which the server must know by these names.

`connecting.py` tries rights. Commands of optional rights, and those that only show, such as MEMORY, are left out.
So are PUBLISH, without which only live pages miss an event, and RENAME, which only sets damaged keys aside.
"""

from __future__ import annotations

from typing import Any

_NAMES = """
DEL EXEC EXISTS EXPIRE GET GETRANGE HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HRANDFIELD HSCAN HSET
HSETNX HVALS INCR LLEN LPUSH LRANGE LTRIM MGET MULTI PERSIST PEXPIRE PEXPIREAT PING PTTL
RPUSH SADD SCAN SCARD SET SETRANGE SISMEMBER SMEMBERS SRANDMEMBER SREM STRLEN SUNION TIME TTL TYPE UNLINK
XADD ZADD ZCARD ZCOUNT ZPOPMIN ZRANGE ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE
ZREVRANGEBYSCORE ZSCAN ZSCORE
"""
COMMANDS = tuple(_NAMES.split())
QUESTION = ("COMMAND INFO", *COMMANDS)


def unknown_commands(answer: Any) -> list[str]:
    """Those that the server does not know, by its answer to QUESTION; none if our user may not ask."""
    if not isinstance(answer, list) or len(answer) != len(COMMANDS):
        return []
    return [name for name, known in zip(COMMANDS, answer, strict=True) if known is None]
