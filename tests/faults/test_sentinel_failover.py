"""Sentinel failover and TLS: clients follow the primary, and the server's certificate is verified."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.config.settings import RedisSettings
from receiver.contract.errors import ServerUnreachable, ServerUnusable
from receiver.inbox import EventQueries, Inbox, connect_to, keys
from receiver.inbox.redis import embedded_server
from receiver.inbox.redis.connecting import check, socket_path
from receiver.inbox.redis.polled_connection import PolledConnection
from receiver.inbox.redis.server_faults import describe
from receiver.inbox.redis.timed_connections import TimedPrimaryTlsConnection
from tests.receiver.spool.test_spool import HELLO, spooled
from tests.support.harness import Process, Server, System, eventually, own_server
from tests.support.load import Load
from tests.support.proxy import Proxy
from tests.support.sentinels import NAME, Sentinels, leads
from tests.support.tls_proxy import TlsProxy

UNREPLICATED_SECONDS = 1.0
"""Before a failover: deliveries of this time may not have reached the replica."""
NOTICED_SECONDS = 5.0
"""After a failover: within this time every process knows the new primary. The sentinels check every second, exchange
results every other second, and are asked twice a second."""


def test_with_sentinels_the_url_gives_user_database_and_tls() -> None:
    given = RedisSettings(
        url="rediss://me:secret@ignored:1/3", sentinels=("a:26379", "[::1]:26380"), sentinel_name=NAME, ca_file="ca.pem"
    )
    client = connect_to(given, timeout=0.5)
    how = client.connection_pool.connection_kwargs
    assert (how["username"], how["password"], how["db"], how["ssl_ca_certs"]) == ("me", "secret", 3, "ca.pem")
    assert "host" not in how
    assert client.connection_pool.connection_class is TimedPrimaryTlsConnection
    asked = [one.connection_pool.connection_kwargs for one in client.connection_pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("a", 26379), ("::1", 26380)]
    assert describe(client) == "shop (by its sentinels)"
    assert "secret" not in repr(client)


def test_sentinels_are_shown_the_client_certificate_of_the_url() -> None:
    url = "rediss://ignored?ssl_certfile=cert.pem&ssl_keyfile=key.pem"
    given = RedisSettings(url=url, sentinels=("a:26379",), sentinel_name=NAME, ca_file="ca.pem")
    pool = connect_to(given, timeout=0.5).connection_pool
    (asked,) = pool.sentinel_manager.sentinels
    for how in (pool.connection_kwargs, asked.connection_pool.connection_kwargs):
        shown = how["ssl_certfile"], how["ssl_keyfile"], how["ssl_ca_certs"]
        assert shown == ("cert.pem", "key.pem", "ca.pem")


def test_sentinels_that_do_not_answer_make_the_server_unreachable() -> None:
    given = RedisSettings(sentinels=("127.0.0.1:1",), sentinel_name=NAME)
    with pytest.raises(ServerUnreachable, match=r"shop \(by its sentinels\) does not answer"):
        check(connect_to(given, timeout=0.5))


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    found = Sentinels(tmp_path / "sentinels").start()
    yield found
    found.close()


def test_every_kind_of_connection_follows_the_primary_before_the_old_one_is_demoted(sentinels: Sentinels) -> None:
    client = connect_to(RedisSettings(sentinels=tuple(sentinels.addresses), sentinel_name=NAME), timeout=2.0)
    inbox, polled = Inbox(client, direct=True), PolledConnection(client)
    inbox.declare([])
    assert client.exists(keys.DECLARED_AT)
    assert not polled.outdated
    sentinels.fail_over()
    eventually(lambda: inbox.declare([]) and polled.outdated, 15)
    assert leads(sentinels.primary), "the old primary does not know yet"
    sentinels.primary.client.delete(keys.DECLARED_AT)
    inbox.declare([])
    assert client.exists(keys.DECLARED_AT)
    assert not sentinels.primary.client.exists(keys.DECLARED_AT), "the old primary gets no more writes"
    polled.close()
    client.close()


# Row 24


def follow(system: System, sentinels: Sentinels, ack: str = "stored") -> System:
    """Start a system that finds its server by the sentinels."""
    lines = f'sentinels = {sentinels.addresses}\nsentinel_name = "{NAME}"\nack = "{ack}"\ntimeout = "1s"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{lines}", 1))
    system.client = connect_to(system.config.redis, timeout=2.0)
    system.inbox, system.ledger = Inbox(system.client), EventQueries(system.client)
    system.start("web", "worker", "housekeeper")
    assert eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json(), 20)
    return system


def lost_of(system: System, load: Load) -> dict[str, float]:
    """The events that were answered 2xx and are not stored, and when they were answered. Waits for the spool first."""
    eventually(lambda: spooled(system) == 0, 60, what="the spool is drained")
    eventually(lambda: system.ledger.counters().total["open"] == 0, 30)
    stored = {event.id for event in system.ledger.events(limit=10**6)}
    assert {system.status(one) for one in stored} == {"settled"}
    assert system.identity_holds()
    return {event_id: at for event_id, at in load.answered if event_id not in stored}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ack", ["stored", "replica"])
def test_row_24_after_a_failover_under_load_work_continues_within_seconds(
    make_system: Callable[..., System], sentinels: Sentinels, ack: str
) -> None:
    system = follow(make_system(plugin=HELLO, url="redis://127.0.0.1:1"), sentinels, ack)
    with Load(system, senders=6) as load:
        eventually(lambda: len(load.answered) > 300, 30)
        assert sentinels.in_sync()
        sentinels.primary.kill()
        killed, before = time.time(), len(load.answered)
        eventually(lambda: leads(sentinels.replica), 30)
        after = time.time() - killed
        if ack == "replica":  # without a replica, deliveries wait in the spool until the old primary is back
            sentinels.primary.start()
        eventually(lambda: spooled(system) == 0, 60, what="the spool is drained")
        served = time.time() - killed
        answered = len(load.answered)
        eventually(lambda: len(load.answered) > answered + 50, 20)
    lost = lost_of(system, load)
    print(
        f"\nack {ack}: new primary after {after:.1f} s, spool drained after {served:.1f} s; {load}; "
        f"{len(load.answered) - before:,} since the kill; {len(lost)} acknowledged lost"
    )
    assert load.others == load.failed == []
    assert after < 15
    if ack == "replica":
        assert lost == {}
    assert all(killed - UNREPLICATED_SECONDS < at <= killed for at in lost.values()), "only the last deliveries"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ack", ["stored", "replica"])
def test_row_24_a_replaced_primary_that_still_accepts_writes_is_left_before_it_is_demoted(
    make_system: Callable[..., System], sentinels: Sentinels, ack: str
) -> None:
    """The sentinels demote it after ten seconds. Everything answered until then was lost."""
    system = follow(make_system(plugin=HELLO, url="redis://127.0.0.1:1"), sentinels, ack)
    with Load(system, senders=6) as load:
        eventually(lambda: len(load.answered) > 300, 30)
        assert sentinels.in_sync()
        sentinels.fail_over()
        eventually(lambda: leads(sentinels.replica), 30)
        promoted = time.time()
        settled = EventQueries(sentinels.replica.client).counters().total["settled"]
        if ack == "stored":  # with replica, nothing is accepted before the old primary is a replica
            eventually(lambda: EventQueries(sentinels.replica.client).counters().total["settled"] > settled, 10)
            assert leads(sentinels.primary), "workers have followed before it was demoted"
        eventually(lambda: not leads(sentinels.primary), 30)
        demoted = time.time() - promoted
        before = len(load.answered)
        eventually(lambda: len(load.answered) > before + 50, 20)
    lost = lost_of(system, load)
    left = max(lost.values(), default=promoted) - promoted
    print(f"\nack {ack}: demoted after {demoted:.1f} s, left after {left:.1f} s; {load}; {len(lost)} acknowledged lost")
    assert load.others == load.failed == []
    if ack == "replica":
        assert lost == {}
    assert all(-UNREPLICATED_SECONDS < at - promoted < NOTICED_SECONDS for at in lost.values()), (
        "only until it is known"
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_row_24_a_primary_that_hung_gets_no_writes_when_it_continues(
    make_system: Callable[..., System], sentinels: Sentinels
) -> None:
    """An idle receiver still had its connection, and stored all deliveries of ten seconds in the old primary."""
    system = follow(make_system(plugin=HELLO, url="redis://127.0.0.1:1"), sentinels)
    assert system.settled(system.deliver()) == "settled"
    assert sentinels.primary.process
    sentinels.primary.process.send(signal.SIGSTOP)
    eventually(lambda: leads(sentinels.replica), 30)
    eventually(lambda: system.http.get("/readyz").json()["stores_in"] == "redis", 10)
    sentinels.primary.process.send(signal.SIGCONT)
    answered = [system.deliver() for _ in range(20)]
    assert leads(sentinels.primary), "it is not demoted yet"
    assert {system.settled(one) for one in answered} == {"settled"}
    eventually(lambda: not leads(sentinels.primary), 30)
    assert {system.status(one) for one in answered} == {"settled"}


# An address that leads to another server


def test_a_demoted_server_is_left_for_the_one_its_address_leads_to(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    """Clients stayed connected to it: it answers, and refuses every write."""
    proxy = Proxy(tmp_path, str(socket_path(own_redis.data_dir)))
    system = make_system(url=proxy.url, plugin=HELLO)
    system.start("web", "worker", "housekeeper")
    for _ in range(2):  # the second uses the polled connection
        assert system.settled(system.deliver()) == "settled"
    (folder := tmp_path / "other").mkdir()
    with own_server(folder) as other:
        proxy.upstream = str(socket_path(other.data_dir))
        own_redis.client.replicaof("127.0.0.1", 1)
        system.client, system.ledger = other.client, EventQueries(other.client)
        assert system.settled(system.deliver()) == "settled"
        assert spooled(system) == 0
        system.close()
    proxy.close()


# TLS


@pytest.fixture
def tls_proxy(own_redis: Server, tmp_path: Path) -> Iterator[TlsProxy]:
    found = TlsProxy(tmp_path, socket_path(own_redis.data_dir))
    yield found
    found.listener.close()


@pytest.mark.full
def test_tls_is_verified_and_everything_works_over_it(make_system: Callable[..., System], tls_proxy: TlsProxy) -> None:
    with pytest.raises(ServerUnusable, match="self-signed certificate"):
        check(connect_to(RedisSettings(url=tls_proxy.url), timeout=2.0))
    system = make_system(url=tls_proxy.url, plugin=HELLO)
    line = f'ca_file = "{tls_proxy.certificate}"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{line}", 1))
    system.client = connect_to(system.config.redis, timeout=2.0)
    system.inbox, system.ledger = Inbox(system.client), EventQueries(system.client)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "settled"
    assert system.http.get("/readyz").json()["stores_in"] == "redis"
    assert "accepted 1 = settled 1" in system.run_cli("stats").stdout


@pytest.mark.full
def test_a_sentinel_that_requires_a_client_certificate_names_the_primary(tmp_path: Path) -> None:
    socket = tmp_path / "sentinel.sock"
    file = tmp_path / "sentinel.conf"
    file.write_text(f"port 0\nunixsocket {socket}\ndir {tmp_path}\nsentinel monitor {NAME} 127.0.0.1 6399 1\n")
    command = [str(embedded_server.binary()), str(file), "--sentinel"]
    sentinel = Process(command, log=tmp_path / "sentinel.log")
    eventually(socket.exists, what="the sentinel listens")
    proxy = TlsProxy(tmp_path, socket, requires_certificate=True)
    named = {"sentinels": (f"127.0.0.1:{proxy.port}",), "sentinel_name": NAME, "ca_file": str(proxy.certificate)}
    with pytest.raises(ServerUnusable, match="requires a client certificate"):
        check(connect_to(RedisSettings(url="rediss://named-by-it", **named), timeout=2.0))
    shown = f"rediss://named-by-it?ssl_certfile={proxy.certificate}&ssl_keyfile={tmp_path / 'key.pem'}"
    client = connect_to(RedisSettings(url=shown, **named), timeout=2.0)
    assert client.connection_pool.get_master_address() == ("127.0.0.1", 6399)
    proxy.listener.close()
    sentinel.stop()


@pytest.mark.full
def test_over_tls_deliveries_do_not_open_a_connection_each(
    make_system: Callable[..., System], tls_proxy: TlsProxy, own_redis: Server
) -> None:
    system = make_system(url=tls_proxy.url)
    line = f'ca_file = "{tls_proxy.certificate}"\n'
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", f"[redis]\n{line}", 1))
    system.start("web")
    system.deliver()
    before = own_redis.client.info("stats")["total_connections_received"]
    for _ in range(20):
        system.deliver()
    assert own_redis.client.info("stats")["total_connections_received"] - before < 5
