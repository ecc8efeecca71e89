"""One person in 500 of a million events is erased in under two minutes, and a healthy sender hardly notices."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.inbox import Inbox, Outcome
from receiver.inbox.outcomes import OutcomeKind
from tests.support.erasing import system_with_history
from tests.support.harness import System
from tests.support.marked_person import MARK, order, traces
from tests.support.past_events import past_event

PAST, RECENT, PERSONS = 900_000, 100_000, 500
HANDLER = "shop.greet"


def fill_redis(system: System, inbox: Inbox) -> int:
    """Settled events, a hundred at a time; every 400th is the person's."""
    bodies = [system.delivery("order.paid", data=order(1, email)) for email in ("bob@example.com", MARK)]
    for start in range(0, RECENT, 100):
        part = []
        for at in range(start, start + 100):
            sample = bodies[at % 400 == 0]
            event = replace(sample.event, id=f"{at:026}", delivery_id=f"msg_{at}", resource_id=str(at))
            part.append(replace(sample, event=event, first_id=""))
        inbox.accept(part)
        events = inbox.claim({"": 100}, capacity=100).runs
        inbox.route([(one, [(HANDLER, "default", True)]) for one in events], inbox.declarations().version)
        runs = [replace(one, item=f"{one.stored.id}|{HANDLER}", handler=HANDLER) for one in events]
        inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": "ok", "version": "1"}) for run in runs])
    return RECENT // 400


class Sender:
    """A healthy sender: 20 deliveries a second, each answered 200."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.seconds: list[float] = []

    @contextmanager
    def sending(self) -> Iterator[None]:
        self.seconds, stopped = [], threading.Event()
        thread = threading.Thread(target=self._send, args=(stopped,))
        thread.start()
        yield
        stopped.set()
        thread.join()

    def _send(self, stopped: threading.Event) -> None:
        while not stopped.wait(0.05):
            request = self._system.request("order.paid", data=order(7, "carl@example.com"))
            began = time.perf_counter()
            assert self._system.post(request).status_code == 200
            self.seconds.append(time.perf_counter() - began)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_person_is_erased_from_a_million_events_in_two_minutes(tmp_path: Path) -> None:
    with system_with_history(tmp_path, after="10h") as (system, history):
        step = PAST // (PERSONS // 2)
        for start in range(0, PAST, 1000):
            history.write(
                [
                    past_event(at, data=order(at, MARK if at % step == 0 else f"buyer{at}@example.com"))
                    for at in range(start, start + 1000)
                ]
            )
        many = fill_redis(system, system.inbox) + PERSONS // 2
        system.start("web")
        sender = Sender(system)
        with sender.sending():
            time.sleep(10)  # the measure of a quiet time
        quiet = sender.p99
        began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with sender.sending():
            told = system.start_cli("erase", "--store", "north", "--match", f"customer.email={MARK}", "--yes", "--json")
            code = told.wait(1800)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert code == 0, system.log("erase")
        places = json.loads(system.log("erase"))["places"]
        busy = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
        print(
            f"\n{PAST + RECENT:,} events, {many} of one person: erased in {wall:.0f} s ({busy:.0f} s of CPU); "
            f"a sender's p99 {quiet * 1000:.1f} ms, meanwhile {sender.p99 * 1000:.1f} ms"
        )
        assert places["events"] + places["past events"] == many == PERSONS
        assert traces([tmp_path / "shop"], history) == []
        assert wall < 120
        assert sender.p99 <= 3 * quiet
