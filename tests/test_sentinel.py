"""Sentinel and TLS: which server is meant may change under way, and who answers is verified."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.contract.errors import ServerAway
from receiver.contract.settings import RedisSettings
from receiver.inbox import Inbox, Ledger, connect_to
from receiver.inbox.client import check, describe, socket_path
from tests.harness import Server, System, eventually
from tests.load import Load
from tests.sentinels import NAME, Sentinels
from tests.test_spool import HELLO, spooled


def test_with_sentinels_the_url_says_as_whom_and_by_what_means() -> None:
    given = RedisSettings(
        url="rediss://me:secret@ignored:1/3", sentinels=("a:26379", "[::1]:26380"), sentinel_name=NAME, ca_file="ca.pem"
    )
    client = connect_to(given, timeout=0.5)
    how = client.connection_pool.connection_kwargs
    assert (how["username"], how["password"], how["db"], how["ssl_ca_certs"]) == ("me", "secret", 3, "ca.pem")
    assert "host" not in how
    assert client.connection_pool.connection_class.__name__ == "SentinelManagedSSLConnection"
    asked = [one.connection_pool.connection_kwargs for one in client.connection_pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("a", 26379), ("::1", 26380)]
    assert describe(client) == "shop (by its sentinels)"
    assert "secret" not in repr(client)


def test_sentinels_that_do_not_answer_are_a_server_that_is_away() -> None:
    given = RedisSettings(sentinels=("127.0.0.1:1",), sentinel_name=NAME)
    with pytest.raises(ServerAway, match=r"shop \(by its sentinels\) does not answer"):
        check(connect_to(given, timeout=0.5))


# Row 24


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ack", ["stored", "replica"])
def test_row_24_a_failover_under_load_goes_on_within_seconds(
    make_system: Callable[..., System], tmp_path: Path, ack: str
) -> None:
    sentinels = Sentinels(tmp_path / "sentinels").start()
    try:
        _fail_over(make_system, sentinels, ack)
    finally:
        sentinels.close()


def _fail_over(make_system: Callable[..., System], sentinels: Sentinels, ack: str) -> None:
    system = make_system(plugin=HELLO, url="redis://127.0.0.1:1")
    lines = f'sentinels = {sentinels.addresses}\nsentinel_name = "{NAME}"\nack = "{ack}"\ntimeout = "1s"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{lines}", 1))
    client = connect_to(system.config.redis, timeout=2.0)
    system.client, system.inbox, system.ledger = client, Inbox(client), Ledger(client)
    system.start("web", "worker", "housekeeper")
    assert eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json(), 20)
    with Load(system, senders=6) as load:
        eventually(lambda: len(load.answered) > 300, 30)
        sentinels.primary.kill()
        killed, before = time.time(), len(load.answered)
        eventually(lambda: sentinels.replica.client.info("replication")["role"] == "master", 30)
        promoted = time.time() - killed
        if ack == "replica":  # it has nobody to wait for: deliveries wait in the spool until the old one is back
            sentinels.primary.start()
        eventually(lambda: spooled(system) == 0, 60, what="the spool is drained")
        served = time.time() - killed
        many = len(load.answered)
        eventually(lambda: len(load.answered) > many + 50, 20)
    eventually(lambda: system.ledger.counters().total["open"] == 0, 30)
    kept = {event.id for event in system.ledger.events(limit=10**6)}
    lost = load.ids - kept
    print(
        f"\nack {ack}: new primary after {promoted:.1f} s, spool drained after {served:.1f} s; {load}; "
        f"{len(load.answered) - before:,} since the kill; {len(lost)} acknowledged lost"
    )
    assert load.others == load.failed == []
    assert system.identity_holds()
    assert {system.status(one) for one in kept} == {"settled"}
    if ack == "replica":
        assert lost == set()
    assert promoted < 15


# TLS


class TlsDoor:
    """A TLS listener in front of a server that speaks none."""

    def __init__(self, folder: Path, upstream: Path) -> None:
        self.certificate, key = folder / "cert.pem", folder / "key.pem"
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]  # noqa: RUF005
            + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.certificate)],
            check=True,
            capture_output=True,
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._upstream = str(upstream)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"rediss://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):  # one that does not trust us goes away
                inner = self._context.wrap_socket(client, server_side=True)
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                for one, other in ((inner, server), (server, inner)):
                    threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
        other.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def door(own_redis: Server, tmp_path: Path) -> Iterator[TlsDoor]:
    found = TlsDoor(tmp_path, socket_path(own_redis.data_dir))
    yield found
    found.listener.close()


def test_tls_is_verified_and_the_whole_way_works_over_it(make_system: Callable[..., System], door: TlsDoor) -> None:
    with pytest.raises(ServerAway, match="certificate verify failed"):
        check(connect_to(RedisSettings(url=door.url), timeout=2.0))
    system = make_system(url=door.url, plugin=HELLO)
    line = f'ca_file = "{door.certificate}"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{line}", 1))
    system.client = connect_to(system.config.redis, timeout=2.0)
    system.inbox, system.ledger = Inbox(system.client), Ledger(system.client)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "settled"
    assert system.http.get("/readyz").json()["keeps_in"] == "redis"
    assert "accepted 1 = settled 1" in system.run_cli("stats").stdout


def test_over_tls_a_group_is_kept_without_a_connection_of_its_own(
    make_system: Callable[..., System], door: TlsDoor, own_redis: Server
) -> None:
    system = make_system(url=door.url)
    line = f'ca_file = "{door.certificate}"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{line}", 1))
    system.start("web")
    system.deliver()
    before = own_redis.client.info("stats")["total_connections_received"]
    for _ in range(20):
        system.deliver()
    assert own_redis.client.info("stats")["total_connections_received"] - before < 5
