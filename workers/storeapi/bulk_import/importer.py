"""Importer: imports a file of any length into a store in batches, and resumes after an interruption.

It writes two files next to FILE: FILE.progress (the position; deleted at the end) and FILE.refused.jsonl (each refused
row with its reason). Each batch is sent with an Idempotency-Key made of the import's id and the batch's number. After a
crash between the store's response and the saved progress, the batch is sent again with the same key, and a store that
honours such keys does not import it twice. At other stores it may be imported twice; see docs/client.md.
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
from workers.storeapi.bulk_import.rows import ImportRow, read_rows
from workers.storeapi.client import Client
from workers.storeapi.errors import UnexpectedResponse

BATCH_SIZE = 500
_HASHED_BYTES = 64 << 10


@dataclass(frozen=True)
class ImportProgress:
    """The progress of an import after a batch; the content of FILE.progress."""

    import_id: str
    file_hash: str
    operation: str
    file_size: int
    batch_size: int
    batches: int = 0
    position: int = 0
    rows: int = 0
    accepted: int = 0
    refused: int = 0
    report_size: int = 0
    """Bytes of FILE.refused.jsonl: what a crash left after them belongs to a batch that is sent again."""


class Importer:
    def __init__(self, client: Client, group: str, path: Path, *, batch_size: int = BATCH_SIZE) -> None:
        self._client = client
        self._operation = client.catalogue.get(group, "bulk_import")
        self._path = path
        self._batch_size = batch_size
        self.progress_file = path.with_name(path.name + ".progress")
        self.report_file = path.with_name(path.name + ".refused.jsonl")

    def run(self, on_progress: Callable[[ImportProgress], None] = lambda _: None) -> ImportProgress:
        """Import the remaining rows. Calls `on_progress` at the start and after each batch."""
        done = self._start_or_resume()
        on_progress(done)
        with open(self.report_file, "r+b" if self.report_file.exists() else "w+b") as report:
            report.truncate(done.report_size)
            report.seek(done.report_size)
            for rows in self._batches(done):
                done = self._send(done, rows, report)
                self._save(done)
                on_progress(done)
        self.progress_file.unlink(missing_ok=True)
        if not done.refused:
            self.report_file.unlink()
        return done

    def _start_or_resume(self) -> ImportProgress:
        """A new progress, or the saved one. Raises ConfigError where that is of another file, store or operation."""
        fresh = ImportProgress(
            import_id=secrets.token_hex(8),
            file_hash=_file_hash(self._path),
            operation=f"{self._client.store} {self._operation.full_name}",
            file_size=self._path.stat().st_size,
            batch_size=self._batch_size,
        )
        if not self.progress_file.exists():
            self._save(fresh)  # before the first batch is sent: a resumed import must use the same keys
            return fresh
        try:
            before = ImportProgress(**orjson.loads(self.progress_file.read_bytes()))
        except (ValueError, TypeError):
            raise ConfigError(f"{self.progress_file} is damaged; delete it to import from the beginning") from None
        identity = (fresh.file_hash, fresh.file_size, fresh.operation)
        if (before.file_hash, before.file_size, before.operation) != identity:
            raise ConfigError(
                f"{self.progress_file} belongs to another file or another import ({before.operation}); finish that "
                "import, or delete the progress file to import from the beginning"
            )
        return before

    def _batches(self, done: ImportProgress) -> Iterator[list[ImportRow]]:
        rows = read_rows(self._path, start=done.position, number=done.rows)
        while batch := list(islice(rows, done.batch_size)):
            yield batch

    def _send(self, done: ImportProgress, rows: list[ImportRow], report: Any) -> ImportProgress:
        good = [row for row in rows if row.record is not None]
        accepted, by_store = self._post(f"{done.import_id}-{done.batches}", good) if good else (0, {})
        reasons = [(row, row.problem or by_store.get(row.number, "")) for row in rows]
        for row, reason in reasons:
            if reason:
                report.write(exact_json.dumps({"row": row.number, "error": reason, "record": row.record}) + b"\n")
        report.flush()
        return replace(
            done,
            batches=done.batches + 1,
            position=rows[-1].end,
            rows=rows[-1].number,
            accepted=done.accepted + accepted,
            refused=done.refused + sum(bool(reason) for _, reason in reasons),
            report_size=report.tell(),
        )

    def _post(self, key: str, rows: list[ImportRow]) -> tuple[int, dict[int, str]]:
        """Send a batch. Returns the number of accepted rows, and the reason of each refused row by its row number."""
        operation = self._operation
        body = {operation.rows: [row.record for row in rows]}
        answer = self._client.call(operation.group, operation.name, idempotency_key=key, body=body)
        refused = answer.get("refused", [])
        try:
            reasons = {rows[one["row"]].number: str(one.get("error", "refused"))[:500] for one in refused}
        except (TypeError, KeyError, IndexError):
            raise UnexpectedResponse(
                "the response has no readable list of refused rows (refused = [{row, error}]), so the result of this "
                "batch is unknown; it will be sent again with the same Idempotency-Key",
                store=self._client.store,
                operation=operation.full_name,
            ) from None
        return len(rows) - len(reasons), reasons

    def _save(self, done: ImportProgress) -> None:
        """Replace the file atomically: after a crash it holds the old progress or the new one."""
        new_file = self.progress_file.with_name(self.progress_file.name + ".new")
        with open(new_file, "wb") as file:
            file.write(orjson.dumps(asdict(done)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new_file, self.progress_file)


def _file_hash(path: Path) -> str:
    """Detects another file of the same name, without reading all of it."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()[:16]
