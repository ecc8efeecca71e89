"""Samples: one believable resource for each kind the API's document names. Fields beyond it are assumed."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("Mug", "Lamp", "Chair", "Notebook", "Kettle", "Blanket", "Clock", "Basket")
_PEOPLE = ("Ada", "Grace", "Linus", "Barbara", "Ken", "Radia", "Edsger", "Margaret")


def price(chance: random.Random) -> str:
    """An amount as the API's document has it: text, two fractional digits."""
    return f"{chance.randint(300, 19900) / 100:.2f}"


def product(number: int, chance: random.Random) -> dict[str, Any]:
    return {"id": number, "name": _NAMES[number % len(_NAMES)], "price": price(chance)}


def customer(number: int, chance: random.Random) -> dict[str, Any]:
    name = chance.choice(_PEOPLE)
    return {"id": number, "name": name, "email": f"{name.lower()}{number}@example.com"}


def order(number: int, chance: random.Random) -> dict[str, Any]:
    lines: list[dict[str, Any]] = [
        {"product_id": chance.randint(1, 40), "quantity": chance.randint(1, 3), "price": price(chance)}
        for _ in range(chance.randint(1, 3))
    ]
    cents = sum(int(line["price"].replace(".", "")) * line["quantity"] for line in lines)
    return {
        "id": number,
        "status": "new",
        "total": f"{cents // 100}.{cents % 100:02d}",
        "customer": customer(number % 500, chance),
        "lines": lines,
    }


STATUSES = ("paid", "shipped", "delivered", "cancelled", "refunded")


def sample(topic: str, number: int = 1001) -> dict[str, Any]:
    """The data of a sample event of any topic; what we do not know is an object with an id."""
    chance = random.Random(number)  # noqa: S311
    kind, _, action = topic.partition(".")
    if kind == "product":
        return {**product(number, chance), "sku": f"SKU-{number}", "stock": chance.randint(0, 100)}
    if kind == "customer":
        return {**customer(number, chance), "metadata": {}}
    if kind == "order":
        return {**order(number, chance), "status": action if action in STATUSES else "new"}
    return {"id": number}
