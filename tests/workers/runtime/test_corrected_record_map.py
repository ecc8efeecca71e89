"""A record map is config, not part of the event: correcting it repairs events that were stored before."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from receiver.contract.errors import ConfigError
from receiver.contract.record_map import RecordMap
from receiver.contract.records import record_of
from tests.support.harness import System, eventually

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.*", retries=0)
def note(event, ctx): return str(event.record.total)
"""
MAP = '\n[schemes.acme.record]\nmoney = "minor"\norder = {total = "sums.gross"}\n'


def test_an_event_that_failed_without_a_map_is_replayed_with_it(make_system: Callable[..., System]) -> None:
    store = '[schemes.acme]\nextends = "hex-body"\n[stores.acme]\nscheme = "acme"\nsigning_secrets = ["a secret"]\n'
    system = make_system(plugin=PLUGIN, more=store)
    _, worker, _ = system.start("web", "worker", "housekeeper")
    data = {"id": 1, "sums": {"gross": 1990}, "currency": "EUR"}
    event = system.deliver("order.paid", store="acme", data=data)
    assert system.settled(event) == "failed"
    failed = system.run_of(event, "shop.note")
    assert "this order has no field 'total'" in failed.error
    assert '[schemes.NAME.record] order = {total = "..."}' in failed.error
    system.config_file.write_text(system.config_file.read_text() + MAP)
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    done = system.run_cli("events", "replay", event, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    eventually(lambda: system.status(event) == "settled")
    assert system.run_of(event, "shop.note").result == "19.90"


@pytest.mark.parametrize("name", ["total", "id", "lines"])
def test_no_property_of_an_unknown_stores_record_is_read(name: str) -> None:
    record = record_of("order.paid", {"id": 1, "total": 1990, "lines": []}, RecordMap(unknown_store="acme"))
    with pytest.raises(ConfigError, match="store acme is not in the config of this worker"):
        getattr(record, name)
    assert record is not None
    assert record["total"] == 1990


@pytest.mark.full
def test_a_worker_without_the_store_reads_no_amount_of_it(make_system: Callable[..., System]) -> None:
    """As on the second of two hosts, to which a new store was not copied yet: 1990 cents were read as 1990.00."""
    store = '[stores.acme]\nscheme = "acme"\nsigning_secrets = ["a secret"]\n'
    scheme = '[schemes.acme]\nextends = "hex-body"\n[schemes.acme.record]\nmoney = "minor"\n'
    system = make_system(plugin=PLUGIN, more=scheme + store)
    system.start("web", "housekeeper")
    event = system.deliver("order.paid", store="acme", data={"id": 1, "total": 1990, "currency": "EUR"})
    whole = system.config_file.read_text()
    system.config_file.write_text(whole.replace(store, ""))
    (worker,) = system.start("worker")
    assert system.settled(event) == "failed"
    assert "store acme is not in the config of this worker" in system.run_of(event, "shop.note").error
    system.config_file.write_text(whole)
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    assert system.run_cli("events", "replay", event, "--yes").returncode == 0
    eventually(lambda: system.status(event) == "settled")
    assert system.run_of(event, "shop.note").result == "19.90"
