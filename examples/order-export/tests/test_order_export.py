import csv
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import order_export
import pytest
from order_export import ExportFile, Settings, escape_cell, export

from storehooks import Fail
from storehooks.testing import make_context, make_event


def run(path, data=None):
    event = make_event("order.paid", data)
    return export(event, make_context(event, settings=Settings(path=str(path)), resource={}))


def rows(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))[1:]


def test_an_order_gets_one_row_even_if_delivered_again(tmp_path):
    path = tmp_path / "orders.csv"
    assert run(path, {"id": 1, "total": "42.00"}) == "order 1 exported"
    assert run(path, {"id": 1, "total": "42.00"}) == "order 1 was already exported"
    assert run(path, {"id": 2, "total": "7.50"}) == "order 2 exported"
    assert [(row[0], row[2]) for row in rows(path)] == [("1", "42.00"), ("2", "7.50")]


def test_a_partial_row_after_a_crash_is_removed(tmp_path):
    path = tmp_path / "orders.csv"
    run(path, {"id": 1})
    whole = path.read_bytes()
    for cut in range(len(b"".join(whole.splitlines(keepends=True)[:1])), len(whole)):
        path.write_bytes(whole[:cut])
        run(path, {"id": 1})
        assert [row[0] for row in rows(path)] == ["1"]


def test_concurrent_writers_add_one_row_for_each_order(tmp_path):
    path = str(tmp_path / "orders.csv")
    numbers = [str(n % 20) for n in range(200)]
    with ThreadPoolExecutor(8) as pool:  # each with its own ExportFile, as in separate processes
        added = list(pool.map(lambda n: ExportFile(path).add((n, "", "", "", "")), numbers))
    assert sum(added) == 20
    assert sorted(row[0] for row in rows(path)) == sorted(set(numbers))


def test_a_deleted_file_is_created_again(tmp_path):
    path = tmp_path / "orders.csv"
    file = ExportFile(str(path))
    assert file.add(("1", "", "", "", ""))
    os.unlink(path)
    assert file.add(("1", "", "", "", ""))
    assert len(rows(path)) == 1


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A1", "+1", "-1", "@SUM(A1)", "\t=1", "a\n=1"])
def test_formulas_are_escaped(tmp_path, text):
    path = tmp_path / "orders.csv"
    run(path, {"id": 1, "customer": {"name": text, "email": text}})
    (row,) = rows(path)
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
    assert len(path.read_text().splitlines()) == 2
    assert escape_cell("plain") == "plain"


def test_an_order_without_a_total_fails_and_adds_no_row(tmp_path):
    event = make_event("order.paid", {"id": 1}, exact=True)
    with pytest.raises(Fail, match="without a total"):
        export(event, make_context(event, settings=Settings(path=str(tmp_path / "x.csv")), resource={}))
    assert not (tmp_path / "x.csv").exists()


def test_in_the_real_pipeline(system):
    system.start(Path(order_export.__file__))
    for _ in range(3):
        assert system.send("order.paid", {"id": 7}).status == "settled"
    assert [row[0] for row in rows(system.files / "orders.csv")] == ["7"]
