"""A handler that writes to the resource of its event, with a real sandbox store, receiver and worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from receiver.inbox.queries.events import RunRecord
from tests.support.harness import System, eventually, free_port, own_server, sandbox_config
from workers.storeapi import Client, client_for_store

LABELS = """
from workers import Router
router = Router("labels")

@router.on("product.updated", when={"kind": "label"})
def label(event, ctx):
    ctx.api.products.update(event.data["id"], description=f"{event.data['name']} at {event.data['price']}")

@router.on("product.created", when={"kind": "copied"})
def copy(event, ctx):
    ctx.api.products.create(name=event.data["name"], price=event.data["price"], kind="copied")
"""
AUDIT = """
from workers import Router
router = Router("audit")

@router.on("product.updated", when={"kind": "label"})
def note(event, ctx):
    pass
"""
LOOPER = """
from workers import Router
router = Router("looper")

@router.on("product.updated", echo="run", when={"kind": "loop"})
def touch(event, ctx):
    ctx.api.products.update(event.data["id"], description="touched")
"""


class Shop:
    def __init__(self, system: System) -> None:
        self.system = system
        self.outside: Client = client_for_store(system.config, "north")
        """The API as a person or another program uses it."""

    def runs(self, handler: str, resource: int | None = None) -> list[RunRecord]:
        found = []
        for event in self.system.ledger.events(limit=1000):
            if resource is None or event.resource_id == str(resource):
                found += [run for run in self._runs_of(event.id) if run.handler == handler]
        return found

    def _runs_of(self, event_id: str) -> tuple[RunRecord, ...]:
        record = self.system.ledger.event(event_id)
        assert record is not None
        return record.runs

    def ends(self, handler: str, resource: int | None = None) -> list[str]:
        """How each run of a handler ended: done, its reason, or its status; without those that when= skipped."""
        ends = (run.reason or str(run.status) for run in self.runs(handler, resource))
        return sorted(end for end in ends if end != "skipped")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    base = tmp_path_factory.mktemp("echoes")
    for name in ("server", "system/data"):
        (base / name).mkdir(parents=True, mode=0o700)
    with own_server(base / "server") as server:
        system = System(base / "system", server.url, plugin=LABELS, child_processes=3)
        (system.folder / "audit.py").write_text(AUDIT)
        (system.folder / "looper.py").write_text(LOOPER)
        text = system.config_file.read_text().replace('["shop.py"]', '["shop.py", "audit.py", "looper.py"]')
        head = text.partition("[stores.north]")[0]
        redacted = '[redact]\npaths = ["suppliers.0.email"]\n'
        system.config_file.write_text(head + sandbox_config(free_port()) + redacted)
        system.start("web", "worker", "housekeeper")
        system.start_cli("sandbox", "--store", "north", "--no-shopper")
        made = Shop(system)
        eventually(lambda: system.client.hlen("sh:declarations") == 4, what="the handlers are declared")
        eventually(lambda: list(made.outside.products.list(per_page=1)), what="the sandbox answers")
        yield made
        made.system.close()


def test_a_handler_that_updates_its_product_runs_once_for_each_outside_change(shop: Shop) -> None:
    redacted = [{"email": "ann@example.com"}]  # in the answers of the API, and not in the events
    product = shop.outside.products.create(name="Mug", price="1.00", kind="label", suppliers=redacted)
    for number in range(1, 7):
        # Every other change leaves the description as it is: then the handler's own write changes nothing.
        change = {"price": f"{number}.00"} if number % 2 else {"stock": number}
        shop.outside.products.update(product.id, **change)
        expected = ["done"] * number + ["echo"] * number
        eventually(lambda: shop.ends("labels.label", product.id) == expected, what=f"{expected}")  # noqa: B023
    found = shop.outside.products.get(product.id)
    assert (found["description"], found["suppliers"]) == ("Mug at 5.00", redacted)
    assert shop.ends("audit.note", product.id) == ["done"] * 12, "events are dropped only for the plugin that wrote"
    dropped = next(run for run in shop.runs("labels.label", product.id) if run.reason == "echo")
    assert "labels.label" in str(dropped.result)
    assert shop.system.identity_holds()


def test_a_handler_that_creates_a_record_of_its_own_kind_does_not_see_it(shop: Shop) -> None:
    shop.outside.products.create(name="Cup", price="2.00", kind="copied")
    eventually(lambda: shop.ends("labels.copy") == ["done", "echo"], what="one copy")


def test_without_echo_detection_the_loop_is_slowed_and_shown(shop: Shop) -> None:
    product = shop.outside.products.create(name="Loop", price="1.00", kind="loop")
    began = time.monotonic()
    shop.outside.products.update(product.id, price="2.00")
    eventually(lambda: "loop" in shop.ends("looper.touch", product.id), what="a run is delayed")
    assert time.monotonic() - began < 10, "the first runs of the loop are not delayed"
    assert shop.ends("looper.touch", product.id) == ["done"] * 9 + ["loop"], "8 events that follow a write are run"
    (delayed,) = [run for run in shop.runs("looper.touch", product.id) if run.reason == "loop"]
    assert (delayed.status, delayed.attempts) == ("waiting", 0)
    assert delayed.due_at is not None
    assert 40 < delayed.due_at.timestamp() - time.time() <= 61
    explained = json.loads(shop.system.run_cli("handlers", "explain", str(product.id), "--json").stdout)
    (looper,) = [one for one in explained if one["handler"] == "looper.touch"]
    assert (looper["reason"], looper["called"]) == ("loop", False)
    findings = json.loads(shop.system.run_cli("doctor", "--json").stdout)["findings"]
    (loop,) = [one for one in findings if one["check"] == "loops"]
    assert loop["level"] == "warn"
    assert f"product {product.id}" in loop["text"]
    assert shop.system.log("worker").count("suspected loop") == 1


def test_quick_outside_changes_are_each_handled_and_end_without_a_loop(shop: Shop) -> None:
    product = shop.outside.products.create(name="Pot", price="1.00", kind="label")
    # Outside changes count as events that follow a write. Far fewer than MAX_DEPTH, since echoes of writes that cross
    # each other are not all recognised.
    prices = [f"{number}.50" for number in range(1, 5)]
    for price in prices:
        shop.outside.products.update(product.id, price=price)
    eventually(lambda: set(prices) <= set(_prices_handled(shop, product.id)), 20, what="each change is handled")
    eventually(lambda: not _open(shop, product.id), 20, what="all events are settled")
    assert set(shop.ends("labels.label", product.id)) == {"done", "echo"}


def _open(shop: Shop, resource: int) -> list[str]:
    events = shop.system.ledger.events(limit=1000)
    return [one.id for one in events if one.resource_id == str(resource) and one.status == "open"]


def _prices_handled(shop: Shop, resource: int) -> list[str]:
    records = [shop.system.ledger.event(one.id) for one in shop.system.ledger.events(limit=1000)]
    return [
        json.loads(record.body)["data"]["price"]
        for record in records
        if record and record.summary.resource_id == str(resource)
        for run in record.runs
        if run.handler == "labels.label" and run.status == "done"
    ]
