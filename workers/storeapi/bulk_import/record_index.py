"""Record index: the records of a store by a key, to tell new, changed and unchanged rows of a file apart.

It is in a temporary database on disk, so that memory stays bounded for any store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from receiver.contract.errors import ConfigError
from receiver.contract.records import Record
from workers.storeapi import exact_json

_CACHE_KB = 16_000


class RowMatch(NamedTuple):
    """What a row is to the store: new, the changed or unchanged record with this id, or refused with this problem."""

    kind: Literal["new", "changed", "unchanged", "refused"]
    id: int | str = 0
    problem: str = ""


class RecordIndex:
    """`key` and the other names are the store's own names of fields, as in the file."""

    def __init__(self, records: Iterable[Record], *, key: str, id_field: str, types: Mapping[str, str]) -> None:
        self._key = key
        self._id_field = id_field
        self._types = types
        self._read = self._with_key = 0
        self._db = sqlite3.connect("", isolation_level=None)  # SQLite deletes this file when it is closed
        self._db.executescript(
            f"PRAGMA cache_size = -{_CACHE_KB}; PRAGMA journal_mode = OFF; BEGIN;"
            "CREATE TABLE records (key TEXT, id TEXT, fields BLOB);"
            "CREATE TABLE seen (key TEXT PRIMARY KEY, row INT) WITHOUT ROWID"
        )
        self._db.executemany("INSERT INTO records VALUES (?, ?, ?)", self._entries(records))
        self._db.execute("CREATE INDEX by_key ON records (key)")
        if self._read and not self._with_key:
            raise ConfigError(
                f"rows cannot be matched by {key}: none of the store's {self._read:,} records has this field; choose "
                "the store's name of a field that it returns, or import once without --key"
            )

    def _entries(self, records: Iterable[Record]) -> Iterator[tuple[str, bytes, bytes]]:
        for record in records:
            self._read += 1
            raw = record.to_json()
            self._with_key += self._key in raw
            if key := _key_text(raw.get(self._key)):
                yield key, exact_json.dumps(record.id), exact_json.dumps(raw)

    def match(self, number: int, row: Mapping[str, Any]) -> RowMatch:
        """Compare a row with the store's record of the same key."""
        key = _key_text(row.get(self._key))
        if not key:
            return RowMatch("refused", problem=f"the row has no {self._key}, by which rows are matched")
        for (before,) in self._db.execute("SELECT row FROM seen WHERE key = ?", (key,)):
            return RowMatch("refused", problem=f"{self._key} {key[:60]} is in row {before:,} already")
        self._db.execute("INSERT INTO seen VALUES (?, ?)", (key, number))
        found = self._db.execute("SELECT id, fields FROM records WHERE key = ? LIMIT 2", (key,)).fetchall()
        if len(found) > 1:
            return RowMatch("refused", problem=f"the store has more than one record with {self._key} {key[:60]}")
        if not found:
            return RowMatch("new")
        theirs = exact_json.loads(found[0][1])
        same = all(self._is_same(name, value, theirs.get(name)) for name, value in row.items())
        return RowMatch("unchanged" if same else "changed", exact_json.loads(found[0][0]))

    def _is_same(self, name: str, mine: Any, theirs: Any) -> bool:
        """Whether a field has the same value: 19.9 and "19.90" are the same amount."""
        if mine == theirs or name == self._id_field:
            return True
        if self._types.get(name) == "amount" or isinstance(mine, str) != isinstance(theirs, str):
            number = _number(mine)
            return number is not None and number == _number(theirs)
        return False

    def close(self) -> None:
        self._db.close()


def _key_text(value: Any) -> str:
    return str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _number(value: Any) -> Decimal | None:
    try:
        return Decimal(str(value)) if isinstance(value, int | str | Decimal) else None
    except InvalidOperation:
        return None
