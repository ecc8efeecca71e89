"""Transfer: what `storehooks export` reads beside events, and what `storehooks import` writes.

What an export has brought it does not bring again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.queries.damage import as_text, read_each, read_numbers
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser
from receiver.inbox.redis.raw_connection import Argument

SCAN = 1000
"""How many keys the server is asked for at once."""
EVENT_COUNTERS = ("accepted", "settled", "open", "failed")
"""Those that events are counted in: an imported event counts itself."""


class KeptValue(NamedTuple):
    """A value that plugins or receivers remember beside events."""

    key: str
    """Without the prefix."""
    field: str
    """Empty if the key is a string."""
    value: bytes
    kept_ms: int
    """How long it is kept; 0 is for ever."""


class Brought(NamedTuple):
    """What an export has brought to this server, and does not bring again."""

    export: str
    line: int
    """Its last line that was written here, counted from 1."""


@dataclass(frozen=True)
class OtherCounts:
    """What other data has counted beyond the events that are imported from it."""

    stores: Sequence[tuple[str, int, int]]
    """Stores, each with the events that were accepted, and a number that only version 0.1 reads."""
    counters: Mapping[str, int]
    names: Mapping[str, Mapping[str, tuple[int, int]]]
    """By store: the event names that it has sent, how often, and when last (ms)."""


class Transfer(ServerUser):
    # Reading

    def data_ids(self) -> list[str]:
        """The id of the server's data, and those of other data that it replaces."""
        return as_text(self.client.get(keys.DATA) or b"").split()

    def counters(self, store: str = "") -> dict[str, int]:
        """Each counter by its field, of one store or all, as of one moment."""
        found: Any = self.client.hgetall(keys.COUNTERS)
        numbers = read_numbers(self.client, keys.COUNTERS, found)
        return {name: number for name, number in numbers.items() if not store or name.endswith(f"|{store}")}

    def names(self, stores: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
        """The event names that stores have sent, as in OtherCounts."""
        pipeline = self.client.pipeline(transaction=False)
        for store in stores:
            pipeline.hgetall(keys.EVENT_NAMES + store)
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for store, fields in zip(stores, read_each(pipeline), strict=True):
            counts = {
                as_text(name)[2:]: to_number(value) for name, value in (fields or {}).items() if name[:2] == b"n:"
            }
            found[store] = {
                name: (count, to_number(fields.get(b"l:" + name.encode()))) for name, count in counts.items()
            }
        return found

    def complete(self, events: Sequence[WholeEvent]) -> list[WholeEvent | None]:
        """Events that were read from Redis, now with their once marks and when they settled. None for one that has left
        Redis meanwhile. The marks are read after the record, so none is missing that the record relies on."""
        pipeline = self.client.pipeline(transaction=False)
        for one in events:
            pipeline.hgetall(keys.ONCE + one.id)
            pipeline.zscore(keys.DONE, one.id)
            pipeline.hexists(keys.EVENT + one.id, "store")
        replies = read_each(pipeline)
        return [
            one._replace(settled_at=int(settled or 0), once=once or {}) if is_here else None
            for one, once, settled, is_here in zip(events, replies[::3], replies[1::3], replies[2::3], strict=True)
        ]

    def kept_values(self, store: str = "") -> Iterator[KeptValue]:
        """The once marks of resources and stores, the state of plugins, the newest settled events of resources, and the
        marks of bodies without a delivery id; those of one store, or all."""
        for prefix, is_hash in (("o:", True), ("st:", True), ("newest:", False), ("d:", False)):
            page: list[str] = []
            for name in self.client.scan_iter(f"{keys.PREFIX}{prefix}*", count=SCAN):
                key = as_text(name).removeprefix(keys.PREFIX)
                if _store_of(key) and store in ("", _store_of(key)):
                    page.append(key)
                if len(page) >= SCAN:
                    yield from self._read_kept(page, is_hash=is_hash)
                    page = []
            yield from self._read_kept(page, is_hash=is_hash)

    def _read_kept(self, page: Sequence[str], *, is_hash: bool) -> Iterator[KeptValue]:
        pipeline = self.client.pipeline(transaction=False)
        for key in page:
            pipeline.hgetall(keys.PREFIX + key) if is_hash else pipeline.get(keys.PREFIX + key)
            pipeline.pttl(keys.PREFIX + key)
        replies = read_each(pipeline)
        for key, value, ttl in zip(page, replies[::2], replies[1::2], strict=True):
            kept = max(0, int(ttl or 0))
            if isinstance(value, dict):
                yield from (KeptValue(key, as_text(field), one, kept) for field, one in value.items())
            elif value is not None:
                yield KeptValue(key, "", value, kept)

    def brought(self, export: str, what: str) -> int:
        """Up to which line an export was imported here, or its secrets; 0 if it was not."""
        return to_number(self.client.hget(keys.IMPORTED, f"{export}|{what}"))

    # Writing

    def import_events(self, data: str, events: Sequence[WholeEvent], brought: Brought) -> list[bool]:
        """Write events of other data, in order of acceptance. Returns for each whether it was new."""
        arguments: list[Argument] = [data, *brought]
        for one in events:
            arguments += (one.id, one.accepted_at, one.settled_at, one.content or b"")
            for fields in (one.fields, one.once):
                arguments += (2 * len(fields), *(part for pair in fields.items() for part in pair))
        return [bool(new) for new in script_runner.run_one(self.client, "import_events", *arguments)] if events else []

    def import_values(self, values: Sequence[KeptValue], brought: Brought) -> int:
        """Write what is not here yet. Returns how many."""
        parts = (part for one in values for part in one)
        return int(script_runner.run_one(self.client, "import_keys", *brought, *parts))

    def note_brought(self, export: str, what: str, lines: int) -> None:
        """`what`: "lines" or "secrets"."""
        self.client.hset(keys.IMPORTED, f"{export}|{what}", lines)

    def import_counts(self, data: str, counts: OtherCounts) -> None:
        """Count what other data has counted beyond the imported events, each unit once."""
        script_runner.run_one(self.client, "import_counters", data, orjson.dumps(counts))


def _store_of(key: str) -> str:
    """The store that a kept value belongs to; empty for the once marks of an event, which are a part of it."""
    kind, _, rest = key.partition(":")
    if kind == "o":
        scope, _, rest = rest.partition(":")
        return rest.partition(":")[0] if scope in ("r", "s") else ""
    if kind == "newest":
        return rest.split("|")[1] if "|" in rest else ""
    return rest.rpartition(":")[2] if kind == "st" else rest.partition(":")[0]
