"""The inbox against a model: random sequences of everything that can happen keep the rule and the identity.

The rule: an open item is in exactly one of ready, leased and later, and an item that is not open is in none.
The identity: accepted = settled + open + failed, and each counter equals what the records say.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import Failures, Inbox, Ledger, Outcome, Routes, Run, connect, keys
from receiver.inbox.inbox import LOSSES_ALLOWED, from_ms

STORES = ("north", "south")
HANDLERS = ("shop.one", "shop.two", "shop.three")
OUTCOMES = ("done", "dropped", "failed", "retry", "busy", "release")
STATES = ("ready", "leased", "later", "held")


class InboxMachine(RuleBasedStateMachine):
    """What both sides do, and what goes wrong between them."""

    url = ""

    @initialize()
    def start(self) -> None:
        self.client: Redis = connect(self.url, timeout=5.0)
        self.client.flushdb()
        if os.environ.get("REDIS_URL"):
            self.client.set("storehooks-tests", 1)
        self.inbox = Inbox(self.client)
        self.known: list[Delivery] = []
        self.leased: list[Run] = []
        self.crashed: list[Run] = []
        self.stale: list[Run] = []
        self.ended: Counter[str] = Counter()

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.flushdb()
            self.client.close()

    # The receiver

    @rule(store=st.sampled_from(STORES), unreadable=st.booleans())
    def accept(self, store: str, unreadable: bool) -> None:
        number = len(self.known)
        event = Event(id=f"event{number}", store=store, topic="order.created", received_at=from_ms("1000"), body=b"{}")
        delivery = Delivery(event, "orders/create", unreadable="not JSON" if unreadable and number % 7 == 3 else "")
        self.known.append(delivery)
        assert self.inbox.accept([delivery])[0].status == "accepted"

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def accept_again_after_a_lost_reply(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.known))
        assert self.inbox.accept([delivery])[0].status == "duplicate"

    # A worker

    @rule(many=st.integers(1, 5), handlers=st.sets(st.sampled_from(HANDLERS)))
    def claim(self, many: int, handlers: set[str]) -> None:
        lanes = dict.fromkeys(("", *sorted(handlers)), many)
        runs = self.inbox.claim(lanes, room=many).runs
        assert len(runs) <= many
        assert len(runs) == 1 or not any(run.losses for run in runs), "a suspect is claimed alone"
        self.leased += runs

    @rule(
        many=st.integers(1, 5),
        stores=st.sets(st.sampled_from(STORES), min_size=1),
        handlers=st.dictionaries(st.sampled_from(HANDLERS), st.booleans(), min_size=1),
        lanes_first=st.booleans(),
        version=st.sampled_from(("0", "0", "0", "7")),
    )
    def claim_and_route_in_one_step(
        self, many: int, stores: set[str], handlers: dict[str, bool], lanes_first: bool, version: str
    ) -> None:
        chosen = [(name, "default", mine) for name, mine in sorted(handlers.items())]
        routes = Routes(version, {(store, "order.created"): chosen for store in sorted(stores)})
        names = ("", *HANDLERS) if not lanes_first else (*HANDLERS, "")
        _, claim = self.inbox.settle_and_claim((), dict.fromkeys(names, many), room=many, routes=routes)
        assert len({run.event.id for run in claim.runs}) == 1 or not any(run.losses for run in claim.runs)
        self.leased += claim.runs

    @rule(many=st.integers(1, 5))
    def claim_and_lose_the_reply(self, many: int) -> None:
        self.inbox.claim(dict.fromkeys(("", *HANDLERS), many), room=many)

    @precondition(lambda self: any(not run.handler for run in self.leased))
    @rule(data=st.data(), handlers=st.sets(st.sampled_from(HANDLERS)), mine=st.booleans())
    def route(self, data: st.DataObject, handlers: set[str], mine: bool) -> None:
        event = data.draw(st.sampled_from([run for run in self.leased if not run.handler]))
        chosen = [(name, "default", mine) for name in sorted(handlers)]
        (reply,) = self.inbox.route([(event, chosen)], "0")
        assert reply[0] == ("routed" if handlers else "unhandled")
        self.leased.remove(event)
        self.stale.append(event)
        paused = self.inbox.paused()
        if mine:
            handlers = {name for name in handlers if f"handler:{name}" not in paused}
            self.leased += [replace(event, item=f"{event.event.id}|{n}", handler=n) for n in sorted(handlers)]

    @precondition(lambda self: any(run.handler for run in self.leased))
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), twice=st.booleans())
    def finish(self, data: st.DataObject, outcome: str, twice: bool) -> None:
        run = data.draw(st.sampled_from([run for run in self.leased if run.handler]))
        assert self.inbox.finish([Outcome(run, outcome, {"result": 1})]) == [True]  # type: ignore[arg-type]
        self.leased.remove(run)
        self.stale.append(run)
        if twice:  # the reply was lost and it is sent again
            assert self.inbox.finish([Outcome(run, outcome)]) == [False]  # type: ignore[arg-type]

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def a_late_finish_changes_nothing(self, data: st.DataObject, outcome: str) -> None:
        run = data.draw(st.sampled_from(self.stale))
        before = self.client.hgetall(keys.EVENT + run.event.id)
        assert self.inbox.finish([Outcome(run, outcome)]) == [False]  # type: ignore[arg-type]
        assert self.client.hgetall(keys.EVENT + run.event.id) == before

    @rule()
    def renew(self) -> None:
        assert self.inbox.renew(self.leased) == set()
        assert self.inbox.renew(self.stale[-3:]) == {run.item for run in self.stale[-3:]}

    @rule()
    def crash(self) -> None:
        """A worker dies with all it holds; its leases end, and the next tick sees it."""
        self.crashed += self.leased
        self.leased = []
        for item in self.client.zrange(keys.LEASED, 0, -1):
            self.client.zadd(keys.LEASED, {item: 1})

    # A person

    @precondition(lambda self: self.known)
    @rule(data=st.data(), handler=st.sampled_from(HANDLERS), make=st.booleans())
    def replay(self, data: st.DataObject, handler: str, make: bool) -> None:
        delivery = data.draw(st.sampled_from(self.known))
        item = keys.run_item(delivery.event.id, handler)
        before = self.client.hget(keys.EVENT + delivery.event.id, f"r:{handler}")
        state = before.decode().split(" ")[0] if before else ""
        (reply,) = self.inbox.reopen([item], {}, make=make)
        if state in ("ready", "leased", "held"):
            assert reply == "open"
        else:
            assert reply == ("reopened" if state or make else "absent")

    @precondition(lambda self: self.known)
    @rule(data=st.data(), handler=st.sampled_from(HANDLERS))
    def drop(self, data: st.DataObject, handler: str) -> None:
        delivery = data.draw(st.sampled_from(self.known))
        before = self.client.hget(keys.EVENT + delivery.event.id, f"r:{handler}")
        state = before.decode().split(" ")[0] if before else ""
        (reply,) = self.inbox.drop([keys.run_item(delivery.event.id, handler)], reason="because")
        assert reply == ("dropped" if state in ("failed", "later") else "no-failure")

    @rule(store=st.sampled_from(STORES), handler=st.sampled_from(HANDLERS), which=st.booleans())
    def pause(self, store: str, handler: str, which: bool) -> None:
        self.inbox.pause(store=store) if which else self.inbox.pause(handler=handler)

    @rule(store=st.sampled_from(STORES), handler=st.sampled_from(HANDLERS), which=st.booleans())
    def resume(self, store: str, handler: str, which: bool) -> None:
        self.inbox.resume(store=store) if which else self.inbox.resume(handler=handler)

    # The housekeeper, and the wake-ups

    @rule()
    def tick(self) -> None:
        for item in self.client.zrange(keys.LATER, 0, -1):
            self.client.zadd(keys.LATER, {item: 1})
        lapsed = set(self.client.zrange(keys.LEASED, 0, 1, byscore=True))
        mine = {run.item.encode() for run in self.leased}
        assert not lapsed & mine
        self.inbox.tick()
        self.stale += self.crashed
        self.crashed = []

    @rule()
    def wake_ups_are_lost(self) -> None:
        self.client.delete("rq:queue:default")
        self.inbox.tick(lapses=False)
        work = self.client.exists(keys.READY) or any(self.client.exists(keys.READY + name) for name in HANDLERS)
        assert bool(self.client.llen("rq:queue:default")) == bool(work)

    @rule()
    def trim(self) -> None:
        assert self.inbox.trim(bodies=1e9, records=1e9) == (0, 0, 0)

    # What must always hold

    @invariant()
    def every_open_item_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "client"):
            return
        places: dict[str, list[str]] = {}
        for name in ("", *HANDLERS):
            for item in self.client.zrange(keys.READY + name, 0, -1):
                places.setdefault(item.decode(), []).append("ready")
        held = [("held", keys.HELD + store) for store in STORES]
        for place, key in (("leased", keys.LEASED), ("later", keys.LATER), *held):
            for item in self.client.zrange(key, 0, -1):
                places.setdefault(item.decode(), []).append(place)
        expected = {}
        for delivery in self.known:
            fields = self.client.hgetall(keys.EVENT + delivery.event.id)
            for name, value in fields.items():
                state = value.decode().split(" ")[0]
                if name.startswith(b"r:") and state in STATES:
                    expected[keys.run_item(delivery.event.id, name[2:].decode())] = [state]
        assert places == expected
        assert self.client.hlen(keys.ASIDE) == 0

    @invariant()
    def the_counters_are_what_the_records_say(self) -> None:
        if not hasattr(self, "client"):
            return
        counters = Ledger(self.client).counters()
        found: Counter[tuple[str, str]] = Counter()
        for delivery in self.known:
            state = self.client.hget(keys.EVENT + delivery.event.id, "state").decode()
            found[(delivery.event.store, state)] += 1
            found[(delivery.event.store, "accepted")] += 1
        for store in counters.stores:
            for name in ("accepted", "settled", "open", "failed"):
                assert counters.stores[store][name] == found[(store, name)], (store, name)
        total = counters.total
        assert total["accepted"] == total["settled"] + total["open"] + total["failed"] == len(self.known)

    @invariant()
    def the_groups_count_what_failed(self) -> None:
        if not hasattr(self, "client"):
            return
        marks: Counter[str] = Counter()
        for delivery in self.known:
            for name, value in self.client.hgetall(keys.EVENT + delivery.event.id).items():
                if name.startswith(b"g:"):
                    marks[value.decode()] += 1
        groups = Failures(self.client).groups()
        told: Counter[str] = Counter()
        for group in groups:
            told[f"{group.id} retrying"] += group.retrying
            told[f"{group.id} failed"] += group.failed
            assert self.client.zcard(keys.GROUP_RUNS + group.id) == group.retrying + group.failed
        assert +told == marks

    @invariant()
    def no_run_has_more_losses_than_allowed(self) -> None:
        assert all(run.losses <= LOSSES_ALLOWED for run in getattr(self, "leased", []))


def _explore(url: str, examples: int, steps: int) -> None:
    machine = type("Machine", (InboxMachine,), {"url": url})
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(
            Phase.explicit,
            Phase.reuse,
            Phase.generate,
        ),  # a failing sequence is shown as found: shrinking takes minutes
    )
    run_state_machine_as_test(machine, settings=how)


def test_random_sequences_keep_the_rule_and_the_identity(server_url: str) -> None:
    _explore(server_url, examples=25, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_long_random_sequences_keep_the_rule_and_the_identity(server_url: str) -> None:
    _explore(server_url, examples=400, steps=80)
