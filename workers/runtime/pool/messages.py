"""The wire between a worker and its child processes: named, versioned by nothing but this file.

To a child process:    4 bytes length, then (number of the batch, [(item, handler, ...), ...]) by `marshal`: events go
through
               as the server gave them, as bytes, and are read by the child process that needs them.
From a child process:  one line of JSON for each message: {"ready": true}, {"broken": why}, or how a run ended. Both
ends are always forked from the same code, so the format needs no compatibility. A child process runs other people's
code, so what comes from it is only ever read as JSON.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

import orjson

from receiver.inbox import Run, StoredEvent
from receiver.inbox.outcomes import Ending, RunResult

_LENGTH = struct.Struct("!I")
_ENDINGS = {str(one): one for one in Ending}


def pack_runs(batch: int, runs: Sequence[Run]) -> bytes:
    told = [
        (run.item, run.handler, run.attempts, run.losses, run.replays, run.kept.id, run.kept.values, run.kept.blob)
        for run in runs
    ]
    content = marshal.dumps((batch, told))
    return _LENGTH.pack(len(content)) + content


def read_runs(stream: BinaryIO) -> tuple[int, list[Run]] | None:
    """The next batch with its number, or None when the worker has closed its end."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    batch, told = marshal.loads(stream.read(_LENGTH.unpack(prefix)[0]))  # noqa: S302  the worker wrote it
    return batch, [
        Run(item, handler, "", attempts, losses, StoredEvent(event_id, values, blob), replays)
        for item, handler, attempts, losses, replays, event_id, values, blob in told
    ]


def pack_message(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message) + b"\n"


def pack_result(item: str, result: RunResult) -> bytes:
    ending, detail, after = result
    return pack_message({"item": item, "ending": ending, "detail": detail, "after": after})


def read_result(message: dict[str, Any]) -> RunResult:
    """How a run ended. KeyError if a child process did not write it."""
    return RunResult(_ENDINGS[message["ending"]], message["detail"], message["after"])


class MessageReader:
    """Messages out of a stream of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [orjson.loads(line) for line in whole]
