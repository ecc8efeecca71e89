"""A name server that does not answer holds nobody for longer than asked, and gets each question once."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from receiver.config.settings import RedisSettings
from receiver.inbox import connect
from receiver.inbox.redis.connecting import connect_to
from receiver.process.name_lookup import look_up
from tests.support.harness import Server, eventually, free_port

TIMEOUT = 0.2


class NameServer:
    """Answers with 127.0.0.1 while `answers` is set. `asked`: the names it was asked for."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host.endswith(".test"):
            self.asked.append(host)
            assert self.answers.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    found = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.answers.set()


def test_many_who_ask_for_a_name_meanwhile_wait_for_one_lookup(names: NameServer) -> None:
    def ask(timeout: float) -> object:
        try:
            return look_up("many.test", 1, timeout)
        except TimeoutError:
            return "late"

    with ThreadPoolExecutor(20) as askers:
        assert set(askers.map(ask, [TIMEOUT] * 20)) == {"late"}
        assert names.asked == ["many.test"]
        waiting = [askers.submit(ask, 60.0) for _ in range(20)]
        names.answers.set()
        assert [one.result() for one in waiting] == [["127.0.0.1"]] * 20


def test_an_address_is_not_looked_up_and_no_name_gives_a_sentence() -> None:
    assert look_up("127.0.0.1", 1, 0.0) == ["127.0.0.1"]
    assert look_up("::1", 1, 0.0) == ["::1"]
    for name, why in {"nowhere.invalid": "ame", "x" * 70: "is no name", "a..b": "is no name"}.items():
        with pytest.raises(OSError, match=why):
            look_up(name, 1, 30.0)


def test_a_forked_process_asks_for_itself(names: NameServer) -> None:
    """It has no thread that could answer."""
    with pytest.raises(TimeoutError):
        look_up("forked.test", 1, 0.0)
    child = os.fork()
    if not child:
        names.answers.set()
        os._exit(0 if look_up("forked.test", 1, 20.0) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "given",
    [
        {"url": "redis://plain.test"},
        {"url": "rediss://tls.test"},
        {"sentinels": ("sentinel.test:1",), "sentinel_name": "x"},
        {"sentinels": ("tls-sentinel.test:1",), "sentinel_name": "x", "url": "rediss://x"},
    ],
    ids=["redis", "TLS", "sentinels", "sentinels with TLS"],
)
def test_a_client_of_redis_waits_for_its_name_as_long_as_for_its_answer(
    names: NameServer, given: dict[str, Any]
) -> None:
    client = connect_to(RedisSettings(**given), timeout=TIMEOUT)
    began = time.monotonic()
    with pytest.raises(RedisError) as found:
        client.ping()
    assert time.monotonic() - began < 10 * TIMEOUT
    assert len(names.asked) == 1
    if "sentinels" not in given:
        assert "test was not looked up in 0.2 s" in str(found.value)


def test_redis_is_found_by_its_name_once_there_is_an_answer(names: NameServer, own_redis: Server) -> None:
    port = free_port()
    own_redis.client.config_set("port", port)
    client = connect(f"redis://found.test:{port}", timeout=TIMEOUT)
    with pytest.raises(RedisError):
        client.ping()
    names.answers.set()
    assert eventually(lambda: answers(client))
    with pytest.raises(RedisError, match="refused"):
        connect("redis://refusing.test:1", timeout=20).ping()


def test_a_lookup_that_fails_for_want_of_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ended, and who asked for the name afterwards waited for it in vain, as long as the process lived."""

    def without_memory(*given: Any, **named: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", without_memory)
        with pytest.raises(OSError, match="localhost cannot be looked up"):
            look_up("localhost", 80, 20)
    assert look_up("localhost", 80, 20)


def answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False
