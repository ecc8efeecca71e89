"""Sends signed deliveries at a fixed rate and notes every answer. `python -m tests.drill.client` is a process.

Deliveries are due at fixed times, and a late answer does not delay the next one, as with many independent stores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from receiver.config import load
from receiver.contract.compose import compose
from receiver.contract.stores import Store

TIMEOUT = 10.0
"""How long a store waits for an answer."""
NO_ANSWER = 0
"""The status of a delivery that got none."""
STALE = 2.0
"""A kept connection that was idle for longer is not used again: the proxy may be about to close it."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Sender:
    """Sends to one address, over connections that are kept open."""

    def __init__(self, port: int, log: TextIO) -> None:
        self._port = port
        self._log = log
        self._idle: list[tuple[float, Connection]] = []
        self.waiting: set[asyncio.Task[None]] = set()

    def send(self, store: Store, delivery_id: str) -> None:
        task = asyncio.create_task(self._send(store, delivery_id))
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def _send(self, store: Store, delivery_id: str) -> None:
        sent, event_id, why = time.time(), "-", "-"
        try:
            status, body = await asyncio.wait_for(self._post(store, delivery_id), TIMEOUT)
            event_id = json.loads(body)["id"] if 200 <= status < 300 else "-"
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            status, why = NO_ANSWER, type(error).__name__
        self._log.write(f"{sent:.4f} {time.time():.4f} {store.name} {status} {event_id} {why}\n")

    async def _post(self, store: Store, delivery_id: str) -> tuple[int, bytes]:
        reader, writer = await self._connection()
        try:
            writer.write(request(store, delivery_id))
            status, closes, body = await read_answer(reader)
        except BaseException:
            writer.close()
            raise
        if closes:
            writer.close()
        else:
            self._idle.append((time.monotonic(), (reader, writer)))
        return status, body

    async def _connection(self) -> Connection:
        while self._idle:
            since, (reader, writer) = self._idle.pop()
            if time.monotonic() - since < STALE and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)


def request(store: Store, delivery_id: str) -> bytes:
    one = compose(
        store, topic="order.created", delivery_id=delivery_id, data={"id": 1, "total": "42.00"}, now=time.time()
    )
    headers = {"host": "127.0.0.1", "content-length": str(len(one.body)), **one.headers}
    lines = [f"POST /webhooks/{store.name} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + one.body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """The status, whether the other side closes, and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return int(head.split()[1]), fields.get("connection") == "close", body


async def send_at_rate(
    sender: Sender, rate: float, stores: Sequence[Store], is_stopped: Callable[[], bool], seconds: float
) -> None:
    name, began, count = secrets.token_hex(4), time.monotonic(), 0
    while not is_stopped() and time.monotonic() - began < seconds:
        due = began + count / rate
        if (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        sender.send(stores[count % len(stores)], f"{name}-{count}")
        count += 1
    await asyncio.gather(*sender.waiting)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True, help="has the stores with their secrets")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, default=600.0, help="the most; TERM ends it earlier")
    parser.add_argument("--stores", default="", help="only these, separated by commas; one may be named several times")
    parser.add_argument("--log", type=Path, required=True, help="a line for each answer")
    options = parser.parse_args()
    known = load(options.config, {}).known_stores
    stores = [known[name] for name in options.stores.split(",")] if options.stores else list(known.values())
    stopped: list[int] = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.append, 1)
    with open(options.log, "a", buffering=1) as log:
        sender = Sender(options.port, log)
        await send_at_rate(sender, options.rate, stores, lambda: bool(stopped), options.seconds)


if __name__ == "__main__":
    asyncio.run(main())
