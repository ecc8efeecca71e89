"""Fills an inbox as the receiver would: verified deliveries with unique ids, in groups of 64.

`python -m benchmarks.fill_inbox CONFIG COUNT [BYTES [RESOURCES]]`: the events are of that many resources, in turn.
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


def deliveries(config: Config, count: int, *, size: int = 2048, resources: int = 1) -> Iterator[Delivery]:
    """The first delivery is verified; the others are copies with their own ids."""
    content = load.body(size)
    store = config.known_stores[load.STORE]
    first = receive(load.headers("msg_first", content), content, store=store, now=time.time())
    run = secrets.token_hex(6)
    for number in range(count):
        event_id = f"{run}{number:014d}"
        resource = str(1001 + number % resources)
        event = replace(first.event, id=event_id, delivery_id=f"msg_{event_id}", resource_id=resource)
        yield replace(first, event=event, first_id="")


def fill(inbox: Inbox, config: Config, count: int, *, size: int = 2048, resources: int = 1) -> None:
    group: list[Delivery] = []
    for delivery in deliveries(config, count, size=size, resources=resources):
        group.append(delivery)
        if len(group) == GROUP:
            inbox.accept(group)
            group = []
    if group:
        inbox.accept(group)


if __name__ == "__main__":
    file, number, *rest = sys.argv[1:]
    loaded = config_room.load(Path(file), {})
    sizes = dict(zip(("size", "resources"), map(int, rest), strict=False))
    fill(Inbox(connect(loaded.redis.url, timeout=30)), loaded, int(number), **sizes)
