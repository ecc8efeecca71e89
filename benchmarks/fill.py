"""Fills an inbox as the receiver would: verified deliveries, each with an id of its own, in groups of 64.

`python -m benchmarks.fill CONFIG MANY [BYTES]`
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import load
from receiver import config as config_room
from receiver.config import Config
from receiver.contract.intake import Delivery, receive
from receiver.inbox import Inbox, connect

GROUP = 64


def deliveries(config: Config, many: int, *, size: int = 2048) -> Iterator[Delivery]:
    """The first is verified like any; the others differ from it by their ids."""
    content = load.body(size)
    store = config.known_stores[load.STORE]
    first = receive(load.headers("msg_first", content), content, store=store, now=time.time())
    run = secrets.token_hex(6)
    for number in range(many):
        name = f"{run}{number:014d}"
        event = replace(first.event, id=name, delivery_id=f"msg_{name}")
        yield replace(first, event=event, first_id="")


def fill(inbox: Inbox, config: Config, many: int, *, size: int = 2048) -> None:
    group: list[Delivery] = []
    for one in deliveries(config, many, size=size):
        group.append(one)
        if len(group) == GROUP:
            inbox.accept(group)
            group = []
    if group:
        inbox.accept(group)


if __name__ == "__main__":
    file, wanted, *rest = sys.argv[1:]
    loaded = config_room.load(Path(file), {})
    fill(Inbox(connect(loaded.redis.url, timeout=30)), loaded, int(wanted), size=int(rest[0]) if rest else 2048)
