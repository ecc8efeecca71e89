"""The shopper: realistic traffic, the same for the same seed. Every step is an operation, and tells one event."""

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


def stock_the_shelves(shop: Shop, many: int = PRODUCTS) -> None:
    """A new store's first products and customers. Nobody is told: there was nobody to tell."""
    chance = random.Random(shop.pathologies.seed)  # noqa: S311  believable, not secret
    with shop.state.transaction():
        if shop.state.number("last product"):
            return
        goods = (samples.product(number, chance) for number in range(1, many + 1))
        shop.state.insert_many("product", ({**one, "sku": f"SKU-{one['id']}", "stock": 100} for one in goods))
        people = (samples.customer(number, chance) for number in range(1, CUSTOMERS + 1))
        shop.state.insert_many("customer", ({**one, "metadata": {}} for one in people))
        shop.state.add("last order", FIRST_ORDER - 1)


class Shopper(threading.Thread):
    """Buys every so often, until told to stop or for so many events."""

    def __init__(self, shop: Shop, *, every: float, most: int | None = None) -> None:
        super().__init__(daemon=True, name="shopper")
        self._shop = shop
        self._every = every
        self._most = most
        self._stopping = threading.Event()
        self._chance = random.Random(shop.pathologies.seed)  # noqa: S311

    def run(self) -> None:
        hurry = 0
        for number, step in enumerate(self.steps()):
            if self._stopping.is_set() or (self._most is not None and number >= self._most):
                return
            with self._shop.state.transaction():
                step()
            hurry = max(0, hurry - 1) or self._in_a_burst(number)
            if not hurry:
                self._stopping.wait(self._every)

    def _in_a_burst(self, number: int) -> int:
        """How many come at once from here on: none, mostly."""
        struck = self._shop.pathologies.strikes("burst", number)
        return self._shop.pathologies.number("burst_size") if struck else 0

    def stop(self) -> None:
        self._stopping.set()
        self.join(2)

    def steps(self) -> Iterator[Step]:
        """What happens, for ever: someone buys; then a price changes, someone registers, or the order goes on."""
        while True:
            order: list[Json] = []
            yield lambda order=order: order.append(self._buy())  # type: ignore[misc]
            match self._chance.randint(1, 3):
                case 1:
                    yield self._change_a_price
                case 2:
                    yield self._register
                case _:
                    yield lambda order=order: self._go_on(order[0])  # type: ignore[misc]

    def _call(self, group: str, name: str, body: Json, **path: int) -> SandboxCall:
        return SandboxCall(self._shop.catalogue.get(group, name), path, {}, body)

    def _buy(self) -> Json:
        lines = [
            {"product_id": self._product(), "quantity": self._chance.randint(1, 3)}
            for _ in range(self._chance.randint(1, 3))
        ]
        customer = self._some("customer", CUSTOMERS)
        who = {} if customer is None else {"customer_id": customer}
        return orders.create(self._shop, self._call("orders", "create", {"lines": lines, **who}))

    def _go_on(self, order: Json) -> Json:
        body = {"status": "paid"}
        return orders.update_status(self._shop, self._call("orders", "update_status", body, id=order["id"]))

    def _change_a_price(self) -> Json:
        body = {"price": samples.price(self._chance)}
        return products.update(self._shop, self._call("products", "update", body, id=self._product()))

    def _register(self) -> Json:
        person = samples.customer(self._shop.state.number("last customer") + 1, self._chance)
        return customers.create(self._shop, self._call("customers", "create", person))

    def _product(self) -> int:
        """One that is there; somebody may have deleted it through the API."""
        found = self._some("product", PRODUCTS)
        if found is None:
            body = {"name": "Mug", "price": samples.price(self._chance)}
            found = int(self._shop.state.insert("product", {"stock": 1, **body})["id"])
        return found

    def _some(self, kind: str, many: int) -> int | None:
        wanted = self._chance.randint(1, many)
        rows = self._shop.state.after(kind, 0, id_=wanted - 1, limit=1) or self._shop.state.after(
            kind, 0, id_=0, limit=1
        )
        return int(rows[0]["id"]) if rows else None
