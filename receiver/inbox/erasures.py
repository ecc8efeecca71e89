"""Erasures: finds and erases what Redis has about a person, and keeps the receipts.

An erasure is recorded with a digest of its subject before it begins. One that was interrupted is found by that digest
when the same is asked for again. Redis never has the subject itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from receiver.inbox import keys
from receiver.inbox.model import pairs
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser
from receiver.inbox.redis.raw_connection import Argument

FIND_SLICE = 200
"""Events that one script looks through: a millisecond or two, for which deliveries wait."""
ERASE_SLICE = 20
SCAN_SLICE = 1000
_READ_BYTES = 4 << 20


class ErasedAs(StrEnum):
    """What became of an event that was to be erased. The script `erase` returns these words."""

    ERASED = "erased"
    OPEN = "open"
    """It is open, and open events were not to be erased."""
    RUNNING = "running"
    """One of its runs is under way."""
    GONE = "gone"
    """Redis does not have it any more: it was moved to the history, or removed."""
    DAMAGED = "damaged"
    """Its record is damaged, and is quarantined."""


class TextPlace(NamedTuple):
    """A value outside of events that names a person."""

    key: str
    """Without its prefix."""
    kind: str
    """hash, zset, or key for all of it."""
    name: bytes = b""
    """The field, or the member."""
    old: bytes = b""
    """The value of the field. One that was changed since is left as it is."""
    new: bytes = b""
    """What replaces it. Empty: it is removed."""


@dataclass(frozen=True)
class Receipt:
    """What was erased. It has digests of the subject, not the subject."""

    id: str
    store: str
    by: str
    """How the person was named: `customer`, `resource order` or `match customer.email`."""
    subject: str
    """A digest of salt, store, kind and value: who knows the value can compute it."""
    who: str
    began: str
    places: Mapping[str, int] = field(default_factory=dict)
    """How many were found in each place, before the first was erased."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """What each plugin with `@router.erase` answered."""
    files: Sequence[str] = ()
    """What was done so that no file has the old content."""
    left: Sequence[str] = ()
    """What is left to do, such as on other hosts."""
    missed: Sequence[str] = ()
    """Events that could not be erased, and why."""
    salt: str = ""
    days: Sequence[str] = ()
    """Until it has ended: the days of the events, whose tables in the history are to be written anew."""
    ended: str = ""
    hash: str = ""
    """SHA-256 of all other fields as JSON with sorted keys."""


class Erasures(ServerUser):
    # Events

    def many(self, store: str) -> int:
        return int(self.client.zcard(f"{keys.INDEX}:{store}"))

    def candidates(self, store: str, texts: Sequence[bytes]) -> Iterator[dict[str, WholeEvent | None]]:
        """The events of a store that have all the texts in one value, a slice at a time. None: it is damaged."""
        after = "-inf"
        while after:
            last, *ids = script_runner.run_one(self.client, "find_texts", store, after, FIND_SLICE, *texts)
            after = last.decode()
            yield dict(self._read([one.decode() for one in ids]))

    def _read(self, ids: Sequence[str]) -> Iterator[tuple[str, WholeEvent | None]]:
        """Events as a whole, without those that are gone."""
        while ids:
            replies = script_runner.run_one(self.client, "read_whole", _READ_BYTES, *ids)
            for event_id, reply in zip(ids, replies, strict=False):
                if not reply:
                    yield event_id, None
                elif b"store" in (fields := pairs(reply[1])):
                    accepted_at = int(float(reply[0] or 0))
                    yield event_id, WholeEvent(event_id, accepted_at, 0, fields, reply[2], pairs(reply[3]))
            ids = ids[len(replies) :]

    def erase(self, ids: Sequence[str], erasure: str, *, open_too: bool) -> list[ErasedAs]:
        replies: list[bytes] = []
        for at in range(0, len(ids), ERASE_SLICE):
            these = ids[at : at + ERASE_SLICE]
            replies += script_runner.run_one(self.client, "erase", erasure, int(open_too), *these)
        return [ErasedAs(one.decode()) for one in replies]

    def settled(self, ids: Sequence[str]) -> list[WholeEvent]:
        """Those of the events that Redis has settled, which are moved to the history or may have been read for that."""
        pipeline = self.client.pipeline(transaction=False)
        for event_id in ids:
            pipeline.zscore(keys.DONE, event_id)
        times = {event_id: int(at) for event_id, at in zip(ids, pipeline.execute(), strict=True) if at}
        return [one._replace(settled_at=times[one.id]) for _, one in self._read(list(times)) if one]

    # What is kept outside of events

    def hashes(self, *patterns: str) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        """Once marks and state, by the patterns of their keys without the prefix."""
        for pattern in patterns:
            for key in self.client.scan_iter(keys.PREFIX + pattern, count=SCAN_SLICE, _type="hash"):
                fields: Any = self.client.hgetall(key)
                yield key.decode("utf-8", "surrogateescape").removeprefix(keys.PREFIX), fields

    def names(self, *patterns: str) -> Iterator[str]:
        """The names of keys without the prefix."""
        for pattern in patterns:
            for key in self.client.scan_iter(keys.PREFIX + pattern, count=SCAN_SLICE):
                yield key.decode("utf-8", "surrogateescape").removeprefix(keys.PREFIX)

    def audit_entries(self) -> list[bytes]:
        found: Any = self.client.zrange(keys.AUDIT, 0, -1)
        return list(found)

    def erase_texts(self, places: Sequence[TextPlace]) -> int:
        """Returns how many were still as they were read. The others are left."""
        many = 0
        for at in range(0, len(places), ERASE_SLICE):
            parts: list[Argument] = []
            for one in places[at : at + ERASE_SLICE]:
                parts += [one.key.encode("utf-8", "surrogateescape"), one.kind, one.name, one.old, one.new]
            many += int(script_runner.run_one(self.client, "erase_texts", *parts))
        return many

    # Records and receipts

    def begin(self, receipt: Receipt) -> None:
        """Record that an erasure begins, or goes on."""
        script_runner.run_one(self.client, "erasure", "begin", receipt.id, _packed(receipt))

    def unfinished(self) -> list[Receipt]:
        """The erasures that have begun and not ended."""
        found: Any = self.client.hvals(keys.ERASURES)
        return list(map(_receipt, found))

    def end(self, receipt: Receipt, *, keep: float = 0.0) -> None:
        """Store the receipt; the erasure is then no longer unfinished. Receipts that are older than `keep` seconds are
        removed; 0 is never."""
        script_runner.run_one(self.client, "erasure", "end", receipt.id, _packed(receipt), int(keep * 1000))

    def receipts(self) -> list[Receipt]:
        """All receipts, the newest first."""
        found: Any = self.client.zrange(keys.RECEIPTS, 0, -1, desc=True)
        return list(map(_receipt, found))


def _packed(receipt: Receipt) -> bytes:
    return orjson.dumps(asdict(receipt), option=orjson.OPT_SORT_KEYS)


def _receipt(text: bytes) -> Receipt:
    return Receipt(**orjson.loads(text))
