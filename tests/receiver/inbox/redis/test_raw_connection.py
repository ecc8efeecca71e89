"""Connections outside the pool, when the server sends unexpected data: they are replaced, and the process continues."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from receiver.inbox import Inbox, connect
from receiver.inbox.keys import rq_intermediate, rq_list
from receiver.inbox.redis.raw_connection import RawConnection
from tests.support.harness import Server, System, eventually
from tests.support.proxy import Proxy
from workers.runtime.worker.wake_ups import WakeUps

EXTRA = [b"hello\r\n", b"+OK\r\n", b":1\r\n", b"*-1\r\n*-1\r\n"]

INTERMEDIATE = rq_intermediate("default")


@pytest.fixture
def proxy(tmp_path: Path, own_redis: Server) -> Iterator[Proxy]:
    one = Proxy(tmp_path, own_redis.url.removeprefix("unix://"))
    yield one
    one.close()


@pytest.mark.parametrize("extra", EXTRA)
def test_a_wake_up_listener_reconnects_after_unexpected_data(own_redis: Server, proxy: Proxy, extra: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        wake_ups = WakeUps(connect(proxy.url, timeout=2.0), selector)
        wake_ups.listen_to(["default", "slow"])
        wake_ups.arm()
        proxy.inject(extra)

        def woken() -> set[bytes]:
            wake_ups.arm()
            if not own_redis.client.exists(rq_list("default")):  # the server may not know yet that a connection is lost
                own_redis.client.rpush(rq_list("default"), "wake-default")
            return {key.data.read() for key, _ in selector.select(0.2)} & {b"wake-default"}

        for _ in range(2):  # the first may be due to the unexpected data
            assert eventually(woken)
        assert not own_redis.client.exists(INTERMEDIATE)
        wake_ups.drop()


def test_a_direct_connection_reconnects_after_unexpected_data(
    make_system: Callable[..., System], own_redis: Server, proxy: Proxy
) -> None:
    system = make_system(url=own_redis.url)
    system.accept()
    direct = Inbox(connect(proxy.url, timeout=2.0), direct=True)
    assert len(direct.claim({"": 1}, capacity=1).runs) == 1
    proxy.inject(b"hello\r\n")
    with pytest.raises(RedisError):
        direct.claim({"": 1}, capacity=1)
    assert direct.claim({"": 1}, capacity=1).runs == ()


def test_surplus_replies_are_not_taken_for_a_commands_reply(own_redis: Server) -> None:
    raw = RawConnection(own_redis.client)
    raw.send([("PING",), ("PING",)])
    with selectors.DefaultSelector() as selector:
        selector.register(raw, selectors.EVENT_READ)
        assert selector.select(5)
    with pytest.raises(LostConnection, match="more replies"):
        raw.execute([("ECHO", "mine")])
    raw.close()
