"""The installations that rows need: on one server, behind a proxy that fails, of release 0.1, and with Sentinel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from receiver.inbox.redis.connecting import socket_path
from tests.drill.fleet import CURRENT, Doctor, Fleet
from tests.support.harness import Server, own_server
from tests.support.proxy import Proxy
from tests.support.releases import installed
from tests.support.sentinels import NAME, Sentinels

OLD = "0.1.0"


@dataclass
class Installation:
    """What a fault can act on."""

    fleet: Fleet
    server: Server | None = None
    proxy: Proxy | None = None
    sentinels: Sentinels | None = None
    doctors: list[Doctor] = field(default_factory=list)

    def ask_doctor(self) -> None:
        """Have `doctor` look at this moment. It looks while the fault goes on."""
        self.doctors.append(self.fleet.start_doctor())

    def wait_for_doctor(self) -> None:
        """Keep things as they are until `doctor` has looked at everything."""
        assert all(isinstance(one.findings, list) for one in self.doctors)


Opened = Callable[[Path], AbstractContextManager[Installation]]


@contextmanager
def on_one_server(folder: Path, *, programs: Path = CURRENT) -> Iterator[Installation]:
    (folder / "server").mkdir(parents=True)
    with own_server(folder / "server") as server:
        fleet = Fleet(folder / "fleet", [f'url = "{server.url}"'] * 2, programs=programs)
        try:
            yield Installation(fleet.start(), server=server)
        finally:
            fleet.close()


@contextmanager
def behind_a_proxy(folder: Path) -> Iterator[Installation]:
    (folder / "server").mkdir(parents=True)
    with own_server(folder / "server") as server:
        proxy = Proxy(folder, str(socket_path(server.data_dir)))
        fleet = Fleet(folder / "fleet", [f'url = "{proxy.url}"'] * 2)
        try:
            yield Installation(fleet.start(), server=server, proxy=proxy)
        finally:
            fleet.close()
            proxy.close()


@contextmanager
def of_release(folder: Path) -> Iterator[Installation]:
    """Of release 0.1, with the packages that it was locked to."""
    with on_one_server(folder, programs=installed(OLD)) as found:
        yield found


def with_sentinels(ack: str, *settings: str) -> Opened:
    """A primary with one replica and three sentinels, and with these settings of both servers."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Installation]:
        sentinels = Sentinels(folder / "sentinels", *settings).start()
        addresses = ", ".join(f'"{one}"' for one in sentinels.addresses)
        lines = f'url = "redis://by-sentinel"\nack = "{ack}"\nsentinels = [{addresses}]\nsentinel_name = "{NAME}"'
        fleet = Fleet(folder / "fleet", [lines] * 2)
        try:
            yield Installation(fleet.start(), sentinels=sentinels)
        finally:
            fleet.close()
            sentinels.close()

    return opened
