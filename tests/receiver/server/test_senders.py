"""Senders of a process take turns, by address: requests of one that has many wait for each other."""

from __future__ import annotations

import asyncio
import threading

import pytest
from flask import Flask

from receiver.server.flask_bridge import FlaskBridge
from receiver.server.http_connection import sender_at
from receiver.server.request_reader import HttpRequest
from receiver.server.turns import SMALL_BYTES, Turns

MANY, FEW = "192.0.2.1", "192.0.2.2"


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("/run/storehooks:web.sock", "/run/storehooks:web.sock"),
        ("", ""),
    ],
)
def test_an_address_tells_who_sends(address: str, sender: str) -> None:
    assert sender_at(address) == sender


@pytest.mark.parametrize("size", [500, SMALL_BYTES + 1])
def test_senders_take_turns_however_many_requests_each_has(size: int) -> None:
    """Requests of 2,000 connections were served before that of a sender who has one: it waited for two seconds."""
    loop, done = asyncio.new_event_loop(), list[str]()
    turns = Turns(loop)

    class Work:
        since = spent = 0.0

        def __init__(self, sender: str) -> None:
            self.sender = sender
            turns.add(self, size)

        def step(self) -> None:
            done.append(self.sender)

    for sender in ["a"] * 100 + ["b"] * 2 + ["c"]:
        Work(sender)
    while len(done) < 103:
        turns._run()
    loop.close()
    assert done == ["a", "b", "c", "a", "b"] + ["a"] * 98


def test_senders_take_turns_at_the_threads_of_flask() -> None:
    """A proxy that asks whether the process is ready would wait for all requests of a flood otherwise."""
    app, may_go_on, answered = Flask("app"), threading.Event(), list[str]()

    @app.get("/")
    def wait() -> str:
        may_go_on.wait(10)
        return "done"

    class Asking:
        def __init__(self, sender: str) -> None:
            self.sender = self.address = sender

        def answer(self, _: object) -> None:
            answered.append(self.sender)

    async def ask() -> None:
        bridge = FlaskBridge(app, asyncio.get_running_loop(), threads=1)
        for sender in [MANY] * 20 + [FEW]:
            bridge.serve(Asking(sender), HttpRequest("GET", "/", 1, {"host": "a"}, b"", True))  # type: ignore[arg-type]
        may_go_on.set()
        async with asyncio.timeout(10):
            while len(answered) < 21:
                await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert answered.index(FEW) == 2, "after the one in the thread and the one whose turn it was"
