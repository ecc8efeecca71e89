"""Importing a file again: rows are matched by a key column, a repeat is refused, and a dry run sends nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from receiver.contract.errors import ConfigError
from tests.support.command_in_process import run_in_process
from tests.workers.conftest import SandboxRun
from tests.workers.storeapi.test_bulk_import import ImportProcess, Interrupted
from tests.workers.storeapi.test_paging import paging
from workers.storeapi.bulk_import.importer import Importer, ImportProgress
from workers.storeapi.bulk_import.rows import read_rows
from workers.storeapi.errors import ApiError


def write_goods(path: Path, rows: int, changed: int = 0) -> Path:
    """A CSV file of products with a key. Every row whose number is a multiple of `changed` has another price."""
    with open(path, "w") as file:
        file.write("sku,name,price,stock\n")
        for n in range(rows):
            price = "99.00" if changed and n % changed == 0 else f"{n % 90}.50"
            file.write(f"GOODS-{n},Row {n},{price},{n % 7}\n")
    return path


FIRST = {f"SKU-{n}" for n in range(1, 41)}
"""The keys of the sandbox's first products."""


def goods(sandbox: SandboxRun) -> dict[str, dict[str, Any]]:
    """The imported products by their key; fails if one is there twice."""
    found = [
        product.to_json() for product in sandbox.client(timeout=100).products.list() if product["sku"] not in FIRST
    ]
    by_key = {one["sku"]: one for one in found}
    assert len(by_key) == len(found)
    return by_key


def sent(sandbox: SandboxRun) -> Counter[str]:
    """The calls that change products, by method."""
    return Counter(method for _, method, path, _ in sandbox.log() if "/products" in path and method != "GET")


def run_cli(sandbox: SandboxRun, path: Path, *options: str) -> Result:
    given = ["api", "products", "bulk_import", "--data", str(path), *options, "--config", str(sandbox.config_file)]
    return run_in_process(*given)


# Types


def test_csv_columns_have_the_types_of_the_catalogue(sandbox: SandboxRun, tmp_path: Path) -> None:
    """The sandbox refuses a stock that is text, as stores do."""
    path = tmp_path / "goods.csv"
    path.write_text('sku,name,price,stock,note\nA,Mug,1.50,12,7\nB,Lamp,2.50,,""\nC,Chair,3.50,a dozen,x\n')
    importer = Importer(sandbox.client(), "products", path)
    done = importer.run()
    assert (done.accepted, done.refused) == (2, 1)
    assert [json.loads(line)["error"] for line in importer.report_file.read_text().splitlines()] == [
        'stock must be a whole number, and is "a dozen"'
    ]
    found = goods(sandbox)
    assert (found["A"]["stock"], found["A"]["price"], found["A"]["note"]) == (12, "1.50", "7")
    assert (found["B"]["stock"], "note" in found["B"]) == (0, False)


@pytest.mark.parametrize(
    ("kind", "cell", "value"),
    [
        ("integer", " 12 ", 12),
        ("integer", "-3", -3),
        ("integer", "1.0", "a whole number"),
        ("integer", "9" * 19, "a whole number"),
        ("number", "1.5", "1.5"),
        ("number", "1e5", "a number like 1.5"),
        ("amount", "19.90", "19.90"),
        ("amount", "19,90", "an amount like 19.90"),
        ("flag", "Yes", True),
        ("flag", "0", False),
        ("flag", "maybe", "true or false"),
        ("object", '{""a"": 1}', {"a": 1}),
        ("object", "[1]", "a JSON object"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "1, 2", "a JSON list"),
        ("text", "007", "007"),
    ],
)
def test_a_cell_is_converted_to_its_type(tmp_path: Path, kind: str, cell: str, value: Any) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f'name,it\nA,"{cell}"\n')
    (row,) = read_rows(path, types={"it": kind})
    assert row.record is not None
    if row.problem:
        assert row.problem.startswith(f"it must be {value}, and is ")
    else:
        assert json.loads(json.dumps(row.record["it"], default=str)) == value


def test_config_sets_the_type_of_a_column(sandbox: SandboxRun, tmp_path: Path) -> None:
    config = sandbox.with_config('[catalogue.products]\ntypes = { tags = "list", weight = "number" }\n')
    path = tmp_path / "goods.csv"
    path.write_text('sku,name,price,tags,weight\nA,Mug,1.50,"[""red"", ""big""]",2.50\n')
    Importer(sandbox.client_from(config), "products", path).run()
    assert (goods(sandbox)["A"]["tags"], goods(sandbox)["A"]["weight"]) == (["red", "big"], 2.5)


# A repeat


def test_a_finished_import_is_refused_unless_again_is_given(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 20)
    assert run_cli(sandbox, path).exit_code == 0
    refused = run_cli(sandbox, path)
    assert isinstance(refused.exception, ConfigError)
    assert re.search(
        r"goods\.csv was imported already, on \d{4}-\d\d-\d\d \d\d:\d\d UTC \(20 rows, demo products\.bulk_import\); "
        r"--key COLUMN sends only new and changed rows, --again imports all rows once more",
        str(refused.exception),
    )
    assert len(goods(sandbox)) == 20
    again = run_cli(sandbox, path, "--again")
    assert (again.exit_code, json.loads(again.stdout)["accepted"]) == (0, 20)
    assert sandbox.status()["products"] == 40 + 20 + 20


def test_an_import_of_which_every_row_was_refused_is_not_a_repeat(sandbox: SandboxRun, tmp_path: Path) -> None:
    """The cause may be in config, and the same file is right once that is corrected."""
    path = tmp_path / "goods.jsonl"
    path.write_text('{"title": "Mug", "price": "1.50"}\n')
    for _ in range(2):
        assert Importer(sandbox.client(), "products", path).run().refused == 1


def test_another_file_store_or_operation_is_not_a_repeat(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 2_000)
    Importer(sandbox.client(), "products", path).run()
    text = path.read_text()
    path.write_text(text[:-2] + ("1" if text[-2] != "1" else "2") + "\n")  # same size, and only the last row differs
    assert Importer(sandbox.client(), "products", path).run().accepted == 2_000
    people = tmp_path / "people.csv"
    people.write_text("name,email\nAda,ada@example.com\n")
    assert Importer(sandbox.client(), "customers", people).run().accepted == 1
    with pytest.raises(ConfigError, match="was imported already"):
        Importer(sandbox.client(), "customers", people).run()


# The key


def test_a_repeat_with_a_key_sends_only_new_and_changed_rows(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 3_000)
    Importer(sandbox.client(), "products", path).run()
    before, calls = goods(sandbox), sent(sandbox)
    write_goods(path, 3_010, changed=100)
    result = run_cli(sandbox, path, "--key", "sku")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "rows": 3_010, "accepted": 10, "updated": 30, "unchanged": 2_970, "refused": 0
    }  # fmt: skip
    assert sent(sandbox) - calls == {"PATCH": 30, "POST": 1}
    after = goods(sandbox)
    assert len(after) == 3_010
    assert {key for key in before if before[key] != after[key]} == {f"GOODS-{n}" for n in range(0, 3_000, 100)}
    assert all(before[key]["id"] == after[key]["id"] for key in before)
    assert after["GOODS-200"] == {**before["GOODS-200"], "price": "99.00"}


def test_an_interrupted_import_with_a_key_doubles_nothing_at_a_store_that_ignores_idempotency_keys(
    sandbox: SandboxRun, tmp_path: Path
) -> None:
    """The second import has other Idempotency-Keys than the first, so they prevent nothing."""
    path = write_goods(tmp_path / "goods.csv", 40)

    def stop(now: ImportProgress) -> None:
        if now.batches == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        Importer(sandbox.client(), "products", path, key="sku", batch_size=10).run(stop)
    assert len(goods(sandbox)) == 20
    done = Importer(sandbox.client(), "products", path, key="sku", batch_size=10).run()
    assert (done.accepted, done.unchanged, done.updated) == (20, 20, 0)
    assert len(goods(sandbox)) == 40


def test_after_an_import_with_a_key_the_same_file_is_a_repeat(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 5)
    assert Importer(sandbox.client(), "products", path, key="sku").run().accepted == 5
    assert Importer(sandbox.client(), "products", path, key="sku").run().unchanged == 5
    with pytest.raises(ConfigError, match="was imported already"):
        Importer(sandbox.client(), "products", path).run()


def test_rows_without_a_key_or_with_a_repeated_one_are_refused(sandbox: SandboxRun, tmp_path: Path) -> None:
    for _ in range(2):
        sandbox.client().products.create(name="Twin", price="1.00", sku="TWIN")
    path = tmp_path / "goods.jsonl"
    rows = [{"sku": "A"}, {"sku": "A", "x": 1}, {"name": "none"}, {"sku": "TWIN"}, {"sku": True}, {"sku": 7}]
    path.write_text("\n".join(json.dumps({"name": "Row", "price": "1.00", **row}) for row in rows))
    importer = Importer(sandbox.client(), "products", path, key="sku")
    done = importer.run()
    assert (done.accepted, done.refused) == (2, 4)
    report = [json.loads(line) for line in importer.report_file.read_text().splitlines()]
    assert [(one["row"], one["error"]) for one in report] == [
        (2, "sku A is in row 1 already"),
        (3, "the row has no sku, by which rows are matched"),
        (4, "the store has more than one record with sku TWIN"),
        (5, "the row has no sku, by which rows are matched"),
    ]


def test_a_changed_row_that_the_store_refuses_is_reported(sandbox: SandboxRun, tmp_path: Path) -> None:
    made = sandbox.client().products.create(name="Mug", price="1.00", sku="A")
    path = tmp_path / "goods.jsonl"
    path.write_text('{"sku": "A", "name": "Mug", "price": "cheap"}\n')
    importer = Importer(sandbox.client(), "products", path, key="sku")
    done = importer.run()
    assert (done.updated, done.refused) == (0, 1)
    assert "price must be an amount" in json.loads(importer.report_file.read_text())["error"]
    assert sandbox.client().products.get(made.id).to_json() == made.to_json()


def test_the_same_amount_in_another_form_is_not_a_change(sandbox: SandboxRun, tmp_path: Path) -> None:
    sandbox.client().products.create(name="Mug", price="1.50", sku="A", weight=2)
    path = tmp_path / "goods.csv"
    path.write_text("sku,name,price,weight\nA,Mug,1.5,2\n")
    assert Importer(sandbox.client(), "products", path, key="sku").run().unchanged == 1


def test_a_key_that_no_record_has_is_refused_before_anything_is_sent(sandbox: SandboxRun, tmp_path: Path) -> None:
    """Otherwise a misspelt key would double everything."""
    path = write_goods(tmp_path / "goods.csv", 5)
    with pytest.raises(ConfigError, match="cannot be matched by SKU: none of the store's 40 records has this field"):
        Importer(sandbox.client(), "products", path, key="SKU").run()
    assert not sent(sandbox)


def test_nothing_is_sent_when_the_store_cannot_be_listed(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 5)
    sandbox.misbehave(fault=1)
    with pytest.raises(ApiError):
        Importer(sandbox.client(timeout=1), "products", path, key="sku").run()
    sandbox.misbehave(fault=0)
    assert not sent(sandbox)


# The dry run


def test_a_dry_run_shows_the_first_errors_and_sends_nothing(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = tmp_path / "goods.csv"
    bad = "".join(f"B{n},Mug,1.50,many\n" for n in range(20))
    path.write_text(f"sku,name,price,stock\nA,Mug,1.50,1\nA,,1.50,1\n{bad}")
    result = run_cli(sandbox, path, "--dry-run")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["rows"], found["accepted"], found["refused"], found["dry_run"]) == (22, 1, 21, True)
    assert found["errors"][:2] == [
        "row 2: no name, which products.create needs",
        'row 3: stock must be a whole number, and is "many"',
    ]
    assert len(found["errors"]) == 10
    assert not sent(sandbox)
    assert [one.name for one in tmp_path.iterdir()] == ["goods.csv"]


def test_a_dry_run_with_a_key_tells_what_would_change(sandbox: SandboxRun, tmp_path: Path) -> None:
    path = write_goods(tmp_path / "goods.csv", 50)
    Importer(sandbox.client(), "products", path).run()
    calls = sent(sandbox)
    write_goods(path, 60, changed=10)
    result = run_cli(sandbox, path, "--key", "sku", "--dry-run")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["accepted"], found["updated"], found["unchanged"], found["refused"]) == (10, 5, 45, 0)
    assert sent(sandbox) == calls


def test_the_options_of_an_import_are_refused_elsewhere(sandbox: SandboxRun) -> None:
    for options in (["--key", "sku"], ["--again"], ["--dry-run"]):
        given = ["api", "products", "list", *options, "--config", str(sandbox.config_file)]
        result = run_in_process(*given)
        assert isinstance(result.exception, ConfigError)
        assert "are for the import of a CSV or JSON Lines file" in str(result.exception)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_rows_are_imported_and_one_percent_of_them_is_updated(
    make_sandbox: Callable[..., SandboxRun], tmp_path: Path
) -> None:
    sandbox = make_sandbox("--no-shopper", "--no-subscriptions", more=paging("cursor", size=1000))
    path = write_goods(tmp_path / "goods.csv", 1_000_000)
    first = ImportProcess(sandbox, path)
    assert first.run()[0] == 0
    calls = sandbox.status()["requests"]
    write_goods(path, 1_000_000, changed=100)
    repeat = ImportProcess(sandbox, path, "--key", "sku")
    code, output = repeat.run()
    assert code == 0
    changing = sandbox.status()["requests"] - calls - 1_001  # without the pages of the listing
    memory = max(first.max_memory, repeat.max_memory)
    print(f"\n{output.strip()}\n{changing:,} calls that change the store; peak memory {memory / 1e6:.0f} MB")
    expected = {"rows": 1_000_000, "accepted": 0, "updated": 10_000, "unchanged": 990_000, "refused": 0}
    assert json.loads(output) == expected
    assert 10_000 <= changing <= 10_005
    assert sandbox.status()["products"] == 1_000_040
    keys, changed = set(), 0
    for product in sandbox.client(timeout=100).products.list():
        keys.add(product["sku"])
        changed += product["price"] == "99.00"
    assert (len(keys), changed) == (1_000_040, 10_000)
    assert memory < 150_000_000


def test_with_a_key_the_progress_of_another_import_is_not_deleted(sandbox: SandboxRun, tmp_path: Path) -> None:
    """Without its progress, that import would begin again and add its rows twice."""
    importer = Importer(sandbox.client(), "products", write_goods(tmp_path / "goods.csv", 3), key="sku")
    other = ImportProgress("1", "2", "another products.bulk_import", file_size=1, batch_size=500, batches=1)
    importer.progress_file.write_text(json.dumps(asdict(other)))
    with pytest.raises(ConfigError, match="belongs to another file or another import"):
        importer.run()
    assert importer.progress_file.exists()
    assert not sent(sandbox)


def test_with_a_key_the_progress_of_the_same_import_ends_with_it(sandbox: SandboxRun, tmp_path: Path) -> None:
    importer = Importer(sandbox.client(), "products", write_goods(tmp_path / "goods.csv", 3))
    importer._save(importer._new_progress())
    assert Importer(sandbox.client(), "products", tmp_path / "goods.csv", key="sku").run().accepted == 3
    assert not importer.progress_file.exists()
