"""Connections outside the pool, when something comes that nobody asked for: they are left, and nobody dies of it."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from receiver.inbox import Inbox, connect
from receiver.inbox.keys import rq_list
from receiver.inbox.redis.raw_connection import RawConnection
from tests.support.harness import Server, System, eventually
from tests.support.proxy import Proxy
from workers.runtime.worker.wake_ups import WakeUpListener

EXTRA = [b"hello\r\n", b"+OK\r\n", b":1\r\n", b"*-1\r\n*-1\r\n"]


@pytest.fixture
def proxy(tmp_path: Path, own_redis: Server) -> Iterator[Proxy]:
    one = Proxy(tmp_path, own_redis.url.removeprefix("unix://"))
    yield one
    one.close()


@pytest.mark.parametrize("extra", EXTRA)
def test_a_bell_that_hears_something_else_is_hung_anew(own_redis: Server, proxy: Proxy, extra: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        bell = WakeUpListener(connect(proxy.url, timeout=2.0), ["default"], selector)
        assert bell.arm()
        proxy.say(extra)
        assert selector.select(5)
        assert bell.read() is None
        assert eventually(bell.arm)
        own_redis.client.rpush(rq_list("default"), "wake-default")
        assert selector.select(5)
        assert bell.read() == "wake-default"
        bell.drop()


def test_a_worker_that_is_told_nonsense_connects_anew(
    make_system: Callable[..., System], own_redis: Server, proxy: Proxy
) -> None:
    system = make_system(url=own_redis.url)
    system.accept()
    direct = Inbox(connect(proxy.url, timeout=2.0), direct=True)
    assert len(direct.claim({"": 1}, room=1).runs) == 1
    proxy.say(b"hello\r\n")
    with pytest.raises(RedisError):
        direct.claim({"": 1}, room=1)
    assert direct.claim({"": 1}, room=1).runs == ()


def test_replies_that_nobody_asked_for_are_nobodys(own_redis: Server) -> None:
    plain = RawConnection(own_redis.client)
    plain.send([("PING",), ("PING",)])
    with selectors.DefaultSelector() as selector:
        selector.register(plain, selectors.EVENT_READ)
        assert selector.select(5)
    with pytest.raises(LostConnection, match="more replies"):
        plain.execute([("ECHO", "mine")])
    plain.close()
