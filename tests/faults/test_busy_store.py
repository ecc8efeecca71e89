"""A store that sends 50 times as much as the others does not delay them much."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import quantiles

import pytest

from tests.drill.counting import read_answers, read_effects
from tests.drill.fleet import Fleet
from tests.support.harness import SECRET, eventually, own_server

OTHERS = tuple(f"shop{number}" for number in range(1, 6))
BUSY = "busy"
RATE = 2.0
"""Deliveries a second of each of the others."""
TIMES = 50
ROUNDS = 4
SECONDS = 10.0
PLUGIN = """
import os, time
from storehooks import Router

router = Router("shop")
effects = os.open("{effects}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@router.on("*")
def handle(event, ctx):
    time.sleep(0.005)  # as for an answer of another system
    os.write(effects, f"{{event.id}} shop.handle {{time.time():.4f}} {version}\\n".encode())
"""


def delays_of_the_others(fleet: Fleet, log: Path, *, busy: bool) -> list[float]:
    """Seconds from the answer until the handler has run, of each delivery of the other stores."""
    stores = [*OTHERS, *([BUSY] * TIMES if busy else [])]
    with fleet.load(RATE * len(stores), log, ",".join(stores)):
        time.sleep(SECONDS)
    eventually(fleet.is_idle, 60, what="everything is handled")
    answers = read_answers(log.read_text())
    handled = {one.event_id: one.at for one in read_effects(fleet.effects.read_text())}
    return [handled[one.event_id] - one.answered for one in answers if one.store in OTHERS and one.status == 200]


def p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_store_at_fifty_times_the_rate_delays_the_others_at_most_twice_as_long(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server") as server:
        stores = dict.fromkeys((*OTHERS, BUSY), SECRET)
        lines = [f'url = "{server.url}"']
        fleet = Fleet(tmp_path / "fleet", lines, processes=(1,), child_processes=4, stores=stores, plugin=PLUGIN)
        without: list[float] = []
        beside: list[float] = []
        try:
            fleet.start()
            for number in range(ROUNDS):
                for found, busy in ((without, False), (beside, True)):
                    found.extend(delays_of_the_others(fleet, tmp_path / f"answers-{number}-{busy}.log", busy=busy))
        finally:
            fleet.close()
    print(
        f"\np95 from answer to handled, of {len(OTHERS)} stores at {RATE:g}/s: {p95(without) * 1000:.1f} ms; "
        f"beside one at {RATE * TIMES:g}/s: {p95(beside) * 1000:.1f} ms ({p95(beside) / p95(without):.2f} x)"
    )
    assert len(beside) > ROUNDS * SECONDS * RATE, "the others have sent too"
    assert p95(beside) <= 2 * p95(without)
