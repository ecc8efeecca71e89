"""The standard fields of a record as plain values, so that records of different stores can be compared."""

from __future__ import annotations

from typing import Any

from receiver.contract.record_map import FIELDS
from receiver.contract.records import Record, RecordError


def standard_fields(record: Record | None) -> dict[str, Any]:
    """Every standard field that the record has; amounts as text, lines and the customer as standard fields, too."""
    assert record is not None
    found: dict[str, Any] = {}
    for name in FIELDS[record.kind]:
        try:
            found[name] = _plain(getattr(record, name))
        except RecordError:
            continue
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return standard_fields(value)
    if isinstance(value, tuple):
        return [standard_fields(one) for one in value]
    return value if isinstance(value, int | str | dict | None) else str(value)
