"""Change marks: what is stored for a store while its secrets change, or may be lost.

OWNER.NUMBER: a process changes them. Any of them may change, or be lost if the process ends.
OWNER.NUMBER.IDS: the change is over, and only the secrets of these subscriptions may be lost.
OWNER.0.IDS: a later change could not replace them either. Receivers do not wait for it: a store may refuse each
rotation for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.queries.damage import as_text


def mark_of(redis: Redis, store: str) -> str | None:
    """The mark of the store's notice, if there is one."""
    mark: Any = redis.hget(keys.CHANGING_SECRETS, store)
    return None if mark is None else as_text(mark)


def mark_for(owner: str, number: int, subscriptions: Collection[str] = ()) -> str:
    ids = f".{orjson.dumps(sorted(subscriptions)).decode()}" if subscriptions else ""
    return f"{owner}.{number}{ids}"


def owner_in(mark: str) -> str:
    return mark.partition(".")[0]


def is_waited_for(mark: str) -> bool:
    """Whether receivers wait for the change."""
    return mark.split(".", 2)[1:2] != ["0"]


def subscriptions_in(mark: str) -> frozenset[str] | None:
    """The ids in a mark; None if it has none, so that the secret of any subscription may be lost."""
    try:
        return frozenset(map(str, orjson.loads(mark.split(".", 2)[2])))
    except (IndexError, ValueError, TypeError):
        return None
