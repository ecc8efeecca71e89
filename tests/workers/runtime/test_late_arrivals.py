"""Late arrivals, with a real receiver and worker: an old event is not handled after a newer one."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest

from receiver.inbox import keys
from tests.support.harness import System, eventually, own_server

PLUGIN = """
from pathlib import Path
from storehooks import Fail, Retry, Router

router = Router("shop")

def note(name, event):
    with Path(__file__).with_name(f"{name}.log").open("a") as log:
        log.write(f"{event.resource_id} {event.data['number']}\\n")

@router.on("order.updated", order_by="resource", stale="skip")
def push(event, ctx):
    if event.data.get("fails"):
        raise Fail("asked to")
    note("push", event)

@router.on("product.updated", stale="skip", wait_for_gap="3s")
def count(event, ctx):
    if event.data.get("is_late") and ctx.attempt == 1:
        raise Retry("asked to", after=5)
    note("count", event)
"""
NUMBERED = """
[schemes.numbered]
extends = "standard-webhooks"
[schemes.numbered.event]
sequence = ["json:data.number"]
[stores.numbered]
scheme = "numbered"
signing_secrets = ["whsec_c2FuZGJveCBvbmx5LCBuZXZlciBpbiBwcm9kdWN0aW9u"]
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    base = tmp_path_factory.mktemp("late")
    for name in ("server", "system/data"):
        (base / name).mkdir(parents=True, mode=0o700)
    with own_server(base / "server") as server:
        made = System(base / "system", server.url, plugin=PLUGIN, child_processes=3, more=NUMBERED)
        made.start("web", "worker", "housekeeper")
        yield made
        made.close()


def deliver(system: System, number: int, resource: int, topic: str = "order.updated", **more: bool) -> str:
    return system.deliver(topic, data={"id": resource, "number": number, **more}, store="numbered")


def handled(system: System, name: str, resource: int) -> list[int]:
    path = system.folder / f"{name}.log"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(number) for owner, number in lines if owner == str(resource)]


def test_an_older_event_is_dropped_as_stale(system: System) -> None:
    newer = deliver(system, 2, 1)
    assert system.settled(newer) == "settled"
    older = deliver(system, 1, 1)
    assert system.settled(older) == "settled"
    run = system.run_of(older, "shop.push")
    assert (run.status, run.reason) == ("dropped", "stale")
    assert run.result == f"stale: event {newer} is newer, and this handler has settled it"
    assert handled(system, "push", 1) == [2]
    explained = json.loads(system.run_cli("handlers", "explain", older, "--json").stdout)
    (push,) = [one for one in explained if one["handler"] == "shop.push"]
    assert (push["called"], push["reason"], push["why"]) == (
        False,
        "stale",
        f'{run.result}; with stale="run" it is called',
    )
    kept = system.client.pttl(f"{keys.NEWEST}shop.push|numbered|order|1")
    assert 89 * 86_400_000 < kept <= 90 * 86_400_000


def test_a_failure_is_not_settled_so_an_older_event_is_run(system: System) -> None:
    assert system.settled(deliver(system, 2, 2, fails=True)) == "failed"
    assert system.settled(deliver(system, 1, 2)) == "settled"
    assert handled(system, "push", 2) == [1]


def test_the_handled_numbers_of_a_resource_never_decrease(system: System) -> None:
    sent = [(number, resource) for number in range(1, 16) for resource in (10, 11, 12, 13)]
    random.Random(5).shuffle(sent)
    events = [deliver(system, number, resource) for number, resource in sent]
    eventually(lambda: all(system.status(event) == "settled" for event in events), 30, what="all are settled")
    for resource in (10, 11, 12, 13):
        numbers = handled(system, "push", resource)
        assert numbers == sorted(numbers)
        assert numbers[-1] == 15
    reasons = [system.run_of(event, "shop.push").reason for event in events]
    assert reasons.count("stale") == len(sent) - sum(len(handled(system, "push", r)) for r in (10, 11, 12, 13))
    assert reasons.count("stale") > 0
    assert system.identity_holds()


def test_a_run_waits_for_the_missing_number(system: System) -> None:
    third, second = deliver(system, 3, 20, "product.updated"), deliver(system, 2, 20, "product.updated")
    run = eventually(
        lambda: (r := system.run_of(third, "shop.count")) and r.reason == "gap" and r, what="the run waits for 2"
    )
    assert run.error == "sequence 3 waits for 2, at most 3 s"
    first = deliver(system, 1, 20, "product.updated")
    for event in (first, second, third):
        assert system.settled(event) == "settled"
    assert handled(system, "count", 20) == [1, 2, 3]


def test_behind_a_gap_all_that_are_there_run_by_their_number(system: System) -> None:
    """They became due at the same moment, ran at once, and the smaller numbers were dropped as stale."""
    numbers, resources = [1, 2, 5, 6, 7], range(30, 36)
    events = [deliver(system, number, one, "product.updated") for one in resources for number in numbers]
    eventually(lambda: all(system.status(event) == "settled" for event in events), 30, what="all are settled")
    assert [handled(system, "count", one) for one in resources] == [numbers] * len(resources)


def test_a_retry_that_takes_longer_than_that_is_waited_for(system: System) -> None:
    events = [deliver(system, number, 40, "product.updated", is_late=number == 2) for number in (1, 2, 3, 4)]
    eventually(lambda: all(system.status(event) == "settled" for event in events), 30, what="all are settled")
    assert handled(system, "count", 40) == [1, 2, 3, 4]


@pytest.mark.full
def test_the_end_of_each_lets_the_next_one_begin(system: System) -> None:
    """A line of 600 went on by three or four in a second."""
    events = [deliver(system, number, 41, "product.updated", is_late=number == 1) for number in range(1, 101)]
    eventually(lambda: all(system.status(event) == "settled" for event in events), 30, what="all are settled")
    assert handled(system, "count", 41) == [*range(1, 101)]


@pytest.mark.full
def test_what_waited_while_no_worker_ran_is_run_by_number(system: System) -> None:
    """Longer than the wait: then all of them ran at once, and most were dropped as stale."""
    system.processes[1].stop()  # the worker
    numbers, resources = [*range(1, 7)], range(50, 58)
    events = [deliver(system, number, one, "product.updated") for one in resources for number in numbers]
    until = time.monotonic() + 3.1
    eventually(lambda: time.monotonic() > until, what="all are older than the wait")
    system.start("worker")
    eventually(lambda: all(system.status(event) == "settled" for event in events), 60, what="all are settled")
    assert [handled(system, "count", one) for one in resources] == [numbers] * len(resources)


def test_it_runs_without_the_missing_number_after_that_time(system: System) -> None:
    assert system.settled(deliver(system, 1, 21, "product.updated")) == "settled"
    late = deliver(system, 3, 21, "product.updated")
    assert system.settled(late) == "settled"
    assert handled(system, "count", 21) == [1, 3]
    assert system.settled(deliver(system, 2, 21, "product.updated")) == "settled"
    assert handled(system, "count", 21) == [1, 3]
