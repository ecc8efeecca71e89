"""Data where `data_dir` was while a relative path was that of the working directory: it is never left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from receiver import config
from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox.model import from_ms
from receiver.process.earlier_data import describe_earlier_data
from receiver.spool import open_events
from tests.support.programs import run_to_end, storehooks


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`data` in the working directory. The config file is elsewhere."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.toml").write_text('[redis]\nurl = "redis://127.0.0.1:9"\n[workers]\nplugins = []\n')
    folder = tmp_path / "srv/data"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    return folder


def spool_a_delivery(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    events = open_events(folder)
    event = Event(id="one", store="north", topic="order.created", received_at=from_ms(1000), body=b"{}")
    events.add([Delivery(event, "orders/create")])
    events.close()


def found(tmp_path: Path) -> str:
    loaded = config.load(tmp_path / "etc/config.toml", {})
    assert loaded.data_dir == tmp_path / "etc/data"
    return describe_earlier_data(loaded)


def test_a_spool_with_rows_counts_although_the_new_place_was_made_by_another_process(
    earlier: Path, tmp_path: Path
) -> None:
    (earlier / "run").mkdir()
    open_events(earlier).close()
    assert found(tmp_path) == "", "a spool without rows, and files of processes"
    spool_a_delivery(earlier)
    (tmp_path / "etc/data/run").mkdir(parents=True)
    said = found(tmp_path)
    assert f"{earlier} holds 1 accepted delivery in its spool, and [redis] data_dir is {tmp_path}/etc/data" in said
    assert "move its content there, or set data_dir to" in said
    spool_a_delivery(tmp_path / "etc/data")
    assert f"both hold data: set data_dir to {earlier} until" in found(tmp_path)


def test_a_spool_that_cannot_be_read_counts(earlier: Path, tmp_path: Path) -> None:
    (earlier / "spool.sqlite3").write_text("no database")
    assert "holds a spool that cannot be read (spool.sqlite3)" in found(tmp_path)


def test_the_data_of_the_embedded_server_counts_for_a_config_that_uses_it(earlier: Path, tmp_path: Path) -> None:
    (earlier / "redis/appendonlydir").mkdir(parents=True)
    (earlier / "redis/appendonlydir/appendonly.aof.manifest").touch()
    assert found(tmp_path) == ""
    (tmp_path / "etc/config.toml").write_text("")
    assert "holds the data of the embedded server" in found(tmp_path)
    (earlier.parent / "config.toml").touch()
    assert found(tmp_path) == "", "that of the config beside it"


def test_the_same_folder_by_another_name_is_no_other_place(earlier: Path, tmp_path: Path) -> None:
    spool_a_delivery(earlier)
    (tmp_path / "etc/data").symlink_to(earlier)
    assert found(tmp_path) == ""


@pytest.mark.parametrize("module", ["receiver.server.web", "workers", "workers.console", "workers.cli dev"])
def test_a_long_running_process_does_not_start_beside_earlier_data(earlier: Path, tmp_path: Path, module: str) -> None:
    spool_a_delivery(earlier)
    name, *more = module.split()
    done = run_to_end(name, *more, "--config", str(tmp_path / "etc/config.toml"), cwd=earlier.parent)
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert f"{earlier} holds 1 accepted delivery" in said
    assert f"data_dir is {tmp_path}/etc/data" in said


def test_a_command_warns_of_earlier_data_and_goes_on(earlier: Path, tmp_path: Path) -> None:
    spool_a_delivery(earlier)
    done = storehooks("config", "show", "--config", str(tmp_path / "etc/config.toml"), cwd=earlier.parent)
    assert done.returncode == 0, done.stderr
    assert f"warning: {earlier} holds 1 accepted delivery" in " ".join(done.stderr.split())
