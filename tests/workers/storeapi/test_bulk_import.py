"""Bulk import: a file of any length in bounded memory; after an interruption no row is lost or imported twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.contract.errors import ConfigError
from tests.support.programs import ROOT
from tests.workers.conftest import SandboxRun
from tests.workers.storeapi.test_paging import paging
from workers.storeapi.bulk_import.importer import Importer, ImportProgress
from workers.storeapi.bulk_import.rows import MAX_LINE, read_rows


def write_rows(path: Path, rows: int) -> Path:
    with open(path, "w") as file:
        if path.suffix == ".csv":
            file.write("name,price,note\n")
        for n in range(rows):
            if path.suffix == ".csv":
                file.write(f'"Row {n}",{n % 100}.50,"two\nlines, ""quoted"""\n')
            else:
                file.write(json.dumps({"name": f"Row {n}", "price": f"{n % 100}.50"}) + "\n")
    return path


def imported(sandbox: SandboxRun) -> Counter[str]:
    """Number of copies of each row in the store."""
    names = (product.name for product in sandbox.client(timeout=100).products.list())
    return Counter(name for name in names if name.startswith("Row "))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_is_imported_in_batches_and_noted_as_imported(sandbox: SandboxRun, tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"rows{suffix}", 120)
    progress: list[ImportProgress] = []
    done = Importer(sandbox.client(), "products", path, batch_size=50).run(progress.append)
    assert (done.rows, done.accepted, done.refused, done.batches) == (120, 120, 0, 3)
    assert [one.rows for one in progress] == [0, 50, 100, 120]
    assert imported(sandbox) == {f"Row {n}": 1 for n in range(120)}
    assert sorted(one.name for one in tmp_path.iterdir()) == [path.name, f"{path.name}.imported"]


def test_a_quoted_line_break_is_part_of_its_row(sandbox: SandboxRun, tmp_path: Path) -> None:
    Importer(sandbox.client(), "products", write_rows(tmp_path / "rows.csv", 3)).run()
    (found,) = [one for one in sandbox.client().products.list() if one.name == "Row 1"]
    assert found["note"] == 'two\nlines, "quoted"'


def test_refused_rows_are_reported_with_their_number_and_reason(sandbox: SandboxRun, tmp_path: Path) -> None:
    lines = [
        '{"name": "Row 0", "price": "1.00"}',
        "not json",
        '{"name": "Row 2", "price": "expensive"}',
        "",
        "[1, 2]",
        '{"name": "Row 4", "price": "' + "9" * MAX_LINE + '"}',
        '{"name": "Row 5", "price": "2.00"}',
        '{"name": "Row 6", "price": 1e-99999999999999999999}',
        "[" * 100_000,
        '{"name": "Row \\ud83d", "price": "2.00"}',
        '{"name": "Row \\ud83d\\ude00", "price": "2.00"}',
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    importer = Importer(sandbox.client(), "products", path, batch_size=2)
    done = importer.run()
    assert (done.rows, done.accepted, done.refused) == (10, 3, 7)
    report = [json.loads(line) for line in importer.report_file.read_text().splitlines()]
    assert [(one["row"], one["error"]) for one in report] == [
        (2, "not JSON"),
        (3, 'price must be an amount like "19.90"'),
        (4, "not an object"),
        (5, "the line is longer than 1,048,576 bytes"),
        (7, "a number out of range"),
        (8, "nested too deeply"),
        (9, "half a character: \\ud800 to \\udfff stand in pairs only"),
    ]
    assert report[1]["record"] == {"name": "Row 2", "price": "expensive"}
    assert imported(sandbox) == {"Row 0": 1, "Row 5": 1, "Row \U0001f600": 1}


def test_a_bad_csv_line_affects_only_that_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xef\xbb\xbfname,price\nA,1.00\nB\nC,2.00,3\n\xff\xfe,1\nD,4.00\n")
    found = [(row.number, row.record, row.problem[:9]) for row in read_rows(path)]
    assert found == [
        (1, {"name": "A", "price": "1.00"}, ""),
        (2, None, "1 cells f"),
        (3, None, "3 cells f"),
        (4, None, "not CSV: "),
        (5, {"name": "D", "price": "4.00"}, ""),
    ]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b'name,"price\n', "the names of the columns, is not CSV: unexpected end of data"),
        (b"name,price,name\n", "must name each column once"),
        (b"name,,price\n", "must name each column once"),
        (b"\n", "must name each column once"),
    ],
)
def test_a_csv_file_without_a_name_for_each_column_is_refused(tmp_path: Path, first: bytes, reason: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(first + b'A,1.00\nB,2.00"\n')
    with pytest.raises(ConfigError, match=reason):
        list(read_rows(path))


STRAY_QUOTES = {
    "never closed": ('A,1.00,x\nB,2.00,"x\nC,3.00,x\n', "AC", "3 (line 4: the file ends before it is closed)"),
    "closed by the quote of a later cell": (
        'A,1.00,x\n"B,2.00,x\nC,3.00,x\nD,4.00,"two\nlines"\n',
        "ACD",
        "3 (line 5: ',' expected after '\"')",
    ),
    "closed by a later stray quote": ('B,"2.00,x\nC,3.00,x"\nD,4.00,x\n', "CD", "2 (line 3: 2 cells for 3 columns)"),
    "closed after too many cells": ('B,2.00,"x\nC,3.00,x",x\nD,4.00,x\n', "D", "2 (line 3: 4 cells for 3 columns)"),
    "before a line that is not UTF-8": ('B,2.00,"x\nC,3.00,x\n\udcff,1.00,x\n', "C", "2 (line 4: 'utf-8' codec can't"),
    "before a line that is too long": (
        f'B,2.00,"x\nC,3.00,x\n{"9" * MAX_LINE},1.00,x\nD,4.00,x\n',
        "CD",
        "2 (line 4: the row is longer than 1,048,576 bytes)",
    ),
}


@pytest.mark.parametrize("case", STRAY_QUOTES)
def test_a_stray_quote_affects_only_its_line(tmp_path: Path, case: str) -> None:
    text, accepted, where = STRAY_QUOTES[case]
    path = tmp_path / "rows.csv"
    path.write_bytes(b"name,price,note\n" + text.encode("utf-8", "surrogateescape"))
    rows = list(read_rows(path))
    assert "".join(row.record["name"] for row in rows if row.record) == accepted
    (problem,) = [row.problem for row in rows if "unclosed quote" in row.problem]
    assert problem.startswith(f"not CSV: unclosed quote in line {where}")
    for at, row in enumerate(rows):
        assert list(read_rows(path, start=row.end, number=row.number)) == rows[at + 1 :]


def test_each_of_many_stray_quotes_is_refused_in_bounded_time(tmp_path: Path) -> None:
    """Each line ends within a quoted cell, also if it begins in one. To read each one to the end takes hours."""
    path = tmp_path / "rows.csv"
    path.write_text("name,price,note\n" + 'a","b\n' * 100_000 + "A,1.00,x\n")
    rows = list(read_rows(path))
    assert [row.number for row in rows if row.problem] == list(range(1, 100_001))
    assert rows[-1].record == {"name": "A", "price": "1.00", "note": "x"}


def test_a_stray_quote_in_a_large_file_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with open(path, "w") as file:
        file.write("name,price,note\n" + 'B,2.00,"x\n' + "A,1.00,x\n" * 1_000_000)
    tracemalloc.start()
    rows = read_rows(path)
    assert next(rows).problem.startswith("not CSV: unclosed quote in line 2")
    assert next(rows).record == {"name": "A", "price": "1.00", "note": "x"}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_reading_can_resume_after_any_row(tmp_path: Path) -> None:
    for suffix in (".csv", ".jsonl"):
        path = write_rows(tmp_path / f"rows{suffix}", 30)
        rows = list(read_rows(path))
        for at in range(30):
            assert list(read_rows(path, start=rows[at].end, number=rows[at].number)) == rows[at + 1 :]


class Interrupted(Exception):
    pass


def test_an_interrupted_import_resumes_where_it_stopped(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 100)
    client = sandbox.client()

    def stop_after_five(now: ImportProgress) -> None:
        if now.batches == 5:
            raise Interrupted

    with pytest.raises(Interrupted):
        Importer(client, "products", path, batch_size=10).run(stop_after_five)
    assert sum(imported(sandbox).values()) == 50
    done = Importer(client, "products", path).run()
    assert (done.rows, done.accepted, done.batches) == (100, 100, 10)
    assert imported(sandbox) == {f"Row {n}": 1 for n in range(100)}


def test_a_batch_whose_response_was_lost_is_not_imported_twice(sandbox: SandboxRun, tmp_path: Path) -> None:
    """The store imported the batch, but the progress was not saved, as after a crash between the two."""
    path = write_rows(tmp_path / "rows.jsonl", 30)
    importer = Importer(sandbox.client(), "products", path, batch_size=10)
    saved: list[bytes] = []

    def remember(now: ImportProgress) -> None:
        saved.append(importer.progress_file.read_bytes())
        if now.batches == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        importer.run(remember)
    importer.progress_file.write_bytes(saved[1])
    assert Importer(sandbox.client(), "products", path).run().accepted == 30
    assert imported(sandbox) == {f"Row {n}": 1 for n in range(30)}


def test_a_file_is_imported_by_one_process_at_a_time(sandbox: SandboxRun, tmp_path: Path) -> None:
    """The second one ended with a traceback, or sent all rows once more."""
    path = write_rows(tmp_path / "rows.csv", 30)

    def meanwhile(_: ImportProgress) -> None:
        with pytest.raises(ConfigError, match=r"another process is importing .*rows.csv; wait until it has ended"):
            Importer(sandbox.client(), "products", path).run()

    assert Importer(sandbox.client(), "products", path, batch_size=10).run(meanwhile).accepted == 30
    assert imported(sandbox).total() == 30
    Importer(sandbox.client(), "products", path, again=True).run()
    assert imported(sandbox).total() == 60, "the lock has ended with the import"


def test_every_row_is_imported_once_despite_drops_faults_and_429s(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 150)
    sandbox.misbehave(drop=0.2, fault=0.2, too_many=0.2, retry_after=0)
    done = Importer(sandbox.client(), "products", path, batch_size=10).run()
    sandbox.misbehave(drop=0, fault=0, too_many=0)
    assert done.accepted == 150
    assert imported(sandbox) == {f"Row {n}": 1 for n in range(150)}


def test_an_import_does_not_resume_in_another_file_of_the_same_name(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 20)
    importer = Importer(sandbox.client(), "products", path, batch_size=10)

    def stop(now: ImportProgress) -> None:
        if now.batches:
            raise Interrupted

    with pytest.raises(Interrupted):
        importer.run(stop)
    write_rows(path, 21)
    with pytest.raises(ConfigError, match="belongs to another file or another import"):
        Importer(sandbox.client(), "products", path).run()


class ImportProcess:
    """Runs `storehooks api products bulk_import`, kills it, runs it again, and records its peak memory."""

    def __init__(self, sandbox: SandboxRun, path: Path, *options: str) -> None:
        self._command = [sys.executable, "-m", "workers.cli", "api", "products", "bulk_import", "--data", str(path)]
        self._command += [*options, "--config", str(sandbox.config_file)]
        self._output = path.with_name("output")
        self.max_memory = 0

    def run(self, until: Callable[[], bool] | None = None) -> tuple[int, str]:
        """Run to the end, or kill it as soon as `until` is true; return exit code and output."""
        with open(self._output, "w+") as output:
            process = subprocess.Popen(self._command, stdout=output, cwd=ROOT)
            while process.poll() is None:
                self.max_memory = max(self.max_memory, peak_memory(process.pid))
                if until is not None and until():
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                time.sleep(0.01)
            output.seek(0)
            return process.returncode, output.read()


def peak_memory(pid: int) -> int:
    """The peak memory of a process in bytes; 0 where it has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def kill_and_resume(sandbox: SandboxRun, path: Path, kills_at: Iterator[int]) -> tuple[ImportProcess, str]:
    process = ImportProcess(sandbox, path)
    for rows in kills_at:
        code, _ = process.run(lambda rows=rows: sandbox.status()["products"] >= rows)  # type: ignore[misc]
        assert code == -signal.SIGKILL
        assert path.with_name(path.name + ".progress").exists()
    code, output = process.run()
    assert code == 0
    return process, output


def test_a_killed_import_resumes_and_no_row_is_lost_or_imported_twice(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.csv", 10_000)
    process, output = kill_and_resume(sandbox, path, iter([3_000]))
    assert json.loads(output) == {"rows": 10_000, "accepted": 10_000, "refused": 0}
    found = imported(sandbox)
    assert (len(found), sum(found.values())) == (10_000, 10_000)
    assert process.max_memory < 150_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_import_of_a_million_rows_survives_three_kills(
    make_sandbox: Callable[..., SandboxRun], tmp_path: Path
) -> None:
    sandbox = make_sandbox("--no-shopper", "--no-subscriptions", more=paging("cursor", size=1000))
    path = write_rows(tmp_path / "rows.jsonl", 1_000_000)
    process, output = kill_and_resume(sandbox, path, iter([150_000, 400_000, 700_000]))
    found = imported(sandbox)
    print(
        f"\n{output.strip()}\nin the store {sum(found.values()):,}, different {len(found):,}; "
        f"peak memory {process.max_memory / 1e6:.0f} MB"
    )
    assert json.loads(output) == {"rows": 1_000_000, "accepted": 1_000_000, "refused": 0}
    assert (len(found), sum(found.values())) == (1_000_000, 1_000_000)
    assert process.max_memory < 150_000_000
