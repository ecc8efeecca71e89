"""docs/scaling.md: its two cells behind its proxy are run, and its table is that of the benchmark."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from benchmarks import scaling
from receiver.contract.compose import compose
from tests.drill.counting import read_effects
from tests.drill.fleet import Fleet
from tests.drill.front import nginx_command
from tests.support.harness import OTHER_SECRET, SECRET, Process, Server, eventually, own_server, port_is_free
from tests.support.programs import ROOT
from workers.testing.local_system import free_port

PAGE = (ROOT / "docs/scaling.md").read_text()
SECRETS = {"north": SECRET, "south": OTHER_SECRET}


@dataclass
class Cells:
    """Two installations, each with its own Redis, and the proxy of the page in front of them."""

    fleets: dict[str, Fleet]
    """By the store that each has."""
    servers: dict[str, Server]
    port: int

    def send(self, store: str, delivery_id: str) -> httpx2.Response:
        (signer,) = self.fleets.get(store, self.fleets["north"]).hosts[0].config.known_stores.values()
        request = compose(signer, topic="order.created", delivery_id=delivery_id, data={"id": 1}, now=time.time())
        url = f"http://127.0.0.1:{self.port}/webhooks/{store}"
        return httpx2.post(url, headers=request.headers, content=request.body, timeout=20)

    def handled(self, store: str) -> set[str]:
        """The events that the handlers of this store's cell have handled."""
        return {one.event_id for one in read_effects(self.fleets[store].effects.read_text())}


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[Cells]:
    with ExitStack() as stack:
        fleets, servers = {}, {}
        for store, secret in SECRETS.items():
            (tmp_path / store / "server").mkdir(parents=True)
            servers[store] = stack.enter_context(own_server(tmp_path / store / "server"))
            lines = [f'url = "{servers[store].url}"']
            fleet = Fleet(tmp_path / store / "fleet", lines, processes=(1,), stores={store: secret})
            stack.callback(fleet.close)
            fleets[store] = fleet.start()
        port = _start_proxy(tmp_path, stack, *(fleet.hosts[0].port for fleet in fleets.values()))
        yield Cells(fleets, servers, port)


def _start_proxy(folder: Path, stack: ExitStack, first: int, second: int) -> int:
    (text,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    port = free_port()
    for shown, real in (("8000", port), ("10.0.1.10:8000", first), ("10.0.2.10:8000", second)):
        address = shown if ":" in shown else f"listen {shown};"
        assert address in text, address
        text = text.replace(address, f"127.0.0.1:{real}" if ":" in shown else f"listen 127.0.0.1:{real};")
    (folder / "proxy").mkdir()
    proxy = Process(nginx_command(folder / "proxy", text), log=folder / "proxy.log")
    stack.callback(proxy.stop)
    eventually(lambda: not port_is_free(port), 20, what=f"nginx listens; {proxy.output()}")
    return port


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_two_cells_behind_one_proxy_each_handle_their_own_stores(cells: Cells) -> None:
    ids = {store: {cells.send(store, f"{store}-{n}").json()["id"] for n in range(20)} for store in SECRETS}
    for store, sent in ids.items():
        eventually(lambda store=store, sent=sent: cells.handled(store) == sent, 30, what=f"{store}: all are handled")
    assert cells.send("unknown", "a").status_code == 401
    # The fault of one cell is not that of the other.
    cells.servers["south"].kill()
    during = {store: cells.send(store, f"{store}-during").json()["id"] for store in SECRETS}
    eventually(lambda: during["north"] in cells.handled("north"), 30)
    assert during["south"] not in cells.handled("south")
    cells.servers["south"].start()
    eventually(lambda: during["south"] in cells.handled("south"), 60, what="it was in the spool")
    assert not ids["north"] & cells.handled("south")


def test_the_page_has_the_columns_of_the_benchmark() -> None:
    head = next(line for line in PAGE.splitlines() if line.startswith("| handlers |"))
    assert tuple(cell.strip() for cell in head.strip("|").split("|")) == scaling.HEAD
    shapes = re.findall(r"^\| (0|\d+ (?:fast|slow)) \|", PAGE, re.MULTILINE)
    wanted = [f"{number} {'slow' if slow else 'fast'}" if number else "0" for number, slow in scaling.SHAPES]
    assert shapes == wanted


def test_the_first_limit_is_the_part_that_can_do_the_fewest_events() -> None:
    accept = scaling.Accepting(web=200.0, redis=100.0)
    fast = scaling.Cost(redis=150.0, worker=100.0, children=50.0, open_bytes=3000.0, settled_bytes=2500.0)
    limits = scaling.limits_of(1, False, fast, accept)
    assert {name: round(value) for name, value in limits.items()} == {
        "Redis": 4000, "web": 5000, "worker": 10_000, "child processes": 80_000,
    }  # fmt: skip
    assert scaling.line(1, False, fast, accept)[-1] == "Redis"
    waiting = scaling.limits_of(10, True, fast, accept)
    assert round(waiting["child processes"]) == 20, "four child processes wait 200 ms for each event"
    assert scaling.line(10, True, fast, accept)[-1] == "child processes"
