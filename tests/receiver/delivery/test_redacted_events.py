"""`[redact] paths`: the values are stored nowhere, redeliveries are still duplicates, and what needs them says why."""

from __future__ import annotations

import json
from collections.abc import Callable

from receiver.inbox import keys
from tests.support.harness import System, eventually

MARK = "ann-7f3a@example.com"
PLUGIN = """
from workers import Router
router = Router("crm")
@router.on("order.*", retries=0)
def export(event, ctx):
    assert event.data["customer"] == {"email": None, "name": "Ann Example"}, event.data
    assert event.redacted == ("customer.email",)
    raise ValueError(f"no account for {event.data['customer']['name']}")
"""
CONFIG = """
[redact]
paths = ["customer.email", "note"]
[forward.erp]
topics = "order.*"
url = "http://127.0.0.1:9/hook"
allow_private = true
retries = 0
"""


def stored_bytes(system: System) -> bytes:
    """All that Redis and the files of the host have."""
    found = b""
    for key in system.client.scan_iter("*"):
        found += key + (system.client.dump(key) or b"")
    return found + b"".join(one.read_bytes() for one in (system.folder / "data").rglob("*") if one.is_file())


def test_a_redacted_value_is_stored_nowhere_and_its_event_says_so(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, more=CONFIG)
    system.start("web", "worker", "housekeeper")
    data = {"id": 7, "customer": {"email": MARK, "name": "Ann Example"}}
    request = system.request("order.paid", data=data, delivery_id="d1")
    first = system.post(request).json()
    assert first["status"] == "accepted"
    eventually(lambda: system.status(first["id"]) == "failed", what="both runs have failed")
    assert system.run_of(first["id"], "crm.export").error == "ValueError: no account for {data.customer.name}"
    assert "[redact] paths removed customer.email" in str(system.run_of(first["id"], "forward.erp").error)
    again = system.post(request).json()
    assert (again["status"], again["id"]) == ("duplicate", first["id"])
    shown = json.loads(system.run_cli("events", "show", first["id"], "--json").stdout)
    assert shown["payload"]["data"]["customer"]["email"] is None
    assert shown["redacted"] == ["customer.email"]
    assert b"Ann Example" in system.client.get(keys.BODY + first["id"])
    assert MARK.encode() not in stored_bytes(system)
