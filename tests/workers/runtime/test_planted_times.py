"""A captured delivery that is sent again with a time far in the future, to a real receiver and worker: what the store
sends later is still handled."""

from __future__ import annotations

from pathlib import Path

import pytest

from receiver.contract.compose import Request
from tests.support.harness import System, own_server, signed_store

PLUGIN = """
from pathlib import Path
from storehooks import Router

router = Router("shop")

def note(name, event):
    with Path(__file__).with_name(f"{name}.log").open("a") as log:
        log.write(f"{event.data['number']}\\n")

@router.on("product.updated", order_by="resource", stale="skip")
def push(event, ctx):
    note("push", event)

@router.on("product.updated", coalesce="6s")
def index(event, ctx):
    note("index", event)
"""


@pytest.mark.full
def test_a_planted_time_makes_no_genuine_event_stale_or_merged_away(tmp_path: Path) -> None:
    for name in ("server", "system/data"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    with own_server(tmp_path / "server") as server:
        system = System(tmp_path / "system", server.url, plugin=PLUGIN, more=signed_store("west", "shopify"))
        system.start("web", "worker", "housekeeper")
        try:
            captured = update(system, 1)
            send(system, captured)
            send(system, sent_again(captured, "attacker-1"), update(system, 2), update(system, 3))
            assert handled(system, "push") == [1, 1, 2, 3]
            assert handled(system, "index") == [1, 3]
            send(system, sent_again(captured, "attacker-2"))
            assert handled(system, "push") == [1, 1, 2, 3], "by its signed time, it is old"
        finally:
            system.close()


def update(system: System, number: int) -> Request:
    data = {"id": 7, "number": number, "updated_at": f"2026-11-16T12:00:0{number}Z"}
    request = system.request("product.updated", data=data, store="west", delivery_id=f"genuine-{number}")
    return request._replace(headers={**request.headers, "x-shopify-triggered-at": data["updated_at"]})


def sent_again(captured: Request, delivery_id: str) -> Request:
    changed = {"x-shopify-webhook-id": delivery_id, "x-shopify-triggered-at": "2099-01-01T00:00:00Z"}
    assert changed.keys() <= captured.headers.keys()
    return captured._replace(headers={**captured.headers, **changed})


def send(system: System, *requests: Request) -> None:
    """Send deliveries, and wait until all of them are settled."""
    answers = [system.post(one, "west") for one in requests]
    assert [answer.status_code for answer in answers] == [200] * len(requests)
    for answer in answers:
        assert system.settled(str(answer.json()["id"])) == "settled"


def handled(system: System, name: str) -> list[int]:
    return [int(line) for line in (system.folder / f"{name}.log").read_text().splitlines()]
