"""Importer: a file of any length into a store, in batches, in bounded memory, resumed where it stopped.

Beside FILE stand FILE.progress (how far we are; gone at the end) and FILE.refused.jsonl (each refused row and why).
A batch goes out under an Idempotency-Key made of the import and the batch's number. When we die between the
store's answer and our note of it, the batch is sent again under the same key, and a store that knows such keys
answers as before instead of importing twice. Without that nobody can promise it; see docs/client.md.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from receiver.contract.errors import ConfigError
from workers.storeapi import exact_json
from workers.storeapi.bulk_import.rows import ImportRow, read
from workers.storeapi.client import Client
from workers.storeapi.errors import UnexpectedResponse

BATCH = 500
_HEAD = 64 << 10


@dataclass(frozen=True)
class Progress:
    """Everything that was done, at the end of a batch. `report` is how long the list of refused rows was then."""

    key: str
    file: str
    operation: str
    size: int
    batch: int
    batches: int = 0
    position: int = 0
    rows: int = 0
    accepted: int = 0
    refused: int = 0
    report: int = 0


class Importer:
    def __init__(self, client: Client, group: str, path: Path, *, batch: int = BATCH) -> None:
        self._client = client
        self._operation = client.catalogue.get(group, "bulk_import")
        self._path = path
        self._batch = batch
        self.progress_file = path.with_name(path.name + ".progress")
        self.report_file = path.with_name(path.name + ".refused.jsonl")

    def run(self, tell: Callable[[Progress], None] = lambda _: None) -> Progress:
        """Import what has not been imported; `tell` hears of each batch."""
        done = self._begin()
        tell(done)
        with open(self.report_file, "r+b" if self.report_file.exists() else "w+b") as report:
            report.truncate(done.report)
            report.seek(done.report)
            for rows in self._batches(done):
                done = self._send(done, rows, report)
                self._note(done)
                tell(done)
        self.progress_file.unlink(missing_ok=True)
        if not done.refused:
            self.report_file.unlink()
        return done

    def _begin(self) -> Progress:
        """A fresh start, or where the last one stopped; never in another file, or for another store."""
        fresh = Progress(
            key=secrets.token_hex(8),
            file=_fingerprint(self._path),
            operation=f"{self._client.store} {self._operation.full_name}",
            size=self._path.stat().st_size,
            batch=self._batch,
        )
        if not self.progress_file.exists():
            self._note(fresh)  # before the first batch leaves: its key must outlive us
            return fresh
        try:
            before = Progress(**orjson.loads(self.progress_file.read_bytes()))
        except (ValueError, TypeError):
            raise ConfigError(f"{self.progress_file} cannot be read; remove it to import from the beginning") from None
        if (before.file, before.size, before.operation) != (fresh.file, fresh.size, fresh.operation):
            raise ConfigError(
                f"{self.progress_file} is of another file or another import ({before.operation}); finish that one, "
                "or remove it to import from the beginning"
            )
        return before

    def _batches(self, done: Progress) -> Iterator[list[ImportRow]]:
        rows = read(self._path, start=done.position, number=done.rows)
        while batch := list(islice(rows, done.batch)):
            yield batch

    def _send(self, done: Progress, rows: list[ImportRow], report: Any) -> Progress:
        good = [row for row in rows if row.record is not None]
        accepted, theirs = self._post(f"{done.key}-{done.batches}", good) if good else (0, {})
        refused = [(row, row.problem or theirs.get(row.number, "")) for row in rows]
        for row, why in refused:
            if why:
                report.write(exact_json.dumps({"row": row.number, "error": why, "record": row.record}) + b"\n")
        report.flush()
        return replace(
            done,
            batches=done.batches + 1,
            position=rows[-1].end,
            rows=rows[-1].number,
            accepted=done.accepted + accepted,
            refused=done.refused + sum(bool(why) for _, why in refused),
            report=report.tell(),
        )

    def _post(self, key: str, rows: list[ImportRow]) -> tuple[int, dict[int, str]]:
        """How many were taken, and why others were not, by the number of their row."""
        operation = self._operation
        body = {operation.rows: [row.record for row in rows]}
        answer = self._client.call(operation.group, operation.name, idempotency_key=key, body=body)
        refused = answer.get("refused", [])
        try:
            reasons = {rows[one["row"]].number: str(one.get("error", "refused"))[:500] for one in refused}
        except (TypeError, KeyError, IndexError):
            raise UnexpectedResponse(
                "the answer does not say which rows were refused as we read it (refused = [{row, error}]); nothing is "
                "known of this batch, and it will be sent again under the same key",
                store=self._client.store,
                operation=operation.full_name,
            ) from None
        return len(rows) - len(reasons), reasons

    def _note(self, done: Progress) -> None:
        """Replaced in one step: whenever we die, it is the old note or the new one."""
        beside = self.progress_file.with_name(self.progress_file.name + ".new")
        with open(beside, "wb") as file:
            file.write(orjson.dumps(asdict(done)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.progress_file)


def _fingerprint(path: Path) -> str:
    """Enough to notice another file under the same name without reading all of it."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_HEAD)).hexdigest()[:16]
