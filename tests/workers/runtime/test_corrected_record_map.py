"""A record map is config, not part of the event: correcting it repairs events that were stored before."""

from __future__ import annotations

import signal
from collections.abc import Callable

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
