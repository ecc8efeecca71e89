"""The Redis server lost its data: emptied, or replaced by an empty one. What is accepted from then on is handled."""

from __future__ import annotations

from collections.abc import Callable

from receiver.inbox import Declaration, keys
from tests.receiver.inbox.test_inbox import claim_one
from tests.support.harness import Server, System, eventually
from workers.runtime.worker.routing import EventRouter

PLUGIN = """
from workers import Router
router = Router("{name}")
@router.on("{own}.*")
def {own}(event, ctx):
    return "{name}"
@router.on("customer.*")
def both(event, ctx):
    return "{name}"
"""
ONE, OTHER = PLUGIN.format(name="one", own="order"), PLUGIN.format(name="other", own="product")
HANDLERS = {
    "order.created": {"one.order"},
    "product.created": {"other.product"},
    "customer.created": {"one.both", "other.both"},
}


def two_hosts(make_system: Callable[..., System], url: str) -> System:
    """A receiver and a worker, and a second worker that has other handlers. All of them are known to each worker."""
    one = make_system(url=url, plugin=ONE)
    other = make_system(url=url, plugin=OTHER)
    other.start("worker")
    eventually(lambda: len(one.inbox.declarations().handlers) == 2, what="the second worker is ready")
    one.start("web", "worker", "housekeeper")
    eventually(lambda: len(one.inbox.declarations().handlers) == 4, what="both workers are ready")
    for topic in HANDLERS:
        assert one.settled(one.deliver(topic)) == "settled"
    for topic in HANDLERS:  # now each route is known to the workers
        assert one.settled(one.deliver(topic)) == "settled"
    return one


def assert_handled(system: System, events: dict[str, str]) -> None:
    """Each event had a run of each of its handlers."""
    for event_id, topic in events.items():
        assert system.settled(event_id, within=20) == "settled"
        record = system.ledger.event(event_id)
        assert record is not None
        assert ({run.handler for run in record.runs}, record.reason) == (HANDLERS[topic], None)
        assert all(run.status == "done" for run in record.runs)


def test_events_are_handled_by_all_hosts_right_after_the_server_was_emptied(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """Handlers were unknown until their worker's next heartbeat, and events were settled without a run."""
    system = two_hosts(make_system, own_redis.url)
    own_redis.client.flushall()
    events = {system.deliver(topic): topic for _ in range(5) for topic in HANDLERS}
    assert_handled(system, events)
    assert system.identity_holds()


def test_spooled_events_are_handled_when_an_empty_server_takes_the_place_of_the_old_one(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = two_hosts(make_system, own_redis.url)
    own_redis.kill()
    events = {system.deliver(topic): topic for _ in range(5) for topic in HANDLERS}
    own_redis.extra = ("--dir", str(system.folder), "--appendonly", "no", "--save", "")
    own_redis.start()
    assert own_redis.client.zcard(keys.INDEX) < 2 * len(HANDLERS) + len(events), "it is empty"
    eventually(lambda: own_redis.client.zcard(keys.INDEX) >= len(events), what="the spool is drained")
    assert_handled(system, events)


def handler(name: str, topic: str) -> Declaration:
    return Declaration(name, "1", (topic,), ("*",))


def router_of(system: System, *handlers: Declaration) -> EventRouter:
    router = EventRouter(system.inbox)
    router.adopt(handlers, limited=())
    router.declare_and_read()
    return router


def test_an_event_without_a_handler_waits_while_other_workers_may_not_have_declared_theirs(system: System) -> None:
    """A worker that starts at an emptied server cannot know the others' handlers."""
    router, event_id = router_of(system, handler("one.order", "order.*")), system.accept("product.created")
    claim = system.inbox.claim({"": 1}, capacity=1)
    assert router.route(claim.runs, claim.version, {}) == ([], [])
    assert system.status(event_id) == "open"
    system.inbox.declare([handler("other.product", "product.*")])
    system.client.zadd(keys.LATER, {event_id: 0})
    system.housekeeping.tick()
    claim = system.inbox.claim({"": 1}, capacity=1)
    assert router.route(claim.runs, claim.version, {}) == ([], [])
    assert [run.handler for run in system.ledger.event(event_id).runs] == ["other.product"]


def test_an_event_without_a_handler_is_settled_once_all_workers_had_time_to_declare(system: System) -> None:
    router, event_id = router_of(system, handler("one.order", "order.*")), system.accept("product.created")
    system.client.set(keys.DECLARED_SINCE, 1)
    claim = system.inbox.claim({"": 1}, capacity=1)
    assert router.route(claim.runs, claim.version, {}) == ([], [])
    assert (system.status(event_id), system.ledger.event(event_id).reason) == ("settled", "unhandled")


def test_nothing_is_settled_as_unhandled_while_no_worker_has_declared_anything(system: System) -> None:
    event_id = system.accept()
    assert system.inbox.route([(claim_one(system.inbox), ())], "0") == [["postponed"]]
    assert system.status(event_id) == "open"
    assert system.identity_holds()


def test_an_old_copy_of_the_data_gets_the_handlers_that_workers_know(system: System) -> None:
    """A failover to a replica that had not received the last declarations."""
    first = system.inbox.declare([handler("one.order", "order.*")])
    old = {key: system.client.dump(key) for key in (keys.DECLARATIONS, keys.DECLARED_AT, keys.DECLARATIONS_VERSION)}
    system.inbox.declare([handler("other.product", "product.*")])
    router = router_of(system, handler("one.order", "order.*"))
    for key, value in old.items():
        system.client.restore(key, 0, value, replace=True)
    assert system.inbox.declarations().version == first
    router.declare_and_read()
    assert {one.handler for one in system.inbox.declarations().handlers} == {"one.order", "other.product"}


def test_a_retired_handler_is_not_declared_again_by_a_worker_that_knew_it(system: System) -> None:
    system.inbox.declare([handler("other.product", "product.*")])
    router = router_of(system, handler("one.order", "order.*"))
    system.administration.retire("other.product")
    router.declare_and_read()
    assert {one.handler for one in system.inbox.declarations().handlers} == {"one.order"}
