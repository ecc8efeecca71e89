"""The wire between a worker and its horses: named, versioned by nothing but this file, JSON with raw bodies.

To a horse:    4 bytes length, JSON {"batch": number, "runs": [...]}, then the bodies one after the other.
From a horse:  one line of JSON for each message: {"ready": true}, {"broken": why}, or how a run ended.
Both ends are always forked from the same code, so the format needs no compatibility.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any, BinaryIO

import orjson

from receiver.contract.event import Event
from receiver.inbox import Run

_LENGTH = struct.Struct("!I")


def pack_runs(batch: int, runs: Sequence[Run]) -> bytes:
    header = orjson.dumps({"batch": batch, "runs": [_fields(run) for run in runs]})
    return b"".join([_LENGTH.pack(len(header)), header, *(run.event.body for run in runs)])


def read_runs(stream: BinaryIO) -> tuple[int, list[Run]] | None:
    """The next batch with its number, or None when the worker has closed its end."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    header = orjson.loads(stream.read(_LENGTH.unpack(prefix)[0]))
    return header["batch"], [_run(fields, stream.read(fields["size"])) for fields in header["runs"]]


def pack_message(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message) + b"\n"


class Lines:
    """Messages out of a stream of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [orjson.loads(line) for line in whole]


def _fields(run: Run) -> dict[str, Any]:
    event = run.event
    return {
        "item": run.item,
        "handler": run.handler,
        "attempts": run.attempts,
        "losses": run.losses,
        "replays": run.replays,
        "id": event.id,
        "store": event.store,
        "topic": event.topic,
        "received": event.received_at,
        "headers": event.headers,
        "delivery": event.delivery_id,
        "resource": event.resource_id,
        "occurred": event.occurred_at,
        "source": event.source,
        "path": event.data_path,
        "size": len(event.body),
    }


def _run(fields: dict[str, Any], body: bytes) -> Run:
    event = Event(
        id=fields["id"],
        store=fields["store"],
        topic=fields["topic"],
        received_at=datetime.fromisoformat(fields["received"]),
        body=body,
        headers=fields["headers"],
        delivery_id=fields["delivery"],
        resource_id=fields["resource"],
        occurred_at=datetime.fromisoformat(fields["occurred"]) if fields["occurred"] else None,
        source=fields["source"],
        data_path=fields["path"],
    )
    return Run(fields["item"], fields["handler"], "", fields["attempts"], fields["losses"], event, fields["replays"])
