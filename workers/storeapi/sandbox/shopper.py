"""Shopper: makes realistic traffic, the same for the same seed. Every step is one operation and makes one event."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

from workers.storeapi import samples
from workers.storeapi.sandbox import customers, orders, products
from workers.storeapi.sandbox.shop import SandboxCall, Shop
from workers.storeapi.sandbox.state import Json

PRODUCTS = 40
CUSTOMERS = 20
FIRST_ORDER = 1001

Step = Callable[[], object]


def add_initial_records(shop: Shop, products: int = PRODUCTS) -> None:
    """Add the products and customers of a new store, without webhooks: there are no subscriptions yet."""
    rng = random.Random(shop.misbehaviour.seed)  # noqa: S311  realistic, not secret
    with shop.state.transaction():
        if shop.state.counter("last product"):
            return
        new_products = (samples.product(number, rng) for number in range(1, products + 1))
        shop.state.insert_many("product", ({**one, "sku": f"SKU-{one['id']}", "stock": 100} for one in new_products))
        new_customers = (samples.customer(number, rng) for number in range(1, CUSTOMERS + 1))
        shop.state.insert_many("customer", ({**one, "metadata": {}} for one in new_customers))
        shop.state.increment("last order", FIRST_ORDER - 1)


class Shopper(threading.Thread):
    """A thread that makes an event at each interval, until it is stopped or has made `max_events`."""

    def __init__(self, shop: Shop, *, interval: float, max_events: int | None = None) -> None:
        super().__init__(daemon=True, name="shopper")
        self._shop = shop
        self._interval = interval
        self._max_events = max_events
        self._stopping = threading.Event()
        self._rng = random.Random(shop.misbehaviour.seed)  # noqa: S311

    def run(self) -> None:
        burst_left = 0
        for number, step in enumerate(self.steps()):
            if self._stopping.is_set() or (self._max_events is not None and number >= self._max_events):
                return
            with self._shop.state.transaction():
                step()
            burst_left = max(0, burst_left - 1) or self._new_burst(number)
            if not burst_left:
                self._stopping.wait(self._interval)

    def _new_burst(self, number: int) -> int:
        """Number of events that follow without a pause; mostly 0."""
        misbehaviour = self._shop.misbehaviour
        return misbehaviour.number("burst_size") if misbehaviour.happens("burst", number) else 0

    def stop(self) -> None:
        self._stopping.set()
        self.join(2)

    def steps(self) -> Iterator[Step]:
        """Without end: an order is created; then a price changes, a customer registers, or the order is paid."""
        while True:
            order: list[Json] = []
            yield lambda order=order: order.append(self._create_order())  # type: ignore[misc]
            match self._rng.randint(1, 3):
                case 1:
                    yield self._change_price
                case 2:
                    yield self._register_customer
                case _:
                    yield lambda order=order: self._pay(order[0])  # type: ignore[misc]

    def _create_order(self) -> Json:
        lines = [
            {"product_id": self._pick_product(), "quantity": self._rng.randint(1, 3)}
            for _ in range(self._rng.randint(1, 3))
        ]
        customer = self._pick("customer", CUSTOMERS)
        buyer = {} if customer is None else {"customer_id": customer}
        return orders.create(self._shop, SandboxCall(body={"lines": lines, **buyer}))

    def _pay(self, order: Json) -> Json:
        return orders.update_status(self._shop, SandboxCall({"id": order["id"]}, {"status": "paid"}))

    def _change_price(self) -> Json:
        body = {"price": samples.price(self._rng)}
        return products.update(self._shop, SandboxCall({"id": self._pick_product()}, body))

    def _register_customer(self) -> Json:
        customer = samples.customer(self._shop.state.counter("last customer") + 1, self._rng)
        return customers.create(self._shop, SandboxCall(body=customer))

    def _pick_product(self) -> int:
        """The id of a product that exists. If all were deleted through the API, a new one."""
        found = self._pick("product", PRODUCTS)
        if found is None:
            body = {"name": "Mug", "price": samples.price(self._rng), "stock": 1}
            found = int(self._shop.state.insert("product", products.new_product(body))["id"])
        return found

    def _pick(self, kind: str, highest: int) -> int | None:
        wanted = self._rng.randint(1, highest)
        rows = self._shop.state.after(kind, 0, id_=wanted - 1, limit=1) or self._shop.state.after(
            kind, 0, id_=0, limit=1
        )
        return int(rows[0]["id"]) if rows else None
