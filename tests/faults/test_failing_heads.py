"""Events of 1,000 resources, of which the first of 10 resources fails: the others go on as fast as without them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.contract.event import event_id
from receiver.contract.intake import Delivery
from tests.support.harness import System, eventually, own_server

KEYS, FAILING, EACH = 1000, 10, 12
LEAST_RATIO = 0.95
ROUNDS = 3
PLUGIN = """
import time
from dataclasses import replace
from storehooks import Router

router = Router("shop")

@router.on("product.updated", order_by="resource", {options})
def export(event, ctx):
    time.sleep(0.002)
    if event.data["fails"]:
        raise RuntimeError("it always fails")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "failed"), [('retries=0, on_failure="stop"', FAILING), ("retries=(3600,)", 0)], ids=["stop", "retry"]
)
def test_other_keys_keep_their_rate_and_only_those_that_fail_are_stopped(
    tmp_path: Path, options: str, failed: int
) -> None:
    rates: dict[int, list[float]] = {0: [], FAILING: []}
    for number in range(ROUNDS):
        for failing in (0, FAILING) if number % 2 else (FAILING, 0):
            stopped = failed if failing else 0
            rates[failing].append(rate_of_others(tmp_path / f"{number}-{failing}", options, failing, stopped))
    ratio = max(rates[FAILING]) / max(rates[0])  # what else the machine does can only make them slower
    print(f"{FAILING} of {KEYS:,} keys fail: the others have {ratio:.2f} of their rate without them")
    print({failing: [round(one) for one in found] for failing, found in rates.items()})
    assert ratio >= LEAST_RATIO


def rate_of_others(folder: Path, options: str, failing: int, failed: int) -> float:
    """Runs a second of the keys that do not fail. Checks that exactly those that do are stopped."""
    (folder / "server").mkdir(parents=True)
    (folder / "system/data").mkdir(parents=True, mode=0o700)
    with own_server(folder / "server") as server:
        system = System(folder / "system", server.url, plugin=PLUGIN.format(options=options), child_processes=4)
        try:
            fine, fails = (system.delivery("product.updated", data={"id": 1, "fails": one}) for one in (False, True))
            for number in range(EACH):
                head = fine if number else fails
                given = [(head, f"f{key}") for key in range(failing)]
                given += [(fine, str(key)) for key in range(KEYS - failing)]
                system.inbox.accept([with_key(one, key, number) for one, key in given])
            others = (KEYS - failing) * EACH
            system.start("worker")
            began, before = reached(system, others // 10)
            ended, after = reached(system, others)
            assert after == others
            counters = system.ledger.counters().total
            assert (counters["failed"], counters["open"]) == (failed, failing * EACH - failed)
            return (after - before) / (ended - began)
        finally:
            system.close()


def with_key(delivery: Delivery, key: str, number: int) -> Delivery:
    name = f"{key}-{number}"
    event = replace(delivery.event, id=event_id("north", name.encode()), delivery_id=name, resource_id=key)
    return replace(delivery, event=event, first_id="")


def reached(system: System, settled: int) -> tuple[float, int]:
    """When at least this number of events was settled, and how many were."""

    def count() -> int:
        return system.ledger.counters().total["settled"]

    eventually(lambda: count() >= settled, 120, what=f"{settled:,} events are settled")
    return time.monotonic(), count()
