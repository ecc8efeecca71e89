"""Thousands of past events are replayed from each database, with workers: each runs once more, its effects do not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from receiver.inbox import keys
from tests.support.harness import System, eventually
from tests.support.postgres import needs_postgres, postgres_server
from workers.history.configured_history import open_history
from workers.runtime.history_mover import Mover

EVENTS = 10_000
PLUGIN = """
from pathlib import Path
from workers import Router

router = Router("erp")

def note(name, event):
    with open(Path(__file__).with_name(name), "a") as file:  # one write of a line is not mixed with another
        file.write(event.id + "\\n")

@router.on("order.created")
def export(event, ctx):
    note("runs", event)
    ctx.once("book", note, "effects", event)
    return ctx.replay
"""


def counted(system: System, name: str) -> Counter[str]:
    return Counter((system.folder / name).read_text().split())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_ten_thousand_past_events_are_replayed_once_without_their_effects(
    kind: str, make_system: Callable[..., System], capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(postgres_server()).new_database() if kind == "postgresql" else kind
        system = make_system(plugin=PLUGIN, more=f'[history]\nurl = "{url}"\nafter = "1d"\n')
        system.start("worker", "housekeeper")
        sample = system.delivery()
        events = [f"{at:026}" for at in range(EVENTS)]
        for at in range(0, EVENTS, 100):
            part = [replace(sample.event, id=one, delivery_id=one) for one in events[at : at + 100]]
            system.inbox.accept([replace(sample, event=event, first_id="") for event in part])
        eventually(lambda: system.ledger.counters().total["settled"] == EVENTS, 300, "all are settled")
        assert counted(system, "runs") == counted(system, "effects") == dict.fromkeys(events, 1)
        history = open_history(system.config, system.client)
        assert history
        history.check()
        mover = Mover(system.client, history)
        while mover.move(age=0, known_for=3600).examined:
            pass
        assert system.client.zcard(keys.DONE) == 0
        assert not system.client.exists(*(keys.ONCE + one for one in events))
        began = time.monotonic()
        replay = system.start_cli("events", "replay", "--handler", "erp.export", "--yes")
        assert replay.wait(300) == 0, replay.output()
        took = time.monotonic() - began
        total = eventually(
            lambda: (found := system.ledger.counters().total)["settled"] == EVENTS and found, 300, "all ran again"
        )
        assert (total["accepted"], total["failed"], total["open"]) == (EVENTS, 0, 0)
        assert counted(system, "runs") == dict.fromkeys(events, 2)
        assert counted(system, "effects") == dict.fromkeys(events, 1)
        record = system.ledger.event(events[-1])
        assert record
        assert [run.result for run in record.runs] == [1], "it was the first replay"
    with capsys.disabled():
        print(f"\n{kind}: {EVENTS / took:,.0f} past events/s brought back and replayed")
