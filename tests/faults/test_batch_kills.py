"""A batch of 100 events in one delivery is 100 events or none, whatever is killed, and a redelivered one adds none."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx2
import pytest

from receiver.inbox import keys
from receiver.inbox.redis.connecting import socket_path
from tests.support import batches
from tests.support.batches import in_inbox, items, signed
from tests.support.harness import Server, System, children_of, eventually
from tests.support.proxy import Proxy

SIZE = 100
DRAINED = "spooled deliveries are in the inbox"
PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    return "hi"
"""


@pytest.fixture
def proxied(make_system: Callable[..., System], own_redis: Server) -> Iterator[tuple[System, Proxy]]:
    """A system whose processes reach the server through a proxy, while the test connects directly."""
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    system = make_system(url=proxy.url, plugin=PLUGIN, more=batches.CONFIG)
    system.inbox.client = system.ledger.client = system.client = own_redis.client
    yield system, proxy
    system.close()
    proxy.close()


def post(system: System, name: str, count: int = SIZE) -> httpx2.Response | None:
    """The answer; None if the connection broke."""
    request = signed(items(name, count))
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.post(
            f"http://127.0.0.1:{system.port}/webhooks/batches",
            headers=request.headers,
            content=request.body,
            timeout=20,
        )
    return None


def raw(name: str) -> bytes:
    """A request that is sent at once: a client library takes longer to begin than the receiver to answer."""
    request = signed(items(name, SIZE))
    head = "".join(f"{key}: {value}\r\n" for key, value in request.headers.items())
    start = f"POST /webhooks/batches HTTP/1.1\r\nhost: here\r\n{head}content-length: {len(request.body)}\r\n\r\n"
    return start.encode() + request.body


def status_of(connection: socket.socket) -> bytes:
    """Empty if the connection broke."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(65536)[9:12]
    return b""


def redeliver(system: System, name: str) -> httpx2.Response:
    """Send it again and again, as a store does, until it is answered 2xx."""
    return eventually(lambda: (answer := post(system, name)) and answer.status_code == 200 and answer, 30)


def spooled(system: System) -> int:
    with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError):
        return int(system.http.get("/readyz").json()["spooled"])
    return -1


def kill_web(system: System) -> None:
    for child in children_of(system.processes[0].pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def counters(system: System) -> dict[str, int]:
    return dict(system.ledger.counters().stores["batches"])


def test_a_web_process_killed_after_the_script_leaves_all_events(proxied: tuple[System, Proxy]) -> None:
    system, proxy = proxied
    system.start("web")
    post(system, "first")
    proxy.at_reply(b"a_57", lambda: bool(kill_web(system)))
    assert post(system, "a") is None
    assert proxy.fired.wait(5)
    assert in_inbox(system, "a") == SIZE
    assert redeliver(system, "a").json()["status"] == "duplicate"
    assert in_inbox(system, "a") == SIZE
    assert (counters(system)["accepted"], counters(system)["duplicates"]) == (2 * SIZE, SIZE)


def test_a_lost_reply_spools_the_batch_and_adds_none(proxied: tuple[System, Proxy]) -> None:
    """The script has stored all events, but the receiver does not know it."""
    system, proxy = proxied
    system.start("web")
    post(system, "first")
    proxy.at_reply(b"a_57", lambda: False)
    answer = post(system, "a")
    assert answer is not None
    assert (answer.status_code, len(set(answer.json()["ids"]))) == (200, SIZE)
    eventually(lambda: spooled(system) == 0)
    assert in_inbox(system, "a") == SIZE
    assert counters(system)["accepted"] == 2 * SIZE
    assert counters(system).get("duplicates", 0) == 0, "the store has sent it once"


def test_a_drain_killed_half_way_moves_the_rest_and_doubles_none(
    proxied: tuple[System, Proxy], own_redis: Server
) -> None:
    system, proxy = proxied
    system.start("web")
    post(system, "first")
    own_redis.kill()
    answer = post(system, "a", 300)
    assert answer is not None
    assert answer.status_code == 200
    assert spooled(system) == 300
    proxy.at_reply(b"a_200", lambda: bool(kill_web(system)))  # in the second of three groups
    own_redis.start()
    assert proxy.fired.wait(20)
    assert in_inbox(system, "a") == 256
    eventually(lambda: spooled(system) == 0, 30)
    assert in_inbox(system, "a") == 300
    assert counters(system)["accepted"] == 400
    assert counters(system).get("duplicates", 0) == 0
    assert system.identity_holds()


class Rounds:
    """Batches, each with a kill at a random moment of its way; a killed worker is started again."""

    def __init__(self, system: System, server: Server, seed: int) -> None:
        self.system, self.server, self.random = system, server, random.Random(seed)
        _, self.worker, _ = system.start("web", "worker", "housekeeper")
        self.sent = 0
        self.kinds: list[str] = []

    def run(self, kind: str) -> None:
        name = f"round{self.sent}"
        with socket.create_connection(("127.0.0.1", self.system.port), 30) as connection:
            connection.sendall(raw(name))
            time.sleep(self.random.uniform(0, 0.02))  # the moment of the kill is what the seed decides
            self.kill(kind)
            is_accepted = status_of(connection) == b"200"
        eventually(lambda: spooled(self.system) == 0, 30, "the receiver is back and its spool is empty")
        found = in_inbox(self.system, name)
        assert found == SIZE if is_accepted else found in (0, SIZE), f"{kind}: {found} of {SIZE}"
        log_before = len(self.system.log("web"))
        answered = redeliver(self.system, name).json()["status"]
        # Redis knows every event it has. Only the spool, which takes a batch if the server is late, knows none.
        if found and answered == "accepted":
            eventually(lambda: DRAINED in self.system.log("web")[log_before:], 30, "the repeat was in the spool")
        else:
            assert answered == ("duplicate" if found else "accepted")
        eventually(lambda: in_inbox(self.system, name) == SIZE)
        self.sent += 1
        self.kinds.append(f"{kind}: {'2xx' if is_accepted else 'no 2xx'}, {found}")

    def kill(self, kind: str) -> None:
        if kind == "web":
            kill_web(self.system)
        elif kind == "server":
            self.server.kill()
            time.sleep(self.random.uniform(0, 0.3))
            self.server.start()
        elif kind == "worker":
            self.worker.kill()
            (self.worker,) = self.system.start("worker")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "rounds"), [pytest.param(1, 4, marks=pytest.mark.full), pytest.param(2, 30, marks=pytest.mark.slow)]
)
def test_a_batch_is_all_events_or_none_over_kills_at_any_moment(
    make_system: Callable[..., System], own_redis: Server, seed: int, rounds: int
) -> None:
    system = make_system(url=own_redis.url, plugin=PLUGIN, more=batches.CONFIG)
    going = Rounds(system, own_redis, seed)
    for _ in range(rounds):
        for kind in ("web", "server", "worker"):
            going.run(kind)
    eventually(lambda: spooled(system) == 0, 30)
    print("\n".join(f"{count:3} x {kind} events" for kind, count in sorted(Counter(going.kinds).items())))
    eventually(
        lambda: counters(system)["settled"] == going.sent * SIZE,
        60,
        f"all events are settled: {counters(system)}, {going.kinds}",
    )
    assert counters(system)["accepted"] == going.sent * SIZE
    assert len(system.client.keys(keys.EVENT + "*")) == going.sent * SIZE
    assert system.identity_holds()
