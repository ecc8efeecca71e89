"""Row format: an event as a row of either database. The packed record is complete; the other columns are to search."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from receiver.inbox.model import to_number
from receiver.inbox.queries.events import RunRecord, read_runs
from workers.history.event_filter import MAX_TEXT
from workers.history.past_events import PastEvent

_LEVEL = 6
_PLAIN, _ZLIB, _RECORD = b"\0", b"\1", b"\2"
_KNOWN_TEXT = (
    b'"l:":"p:":"g: failed","bad":"0","repeated":"17","alias":"\\"key\\":\\"done {\\"error\\":null,\\"reason\\":\\"'
    b'{"version":"","result":null}{\\"version\\":\\"1\\",\\"result\\":\\"skipped\\"}"dropped 1 0 default ","r:'
    b'"done 1 0 default ","x:{"fields":{"v":"1","store":"","topic":"order.created","theirs":"orders/create",'
    b'"delivery":"","resource":"","received":"17","occurred":"2026-01-01T00:00:00+00:00","source":"webhook",'
    b'"data_path":"","digest":"","state":"settled","open":"0"},"once":{}'
)
"""What most records contain, for zlib. A change needs a new first byte: records are read with the text that they were
packed with."""


class Row(NamedTuple):
    """Texts have no NUL, which PostgreSQL refuses, and at most MAX_TEXT characters."""

    id: str
    accepted_at: int
    settled_at: int
    received_at: int
    occurred_at: str
    store: str
    topic: str
    theirs: str
    delivery_id: str
    resource_id: str
    source: str
    reason: str
    problem: str
    runs: str
    record: bytes


COLUMNS = Row._fields


def row_of(event: PastEvent) -> Row:
    runs, problem = _runs(event)

    def text(name: bytes) -> str:
        return searched(event.fields.get(name, b"").decode("utf-8", "replace"))

    return Row(
        id=event.id,
        accepted_at=event.accepted_at,
        settled_at=event.settled_at,
        received_at=to_number(event.fields.get(b"received")),
        occurred_at=text(b"occurred"),
        store=text(b"store"),
        topic=text(b"topic"),
        theirs=text(b"theirs"),
        delivery_id=text(b"delivery"),
        resource_id=text(b"resource"),
        source=text(b"source"),
        reason=text(b"reason"),
        problem=event.problem or problem,
        runs=runs,
        record=_pack_record(event.fields, event.once),
    )


def event_of(
    event_id: str, accepted_at: int, settled_at: int, record: bytes, problem: str, content: bytes | None
) -> PastEvent:
    """The reverse, from the columns that every query reads."""
    fields, once = _unpack_record(record)
    return PastEvent(event_id, accepted_at, settled_at, fields, content and decompressed(content), once, problem)


def texts_of(record: bytes, content: bytes | None) -> Iterator[bytes]:
    """All that a row has, as two texts. It is enough to look for ASCII: other bytes are written differently."""
    yield _record_text(record)
    if content is not None:
        yield decompressed(content)


def searched(text: str) -> str:
    """A text as the columns have it."""
    return text[:MAX_TEXT].replace("\0", "\ufffd")


def compressed(content: bytes) -> bytes:
    packed = zlib.compress(content, _LEVEL)
    return _ZLIB + packed if len(packed) < len(content) else _PLAIN + content


def decompressed(content: bytes) -> bytes:
    return zlib.decompress(content[1:]) if content[:1] == _ZLIB else content[1:]


def day_of(accepted_at: float) -> datetime:
    """The day (UTC) of a time of acceptance. Raises ValueError where there is none: the number is damaged."""
    try:
        return datetime.fromtimestamp(accepted_at / 1e6, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{accepted_at} is no time") from error


def day_name(accepted_at: float) -> str:
    return f"{day_of(accepted_at):%Y%m%d}"


def _runs(event: PastEvent) -> tuple[str, str]:
    """The runs as JSON, and why they cannot be searched. A result that is nested too deep is left out."""
    try:
        runs = read_runs(event.id, event.fields)
        replays = [to_number(event.fields.get(b"p:" + run.handler.encode())) for run in runs]
    except ValueError:
        return "[]", "its runs cannot be searched: the record is damaged"
    pairs = list(zip(runs, replays, strict=True))
    try:
        text, problem = orjson.dumps([_run(*pair) for pair in pairs]), ""
    except TypeError:
        text = orjson.dumps([{**_run(*pair), "result": None} for pair in pairs])
        problem = "its results cannot be searched: they are nested too deep, or have numbers that are too large"
    return text.replace(rb"\u0000", rb"\ufffd").decode(), problem


def _run(run: RunRecord, replays: int) -> dict[str, Any]:
    return {
        "handler": run.handler,
        "version": run.version,
        "status": run.status,
        "attempts": run.attempts,
        "replays": replays,
        "result": run.result,
        "error": run.error,
        "reason": run.reason,
    }


def _pack_record(fields: Mapping[bytes, bytes], once: Mapping[bytes, bytes]) -> bytes:
    """Every byte is one character (latin-1), because a damaged record may contain any."""
    parts = {
        name: {key.decode("latin-1"): value.decode("latin-1") for key, value in given.items()}
        for name, given in (("fields", fields), ("once", once))
    }
    packer = zlib.compressobj(_LEVEL, zdict=_KNOWN_TEXT)
    return _RECORD + packer.compress(orjson.dumps(parts)) + packer.flush()


def _record_text(record: bytes) -> bytes:
    packer = zlib.decompressobj(zdict=_KNOWN_TEXT)
    return packer.decompress(record[1:]) + packer.flush()


def _unpack_record(record: bytes) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    parts = orjson.loads(_record_text(record))
    fields, once = (
        {key.encode("latin-1"): value.encode("latin-1") for key, value in parts[name].items()}
        for name in ("fields", "once")
    )
    return fields, once
