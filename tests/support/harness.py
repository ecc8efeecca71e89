"""Real processes for tests: a Redis server, gunicorn and workers, which a test starts, watches and kills."""

from __future__ import annotations

import glob
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from receiver import config as config_room
from receiver.config import Config
from receiver.contract.compose import Request, compose
from receiver.contract.intake import Delivery, receive
from receiver.contract.signing.sources import with_query
from receiver.inbox import Administration, Declaration, EventQueries, Housekeeping, Inbox, connect, keys, server_url
from receiver.inbox.redis import embedded_server
from receiver.inbox.rq_records import register_worker
from receiver.spool import Refusals, open_existing_refusals
from tests.support.programs import Process, run_to_end, start_command, storehooks, with_times
from workers.testing.local_system import free_port

SECRET = "whsec_dGVzdCBzZWNyZXQgb2Ygb25lIHN0b3Jl"
OTHER_SECRET = "whsec_YW5vdGhlciBzdG9yZSdzIHNlY3JldCE="
PATIENCE = 30.0
"""Seconds. For a machine with other work; a promise of a time is a limit of its own in the test that checks it."""
T = TypeVar("T")


def eventually(condition: Callable[[], T], within: float = PATIENCE, what: str = "") -> T:
    """Wait for a condition, and return its first true value. Fails when the time has passed."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what or condition}; the last value was {value!r}")
        time.sleep(0.01)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    # Unlike Path.glob, this raises no error if the process ends meanwhile.
    for children in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            direct = [int(one) for one in Path(children).read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def comm(pid: int) -> str:
    """The name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Whether a process has ended. A zombie has, once its threads have: one that waits for the disk keeps its locks."""
    try:
        is_zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return is_zombie and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True


def kill_with_children(process: Process) -> None:
    """Kill a process and all its descendants. A web worker that outlives its master would still hold the port."""
    below = children_of(process.pid)
    process.kill()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(map(gone, below)), what="all descendants have ended")


class Server:
    """A real Valkey server of its own, which a test may kill and start again on the same data."""

    def __init__(
        self, folder: Path, *, extra: tuple[str, ...] = (), prefix: tuple[str, ...] = (), program: str = ""
    ) -> None:
        self.data_dir = folder
        self.extra = extra
        self.prefix = prefix
        """A program to start it with, such as strace."""
        self.program = Path(program) if program else embedded_server.binary()
        self.url = server_url("", folder)
        self.client = connect(self.url, timeout=2.0)
        self.process: Process | None = None

    def start(self, within: float = 60.0) -> Server:
        command = [*self.prefix, *embedded_server.command(self.program, self.data_dir), *self.extra]
        self.process = Process(command, log=self.data_dir / "server.log")
        eventually(self._answers, within, what="the server answers")
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def kill(self) -> None:
        assert self.process
        self.process.kill()

    def stop(self) -> None:
        if self.process and self.process.alive:
            self.process.stop()


HEAD = """
[redis]
url = "{redis}"
data_dir = "{data}"
[receiver]
bind = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{port}"
processes = 1
"""
CONFIG = (
    HEAD
    + """threads = 4
[workers]
plugins = {plugins}
child_processes = {child_processes}
drain = "10s"
[stores.north]
signing_secrets = ["{secret}"]
[stores.south]
signing_secrets = ["{other}"]
[console]
bind = "127.0.0.1:0"
[sandbox]
bind = "127.0.0.1:{sandbox_port}"
{more}
"""
)


AUTH = '{ url = "/oauth/token", client_id = "app", client_secret = "right" }'


def sandbox_config(port: int, *, store: str = "north", auth: str = AUTH, more: str = "") -> str:
    """Config of a store whose API is a sandbox at this port, with more lines for `[sandbox]`."""
    return f"""[sandbox]
bind = "127.0.0.1:{port}"
{more}
[stores.{store}]
base_url = "http://127.0.0.1:{port}"
allow_private = true
auth = {auth}
signing_secrets = ["{SECRET}"]
"""


def signed_store(name: str, scheme: str, *older_secrets: str, domain: str = "") -> str:
    """Config of a store with a secret of its own."""
    secrets = ", ".join(f'"{one}"' for one in (f"the secret of {name}", *older_secrets))
    text = f'[stores.{name}]\nscheme = "{scheme}"\nsigning_secrets = [{secrets}]\n'
    return text + (f'domain = "{domain}"\n' if domain else "")


class System:
    """The product on a real server: its config, its processes, and what a store and an operator do."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        plugin: str = "",
        child_processes: int = 2,
        more: str = "",
        port: int | None = None,
        data_dir: Path | None = None,
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.plugin = folder / "shop.py"
        self.plugin.write_text(plugin or "from workers import Router\nrouter = Router('shop')\n")
        self.config_file = folder / "config.toml"
        self.config_file.write_text(
            CONFIG.format(
                redis=url,
                data=data_dir or folder / "data",
                port=self.port,
                sandbox_port=free_port(),
                plugins='["shop.py"]',
                child_processes=child_processes,
                secret=SECRET,
                other=OTHER_SECRET,
                more=more,
            )
        )
        self.client: Redis = connect(url, timeout=5.0)
        self.inbox = Inbox(self.client)
        self.administration = Administration(self.client)
        self.housekeeping = Housekeeping(self.client)
        self.ledger = EventQueries(self.client)
        self.processes: list[Process] = []
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        self._occurred = dict[str, float]()
        """By delivery id. One that is sent again has the same body, also in another second."""

    @property
    def config(self) -> Config:
        return config_room.load(self.config_file, {})

    def start(
        self, *names: str, env: dict[str, str] | None = None, quicker: dict[str, float] | None = None
    ) -> list[Process]:
        """Start processes by name: web, worker, housekeeper, supervisor, console; with these times, not their own."""
        env = {**with_times(quicker or {}), **(env or {})}
        modules = {
            "web": "receiver.server.web",
            "worker": "workers.runtime.worker",
            "housekeeper": "workers.runtime.housekeeper",
            "supervisor": "workers",
            "console": "workers.console",
        }
        started = []
        for name in names:
            command = [sys.executable, "-m", modules[name], "--config", str(self.config_file)]
            started.append(Process(command, log=self.folder / f"{name}.log", env=env))
        self.processes += started
        if "web" in names:
            eventually(self.web_answers, what=f"web answers; {self.log('web')[-500:]}")
        return started

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def web_answers(self) -> bool:
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx2.HTTPError:
            return False

    def run_cli(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return storehooks(*arguments, "--config", str(self.config_file), env=env)

    def start_cli(self, *arguments: str) -> Process:
        """Start a command that does not end by itself; it ends with the test."""
        log = self.folder / f"{arguments[0]}.log"
        self.processes.append(start_command(*arguments, config=self.config_file, log=log))
        return self.processes[-1]

    def refuse_to_start(self, name: str) -> subprocess.CompletedProcess[str]:
        """The output of a process or a command that does not start."""
        modules = {"web": "receiver.server.web", "worker": "workers", "housekeeper": "workers.runtime.housekeeper"}
        if name not in modules:
            return self.run_cli(name)
        return run_to_end(modules[name], "--config", str(self.config_file))

    # What a store does

    def request(
        self, topic: str = "order.created", *, data: Any = None, store: str = "north", delivery_id: str | None = None
    ) -> Request:
        data = {"id": 1001, "total": "42.00"} if data is None else data
        delivery_id = delivery_id or f"msg_{secrets.token_hex(8)}"
        known, now = self.config.known_stores[store], time.time()
        occurred = self._occurred.setdefault(delivery_id, now)
        return compose(known, topic=topic, delivery_id=delivery_id, data=data, now=now, occurred=occurred)

    def post(self, request: Request, store: str = "north") -> httpx2.Response:
        url, headers = with_query(f"/webhooks/{store}", request.headers)
        return self.http.post(url, headers=headers, content=request.body)

    def deliver(self, topic: str = "order.created", **how: Any) -> str:
        """Send a signed event over HTTP; returns its id."""
        store = how.get("store", "north")
        answer = self.post(self.request(topic, **how), store)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def delivery(self, topic: str = "order.created", **how: Any) -> Delivery:
        """A verified delivery, as the receiver passes it to the inbox."""
        request = self.request(topic, **how)
        store = self.config.known_stores[how.get("store", "north")]
        return receive(request.headers, request.body, store=store, now=time.time())

    def accept(self, topic: str = "order.created", **how: Any) -> str:
        """Store an event in the inbox without a web server; returns its id."""
        return self.inbox.accept([self.delivery(topic, **how)])[0].id

    def declare_as_worker(self, *handlers: Declaration, worker: str = "host-1-1") -> None:
        """Declare handlers as a live worker does."""
        fields = {"queues": keys.rq_queue(keys.DEFAULT_QUEUE), "last_heartbeat": datetime.now(UTC).isoformat()}
        register_worker(self.client, worker, [keys.DEFAULT_QUEUE], fields)
        self.inbox.declare(handlers, worker=f"{worker}|here")

    def damage_mark_of(self, delivery: Delivery) -> str:
        """Damage the repeat mark of a delivery, so that the inbox refuses it and no other; returns the mark's key."""
        window = int(self.config.receiver.dedupe_window_unidentified * 1000)
        span = int(delivery.event.received_at.timestamp() * 1000) // window
        key = f"{keys.PREFIX}d:{delivery.event.store}:{delivery.content_hash}:{span}"
        self.client.rpush(key, "not a string")
        return key

    # What an operator sees

    def refusals(self) -> Refusals:
        """The refused deliveries of this host."""
        return open_existing_refusals(self.config.data_dir)

    def refused(self, number: int = 1) -> None:
        """Wait until this number of refusals is stored, which happens after the response."""
        eventually(lambda: self.refusals().count() >= number, what=f"{number} refusals are stored")

    def status(self, event_id: str) -> str:
        record = self.ledger.event(event_id)
        return record.summary.status if record else "unknown"

    def run_of(self, event_id: str, handler: str) -> Any:
        record = self.ledger.event(event_id)
        return next((run for run in record.runs if run.handler == handler), None) if record else None

    def settled(self, event_id: str, within: float = PATIENCE) -> str:
        return eventually(
            lambda: (s := self.status(event_id)) in ("settled", "failed") and s,
            within,
            what=f"{event_id} settled; the worker's log: {self.log('worker')[-800:]}",
        )

    def identity_holds(self) -> bool:
        """Whether accepted = settled + open + failed, in total and for each store."""
        counters = self.ledger.counters()
        every = [counters.total, *counters.stores.values()]
        return all(c["accepted"] == c["settled"] + c["open"] + c["failed"] for c in every)

    def close(self) -> None:
        self.http.close()  # first: a receiver that stops waits a moment for the senders it is connected to
        alive = [process for process in reversed(self.processes) if process.alive]
        for process in alive:  # all at once: each takes a moment to stop
            process.send(signal.SIGCONT)
            process.send(signal.SIGTERM)
        for process in alive:
            process.stop()
        self.client.close()


@contextmanager
def own_server(folder: Path, *extra: str, program: str = "") -> Iterator[Server]:
    server = Server(folder, extra=extra, program=program).start()
    try:
        yield server
    finally:
        server.stop()
        server.client.close()
