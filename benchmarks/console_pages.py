"""The console with a million events: how long each page takes, and against a thousand events.

`python -m benchmarks.console_pages`; with `--past 1000000` these are in the history, in SQLite or, with
`--history URL`, in PostgreSQL. It is not part of `make bench`, because filling takes minutes: a few events, runs and
failures are made as the product makes them, and a script in Redis copies these.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import httpx2

from benchmarks import fill_inbox, load, receivers, tables
from benchmarks.processes import OUR_PYTHON, Process, Server
from receiver import config as config_room
from receiver.inbox import Inbox, Outcome, keys
from receiver.inbox.model import resource_digest
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.event_pages import EventPages
from receiver.inbox.sampling import Sampler
from workers.history.configured_history import open_history
from workers.history.past_events import PastEvent
from workers.testing.local_system import free_port, wait_until

STORES, HANDLERS = 1_000, 100
PASSWORD = "benchmarks only"
TARGET_MS, TARGET_COMMAND_MS, TARGET_MB, TARGET_RATIO = 300, 10, 150, 1.3
TURNS = 40
SETTLED_TOPIC = "order.created"
TRACEBACK = (
    "Traceback (most recent call last):\n" + '  File "plugins/erp.py", line 41, in export\n    send(order)\n' * 12
)
COPY = """
local template, first, many, stores, t0, step, group, handler = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]),
  tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local record, body, kind = {}, redis.call('GET', 'sh:b:' .. template), group == '' and 'settled' or 'failed'
local fields = redis.call('HGETALL', 'sh:e:' .. template)
for at = 1, #fields, 2 do if fields[at] ~= 'earlier' then record[fields[at]] = fields[at + 1] end end
local counts = {}
for number = first, first + many - 1 do
  local store = string.format('s%04d', number % stores)
  local id, us = string.format('copy%022d', number), t0 + step * number
  local ms, new = math.floor(us / 1000), {}
  record.store, record.delivery, record.resource, record.received = store, 'msg_' .. id, tostring(number), ms
  for name, value in pairs(record) do new[#new + 1] = name new[#new + 1] = value end
  redis.call('HSET', 'sh:e:' .. id, unpack(new))
  redis.call('SET', 'sh:b:' .. id, body)
  redis.call('ZADD', 'sh:ix', us, id)
  redis.call('ZADD', 'sh:ix:' .. store, us, id)
  if group == '' then
    redis.call('ZADD', 'sh:done', ms, id)
  else
    redis.call('ZADD', 'sh:failed', ms, id .. '|' .. handler)
    redis.call('ZADD', 'sh:gr:' .. group, ms, id .. '|' .. handler)
    redis.call('HINCRBY', 'sh:g:' .. group, 'failed', 1)
    redis.call('HINCRBY', 'sh:g:' .. group, 's:' .. store, 1)
  end
  counts[store] = (counts[store] or 0) + 1
end
for store, number in pairs(counts) do
  redis.call('HINCRBY', 'sh:n', 'accepted|' .. store, number)
  redis.call('HINCRBY', 'sh:n', kind .. '|' .. store, number)
  redis.call('HSET', 'sh:t:' .. store, 'n:order.created', number, 'l:order.created', string.format('%.0f', t0 / 1000))
end
"""


class Copied(NamedTuple):
    """An event that is copied, and the group of its failure."""

    event: str
    group: str = ""
    handler: str = ""


class Spent(NamedTuple):
    wall: float
    cpu: float
    rows: int
    """Rows of its tables, or of its JSON."""


class Size(NamedTuple):
    events: int
    failures: int
    groups: int
    past: int = 0
    history: str = "off"


class Filled:
    """A server with events, and a console and workers beside it."""

    def __init__(self, folder: Path, name: str, size: Size) -> None:
        self.name, self.events = name, size.events
        self._places: dict[str, str] = {}
        """Where a live page goes on, by its address."""
        self.server = Server(folder, name)
        port = free_port()
        stores = "".join(f'[stores.s{number:04d}]\nsigning_secrets = ["{load.SECRET}"]\n' for number in range(STORES))
        console = f'[console]\nbind = "127.0.0.1:{port}"\npassword = "{PASSWORD}"\n'
        history = f'[history]\nurl = "{size.history}"\nafter = "30d"\n'
        handlers = "".join(
            f'\n@router.on("kind{number}.created")\ndef handle{number}(event, ctx):\n    pass\n'
            for number in range(HANDLERS)
        )
        self.file = receivers.write_config(
            folder, self.server, name=name, handlers=receivers.NO_OP_HANDLER + handlers, more=stores + console + history
        )
        self.config = config_room.load(self.file, {})
        self.inbox = Inbox(self.server.client)
        self._fill(size.failures, size.groups)
        self._fill_history(size.past)
        self.worker = Process(
            [str(OUR_PYTHON), "-m", "workers", "--config", str(self.file)], folder=folder, name=f"{name}-worker"
        )
        self.console = Process(
            [str(OUR_PYTHON), "-m", "workers.console", "--config", str(self.file)],
            folder=folder,
            name=f"{name}-console",
        )
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        wait_until(self._log_in, within=60, what=f"the console answers; {self.console.tail()}")
        wait_until((self.config.data_dir / "findings.json").exists, within=120, what="the first findings")

    # Events

    def _fill(self, failures: int, groups: int) -> None:
        started, week = time.monotonic(), 7 * 86_400_000_000
        end = int(time.time() * 1e6)
        step, copy = max(1, week // self.events), self.server.client.register_script(COPY)
        failed = [self._end(number, group=f"{number:08x}") for number in range(groups)]
        settled = [self._end(number) for number in range(20)]
        plan = [(one, failures // groups) for one in failed] + [
            (one, (self.events - failures) // 20) for one in settled
        ]
        number = 0
        for turn in range(TURNS):  # so that each time has events of all kinds
            for one, total in plan:
                many = total * (turn + 1) // TURNS - total * turn // TURNS
                if many:
                    copy(args=(one.event, number, many, STORES, end - week, step, one.group, one.handler))
                number += many
        self._remember(end // 1_000_000)
        self.server.wait_for_rewrite()
        seconds, memory = time.monotonic() - started, self.server.memory() >> 20
        print(f"{self.name}: {number:,} events after {seconds:.0f} s, {memory:,} MB", flush=True)

    def _fill_history(self, past: int) -> None:
        """Copies of a settled event, accepted in the 60 days before those in Redis."""
        history = open_history(self.config, self.server.client)
        if history is None:
            return
        page = EventPages(self.server.client, content=True).oldest(since=0, until="+inf")
        one = next(event for event in page.events if event.fields[b"state"] == b"settled")
        step = 60 * 86_400_000_000 // past
        with closing(history):
            history.check()
            for first in range(0, past, 1_000):
                batch = [
                    replace(PastEvent(*one), id=f"past{number:022d}", accepted_at=one.accepted_at - step * (number + 1))
                    for number in range(first, first + 1_000)
                ]
                if history.write(batch):
                    raise RuntimeError("the history did not take the events")
        print(f"{self.name}: {past:,} past events", flush=True)

    def _end(self, number: int, *, group: str = "") -> Copied:
        """Accept, route and end an event as the product does."""
        (delivery,) = fill_inbox.deliveries(self.config, 1, size=700)
        topic = f"kind{number % HANDLERS}.created" if group else SETTLED_TOPIC
        handler = f"bench.handle{number % HANDLERS}" if group else "bench.handle"
        self.inbox.accept(
            [replace(delivery, event=replace(delivery.event, topic=topic, resource_id=f"{group or number}"))]
        )
        (event,) = self.inbox.claim({"": 1}, capacity=1).runs
        self.inbox.route([(event, [(handler, keys.DEFAULT_QUEUE, True)])], self.inbox.declarations().version)
        run = replace(event, item=f"{event.event.id}|{handler}", handler=handler)
        error = {
            "error": f"KeyError: 'field {number}'",
            "at": "plugins/erp.py:41",
            "traceback": TRACEBACK,
            "group": group,
        }
        detail = {"version": "1.0", "ms": 12.5, **(error if group else {"result": "exported"})}
        self.inbox.finish([Outcome(run, OutcomeKind.FAILED if group else OutcomeKind.DONE, detail)])
        return Copied(event.event.id, group, handler)

    def _remember(self, now: int) -> None:
        """What the housekeeper and workers write in a week: rings, 50 versions of each handler, links of resources."""
        client, sampler = self.server.client, Sampler(self.server.client)
        client.set(keys.OPEN_SINCE, now * 1_000_000)
        for at in (*range(now - 604_800, now, 3_600), *range(now - 86_400, now, 300), *range(now - 3_600, now, 10)):
            client.hincrby(keys.COUNTERS, f"accepted|s{at // 10 % STORES:04d}", 1)
            client.hincrby(keys.COUNTERS, f"settled|s{at // 10 % STORES:04d}", 1)
            sampler.write(at)
        pipeline = client.pipeline(transaction=False)
        for handler in range(HANDLERS):
            times = {f"1.{version}": (now - version * 7_000) * 1000 for version in range(50)}
            pipeline.zadd(f"{keys.VERSIONS}bench.handle{handler}", times)
        for number in range(20_000):
            pipeline.hset(keys.RESOURCES, resource_digest("s0001", "order", str(number)), 1)
        pipeline.execute()

    # The console

    def _log_in(self) -> bool:
        try:
            page = self.http.get("/login").text
            token = page.partition('name="token" value="')[2][:32]
            origin = {"Origin": str(self.http.base_url).rstrip("/")}
            return (
                self.http.post("/login", data={"token": token, "password": PASSWORD}, headers=origin).status_code == 303
            )
        except httpx2.HTTPError:
            return False

    @cached_property
    def web_process(self) -> int:
        """The process that answers: the one that was busy with it."""
        before = {pid: _cpu(pid) for pid in self.console.tree()}
        for _ in range(5):
            self.http.get("/")
        return max(before, key=lambda pid: _cpu(pid) - before[pid])

    def ask(self, path: str) -> Spent:
        if path in self._places:
            path = f"{path}&place={self._places[path]}"
        cpu, started = _cpu(self.web_process), time.perf_counter()
        answer = self.http.get(path)
        wall = time.perf_counter() - started
        if answer.status_code not in (200, 303):
            raise RuntimeError(f"{path} is answered {answer.status_code}: {answer.text[-500:]}")
        if "/tail?" in path:
            self._places[path.partition("&place=")[0]] = answer.json()["place"]
        return Spent(
            wall * 1000, (_cpu(self.web_process) - cpu) * 1000, answer.text.count("<tr") + answer.text.count('"at":')
        )

    def text(self, path: str) -> str:
        return str(self.http.get(path).text)

    def close(self) -> None:
        for one in (self.console, self.worker):
            one.stop()
        self.server.stop()


def _status(pid: int, name: str) -> int:
    """kB of a process's memory."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _cpu(pid: int) -> float:
    """CPU seconds of a process, by the scheduler, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9


def pages(filled: Filled) -> dict[str, str]:
    """Every page, filter and search step, by its name."""
    newest = re.findall(r'href="/events/(\w{26})"', filled.text("/events?status=settled"))
    failed = re.findall(r'href="/events/(\w{26})"', filled.text("/events?status=failed"))
    group = re.findall(r'href="/failures/([0-9a-f]{8})"', filled.text("/failures"))[0]
    older = re.findall(r'href="(/events\?before=[^"]+)"', filled.text("/events"))[0].replace("&amp;", "&")
    return {
        "overview, 1 hour": "/",
        "overview, 24 hours": "/?range=24h",
        "overview, 7 days": "/?range=7d",
        "events": "/events",
        "events, older": older,
        "events of a store": "/events?store=bench",
        "events, live": "/events?live=on",
        "live, one step": "/events/tail?rows=",
        "live failures, one step": "/events/tail?status=failed",
        "filter: open": "/events?status=open",
        "filter: failed": "/events?status=failed",
        "filter: topic": "/events?topic=order.*",
        "filter: handler": "/events?handler=bench.handle",
        "filter: time": "/events?since=2020-01-01T00:00&until=2100-01-01T00:00",
        "search: rare topic": "/events?topic=none.*",
        "search: rare handler": "/events?handler=no.such",
        "search: resource": "/events?resource=none",
        "search: delivery": "/events?delivery=none",
        "search: error": "/events?error=none",
        "search: payload": "/events?where=none%3D1",
        "find an id": f"/events?find={newest[0]}",
        "event": f"/events/{newest[0]}",
        "event that failed": f"/events/{failed[0]}",
        "failures": "/failures",
        "failures of a handler": "/failures?handler=bench.handle7",
        "group": f"/failures/{group}",
        "refused": "/refused",
        "stores": "/stores",
        "stores, page 10": "/stores?page=10",
        "store": "/stores/s0007",
        "handlers": "/handlers",
        "workers": "/workers",
        "audit": "/audit",
    }


@contextmanager
def busy(systems: list[Filled]) -> Iterator[None]:
    """Events arrive all the time, and workers handle them."""
    stop = threading.Event()

    def feed() -> None:
        while not stop.wait(0.5):
            for one in systems:
                one.inbox.accept(list(fill_inbox.deliveries(one.config, 32, size=700)))

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure(many: Filled, few: Filled, rounds: int) -> tuple[dict[str, list[Spent]], dict[str, list[Spent]]]:
    paths = {many: pages(many), few: pages(few)}
    found: dict[Filled, dict[str, list[Spent]]] = {many: {}, few: {}}
    for system in (many, few):
        system.server.client.config_set("slowlog-log-slower-than", 200)
        system.server.client.config_set("slowlog-max-len", 100_000)
    for name in paths[many]:
        for system in (many, few):
            system.ask(paths[system][name])
        for _ in range(rounds):
            for system in (many, few):
                found[system].setdefault(name, []).append(system.ask(paths[system][name]))
    return found[many], found[few]


def p95(numbers: list[float]) -> float:
    return quantiles(numbers, n=20)[-1]


def report(many: dict[str, list[Spent]], few: dict[str, list[Spent]]) -> list[str]:
    """Prints a line for each page, and returns what is over a target."""
    lines: list[tuple[str, ...]] = [("", "rows", "p50 ms", "p95 ms", "cpu p50", "cpu p95", "cpu of few", "ratio")]
    over = []
    for name, spent in many.items():
        walls, cpus = [one.wall for one in spent], [one.cpu for one in spent]
        rows, of_few = median(one.rows for one in spent), median(one.rows for one in few[name])
        less = median(one.cpu for one in few[name])
        figures = [f"{one:.1f}" for one in (median(walls), p95(walls), median(cpus), p95(cpus), less)]
        ratio, is_equal = median(cpus) / less, abs(rows - of_few) <= 0.05 * max(rows, of_few)
        lines.append((name, f"{rows:.0f}", *figures, f"{ratio:.2f} x" if is_equal else f"{of_few:.0f} rows"))
        if p95(walls) > TARGET_MS:
            over.append(f"{name}: p95 is {p95(walls):.0f} ms, of which {p95(cpus):.0f} ms are CPU time of the console")
        if is_equal and ratio > TARGET_RATIO:
            over.append(f"{name}: {ratio:.2f} x the CPU time of a thousand events")
    print(tables.plain(lines))
    return over


def slow_commands(system: Filled, rounds: int) -> list[str]:
    """The slowest commands of the console, by the median of equal ones, which every round has: on a busy machine, any
    single command may seem slow. Those of receiver and workers are in functions."""
    found: dict[str, list[float]] = {}
    for one in system.server.client.slowlog_get(1_000_000):
        found.setdefault(one["command"][:100].decode("ascii", "replace"), []).append(one["duration"] / 1000)
    slowest = sorted(
        ((median(times), command) for command, times in found.items() if len(times) >= rounds / 2), reverse=True
    )
    for ms, command in [one for one in slowest if not one[1].startswith(("FCALL", "EVAL", "BLMOVE"))][:5]:
        print(f"  {ms:.1f} ms  {command}")
    return [f"{command}: {ms:.1f} ms" for ms, command in slowest if ms > TARGET_COMMAND_MS]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console_pages", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--past", type=int, default=0, help="a thousand events in Redis, and these in the history")
    parser.add_argument("--history", metavar="URL", default="sqlite", help="of an empty database, for --past")
    parser.add_argument("--rounds", type=int, default=20)
    return parser


def main() -> int:
    options = arguments().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="bench-console-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        small = Size(events=1_000, failures=200, groups=100)
        large = Size(events=options.events, failures=options.events // 5, groups=500)
        past = small._replace(past=options.past, history=options.history)
        many = Filled(folder, "many", past if options.past else large)
        stack.callback(many.close)
        few = Filled(folder, "few", small)
        stack.callback(few.close)
        with busy([many, few]):
            over = report(*measure(many, few, options.rounds))
        print("\nthe slowest commands of the console:")
        over += slow_commands(many, options.rounds)
        memory = _status(many.web_process, "VmHWM") / 1024
        print(f"memory of the console's web process: {memory:.0f} MB")
        over += [f"memory: {memory:.0f} MB"] if memory > TARGET_MB else []
    print("\n" + ("\n".join(["over a target:", *over]) if over else "all targets are met"))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
