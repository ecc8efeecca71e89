"""`[forward.NAME]` in the real system: retries, failures, pauses and reloads are those of any handler."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from receiver.inbox import FailureQueries
from tests.support.forward_target import Target
from tests.support.harness import SECRET, Process, System, eventually, free_port, port_is_free

RETRIES = [0.1] * 10 + [0.5] * 15 + [2] * 15


class TargetProcess:
    """A FlakyTarget that a test kills and starts again."""

    def __init__(self, folder: Path, port: int, secret: str, *, share: float) -> None:
        self._file = folder / "received"
        self._port = port
        arguments = [str(port), str(self._file), secret, str(share)]
        self._command = [sys.executable, "-m", "tests.support.forward_target", *arguments]
        self._log = folder / "target.log"
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process(self._command, log=self._log)
        eventually(lambda: not port_is_free(self._port), what="the target listens")

    def kill(self) -> None:
        assert self._process
        self._process.kill()

    def lines(self) -> list[str]:
        """What it has written: ids of events, complete lines only."""
        if not self._file.exists():
            return []
        text = self._file.read_text()
        return [json.loads(line) for line in text.split("\n")[:-1]]


def forward(url: str, *lines: str, name: str = "erp") -> str:
    more = "\n".join(lines)
    return (
        f'[forward.{name}]\ntopics = "order.*"\nurl = "{url}"\nallow_private = true\n'
        f'secret = "{SECRET}"\nretries = {RETRIES}\n{more}\n'
    )


@contextmanager
def running_target() -> Iterator[Target]:
    target = Target()
    try:
        yield target
    finally:
        target.shutdown()
        target.server_close()


def ids(target: Target) -> list[str]:
    return [received.headers["webhook-id"] for received in target.received]


def through_a_target_that_is_killed_twice(system: System, target: TargetProcess, events: int) -> None:
    """Each accepted event is received at least once, with a valid signature, and is settled."""
    target.start()
    system.start("web", "worker", "housekeeper")
    with ThreadPoolExecutor(8) as senders:
        sent = [senders.submit(system.deliver, data={"id": number}) for number in range(events)]
        for share in (0.2, 0.5):
            eventually(lambda share=share: len(target.lines()) > share * events, 600, what=f"{share:.0%} are received")
            target.kill()
            killed = datetime.now(UTC)
            eventually(lambda killed=killed: had_no_answer(system, killed), 60, what="a request without an answer")
            target.start()
        accepted_ids = {one.result() for one in sent}
    assert len(accepted_ids) == events
    eventually(lambda: system.ledger.counters().total["open"] == 0, 600, what="every event has ended")
    received = target.lines()
    assert [line for line in received if line.startswith("invalid")] == []
    assert set(received) == accepted_ids
    total = system.ledger.counters().total
    assert (total["accepted"], total["settled"], total["failed"]) == (events, events, 0)
    assert system.identity_holds()
    print(f"{events} events, received {len(received)} times")


def had_no_answer(system: System, since: datetime) -> bool:
    groups = FailureQueries(system.client).groups().entries
    return any("no answer from 127.0.0.1" in one.error and one.last_at > since for one in groups)


def flaky(make_system: Callable[..., System]) -> tuple[System, TargetProcess]:
    port = free_port()
    system = make_system(more=forward(f"http://127.0.0.1:{port}/hook"), child_processes=4)
    return system, TargetProcess(system.folder, port, SECRET, share=0.3)


def test_each_event_reaches_a_target_that_fails_and_is_killed(make_system: Callable[..., System]) -> None:
    through_a_target_that_is_killed_twice(*flaky(make_system), events=200)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_thousand_events_reach_a_target_that_fails_and_is_killed(make_system: Callable[..., System]) -> None:
    through_a_target_that_is_killed_twice(*flaky(make_system), events=10_000)


def test_failures_replays_pauses_and_reloads_work_as_for_any_handler(make_system: Callable[..., System]) -> None:
    with running_target() as target, running_target() as other:
        system = make_system(more=forward(target.url))
        worker, _ = system.start("worker", "housekeeper")

        target.answer = (422, {}, b"unknown sku")
        refused = system.accept()
        assert system.settled(refused) == "failed"
        assert "127.0.0.1 answered 422: unknown sku" in system.run_cli("failures").stdout
        assert "whsec_" not in system.run_cli("handlers", "list", "--json").stdout
        assert "forward.erp" in system.run_cli("handlers", "explain", refused).stdout

        target.answer = (200, {}, b"")
        assert system.run_cli("failures", "replay", "--event", refused, "--yes").returncode == 0
        assert system.settled(refused) == "settled"
        assert ids(target) == [refused, refused]

        target.answer = (503, {"retry-after": "1"}, b"")
        held = system.accept()
        eventually(lambda: ids(target).count(held) == 2, what="it is sent again after Retry-After")
        assert system.run_of(held, "forward.erp").attempts == 0
        target.answer = (200, {}, b"")
        assert system.settled(held) == "settled"

        system.administration.pause(handler="forward.erp")
        paused = system.accept()
        eventually(lambda: system.run_of(paused, "forward.erp"), what="it is routed")
        before = system.config_file.read_text()
        system.config_file.write_text(before.replace(target.url, other.url))
        worker.send(signal.SIGHUP)
        eventually(lambda: '"reloaded"' in system.log("worker"), what="the worker has reloaded")
        assert paused not in ids(target)
        system.administration.resume(handler="forward.erp")
        assert system.settled(paused) == "settled"
        assert ids(other) == [paused]
        assert paused not in ids(target)
        Webhook(SECRET).verify(other.received[0].body, other.received[0].headers)

        system.config_file.write_text(before.replace("https:", "http:").replace("allow_private", "# allow_private"))
        worker.send(signal.SIGHUP)
        eventually(lambda: "reload refused" in system.log("worker"), what="the reload is refused")
        assert "forward.erp.url is not https" in system.log("worker")
        assert system.settled(system.accept()) == "settled"
        assert len(other.received) == 2
