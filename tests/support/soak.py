"""A soak: real web, worker and server processes under load, while faults are injected by real signals.

At the end it counts. Every event that was answered 2xx must have been handled by every handler, or be shown as a
failure. Every sample of the counters must satisfy accepted = settled + open + failed.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import sqlite3
import sys
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from redis.exceptions import RedisError

from receiver.contract.compose import compose
from receiver.inbox.queries.time_series import COUNTERS
from receiver.inbox.sampling import Sampler
from receiver.spool import EVENTS_FILE
from tests.support.harness import OTHER_SECRET, SECRET, Process, Server, System, children_of, comm, eventually
from workers.operations.metrics import MetricsCollector
from workers.operations.traffic import SPANS, read_traffic

OPEN_EVENTS = 300
"""While more are open, the senders wait. The time until an event is handled then shows how soon all recover, and not
how long a queue is that grows because the machine is slower than its senders."""
AWAY_PAUSE = 0.05
"""Seconds between the deliveries of a sender while the server is away: they are handled all at once when it is back."""
PERSONAL = "jane.doe@soak.example"
DATA = {"id": 1, "email": PERSONAL}
"""The payloads, the headers and messages of exceptions have it; no line of a log may."""
HANDLERS = ("shop.fast", "shop.flaky", "shop.slow", "shop.awaits")
PLUGIN = """
import asyncio, os, random, time
from storehooks import Router

router = Router("shop")
effects = os.open(os.environ["SOAK_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event, name):
    os.write(effects, f"{event.id} shop.{name} {time.time():.3f}\\n".encode())

@router.on("*", retries=(0.1,) * 20)
def fast(event, ctx):
    note(event, "fast")

@router.on("*", retries=(0.1,) * 20)
def flaky(event, ctx):
    if ctx.attempt == 1 and random.random() < 0.02:
        raise RuntimeError("now and then, for " + event.data["email"])
    note(event, "flaky")

@router.on("*", retries=(0.1,) * 20)
def slow(event, ctx):
    if random.random() < 0.05:
        time.sleep(0.02)
    note(event, "slow")

@router.on("*", retries=(0.1,) * 20)
async def awaits(event, ctx):
    await asyncio.gather(*(asyncio.sleep(random.choice((0, 0, 0.002))) for _ in range(3)))
    note(event, "awaits")
"""


@dataclass
class Report:
    """What a soak counted."""

    faults: Counter[str] = field(default_factory=Counter)
    answered: dict[str, float] = field(default_factory=dict)
    refused: int = 0
    spooled: int = 0
    """Deliveries that went through the spool; each was answered 2xx, or its sender was cut off."""
    samples: int = 0
    wrong_samples: list[dict[str, int]] = field(default_factory=list)
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    twice: int = 0
    failures: int = 0
    worst: float = 0.0
    worst_run: str = ""
    timeline: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"faults     {sum(self.faults.values())} ({kinds})\n"
            f"events     {len(self.answered):,} answered 2xx in {self.seconds:.0f} s; {self.refused:,} were not\n"
            f"spool      {self.spooled:,} of them went through it ({self.spooled / max(1, len(self.answered)):.1%})\n"
            f"runs       {self.runs:,}; lost {len(self.lost)}; run twice {self.twice:,}; failures {self.failures}\n"
            f"recovery   worst time from answer (or from the server's return) to done {self.worst:.1f} s\n"
            f"identity   true in {self.samples - len(self.wrong_samples):,} of {self.samples:,} samples"
        )


class Soak:
    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        seed: int,
        senders: int = 4,
        runs: int = 0,
        faults: int = 0,
        plugin: str = PLUGIN,
    ) -> None:
        self.seconds = seconds
        self.wanted_faults = faults
        self.wanted_runs = runs
        self.random = random.Random(seed)
        self.senders = senders
        self.report = Report()
        self.effects = folder / "effects.log"
        (folder / "server").mkdir(parents=True)
        (folder / "system" / "data").mkdir(parents=True)
        self.server = Server(folder / "server")
        self.server.start()
        more = '[store_defaults]\nurl = ""\n'
        self.system = System(folder / "system", self.server.url, plugin=plugin, child_processes=3, more=more)
        self.log = folder / "system" / "all.log"
        self._stop = threading.Event()
        self._paused: list[tuple[float, int]] = []
        self._open: int | None = 0
        """Open events in the latest sample; None while the server is away."""
        self._back = [0.0]
        """When the server answered again after each kill. No run can recover before that."""

    # The processes

    def start(self) -> None:
        self.web = self._process("receiver.server.web")
        self.workers = self._process("workers")
        eventually(self.system.web_answers, 15)

    def _process(self, module: str) -> Process:
        command = [sys.executable, "-m", module, "--config", str(self.system.config_file)]
        env = {"SOAK_EFFECTS": str(self.effects), "STOREHOOKS_WORKERS__PROCESSES": "2"}
        env |= {"STOREHOOKS_RECEIVER__PROCESSES": "2"}
        return Process(command, log=self.log, env=env)

    def _below(self, process: Process, name: str) -> list[int]:
        """The processes below one whose name begins with this."""
        return [pid for pid in children_of(process.pid) if comm(pid).startswith(name)]

    # The load

    def _send_until_stopped(self, number: int) -> None:
        choices = random.Random(number)
        stores = self.system.config.known_stores
        with httpx2.Client(timeout=5) as client:
            while not self._stop.is_set():
                name = choices.choice(("north", "north", "north", "south"))
                self._deliver(client, stores[name], f"msg_{secrets.token_hex(8)}")
                if self._open is None:
                    self._stop.wait(AWAY_PAUSE)
                while (self._open or 0) > OPEN_EVENTS and not self._stop.wait(0.02):
                    pass

    def _deliver(self, client: httpx2.Client, store: object, delivery_id: str) -> None:
        """Send until it is answered 2xx, as a store would, always with the same id."""
        url = f"http://127.0.0.1:{self.system.port}/webhooks/{store.name}"  # type: ignore[attr-defined]
        while not self._stop.is_set():
            request = compose(store, topic="order.created", delivery_id=delivery_id, data=DATA, now=time.time())  # type: ignore[arg-type]
            try:
                headers = {**request.headers, "x-customer": PERSONAL}
                answer = client.post(url, headers=headers, content=request.body)
                if answer.is_success:
                    self.report.answered[answer.json()["id"]] = time.time()
                    return
            except httpx2.HTTPError:
                pass
            self.report.refused += 1
            self._stop.wait(0.05)

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(0.03):
            try:
                counters = self.system.ledger.counters()
            except RedisError:
                self._open = None
                continue
            self._open = counters.total["open"]
            self.report.samples += 1
            for counts in (counters.total, *counters.stores.values()):
                if counts["accepted"] != counts["settled"] + counts["open"] + counts["failed"]:
                    self.report.wrong_samples.append(counts)

    # The faults

    def _faults(self) -> dict[str, Callable[[], None]]:
        return {
            "kill worker": lambda: self._kill_one(self._below(self.workers, "sh-worker")),
            "kill child process": lambda: self._kill_one(self._below(self.workers, "sh-child")),
            "kill child processes": lambda: (
                [self._kill_one(self._below(self.workers, "sh-child")) for _ in range(3)] and None
            ),
            "kill housekeeper": lambda: self._kill_one(self._below(self.workers, "sh-housekeeper")),
            "stop worker": lambda: self._pause_one(self._below(self.workers, "sh-worker")),
            "kill web worker": lambda: self._kill_one(children_of(self.web.pid)),
            "kill web": self._kill_web,
            "kill server": self._kill_server,
            "kill supervisor": self._kill_supervisor,
            "delete wake-ups": self._delete_wake_ups,
        }

    def _weights(self) -> list[int]:
        return [6, 8, 4, 3, 3, 4, 1, 2, 1, 5]

    def _kill_one(self, pids: list[int]) -> None:
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(pids), signal.SIGKILL)

    def _pause_one(self, pids: list[int]) -> None:
        """Suspend it past its lease: others take its runs, and it must not settle them when it continues."""
        if pids and not self._paused:
            pid = self.random.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            self._paused.append((time.monotonic() + 5.5, pid))

    def _continue_paused(self, *, all_paused: bool = False) -> None:
        for due, pid in self._paused:
            if all_paused or time.monotonic() >= due:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self._paused = [] if all_paused else [one for one in self._paused if time.monotonic() < one[0]]

    def _kill_web(self) -> None:
        self.web.kill()
        self.web = self._process("receiver.server.web")

    def _kill_supervisor(self) -> None:
        self.workers.kill()
        self.workers = self._process("workers")

    def _kill_server(self) -> None:
        self.server.kill()
        self._stop.wait(self.random.uniform(0, 1.5))
        self.server.start()
        self._back.append(time.time())

    def _delete_wake_ups(self) -> None:
        with suppress(RedisError):
            self.system.client.delete("rq:queue:storehooks")

    # The run

    def run(self, *, pause: float = 0.5) -> Report:
        self.start()
        started = time.monotonic()
        threads = [
            threading.Thread(target=self._send_until_stopped, args=(n,), daemon=True) for n in range(self.senders)
        ]
        threads.append(threading.Thread(target=self._sample_until_stopped, daemon=True))
        for thread in threads:
            thread.start()
        faults = self._faults()
        while not self._done(started):
            self._stop.wait(self.random.uniform(0.5 * pause, 1.5 * pause))
            self._continue_paused()
            (name,) = self.random.choices(list(faults), self._weights())
            self.report.timeline.append(f"{time.time():.1f} {name}")
            faults[name]()
            self.report.faults[name] += 1
            for process in (self.web, self.workers):
                if not process.alive:  # it found no server and ended; a service manager would restart it
                    self._restart(process)
        self.report.seconds = time.monotonic() - started
        self._continue_paused(all_paused=True)
        self._stop.set()
        for thread in threads:
            thread.join(10)
        self._settle()
        eventually(self._charts_agree, 15, what="the charts have the sums that stats shows")
        self._require_equal_metrics()
        self._require_clean_log()
        self._count()
        return self.report

    def _restart(self, process: Process) -> None:
        if process is self.web:
            self.web = self._process("receiver.server.web")
        else:
            self.workers = self._process("workers")

    def _done(self, started: float) -> bool:
        enough = (
            len(self.report.answered) * len(HANDLERS) >= self.wanted_runs
            and sum(self.report.faults.values()) >= self.wanted_faults
        )
        return time.monotonic() - started >= self.seconds and enough

    def _settle(self) -> None:
        """No more faults: all open events must settle or fail."""

        def idle() -> bool:
            self._restart(self.workers) if not self.workers.alive else None
            return self._spool("SELECT count(*) FROM event") == 0 and self.system.ledger.counters().total["open"] == 0

        eventually(idle, 60, what="everything settled")

    def _charts_agree(self) -> bool:
        """Whether the charts of each range, and the tables below them, have the sums that `stats --json` shows."""
        shown = json.loads(self.system.run_cli("stats", "--json").stdout)
        Sampler(self.system.client).write(int(time.time()))
        ranges = [read_traffic(self.system.client, span, HANDLERS) for span in SPANS]
        return all(
            one.samples[0].values[name] + sum(each.counts[name] for each in found) == shown[name]
            for one in ranges
            for found in (one.changes, one.rows)
            for name in COUNTERS
        )

    def _require_equal_metrics(self) -> None:
        """The metrics have exactly what `stats --json` shows."""
        shown = json.loads(self.system.run_cli("stats", "--json").stdout)
        found = {one.name: one.samples for one in MetricsCollector(self.system.config, self.system.client).collect()}
        for store, counts in shown["stores"].items():
            events = {
                one.labels["status"]: one.value for one in found["storehooks_events"] if one.labels["store"] == store
            }
            assert events == {status: counts[status] for status in ("open", "settled", "failed")}, store
            deliveries = {
                one.labels["verdict"]: one.value
                for one in found["storehooks_deliveries"]
                if one.labels["store"] == store
            }
            names = {"accepted": "accepted", "duplicate": "duplicates", "refused": "refused"}
            assert deliveries == {verdict: counts[name] for verdict, name in names.items()}, store

    def _require_clean_log(self) -> None:
        """No payload, personal data or secret is in the log of any process."""
        text = self.log.read_text(errors="replace")
        assert "worker started" in text
        assert not [word for word in (PERSONAL, SECRET, OTHER_SECRET, "webhook-signature") if word in text]

    def _spool(self, query: str) -> int:
        """A number from the spool's file; 0 if no delivery ever went there."""
        file = self.system.config.data_dir / EVENTS_FILE
        if not file.exists():
            return 0
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            found = connection.execute(query).fetchone()
        return int(found[0]) if found else 0

    def _count(self) -> None:
        self.report.spooled = self._spool("SELECT seq FROM sqlite_sequence WHERE name = 'event'")
        first: dict[tuple[str, str], float] = {}
        times: Counter[tuple[str, str]] = Counter()
        for line in self.effects.read_text().splitlines():
            event_id, handler, at = line.split()
            first.setdefault((event_id, handler), float(at))
            times[(event_id, handler)] += 1
        for event_id, answered in self.report.answered.items():
            for handler in HANDLERS:
                self.report.runs += 1
                done = first.get((event_id, handler))
                if done is not None:
                    took = done - max(answered, self._back[bisect(self._back, done) - 1])
                    if took > self.report.worst:
                        self.report.worst = took
                        self.report.worst_run = f"{event_id}|{handler} answered {answered:.1f}, done {done:.1f}"
                elif (run := self.system.run_of(event_id, handler)) and run.status == "failed":
                    self.report.failures += 1
                else:
                    self.report.lost.append(f"{event_id}|{handler}")
        self.report.twice = sum(count > 1 for count in times.values())

    def close(self) -> None:
        self._stop.set()
        for process in (self.web, self.workers):
            if process.alive:
                process.stop(20)
        self.system.close()
        self.server.stop()


if __name__ == "__main__":
    import tempfile

    folder = Path(tempfile.mkdtemp())
    soak = Soak(folder, seconds=float(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    try:
        print(soak.run(pause=0.65))
    finally:
        soak.close()
    print(soak.report.lost[:5], soak.report.wrong_samples[:3], soak.report.worst_run, folder)
    print(*soak.report.timeline, sep="\n")
