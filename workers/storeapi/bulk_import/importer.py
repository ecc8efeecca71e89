"""Importer: imports a file of any length into a store in batches, and resumes after an interruption.

It writes three files next to FILE: FILE.progress (the position; deleted at the end), FILE.refused.jsonl (each refused
row with its reason) and FILE.imported (a line for each finished import). Each batch is sent with an Idempotency-Key
made of the import's id and the batch's number. After a crash between the store's response and the saved progress, the
batch is sent again with the same key, and a store that honours such keys does not import it twice. At other stores it
may be imported twice; see docs/client.md.

With a key column, the store's records are read first, and only new and changed rows are sent. Such an import has no
position: after an interruption it starts again, and finds what it sent before.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import orjson

from receiver.contract.errors import ConfigError
from receiver.inbox.keyring.host_files import replace_file
from workers.storeapi import exact_json
from workers.storeapi.bulk_import.record_index import RecordIndex, RowMatch
from workers.storeapi.bulk_import.rows import ImportRow, read_rows
from workers.storeapi.client import Client
from workers.storeapi.errors import InvalidRequest, UnexpectedResponse

BATCH_SIZE = 500
FIRST_ERRORS = 10
_NEW = RowMatch("new")


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
    """New records; with a key column, `updated` and `unchanged` are the others."""
    refused: int = 0
    updated: int = 0
    unchanged: int = 0
    report_size: int = 0
    """Bytes of FILE.refused.jsonl: what a crash left after them belongs to a batch that is sent again."""


OnProgress = Callable[[ImportProgress], None]


class Importer:
    """`key`: the column by which rows are matched with the store's records. `again`: also a file that was imported."""

    def __init__(
        self,
        client: Client,
        group: str,
        path: Path,
        *,
        key: str = "",
        again: bool = False,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self._client = client
        self._operation = client.catalogue.get(group, "bulk_import")
        self._path = path
        self._key = key
        self._again = again
        self._batch_size = batch_size
        self._names = client.catalogue.fields.get(group, {})
        self._id_field = self._names.get("id", "id")
        types = client.catalogue.types.get(group, {})
        self._types = {self._names.get(name, name): kind for name, kind in types.items()}
        self._index: RecordIndex | None = None
        self.progress_file = path.with_name(path.name + ".progress")
        self.report_file = path.with_name(path.name + ".refused.jsonl")
        self.finished_file = path.with_name(path.name + ".imported")

    def run(self, on_progress: OnProgress = lambda _: None) -> ImportProgress:
        """Import the remaining rows. Calls `on_progress` at the start and after each batch."""
        with _held(self._path):
            return self._run(on_progress)

    def _run(self, on_progress: OnProgress) -> ImportProgress:
        done = self._start_or_resume()
        on_progress(done)
        self._read_store()
        with open(self.report_file, "r+b" if self.report_file.exists() else "w+b") as report:
            report.truncate(done.report_size)
            report.seek(done.report_size)
            for rows in self._batches(done):
                done = self._send(done, rows, report)
                if not self._key:
                    self._save(done)
                on_progress(done)
        self._finish(done)
        return done

    def check(self, on_progress: OnProgress = lambda _: None) -> tuple[ImportProgress, list[str]]:
        """A dry run: what an import would do, and its first errors. Reads the file, and with a key the store's records;
        changes nothing."""
        self._read_store()
        done = self._new_progress()
        errors: list[str] = []
        create = self._client.catalogue.operations.get(f"{self._operation.group}.create")
        for rows in self._batches(done):
            kinds: Counter[str] = Counter()
            for row in rows:
                match = self._match(row)
                if match.kind == "new" and create:
                    match = self._with_required_fields(row, create.required)
                kinds[match.kind] += 1
                if match.problem and len(errors) < FIRST_ERRORS:
                    errors.append(f"row {row.number:,}: {match.problem}")
            done = _counted(done, rows, kinds)
            on_progress(done)
        self._close_index()
        return done, errors

    # Beginning and end

    def _new_progress(self) -> ImportProgress:
        with open(self._path, "rb") as file:
            file_hash = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        return ImportProgress(
            import_id=secrets.token_hex(8),
            file_hash=file_hash,
            operation=f"{self._client.store} {self._operation.full_name}",
            file_size=self._path.stat().st_size,
            batch_size=self._batch_size,
        )

    def _start_or_resume(self) -> ImportProgress:
        """A new progress, or the saved one. Raises ConfigError where that is of another file, store or operation.

        With a key column it is always a new one, and the saved one of the same import is deleted at the end.
        """
        fresh = self._new_progress()
        if not self.progress_file.exists():
            if not (self._again or self._key):
                self._refuse_repeat(fresh)
            if not self._key:
                self._save(fresh)  # before the first batch is sent: a resumed import must use the same keys
            return fresh
        try:
            before = ImportProgress(**orjson.loads(self.progress_file.read_bytes()))
        except (ValueError, TypeError):
            raise ConfigError(f"{self.progress_file} is damaged; delete it to import from the beginning") from None
        if (before.file_hash, before.operation) != (fresh.file_hash, fresh.operation):
            raise ConfigError(
                f"{self.progress_file} belongs to another file or another import ({before.operation}); finish that "
                "import, or delete the progress file to import from the beginning"
            )
        return fresh if self._key else before

    def _refuse_repeat(self, fresh: ImportProgress) -> None:
        for line in self.finished_file.read_bytes().splitlines() if self.finished_file.exists() else ():
            try:
                before = orjson.loads(line)
            except ValueError:
                continue
            if (before["file_hash"], before["operation"]) == (fresh.file_hash, fresh.operation):
                raise ConfigError(
                    f"{self._path} was imported already, on {before['finished']} ({before['rows']:,} rows, "
                    f"{before['operation']}); --key COLUMN sends only new and changed rows, --again imports all rows "
                    "once more"
                )

    def _finish(self, done: ImportProgress) -> None:
        self._close_index()
        if done.rows > done.refused:
            self._note_import(done)
        self.progress_file.unlink(missing_ok=True)
        if not done.refused:
            self.report_file.unlink()

    def _note_import(self, done: ImportProgress) -> None:
        finished = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        about = {"file_hash": done.file_hash, "operation": done.operation, "rows": done.rows, "finished": finished}
        with open(self.finished_file, "ab") as file:
            file.write(orjson.dumps(about) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _save(self, done: ImportProgress) -> None:
        """After a crash the file holds the old progress or the new one."""
        replace_file(self.progress_file, orjson.dumps(asdict(done)))

    # Matching rows with records

    def _read_store(self) -> None:
        """With a key column, read all records of the store."""
        if not self._key:
            return
        records = self._client.call(self._operation.group, "list")
        self._index = RecordIndex(records, key=self._key, id_field=self._id_field, types=self._types)

    def _match(self, row: ImportRow) -> RowMatch:
        if row.problem or row.record is None:
            return RowMatch("refused", problem=row.problem)
        return self._index.match(row.number, row.record) if self._index else _NEW

    def _close_index(self) -> None:
        if self._index is not None:
            self._index.close()

    def _with_required_fields(self, row: ImportRow, required: tuple[str, ...]) -> RowMatch:
        missing = [name for name in required if self._names.get(name, name) not in (row.record or {})]
        if not missing:
            return _NEW
        return RowMatch("refused", problem=f"no {', '.join(missing)}, which {self._operation.group}.create needs")

    # Sending

    def _batches(self, done: ImportProgress) -> Iterator[list[ImportRow]]:
        rows = read_rows(self._path, types=self._types, start=done.position, number=done.rows)
        while batch := list(islice(rows, done.batch_size)):
            yield batch

    def _send(self, done: ImportProgress, rows: list[ImportRow], report: BinaryIO) -> ImportProgress:
        """Send what is new or changed, and write the refused rows into the report."""
        matches = [self._match(row) for row in rows]
        new = [row for row, match in zip(rows, matches, strict=True) if match.kind == "new"]
        by_store = self._create(f"{done.import_id}-{done.batches}", new) if new else {}
        kinds: Counter[str] = Counter()
        for row, match in zip(rows, matches, strict=True):
            problem = match.problem or by_store.get(row.number, "")
            if match.kind == "changed":
                problem = self._update(match.id, row)
            kinds["refused" if problem else match.kind] += 1
            if problem:
                report.write(exact_json.dumps({"row": row.number, "error": problem, "record": row.record}) + b"\n")
        report.flush()
        return replace(_counted(done, rows, kinds), report_size=report.tell())

    def _create(self, key: str, rows: list[ImportRow]) -> dict[int, str]:
        """Send new rows. Returns the reason of each refused row by its row number."""
        operation = self._operation
        body = {operation.rows: [row.record for row in rows]}
        answer = self._client.call(operation.group, operation.name, idempotency_key=key, body=body)
        refused = answer.get("refused", [])
        try:
            return {rows[one["row"]].number: str(one.get("error", "refused"))[:500] for one in refused}
        except (TypeError, KeyError, IndexError):
            raise UnexpectedResponse(
                "the response has no readable list of refused rows (refused = [{row, error}]), so the result of this "
                "batch is unknown; it will be sent again with the same Idempotency-Key",
                store=self._client.store,
                operation=operation.full_name,
            ) from None

    def _update(self, record_id: int | str, row: ImportRow) -> str:
        """Send a changed row. Returns why the store refused it, or nothing."""
        fields = {name: value for name, value in (row.record or {}).items() if name != self._id_field}
        try:
            self._client.call(self._operation.group, "update", record_id, body=fields)
        except InvalidRequest as error:
            return error.reason.splitlines()[0][:500]
        return ""


def _counted(done: ImportProgress, rows: list[ImportRow], kinds: Counter[str]) -> ImportProgress:
    return replace(
        done,
        batches=done.batches + 1,
        position=rows[-1].end,
        rows=rows[-1].number,
        accepted=done.accepted + kinds["new"],
        updated=done.updated + kinds["changed"],
        unchanged=done.unchanged + kinds["unchanged"],
        refused=done.refused + kinds["refused"],
    )


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Two processes that import one file would send its rows twice. Raises ConfigError if another one does."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is importing {path}; wait until it has ended") from None
        except OSError:  # some network file systems have no such locks
            pass
        yield
