"""Which handlers an event is routed to: by the route table alone, and on a real server."""

from __future__ import annotations

from dataclasses import replace

from receiver.contract.topics import PROBE
from receiver.inbox import Declaration
from receiver.inbox.model import Declarations
from tests.support.harness import System
from workers.runtime.worker.routing import MOST_HANDLERS, MOST_ROUTES, EventRouter, RouteTable


def declared(handler: str) -> Declaration:
    return Declaration(handler, "1", ("*",), ("*",))


def router_of(system: System, *handlers: str, limited: tuple[str, ...] = ()) -> EventRouter:
    router = EventRouter(system.inbox)
    router.adopt([declared(name) for name in handlers], limited=limited)
    router.declare_and_read()
    return router


def test_an_event_is_routed_again_when_another_worker_has_declared_a_handler(system: System) -> None:
    event_id, router = system.accept(), router_of(system, "shop.greet")
    claim = system.inbox.claim({"": 1}, capacity=1)
    system.inbox.declare([declared("shop.count")])
    assert router.route(claim.runs, claim.version, {"shop.greet": 1}) == ([], list(claim.runs))
    leased, again = router.route(claim.runs, "", {"shop.greet": 1})
    assert (leased[0].item, leased[0].token) == (f"{event_id}|shop.greet", claim.runs[0].token)
    assert (len(leased), again) == (1, [])
    runs = {run.handler: run.status for run in system.ledger.event(event_id).runs}
    assert runs == {"shop.greet": "running", "shop.count": "waiting"}


def test_runs_are_leased_only_up_to_the_capacity_and_never_those_with_a_limit(system: System) -> None:
    router = router_of(system, "shop.greet", "shop.slow", limited=("shop.slow",))
    for _ in range(3):
        system.accept()
    claim = system.inbox.claim({"": 3}, capacity=3)
    leased, again = router.route(claim.runs, claim.version, {"shop.greet": 2, "shop.slow": 2})
    assert [run.handler for run in leased] == ["shop.greet", "shop.greet"]
    assert again == []
    (waiting,) = system.inbox.claim({"shop.greet": 9}, capacity=9).runs
    assert waiting.event.id == claim.runs[2].event.id


def table_of(*handlers: str, limited: tuple[str, ...] = (), delay: float = 0, topic: str = "order.*") -> RouteTable:
    details = {"delay": delay}
    declared = tuple(Declaration(name, "1", (topic,), ("*",), "default", details) for name in handlers)
    return RouteTable(Declarations("7", declared), limited=limited)


def test_a_route_is_found_once_and_then_sent_along() -> None:
    table = table_of("shop.one", "shop.two", limited=("shop.two",))
    assert table.routes.wanted == {}
    route = table.handlers_for(store="north", topic="order.created")
    assert route == [("shop.one", "default", True), ("shop.two", "default", False)]
    assert table.routes.version == "7"
    assert list(table.routes.arguments())[:3] == ["north", "order.created", 2]
    assert list(table.routes.arguments())[3:] == ["shop.one", "default", "1", "", "shop.two", "default", "0", ""]


def test_a_route_without_handlers_is_not_sent_along() -> None:
    table = table_of("shop.one")
    assert table.handlers_for(store="north", topic="product.updated") == []
    assert table.routes.wanted == {}


def test_a_delay_is_sent_along_with_and_without_a_limit() -> None:
    table = table_of("shop.one", "shop.two", limited=("shop.two",), delay=1.5)
    assert table.handlers_for(store="north", topic="order.created") == [
        ("shop.one", "default", 1.5),
        ("shop.two", "default", 1.5),
    ]
    assert list(table.routes.arguments())[3:] == [
        "shop.one",
        "default",
        ">1500",
        "",
        "shop.two",
        "default",
        ">1500",
        "",
    ]


def test_a_probe_is_routed_to_no_handler_and_not_sent_along() -> None:
    table = table_of("shop.one", topic="*")
    assert table.handlers_for(store="north", topic="order.created") != []
    assert table.handlers_for(store="north", topic=PROBE) == []
    assert list(table.routes.wanted) == [("north", "order.created")]


def test_only_the_latest_routes_are_remembered() -> None:
    table = table_of("shop.one")
    for number in range(MOST_ROUTES + 5):
        table.handlers_for(store=f"store{number}", topic="order.created")
    assert len(table.routes.wanted) == MOST_ROUTES
    assert (f"store{MOST_ROUTES + 4}", "order.created") in table.routes.wanted


def test_with_too_many_handlers_no_route_is_sent_along() -> None:
    table = table_of(*(f"shop.handler{number}" for number in range(MOST_HANDLERS + 1)))
    assert len(table.handlers_for(store="north", topic="order.created")) == MOST_HANDLERS + 1
    assert table.routes.wanted == {}


def ordered(by: str, on_failure: str = "continue", topic: str = "*") -> Declaration:
    details = {"order_by": by, "on_failure": on_failure}
    return Declaration("shop.push", "1", (topic,), ("*",), "default", details)


def test_the_order_of_a_handler_is_sent_along() -> None:
    table = RouteTable(Declarations("7", (ordered("resource", "stop"),)), limited=())
    assert table.handlers_for(store="north", topic="order.created") == [("shop.push", "default", True, "s resource")]
    assert list(table.routes.arguments())[3:] == ["shop.push", "default", "1", "s resource"]


def test_runs_that_are_merged_are_ordered_by_their_resource_and_delayed() -> None:
    one = ordered("resource")
    merging = replace(one, details={**one.details, "delay": 5.0, "coalesce": 5.0})
    table = RouteTable(Declarations("7", (merging,)), limited=())
    assert table.handlers_for(store="north", topic="order.created") == [("shop.push", "default", 5.0, "m resource")]
    assert list(table.routes.arguments())[3:] == ["shop.push", "default", ">5000", "m resource"]


def test_a_route_that_is_ordered_by_the_data_is_routed_by_the_worker(system: System) -> None:
    router = EventRouter(system.inbox)
    router.adopt([ordered("data.customer.id")], limited=())
    router.declare_and_read()
    events = [system.accept(data={"id": n, "customer": {"id": n % 2}}) for n in range(4)]
    claim = system.inbox.claim({"": 4}, capacity=4)
    leased, again = router.route(claim.runs, claim.version, {"shop.push": 9})
    assert [(run.stored.id, run.order_key) for run in leased] == [(events[0], "north:0"), (events[1], "north:1")]
    assert 0 < leased[0].fence < leased[1].fence
    assert again == []
    assert router.routes.wanted == {}
    orders = [system.ledger.event(one).runs[0].order for one in events]
    assert [(one.key, one.place) for one in orders] == [
        ("north:0", None),
        ("north:1", None),
        ("north:0", 1),
        ("north:1", 1),
    ]
