"""A burst of updates of one product, with a real receiver and worker: few runs, and the last payload is handled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import System, eventually, own_server

PLUGIN = """
import json
from pathlib import Path
from storehooks import Router

router = Router("shop")

def note(name, event):
    with Path(__file__).with_name(f"{name}.log").open("a") as log:
        log.write(json.dumps([event.id, event.data["number"], list(event.merged)]) + "\\n")

@router.on("product.updated", coalesce="3s")
def push(event, ctx):
    note("push", event)

@router.on("customer.updated", coalesce="1s", retries=(0.1,))
def fails_once(event, ctx):
    note("fails_once", event)
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    base = tmp_path_factory.mktemp("bursts")
    for name in ("server", "system/data"):
        (base / name).mkdir(parents=True, mode=0o700)
    with own_server(base / "server") as server:
        made = System(base / "system", server.url, plugin=PLUGIN, child_processes=2)
        made.start("web", "worker", "housekeeper")
        yield made
        made.close()


def handled(folder: Path, name: str) -> list[list[Any]]:
    path = folder / f"{name}.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_burst_of_500_updates_is_a_few_runs_and_each_is_accounted_for(system: System) -> None:
    requests = [system.request("product.updated", data={"id": 7, "number": number}) for number in range(500)]
    with ThreadPoolExecutor(4) as senders:
        answers = list(senders.map(system.post, requests[:-1]))
    answers.append(system.post(requests[-1]))
    events = [str(answer.json()["id"]) for answer in answers]
    samples = []

    def all_are_settled() -> bool:
        samples.append(system.identity_holds())
        return system.ledger.counters().total["settled"] == len(events)

    eventually(all_are_settled, 30, what="all are settled")
    assert all(samples)
    runs = handled(system.folder, "push")
    assert len(runs) <= 5
    assert runs[-1][:2] == [events[-1], 499]
    accounted = [one for event, _, merged in runs for one in (event, *merged)]
    assert sorted(accounted) == sorted(events)
    for event, _, merged in runs:
        assert system.run_of(event, "shop.push").merged == tuple(merged)
        for one in merged:
            run = system.run_of(one, "shop.push")
            assert (run.status, run.reason) == ("dropped", "merged")
            assert run.result == f"merged into the run of event {event}"
    shown = system.run_cli("events", "show", runs[-1][0]).stdout
    assert f"with {len(runs[-1][2])} merged events" in " ".join(shown.split())
    explained = json.loads(system.run_cli("handlers", "explain", runs[-1][2][0], "--json").stdout)
    (push,) = [one for one in explained if one["handler"] == "shop.push"]
    assert (push["called"], push["reason"]) == (False, "merged")


def test_the_newest_is_handled_although_its_first_attempt_fails(system: System) -> None:
    events = [system.deliver("customer.updated", data={"id": 9, "number": number}) for number in range(3)]
    for event in events:
        assert system.settled(event) == "settled"
    runs = handled(system.folder, "fails_once")
    assert [one[1] for one in runs] == [2, 2]
    assert runs[-1][2] == events[:2]
    assert system.identity_holds()
