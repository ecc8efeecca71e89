"""Samples: a realistic resource of each kind in the API's document. Fields beyond the document are assumed."""

from __future__ import annotations

import random
from typing import Any

from receiver.contract.record_map import SAMPLE_CURRENCY

_NAMES = ("Mug", "Lamp", "Chair", "Notebook", "Kettle", "Blanket", "Clock", "Basket")
_PEOPLE = ("Ada", "Grace", "Linus", "Barbara", "Ken", "Radia", "Edsger", "Margaret")


def price(rng: random.Random) -> str:
    """An amount as in the API's document: a string with two fractional digits."""
    return f"{rng.randint(300, 19900) / 100:.2f}"


def product(number: int, rng: random.Random) -> dict[str, Any]:
    return {"id": number, "name": _NAMES[number % len(_NAMES)], "price": price(rng), "currency": SAMPLE_CURRENCY}


def customer(number: int, rng: random.Random) -> dict[str, Any]:
    name = rng.choice(_PEOPLE)
    return {"id": number, "name": name, "email": f"{name.lower()}{number}@example.com"}


def order(number: int, rng: random.Random) -> dict[str, Any]:
    lines: list[dict[str, Any]] = [
        {"id": at, "product_id": rng.randint(1, 40), "quantity": rng.randint(1, 3), "price": price(rng)}
        for at in range(1, rng.randint(1, 3) + 1)
    ]
    cents = sum(int(line["price"].replace(".", "")) * line["quantity"] for line in lines)
    return {
        "id": number,
        "status": "new",
        "total": f"{cents // 100}.{cents % 100:02d}",
        "currency": SAMPLE_CURRENCY,
        "customer": customer(number % 500, rng),
        "lines": lines,
    }


STATUSES = ("paid", "shipped", "delivered", "cancelled", "refunded")


def sample(topic: str, number: int = 1001) -> dict[str, Any]:
    """The data of a sample event. A topic of an unknown kind gets an object with an id."""
    rng = random.Random(number)  # noqa: S311
    kind, _, action = topic.partition(".")
    if kind == "product":
        return {**product(number, rng), "sku": f"SKU-{number}", "stock": rng.randint(0, 100)}
    if kind == "customer":
        return {**customer(number, rng), "metadata": {}}
    if kind == "order":
        return {**order(number, rng), "status": action if action in STATUSES else "new"}
    return {"id": number}
