"""The shopper: makes a stream of believable events, the same for the same seed, and sends them signed."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx2

from receiver.contract.compose import compose
from receiver.contract.stores import Store
from workers.storeapi import samples

SEND_SECONDS = 5.0
TRY_AGAIN_AFTER = 0.5


class Happening(NamedTuple):
    topic: str
    data: dict[str, Any]


def happenings(seed: int) -> Iterator[Happening]:
    """What happens in the store, for ever: someone registers, buys, pays; a price changes."""
    chance = random.Random(seed)  # noqa: S311  a believable stream, not a secret
    for number in range(1001, 1 << 31):
        order = samples.order(number, chance)
        yield Happening("order.created", order)
        match chance.randint(1, 3):
            case 1:
                yield Happening("product.updated", samples.product(chance.randint(1, 40), chance))
            case 2:
                yield Happening("customer.created", samples.customer(number, chance))
            case _:
                yield Happening("order.paid", {**order, "status": "paid"})


def shop(store: Store, *, every: float, most: int | None, wait: Callable[[float], bool]) -> int:
    """Send what happens to the store's webhook URL; give the number sent.

    `wait(seconds)` waits and says whether to stop. A delivery that is not answered 2xx is sent again with the
    same id, as a store would.
    """
    sent = 0
    with httpx2.Client(timeout=SEND_SECONDS) as client:
        for happening in happenings(seed=7):
            if most is not None and sent >= most:
                break
            if not _deliver(client, store, happening, wait):
                break
            sent += 1
            if wait(every):
                break
    return sent


def _deliver(client: httpx2.Client, store: Store, happening: Happening, wait: Callable[[float], bool]) -> bool:
    delivery_id = f"msg_{secrets.token_hex(8)}"
    while True:
        request = compose(store, topic=happening.topic, delivery_id=delivery_id, data=happening.data, now=time.time())
        try:
            answer = client.post(store.url, headers=request.headers, content=request.body)
            if answer.is_success:
                return True
        except httpx2.HTTPError:
            pass  # not up yet, or restarting
        if wait(TRY_AGAIN_AFTER):
            return False
