"""Cursors: a place in a list, as a time and an id; and pages of sorted sets, the newest first. Only reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from redis import Redis

from receiver.contract.errors import ConfigError
from receiver.inbox.queries.damage import as_text

T = TypeVar("T")
MAX_SCANNED = 2_000
"""Entries that one request reads for a filter that no index answers."""
MAX_PAYLOADS = 1_000
"""The same if their bodies are read, too."""
MAX_SCANNED_BYTES = 8 << 20
"""Bytes of bodies that one request reads."""
_CURSOR = re.compile(r"(\d{1,18})-([\w.|:-]{0,200})")


class Cursor(NamedTuple):
    """An entry of a list. The next page begins after it, whatever joins or leaves the list meanwhile."""

    time: int
    """As the index has it: us for events, ms for failures and their groups."""
    id: str

    def __str__(self) -> str:
        return f"{self.time}-{self.id}"


@dataclass(frozen=True)
class Page(Generic[T]):
    entries: list[T]
    next: Cursor | None
    """Where the next page begins. None at the end."""


def parse_cursor(text: str) -> Cursor:
    """A cursor as `str` writes it. Raises ConfigError for any other text."""
    match = _CURSOR.fullmatch(text)
    if not match or not text.isascii():
        raise ConfigError(f"{text[:64]!r} is not a cursor; take the one that the list before ended with")
    return Cursor(int(match[1]), match[2])


def page_before(client: Redis, index: str, before: Cursor | None, *, limit: int) -> Page[tuple[str, float]]:
    """Members of a sorted set with their scores, the highest first; of those at the cursor's time, those after it."""
    start: float | str = "+inf" if before is None else before.time
    found: list[tuple[str, float]] = []
    offset = 0
    while len(found) < limit:
        reply: Any = client.zrange(
            index, start, "-inf", desc=True, byscore=True, offset=offset, num=limit, withscores=True
        )
        page = [(as_text(member), score) for member, score in reply]
        found += [one for one in page if before is None or one[1] != before.time or one[0] < before.id]
        if len(page) < limit:
            return Page(found[:limit], _cursor(found[limit - 1]) if len(found) > limit else None)
        offset += limit  # entries of one millisecond were left out
    return Page(found[:limit], _cursor(found[limit - 1]))


def _cursor(entry: tuple[str, float]) -> Cursor:
    return Cursor(int(entry[1]), entry[0])
