"""The routes a worker knows and sends along with a claim."""

from __future__ import annotations

from receiver.contract.topics import PROBE
from receiver.inbox import Declaration
from receiver.inbox.model import Declarations
from workers.runtime.worker.routes import MOST_HANDLERS, MOST_ROUTES, RouteTable


def known(*handlers: str, limited: tuple[str, ...] = (), delay: float = 0, topic: str = "order.*") -> RouteTable:
    details = {"delay": delay}
    declared = tuple(Declaration(name, "1", (topic,), ("*",), "default", details) for name in handlers)
    return RouteTable(Declarations("7", declared), limited=limited)


def test_a_route_is_found_once_and_then_sent_along() -> None:
    one = known("shop.one", "shop.two", limited=("shop.two",))
    assert one.routes.wanted == {}
    route = one.route(store="north", topic="order.created")
    assert route == [("shop.one", "default", True), ("shop.two", "default", False)]
    assert one.routes.version == "7"
    assert list(one.routes.arguments())[:3] == ["north", "order.created", 2]
    assert list(one.routes.arguments())[3:] == ["shop.one", "default", "1", "shop.two", "default", "0"]


def test_events_nobody_wants_are_not_sent_along() -> None:
    one = known("shop.one")
    assert one.route(store="north", topic="product.updated") == []
    assert one.routes.wanted == {}


def test_a_delay_is_sent_along_whatever_limit_there_is() -> None:
    one = known("shop.one", "shop.two", limited=("shop.two",), delay=1.5)
    assert one.route(store="north", topic="order.created") == [
        ("shop.one", "default", 1.5),
        ("shop.two", "default", 1.5),
    ]
    assert list(one.routes.arguments())[3:] == ["shop.one", "default", ">1500", "shop.two", "default", ">1500"]


def test_a_probe_is_routed_to_nobody_and_not_sent_along() -> None:
    one = known("shop.one", topic="*")
    assert one.route(store="north", topic="order.created") != []
    assert one.route(store="north", topic=PROBE) == []
    assert list(one.routes.wanted) == [("north", "order.created")]


def test_only_the_latest_routes_are_kept() -> None:
    one = known("shop.one")
    for number in range(MOST_ROUTES + 5):
        one.route(store=f"store{number}", topic="order.created")
    assert len(one.routes.wanted) == MOST_ROUTES
    assert (f"store{MOST_ROUTES + 4}", "order.created") in one.routes.wanted


def test_with_very_many_handlers_nothing_is_sent_along() -> None:
    one = known(*(f"shop.handler{number}" for number in range(MOST_HANDLERS + 1)))
    assert len(one.route(store="north", topic="order.created")) == MOST_HANDLERS + 1
    assert one.routes.wanted == {}
