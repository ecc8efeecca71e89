"""The inbox against a model: random sequences of operations and faults keep the invariants.

An open item is in exactly one of ready, leased, later, held and queued, and a closed item is in none. accepted =
settled + open + failed, and each counter matches the records. No limit has more slots in use than it allows, and no
open event loses its body. No order key has two leases at once, its runs begin in the order of acceptance, no later than
all older events are routed and the run before has ended, and each of them ends once workers go on. What is merged into
a run is dropped exactly when that run is settled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

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
from receiver.inbox import (
    Administration,
    Declaration,
    Housekeeping,
    Inbox,
    Limit,
    Outcome,
    Routes,
    Run,
    connect,
    keys,
)
from receiver.inbox.administration import DropResult
from receiver.inbox.leases import LOSSES_ALLOWED
from receiver.inbox.model import PlannedRun, from_ms, run_of_event
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.event_pages import open_since
from receiver.inbox.queries.handlers import HandlerQueries
from tests.support.changed_scripts import changed_scripts
from tests.support.inbox_audit import InboxAudit

STORES = ("north", "south")
HANDLERS = ("shop.one", "shop.two", "shop.three", "shop.four")
SLOTS = 2
LIMITS = dict.fromkeys(("shop.two", "shop.three"), Limit("erp", concurrency=SLOTS))
"""Two handlers share a limit; the first handler has none."""
SETS = (*(keys.READY + lane for lane in ("", *HANDLERS)), keys.LEASED, keys.LATER, *(keys.HELD + one for one in STORES))
ORDERS = {"shop.one": "c resource", "shop.three": "s store", "shop.four": "m resource"}
"""The second handler is not ordered; the third is, and has a limit; the runs of the fourth are merged."""
MERGING = "shop.four"
RESOURCES = 2
ORDERED = keys.PREFIX + "ordered"
SMALL_LIMITS = (
    ("local UNROUTED_PAGE = 64", "local UNROUTED_PAGE = 1"),
    ("local MAX_FOLLOWERS = 127", "local MAX_FOLLOWERS = 2"),
)
"""What the scripts read or lease at once, so small that short sequences go beyond it."""
LONG_DELAY = 1e10
"""Seconds after arrival, which is in 1970."""


OPEN = ("ready", "leased", "later", "held", "queued")


class OrderedRun(NamedTuple):
    item: str
    handler: str
    key: str
    accepted: float


def _planned(name: str, how: bool | float) -> PlannedRun:
    """As a worker plans it: a run with a limit is never leased while its event is routed."""
    start = name not in LIMITS if how is True else how
    return (name, "default", start, ORDERS[name]) if name in ORDERS else (name, "default", start)


def _most_of_one_key(runs: Sequence[Run]) -> int:
    return max(Counter((run.handler, run.order_key) for run in runs if run.order_key).values(), default=1)


def _state_in(run: bytes | None) -> str:
    return (run or b"").decode().split(" ")[0]


class InboxMachine(RuleBasedStateMachine):
    """What receivers, workers, people and the housekeeper do, and faults between them."""

    url = ""

    @initialize()
    def start(self) -> None:
        self.client: Redis = connect(self.url, timeout=5.0)
        ours = self.client.get("storehooks-tests")
        self.client.flushdb()
        self.client.set(keys.DECLARED_SINCE, 1)  # all workers had time to declare their handlers
        self.client.sadd(ORDERED, "shop.one@1")
        self.sent = -1
        self.states: dict[str, str] = {}
        if ours:  # the mark of a shared server's database that may be flushed
            self.client.set("storehooks-tests", ours)
        self.inbox = Inbox(self.client)
        self.administration = Administration(self.client)
        self.housekeeping = Housekeeping(self.client)
        self.known: list[Delivery] = []
        self.leased: list[Run] = []
        self.crashed: list[Run] = []
        self.stale: list[Run] = []
        self.removed: Counter[tuple[str, str]] = Counter()
        self.fences: dict[tuple[str, str], int] = {}
        self.not_to_begin: set[tuple[str, str]] = set()
        self.made: set[str] = set()
        """Runs that a replay created: they may be older than those that have ended."""
        self.delayed: set[str] = set()
        """Handlers whose runs were created with a delay in the last step."""
        self.items: set[str] = set()
        self.not_due: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "client"):
            try:
                self._everything_ends_once_workers_go_on()
            finally:
                self.client.flushdb()
                self.client.close()

    def _everything_ends_once_workers_go_on(self) -> None:
        """Nothing is lost: all events are routed, all runs end, except those behind a failure that stops their key."""
        for name in self.administration.paused():
            kind, _, whose = name.partition(":")
            self.administration.resume(**{kind: whose})
        self.leased = []
        self.crash()
        idle = 0
        while idle < 3:
            self.tick()
            self.client.delete(keys.BUSY)
            self.claim(50, set(HANDLERS))
            idle = 0 if self.leased else idle + 1
            for run in list(self.leased):
                if run.handler:
                    self._finish(run, OutcomeKind.DONE)
                else:
                    self._route([run], set(), False)
        audit = InboxAudit(self.client, [one.event for one in self.known], handlers=HANDLERS, limit="erp")
        stopped = {ids for one in HANDLERS for ids in self.client.hvals(keys.ORDER + one)}
        assert all(len(ids.split()) == 1 for ids in stopped)
        left = [one for one in audit.items if one.state in OPEN]
        assert all(one.state == "queued" and one.handler == "shop.three" for one in left), left
        assert not left or stopped

    # Receiver

    @rule(store=st.sampled_from(STORES), unreadable=st.booleans())
    def accept(self, store: str, unreadable: bool) -> None:
        number = self.sent = self.sent + 1
        event = Event(
            id=f"event{number}",
            store=store,
            topic="order.created",
            received_at=from_ms(1000),
            body=b"{}",
            resource_id=str(number % RESOURCES),
        )
        delivery = Delivery(event, "orders/create", unreadable="not JSON" if unreadable and number % 7 == 3 else "")
        self.known.append(delivery)
        assert self.inbox.accept([delivery])[0].status == "accepted"

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def accept_again_after_a_lost_reply(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.known))
        assert self.inbox.accept([delivery])[0].status == "duplicate"

    # Worker

    @rule(many=st.integers(1, 5), handlers=st.sets(st.sampled_from(HANDLERS)), single=st.booleans())
    def claim(self, many: int, handlers: set[str], single: bool = False) -> None:
        lanes = dict.fromkeys(("", *sorted(handlers)), many)
        before = self._open_ordered_runs()
        one_at_a_time = HANDLERS if single else ()
        runs = self.inbox.finish_and_claim((), lanes, capacity=many, limits=LIMITS, one_at_a_time=one_at_a_time)[1].runs
        assert len(runs) <= many
        assert not single or _most_of_one_key(runs) == 1
        assert len(runs) == 1 or not any(run.losses for run in runs), "a suspect is claimed alone"
        self._check_order(before, runs)
        self.leased += runs

    @rule(
        many=st.integers(1, 5),
        stores=st.sets(st.sampled_from(STORES), min_size=1),
        handlers=st.dictionaries(st.sampled_from(HANDLERS), st.sampled_from((True, False, LONG_DELAY)), min_size=1),
        lanes_first=st.booleans(),
        suspects_first=st.booleans(),
        current=st.sampled_from((True, True, True, False)),
        single=st.booleans(),
    )
    def claim_and_route_in_one_step(
        self,
        many: int,
        stores: set[str],
        handlers: dict[str, bool | float],
        lanes_first: bool,
        suspects_first: bool,
        current: bool,
        single: bool,
    ) -> None:
        """As a worker does it: a run with a limit is never leased while its event is routed."""
        version = self.inbox.declarations().version if current else "old"
        chosen = [_planned(name, how) for name, how in sorted(handlers.items())]
        routes = Routes(version, {(store, "order.created"): chosen for store in sorted(stores)})
        self.delayed = {name for name, how in handlers.items() if how is not True and how and name != MERGING}
        names = ("", *HANDLERS) if not lanes_first else (*HANDLERS, "")
        before = self._open_ordered_runs()
        _, claim = self.inbox.finish_and_claim(
            (),
            dict.fromkeys(names, many),
            capacity=many,
            limits=LIMITS,
            routes=routes,
            suspects_first=suspects_first,
            one_at_a_time=HANDLERS if single else (),
        )
        assert not single or _most_of_one_key(claim.runs) == 1
        assert _most_of_one_key([run for run in claim.runs if run.handler == MERGING]) == 1, "they are merged"
        assert len({run.event.id for run in claim.runs}) == 1 or not any(run.losses for run in claim.runs)
        self._check_order(before, claim.runs)
        self.leased += claim.runs

    def _open_ordered_runs(self) -> list[OrderedRun]:
        """The open ordered runs that were never replayed, and with the handler "" the events that wait to be routed."""
        found = []
        pipeline = self.client.pipeline(transaction=False)
        for one in self.known:
            pipeline.hgetall(keys.EVENT + one.event.id).zscore(keys.INDEX, one.event.id)
        replies = iter(pipeline.execute())
        for one in self.known:
            fields, accepted = next(replies), next(replies)
            if _state_in(fields.get(b"r:")) in ("ready", "leased", "held"):
                found.append(OrderedRun(one.event.id, "", one.event.store, accepted))
            for name in ORDERS:
                item, mark = keys.run_item(one.event.id, name), fields.get(f"k:{name}".encode(), b"").decode()
                is_first_time = f"p:{name}".encode() not in fields and item not in self.made
                if _state_in(fields.get(f"r:{name}".encode())) in OPEN and is_first_time:
                    found.append(OrderedRun(item, name, mark[2:], accepted))
        return found

    def _check_order(self, before: list[OrderedRun], runs: Sequence[Run]) -> None:
        """Each ordered run begins after all of its key that were accepted before it, or with them in one claim, or they
        are merged into it; and after each event of its store that was accepted before it was routed. A replayed one
        comes when it can. `before` is what was open before the runs were leased, and before those of routed events were
        created."""
        claimed = {run.item for run in runs}
        claimed |= {keys.run_item(one, run.handler) for run in runs for one in run.merged}
        last: dict[tuple[str, str], float] = {}
        items, after = {one.item for one in before}, self._open_ordered_runs()
        paused = self.administration.paused()
        for run in runs:
            assert bool(run.order_key) == (run.handler in ORDERS)
            urgent = self.client.hget(keys.EVENT + run.stored.id, f"r:{run.handler}").endswith(b" urgent")
            assert urgent or f"handler:{run.handler}" not in paused
        for run in (run for run in runs if run.order_key):
            place, at = (run.handler, run.order_key), self.client.zscore(keys.INDEX, run.stored.id)
            assert run.fence > self.fences.get(place, 0), "the fence grows"
            self.fences[place] = run.fence
            if run.item in items or run.stored.id in items:  # it was open, or its event waited to be routed
                assert at > last.get(place, 0)
                last[place] = at
                older = {one for one in (before if run.item in items else after) if one.accepted < at}
                assert {one.item for one in older if (one.handler, one.key) == place} <= claimed, (run.item, older)
                assert not {one for one in older if (one.handler, one.key) == ("", run.stored.store)}, (run.item, older)

    @rule(many=st.integers(1, 5))
    def claim_and_lose_the_reply(self, many: int) -> None:
        self.inbox.claim(dict.fromkeys(("", *HANDLERS), many), capacity=many, limits=LIMITS)

    @precondition(lambda self: any(not run.handler for run in self.leased))
    @rule(data=st.data(), handlers=st.sets(st.sampled_from(HANDLERS)), mine=st.booleans())
    def route(self, data: st.DataObject, handlers: set[str], mine: bool) -> None:
        self._route([data.draw(st.sampled_from([run for run in self.leased if not run.handler]))], handlers, mine)

    def _route(self, events: Sequence[Run], handlers: set[str], mine: bool) -> None:
        """In one call, in this order."""
        chosen = [_planned(name, mine) for name in sorted(handlers)]
        before = self._open_ordered_runs()
        routed = {event.item for event in events if any(self._run_state(event.event.id, name) for name in handlers)}
        waiting = {name for name in handlers if self.client.exists(keys.READY + name)}
        replies = self.inbox.route([(event, chosen) for event in events], self.inbox.declarations().version)
        paused = self.administration.paused()
        free = {n for n in handlers - LIMITS.keys() - waiting if mine and f"handler:{n}" not in paused}
        leased: list[Run] = []
        for event, (what, *begun) in zip(events, replies, strict=True):
            assert what == ("routed" if handlers else "unhandled")
            runs = [run_of_event(event.stored, one, event.token) for one in begun]
            assert event.item in routed or free - ORDERS.keys() <= {run.handler for run in runs} <= free
            self.leased.remove(event)
            self.stale.append(event)
            leased += runs
        self._check_order(before, leased)
        self.leased += leased

    @precondition(lambda self: any(not run.handler for run in self.leased))
    @rule(data=st.data())
    def route_by_old_declarations(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from([run for run in self.leased if not run.handler]))
        assert self.inbox.route([(event, [])], "old") == [["reroute"]]

    @precondition(lambda self: any(run.handler for run in self.leased))
    @rule(data=st.data(), outcome=st.sampled_from(OutcomeKind), twice=st.booleans())
    def finish(self, data: st.DataObject, outcome: OutcomeKind, twice: bool) -> None:
        run = self._leased_with(data.draw(st.sampled_from([run for run in self.leased if run.handler])))[0]
        outcome = self._finish(run, outcome)
        if twice:  # the reply was lost, and the outcome is sent again
            assert self.inbox.finish([Outcome(run, outcome)]) == [False]

    def _leased_with(self, run: Run) -> list[Run]:
        """The runs of a key that one claim leased and that have not ended, in the order of a worker."""
        lease = (run.token, run.handler, run.order_key)
        same = [one for one in self.leased if (one.token, one.handler, one.order_key) == lease]
        return same if run.order_key else [run]

    def _finish(self, run: Run, outcome: OutcomeKind) -> OutcomeKind:
        """If a run did not end for good, a worker gives back those leased with it. Returns the outcome."""
        if (run.item, run.token) in self.not_to_begin:
            outcome = OutcomeKind.RELEASE
        is_settled = outcome in (OutcomeKind.DONE, OutcomeKind.DROPPED)
        if not is_settled and (outcome is not OutcomeKind.FAILED or run.stops_key):
            self.not_to_begin |= {(one.item, one.token) for one in self._leased_with(run)}
        merged = [one for one in run.merged if self._run_state(one, run.handler) == "queued"]
        assert self.inbox.finish([Outcome(run, outcome, {"result": 1})]) == [True]
        assert all((self._run_state(one, run.handler) == "dropped") == is_settled for one in merged)
        self.leased.remove(run)
        self.stale.append(run)
        return outcome

    @rule(outcome=st.sampled_from(OutcomeKind), handlers=st.sets(st.sampled_from(HANDLERS)))
    def a_worker_finishes_everything(self, outcome: OutcomeKind, handlers: set[str]) -> None:
        """Brings many runs to an end in one step, so that short sequences reach more states."""
        self._claim_everything(handlers)
        for run in [run for run in self.leased if run.handler]:
            self._finish(run, outcome)

    def _claim_everything(self, handlers: set[str]) -> None:
        self.accept("north", False)
        self.claim(5, set(HANDLERS))
        for event in [run for run in self.leased if not run.handler]:
            self._route([event], handlers, True)
        self.claim(5, set(HANDLERS))

    @precondition(lambda self: len(self.known) < 40)
    @rule(
        many=st.integers(2, 6),
        handler=st.sampled_from(sorted(ORDERS)),
        late=st.integers(0, 2),
        step=st.sampled_from((1, -1)),
        mine=st.booleans(),
        held=st.booleans(),
        ordered=st.booleans(),
        replayed=st.booleans(),
        outcomes=st.lists(st.sampled_from(OutcomeKind), max_size=5),
    )
    def a_burst_is_routed_out_of_order(
        self,
        many: int,
        handler: str,
        late: int,
        step: int,
        mine: bool,
        held: bool,
        ordered: bool,
        replayed: bool,
        outcomes: list[OutcomeKind],
    ) -> None:
        """Several runs of a key wait: for an event that is routed last, and behind leased and replayed ones."""
        self._accept_burst(handler)
        self._finish_all_of(handler)
        events = self._claim_events()
        last = events.pop(late)
        if held:
            self._lose_and_hold(last)
        self._route(events[::step], {handler}, mine)
        self.the_keys_agree()
        for run in [run for run in self._runs("done") if run[1] == handler][:2] if replayed else ():
            self._replay(*run, make=False)
        self.administration.resume(store="north")
        self.claim(many, {handler})
        for outcome in outcomes[:2]:
            self._finish_first(outcome)
        self.claim(many, {handler})
        for event in [run for run in self.leased if run.item == last.item]:  # of another claim, if its worker has died
            if ordered:
                self._route([event], {handler}, False)
            else:
                self._route_while_none_is_ordered(event)
        self.claim(many, {handler})
        for outcome in outcomes[2:]:
            self._finish_first(outcome)

    def _lose_and_hold(self, event: Run) -> None:
        """Its worker dies before it is routed, and its store is paused."""
        self.leased.remove(event)
        self.crashed.append(event)
        self.client.zadd(keys.LEASED, {event.item: 1})
        self.tick()
        self.administration.pause(store=event.event.store)
        self.claim(1, set())

    def _route_while_none_is_ordered(self, event: Run) -> None:
        """It is not removed from `unrouted` by that. The keys that wait for it begin at the next tick."""
        ordered = self.client.smembers(ORDERED)
        self.client.delete(ORDERED)
        self._route([event], {"shop.two"}, False)
        self.client.sadd(ORDERED, *ordered)
        self.housekeeping.tick(lapses=False)

    @precondition(lambda self: len(self.known) < 40)
    @rule(
        many=st.integers(2, 6),
        handler=st.sampled_from(sorted(ORDERS)),
        outcomes=st.lists(st.sampled_from(OutcomeKind), max_size=5),
        due=st.booleans(),
        single=st.sampled_from((False, False, True)),
    )
    def a_burst_is_routed_while_it_is_claimed(
        self, many: int, handler: str, outcomes: list[OutcomeKind], due: bool, single: bool
    ) -> None:
        """Several runs of a key are leased together, and more events of it are routed while they are. A retry may be
        due before those that were leased with it are given back."""
        self._accept_burst(handler)
        self._finish_all_of(handler)
        self.claim_and_route_in_one_step(many, {"north"}, {handler: True}, False, False, True, single)
        self.the_keys_agree()
        for outcome in outcomes[:2]:
            self._finish_first(outcome)
        if due:
            self.tick()
        self.claim_and_route_in_one_step(many, {"north"}, {handler: True}, False, False, True, single)
        for outcome in outcomes[2:]:
            self._finish_first(outcome)

    @precondition(lambda self: len(self.known) < 40)
    @rule(
        many=st.integers(4, 9),
        first=st.sampled_from((1, 2, 8)),
        ahead=st.integers(0, 2),
        start=st.sampled_from((True, True, LONG_DELAY)),
        outcome=st.sampled_from((OutcomeKind.DONE, OutcomeKind.RELEASE)),
    )
    def a_burst_is_found_in_another_order(
        self, many: int, first: int, ahead: int, start: bool | float, outcome: OutcomeKind
    ) -> None:
        """The first runs of the keys are ready. Of the events behind them the newer come first, and some are routed."""
        handler = "shop.one"
        self._accept_burst(handler, max(4, first))
        self._finish_all_of(handler)
        self._route_some(first, handler)
        self.client.delete(keys.READY)
        Housekeeping(self.client).put_back_stranded()
        self._route_some(ahead, handler)
        for _ in range(2):
            self.accept("north", False)
        self.the_keys_agree()
        self.claim_and_route_in_one_step(many, {"north"}, {handler: start}, True, False, True, False)
        self.the_keys_agree()
        for run in [run for run in self.leased if run.handler == handler]:
            self._finish(run, outcome)
        self.claim(many, {handler})

    def _route_some(self, many: int, handler: str) -> None:
        if many:
            self.claim(many, set())
        for event in [run for run in self.leased if not run.handler]:
            self._route([event], {handler}, False)

    def _finish_all_of(self, handler: str) -> None:
        while runs := self.inbox.claim({handler: 50}, capacity=50, limits=LIMITS).runs:  # a suspect is claimed alone
            self.leased += runs
            for run in runs:
                self._finish(run, OutcomeKind.DONE)

    def _accept_burst(self, handler: str, many: int = 6) -> None:
        """No event waits to be routed but these new ones."""
        self.administration.resume(store="north")
        self.administration.resume(handler=handler)
        self.crash()  # else an event that another worker is to route could hold back all later ones
        self.tick()
        while events := self._claim_events():
            self._route(events, {handler}, False)
        for _ in range(many):
            self.accept("north", False)

    def _finish_first(self, outcome: OutcomeKind) -> None:
        for run in [run for run in self.leased if run.handler][:1]:
            self._finish(run, outcome)
            self.the_keys_agree()

    def _claim_events(self) -> list[Run]:
        """Of several that lost a worker, one."""
        self.claim(9, set())
        return [run for run in self.leased if not run.handler]

    @rule(handlers=st.sets(st.sampled_from(HANDLERS), min_size=1))
    def a_worker_crashes_with_everything_leased(self, handlers: set[str]) -> None:
        self._claim_everything(handlers)
        self.crash()
        self.tick()

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), outcome=st.sampled_from(OutcomeKind))
    def a_late_finish_changes_only_the_losses(self, data: st.DataObject, outcome: OutcomeKind) -> None:
        run = data.draw(st.sampled_from(self.stale))
        before, losses = self._record(run)
        assert self.inbox.finish([Outcome(run, outcome)]) == [False]
        after, left = self._record(run)
        assert after == before
        assert left in (losses, losses - 1)

    def _record(self, run: Run) -> tuple[dict[bytes, bytes], int]:
        """The record of an event without a run's losses, and those losses."""
        fields: dict[bytes, bytes] = self.client.hgetall(keys.EVENT + run.event.id)
        fields.pop(f"l:{run.handler}".encode(), None)
        own = f"r:{run.handler}".encode()
        state, attempts, losses, *rest = fields.get(own, b"gone 0 0").split(b" ")
        fields[own] = b" ".join([state, attempts, *rest])
        return fields, int(losses)

    @rule()
    def renew(self) -> None:
        assert self.inbox.renew(self.leased) == set()
        assert self.inbox.renew(self.stale[-3:]) == {run.item for run in self.stale[-3:]}

    @rule()
    def crash(self) -> None:
        """A worker dies with all its leases; they end, and the next tick notices."""
        self.crashed += self.leased
        self.leased = []
        for item in self.client.zrange(keys.LEASED, 0, -1):
            self.client.zadd(keys.LEASED, {item: 1})

    # Administration

    @precondition(lambda self: self.known)
    @rule(data=st.data(), likely=st.booleans(), make=st.booleans(), urgent=st.booleans())
    def replay(self, data: st.DataObject, likely: bool, make: bool, urgent: bool) -> None:
        event_id, handler, state = self._pick(data, {"done", "failed", "dropped", "later"} if likely else set())
        self._replay(event_id, handler, state, make, urgent)

    def _replay(self, event_id: str, handler: str, state: str, make: bool, urgent: bool = False) -> None:
        item = keys.run_item(event_id, handler)
        paused = self.administration.paused()
        handler_paused, store = f"handler:{handler}" in paused, self.client.hget(keys.EVENT + event_id, "store") or b""
        before = self.client.hget(keys.EVENT + event_id, f"r:{handler}") or b""
        was_urgent, is_retry = before.endswith(b" urgent"), before[:9] not in (b"queued 0 ", b"")
        orders = {item: ORDERS[handler]} if handler in ORDERS else {}
        if make and not state:
            self.made.add(item)
        self.not_due.discard(item)
        (reply,) = self.administration.reopen([item], {}, make=make, urgent=urgent, orders=orders)
        replayed = "although-paused" if urgent else "handler-paused"
        replayed = "store-paused" if f"store:{store.decode()}" in paused else replayed if handler_paused else "ready"
        if state == "ready" and urgent and handler_paused and not was_urgent:
            assert reply == replayed
        elif state in ("ready", "leased", "held") or (state == "queued" and not is_retry):
            assert reply == "open"
        elif not self.client.exists(keys.BODY + event_id):
            assert reply == ("no-body" if state or make else "absent")
        else:
            assert reply == (replayed if state or make else "absent")
            again = self.administration.reopen(
                [item], {}, make=make, urgent=urgent, orders=orders
            )  # the reply was lost
            assert again == ["open" if reply == replayed else "absent"]

    @rule(handler=st.sampled_from(HANDLERS))
    def retire(self, handler: str) -> None:
        waiting = sum(
            self._run_state(one.event.id, handler) in ("ready", "later", "held", "queued") for one in self.known
        )
        assert HandlerQueries(self.client).waiting([handler]) == {handler: (waiting, False)}
        assert self.administration.retire(handler) == waiting
        assert f"handler:{handler}" not in self.administration.paused()
        assert self.administration.retire(handler) == 0
        assert not any(one.handler == handler for one in self.inbox.declarations().handlers)

    @rule(handlers=st.sets(st.sampled_from(HANDLERS)))
    def declare(self, handlers: set[str]) -> None:
        declared = [Declaration(name, "1", ("*",), ("*",), "default", {}) for name in sorted(handlers)]
        version = self.inbox.declare(declared)
        assert self.inbox.declare(declared) == version, "the same declarations are no change"

    @rule()
    def end_orphans(self) -> None:
        """Ready runs of handlers that no worker declares end as failures, if any worker is alive."""
        declared = {one.handler for one in self.inbox.declarations().handlers}
        gone = [name for name in HANDLERS if name not in declared and self.client.hexists(keys.LANES, name)]
        waiting = sum(self._run_state(one.event.id, name) in ("ready", "queued") for name in gone for one in self.known)
        assert len(self.housekeeping.end_orphans(absent=60)) == (
            waiting if self.client.hexists(keys.DECLARED_AT, "@") else 0
        )

    @precondition(lambda self: self.known)
    @rule(data=st.data(), likely=st.booleans())
    def drop(self, data: st.DataObject, likely: bool) -> None:
        event_id, handler, state = self._pick(data, {"failed", "later"} if likely else set())
        self._drop(event_id, handler, state)

    @rule(
        outcome=st.sampled_from((OutcomeKind.FAILED, OutcomeKind.RETRY)),
        handlers=st.sets(st.sampled_from(HANDLERS), min_size=1),
    )
    def everything_fails_and_is_dropped(self, outcome: OutcomeKind, handlers: set[str]) -> None:
        self.a_worker_finishes_everything(outcome, handlers)
        for run in self._runs("failed", "later"):
            self._drop(*run)

    @rule(
        outcome=st.sampled_from((OutcomeKind.FAILED, OutcomeKind.RETRY)),
        handlers=st.sets(st.sampled_from(HANDLERS), min_size=1),
    )
    def everything_fails_and_is_replayed(self, outcome: OutcomeKind, handlers: set[str]) -> None:
        self.a_worker_finishes_everything(outcome, handlers)
        for run in self._runs("failed", "later"):
            self._replay(*run, make=False)

    def _drop(self, event_id: str, handler: str, state: str) -> None:
        item = keys.run_item(event_id, handler)
        in_group = self.client.hexists(keys.EVENT + event_id, f"g:{handler}")
        (result,) = self.administration.drop([item], reason="because")
        dropped = result is DropResult.DROPPED
        assert dropped == (in_group and state != "leased")
        assert not dropped or not self.client.hexists(keys.EVENT + event_id, f"g:{handler}")
        assert self.administration.drop([item], reason="because") == [DropResult.KEPT]

    def _pick(self, data: st.DataObject, states: set[str]) -> tuple[str, str, str]:
        """A run of an event with its state ("" if it does not exist), in one of these states if there is any."""
        return data.draw(st.sampled_from(self._runs(*states) or self._runs()))

    def _runs(self, *states: str) -> list[tuple[str, str, str]]:
        """The runs in these states. Without states, every run that exists or could exist."""
        every = [(one.event.id, name, self._run_state(one.event.id, name)) for one in self.known for name in HANDLERS]
        return [run for run in every if run[2] in states or not states]

    @rule(store=st.sampled_from(STORES), handler=st.sampled_from(HANDLERS), which=st.booleans())
    def pause(self, store: str, handler: str, which: bool) -> None:
        self.administration.pause(store=store) if which else self.administration.pause(handler=handler)

    @rule(store=st.sampled_from(STORES), handler=st.sampled_from(HANDLERS), which=st.booleans())
    def resume(self, store: str, handler: str, which: bool) -> None:
        self.administration.resume(store=store) if which else self.administration.resume(handler=handler)

    # Housekeeper and wake-ups

    @rule()
    def tick(self) -> None:
        for item in self.client.zrange(keys.LATER, 0, -1):
            self.client.zadd(keys.LATER, {item: 1})
            self.not_due.discard(item.decode())
        lapsed = set(self.client.zrange(keys.LEASED, 0, 1, byscore=True))
        mine = {run.item.encode() for run in self.leased}
        assert not lapsed & mine
        self.inbox.renew(self.leased)  # on a slow machine they would lapse by themselves
        self.housekeeping.tick()
        self.stale += self.crashed
        self.crashed = []

    @rule()
    def move_the_time_of_the_oldest_open_event_on(self) -> None:
        self.housekeeping.advance_open()
        open_ = [event for event, state in self.states.items() if state == "open"]
        assert not open_ or open_since(self.client) == min(self.client.zscore(keys.INDEX, event) for event in open_)

    @rule(lost=st.sampled_from(SETS))
    def a_set_is_removed_and_its_items_are_put_back(self, lost: str) -> None:
        assert Housekeeping(self.client).put_back_stranded() == 0, "an item that is in a set is left alone"
        items = self.client.zcard(lost)
        self.client.delete(lost)
        assert Housekeeping(self.client).put_back_stranded() == items
        if lost == keys.LEASED and self.crashed:
            self.client.zadd(lost, {run.item: 1 for run in self.crashed})  # these leases had ended

    @precondition(lambda self: self.client.keys(keys.QUEUED + "*"))
    @rule()
    def queues_are_removed_and_their_items_are_put_back(self) -> None:
        queues = self.client.keys(keys.QUEUED + "*")
        items = sum(self.client.zcard(one) for one in queues)
        self.client.delete(*queues)
        assert Housekeeping(self.client).put_back_stranded() == items

    @rule(handler=st.sampled_from(sorted(ORDERS)))
    def the_active_runs_of_a_handler_are_forgotten_and_found_again(self, handler: str) -> None:
        self.client.delete(keys.ORDER + handler)
        assert Housekeeping(self.client).put_back_stranded() == 0

    @rule()
    def wake_ups_are_lost(self) -> None:
        self.client.delete("rq:queue:storehooks")
        self.housekeeping.tick(lapses=False)
        work = self.client.exists(keys.READY) or any(self.client.exists(keys.READY + name) for name in HANDLERS)
        assert bool(self.client.llen("rq:queue:storehooks")) == bool(work)

    @rule(records=st.booleans(), failures=st.booleans())
    def trim(self, records: bool, failures: bool) -> None:
        """Everything that may be removed is old enough; the rest stays."""
        assert self.housekeeping.trim(bodies=1e9, records=1e9) == (0, 0, 0)
        self._age_all()
        self.housekeeping.trim(bodies=60, records=60 if records else 1e9, failures=60 if failures else 0)
        assert self.housekeeping.trim(bodies=60, records=60 if records else 1e9, failures=60 if failures else 0) == (
            0,
            0,
            0,
        )
        self._forget_removed_events({"settled"} if records else set(), {"failed"} if failures else set())

    @rule(store=st.sampled_from(STORES), keep=st.integers(0, 4))
    def trim_store(self, store: str, keep: int) -> None:
        stored = self.client.zcard(keys.index_of(store))
        _, removed = self.housekeeping.trim_store(store, keep=keep, window=60)
        assert removed <= max(0, stored - keep)
        self._forget_removed_events(set(), {"settled"})

    def _age_all(self) -> None:
        """As if all closed events had been closed an hour ago."""
        hour_ago = int(time.time() * 1000) - 3_600_000
        for name in (keys.PREFIX + "done", keys.FAILED):
            for item in self.client.zrange(name, 0, -1):
                self.client.zadd(name, {item: hour_ago})
        self.client.delete(keys.PREFIX + "bodies_removed_until")

    def _forget_removed_events(self, certain: set[str], possible: set[str]) -> None:
        for delivery in list(self.known):
            event = delivery.event
            state = self.states[event.id]
            if self.client.exists(keys.EVENT + event.id):
                assert state not in certain
                continue
            assert state in certain | possible, "no open event is removed"
            assert not self.client.exists(keys.BODY + event.id, "sh:o:" + event.id)
            assert self.client.zscore(keys.INDEX, event.id) is None
            self.known.remove(delivery)
            self.stale = [run for run in self.stale if run.event.id != event.id]
            self.removed[(event.store, state)] += 1

    def _run_state(self, event_id: str, handler: str) -> str:
        raw = self.client.hget(keys.EVENT + event_id, f"r:{handler}")
        return raw.decode().split(" ")[0] if raw else ""

    # Invariants

    @invariant()
    def the_keys_agree(self) -> None:
        if not hasattr(self, "client"):
            return
        audit = InboxAudit(self.client, [one.event for one in self.known], handlers=HANDLERS, limit="erp")
        audit.every_open_item_is_in_exactly_one_set()
        audit.closed_items_are_in_the_set_of_their_state()
        audit.the_state_of_each_event_follows_from_its_runs()
        audit.the_counters_match_the_records(self.removed)
        audit.exactly_the_slots_of_leased_runs_are_held(LIMITS, SLOTS)
        audit.the_failure_groups_match_the_records()
        audit.what_is_remembered_is_true()
        audit.one_claim_holds_the_active_runs_of_each_order_key()
        audit.an_order_key_waits_only_for_older_events_to_be_routed()
        self.states = audit.states
        self._delayed_runs_wait(audit)

    def _delayed_runs_wait(self, audit: InboxAudit) -> None:
        """Until they were due, or replayed. Those that are merged are due with the first of them."""
        created = [one for one in audit.items if one.name not in self.items]
        self.not_due |= {one.name for one in created if one.handler in self.delayed}
        self.items, self.delayed = {one.name for one in audit.items}, set()
        early = {one.name for one in audit.items if one.state in ("ready", "leased", "held")}
        assert not early & self.not_due

    @invariant()
    def no_run_has_more_losses_than_allowed(self) -> None:
        assert all(run.losses <= LOSSES_ALLOWED for run in getattr(self, "leased", []))


def explore(model: type[RuleBasedStateMachine], url: str, *, examples: int, steps: int) -> None:
    machine = type("Machine", (model,), {"url": url})
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(
            Phase.explicit,
            Phase.reuse,
            Phase.generate,
        ),  # no shrinking, which takes minutes
    )
    run_state_machine_as_test(machine, settings=how)


def explore_inbox(url: str, *changes: tuple[str, str], examples: int, steps: int) -> None:
    with changed_scripts(url, *changes):
        explore(InboxMachine, url, examples=examples, steps=steps)


def test_random_sequences_keep_the_invariants(server_url: str) -> None:
    explore_inbox(server_url, *SMALL_LIMITS, examples=14, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("limits", [(), SMALL_LIMITS], ids=["own limits", "small limits"])
def test_many_long_random_sequences_keep_the_invariants(server_url: str, limits: tuple[tuple[str, str], ...]) -> None:
    explore_inbox(server_url, *limits, examples=200, steps=80)
