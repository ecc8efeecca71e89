"""Which handlers an event is routed to, by what all workers have declared.

Routes that were found are sent along with each claim, so that the claim routes such events by itself. Only events
whose route was not sent along are routed here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from receiver.inbox import Declaration, Inbox, Routes, Run
from receiver.inbox.model import (
    NOTHING_DECLARED,
    Declarations,
    PlannedRun,
    needs_data,
    order_for,
    order_of,
    run_of_event,
)
from workers.plugins.router import wanted_by

MOST_ROUTES = 16
MOST_HANDLERS = 16
"""With more handlers, no routes are sent along with a claim: such events take one more step."""


class EventRouter:
    """Declares this worker's handlers, reads the declarations of all workers, and routes events by those."""

    def __init__(self, inbox: Inbox, worker: str = "") -> None:
        self._inbox = inbox
        self._worker = worker
        self._known = NOTHING_DECLARED
        self.adopt((), limited=())

    def adopt(self, handlers: Collection[Declaration], *, limited: Collection[str]) -> None:
        """Use these as this worker's handlers; `limited` names those that have a limit."""
        self._handlers = handlers
        self._limited = limited
        self._table = RouteTable(Declarations("", ()), limited=limited)

    def declare_and_read(self) -> None:
        self._inbox.declare(self._handlers, worker=self._worker, known=self._known)
        self._use(self._inbox.declarations())

    @property
    def routes(self) -> Routes:
        """The routes that a claim may apply by itself."""
        return self._table.routes

    def route(self, events: Sequence[Run], version: str, capacity: dict[str, int]) -> tuple[list[Run], list[Run]]:
        """Create the runs of each event.

        Returns the runs leased to this worker, at most `capacity` of each handler, and the events to route again,
        because the declarations have changed since.
        """
        if version != self._table.version:
            self.declare_and_read()  # the server may have lost this worker's declarations
        decisions = [(event, self._decide(event, capacity)) for event in events]
        replies = self._inbox.route(decisions, self._table.version)
        leased: list[Run] = []
        again: list[Run] = []
        for event, (reply, *handlers) in zip(events, replies, strict=True):
            if reply == "routed":
                leased += (run_of_event(event.stored, name, event.token) for name in handlers)
            elif reply == "reroute":
                again.append(event)
        return leased, again

    def _decide(self, event: Run, capacity: dict[str, int]) -> list[PlannedRun]:
        chosen: list[PlannedRun] = []
        for name, queue, start, *order in self._table.handlers_for(store=event.stored.store, topic=event.stored.topic):
            now = capacity.get(name, 0) > 0 if start is True else start
            chosen.append((name, queue, now, order_for(order[0], event.event)) if order else (name, queue, now))
            capacity[name] = capacity.get(name, 0) - (start is True)
        return chosen

    def _use(self, declared: Declarations) -> None:
        """Route by these declarations from now on."""
        self._known = declared
        # The version can be equal and the handlers fewer: a handler not declared for 15 minutes is left out.
        if declared != self._table.declared:
            self._table = RouteTable(declared, limited=self._limited)


class RouteTable:
    """The declarations that events are routed by, and the routes found by them last. No I/O."""

    def __init__(self, declared: Declarations, *, limited: Collection[str]) -> None:
        self.declared = declared
        self.version = declared.version
        self._limited = limited
        self._found: dict[tuple[str, str], list[PlannedRun]] = {}
        self.routes = Routes()

    def handlers_for(self, *, store: str, topic: str) -> list[PlannedRun]:
        """The handlers that such an event is routed to, each with its queue and when its run begins."""
        found = self._found.get((store, topic))
        if found is None:
            wanted = wanted_by(self.declared.handlers, topic=topic, store=store)
            found = [self._planned(name, one) for name, one in wanted.items()]
            self._remember(store, topic, found)
        return found

    def _planned(self, name: str, wanted: Declaration) -> PlannedRun:
        """When a run of this handler begins: after its delay, if it has one; else leased now (True) or ready (False).

        A limit is applied when a run is claimed, so a run with a limit is not leased here.
        """
        start = float(wanted.details.get("delay", 0)) or wanted.handler not in self._limited
        order = order_of(wanted)
        return (name, wanted.queue, start, order) if order else (name, wanted.queue, start)

    def _remember(self, store: str, topic: str, found: list[PlannedRun]) -> None:
        """Remember the latest routes. One without handlers is not sent along: `Inbox.route` settles such an event. Nor
        is one that is ordered by a value in the data, which only the worker reads."""
        while len(self._found) >= MOST_ROUTES:
            del self._found[next(iter(self._found))]
        self._found[store, topic] = found
        handlers = {planned[0] for one in self._found.values() for planned in one}
        known = {pair: one for pair, one in self._found.items() if one and not any(map(_needs_data, one))}
        sent = known if len(handlers) <= MOST_HANDLERS else {}
        self.routes = Routes(self.version, sent)


def _needs_data(planned: PlannedRun) -> bool:
    return len(planned) == 4 and needs_data(planned[3])
