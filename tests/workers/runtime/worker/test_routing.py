"""Which runs events are given, on a real server, while other workers come with other handlers."""

from __future__ import annotations

from receiver.inbox import Declaration
from tests.support.harness import System
from workers.runtime.worker.routing import EventRouter


def declared(handler: str) -> Declaration:
    return Declaration(handler, "1", ("*",), ("*",))


def signpost_of(system: System, *handlers: str, limited: tuple[str, ...] = ()) -> EventRouter:
    one = EventRouter(system.inbox)
    one.adopt([declared(name) for name in handlers], limited=limited)
    one.declare_and_read()
    return one


def test_an_event_is_routed_again_when_another_worker_came_with_its_handler(system: System) -> None:
    event_id, signpost = system.accept(), signpost_of(system, "shop.greet")
    claim = system.inbox.claim({"": 1}, room=1)
    system.inbox.declare([declared("shop.count")])
    assert signpost.route(claim.runs, claim.version, {"shop.greet": 1}) == ([], list(claim.runs))
    leased, again = signpost.route(claim.runs, "", {"shop.greet": 1})
    assert (leased[0].item, leased[0].token) == (f"{event_id}|shop.greet", claim.runs[0].token)
    assert (len(leased), again) == (1, [])
    runs = {run.handler: run.status for run in system.ledger.event(event_id).runs}
    assert runs == {"shop.greet": "running", "shop.count": "waiting"}


def test_no_more_runs_are_leased_than_there_is_room_for_and_none_that_have_a_limit(system: System) -> None:
    signpost = signpost_of(system, "shop.greet", "shop.slow", limited=("shop.slow",))
    for _ in range(3):
        system.accept()
    claim = system.inbox.claim({"": 3}, room=3)
    leased, again = signpost.route(claim.runs, claim.version, {"shop.greet": 2, "shop.slow": 2})
    assert [run.handler for run in leased] == ["shop.greet", "shop.greet"]
    assert again == []
    (waiting,) = system.inbox.claim({"shop.greet": 9}, room=9).runs
    assert waiting.event.id == claim.runs[2].event.id
