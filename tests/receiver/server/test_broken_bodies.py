"""Senders that have signed a delivery and break off all others, beside a busy one: through real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from redis import Redis

from receiver.contract.intake import Delivery
from receiver.delivery.storage import Stored, StoreResults
from receiver.server import held_bytes, open_connections
from receiver.server.deliveries import Deliveries
from receiver.server.group_commit import GroupCommit
from receiver.server.http_connection import HttpConnection
from receiver.server.open_connections import OpenConnections
from receiver.server.turns import Turns
from tests.receiver.delivery.test_unknown_stores import admission
from tests.support.bad_input import Corpus
from tests.support.harness import System

BUSY, CROWD = "127.0.0.1", tuple(f"127.0.0.{number}" for number in range(66, 70))
HELD_BYTES = 4 << 20
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class StoredAtOnce:
    busy = False

    def store(self, deliveries: Sequence[Delivery], on_stored: Callable[[StoreResults], None]) -> None:
        on_stored([Stored("accepted", "1") for _ in deliveries])


class Process:
    """What a web process has in its loop."""

    def __init__(self, system: System, redis: Redis) -> None:
        turns = Turns(asyncio.get_running_loop())
        commit = cast(GroupCommit, StoredAtOnce())
        deliveries = Deliveries(admission(system.config, redis), commit, lambda *_: None, lambda *_: None)
        turns.at_end = deliveries.store_next_group
        self.connections = OpenConnections(turns, deliveries.serve, max_body=1 << 20, read_seconds=60)

    async def listen(self) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(self.connections), BUSY, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def send(self, source: str, data: bytes) -> Opened:
        reader, writer = await asyncio.open_connection(BUSY, self.port, local_addr=(source, 0))
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def holds(self, size: int) -> None:
        async with asyncio.timeout(30):
            while sum(one.held_bytes for one in self.connections.all) != size:
                await asyncio.sleep(0.001)


async def status(opened: Opened) -> int:
    reader, writer = opened
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def test_a_busy_sender_is_refused_after_those_that_have_signed_a_delivery_and_break_off_others(
    system: System, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of theirs was refused, so they stayed known, and had up to two thirds of its deliveries answered 503."""
    monkeypatch.setattr(open_connections, "MAX_HELD_BYTES", HELD_BYTES)
    monkeypatch.setattr(held_bytes, "KNOWN_BYTES", HELD_BYTES // 2)
    monkeypatch.setattr(held_bytes, "SPARE_BYTES", HELD_BYTES // 4)
    monkeypatch.setattr(held_bytes, "PAUSE_SECONDS", 60)  # other tests may take the processor meanwhile
    corpus = Corpus(system.config)
    large = corpus.signed(b'{"type":"order.paid","data":{"id":1,"note":"%b"}}' % (b"x" * 300_000))
    unfinished = large[:-1]

    async def statuses() -> list[int]:
        process = Process(system, redis)
        async with await process.listen():
            for sender in CROWD:
                own = corpus.signed(b'{"type":"order.paid","data":{"id":"%b"}}' % sender.encode())
                assert await status(await process.send(sender, own)) == 200
            for number in range(8):
                other = corpus.signed(b'{"type":"order.paid","data":{"id":%d,"note":"%b"}}' % (number, b"x" * 300_000))
                assert await status(await process.send(BUSY, other)) == 200
            for sender in CROWD * 4:
                _, writer = await process.send(sender, unfinished)
                await process.holds(len(unfinished))
                writer.close()
                await process.holds(0)
            busy = [await process.send(BUSY, unfinished) for _ in range(5)]
            crowd = [await process.send(sender, unfinished) for sender in CROWD * 3]
            await process.holds(17 * len(unfinished))
            process.connections.check()
            for _, writer in busy:
                writer.write(large[-1:])
            answers = [await status(one) for one in busy]
            for _, writer in crowd:
                writer.close()
            await process.holds(0)
        return answers

    assert asyncio.run(statuses()) == [200] * 5
