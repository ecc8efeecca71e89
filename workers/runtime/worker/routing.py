"""The signpost: which runs an event is given, by what all workers have declared.

It is asked about events whose route was not sent along with the claim that brought them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from receiver.inbox import Declaration, Inbox, Routes, Run, keys
from receiver.inbox.model import Declarations, Wanted
from workers.runtime.worker.routes import RouteTable


class EventRouter:
    """Declares our handlers, reads everybody's, and routes by those."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.adopt((), limited=())

    def adopt(self, handlers: Collection[Declaration], *, limited: Collection[str]) -> None:
        """From now on these are ours, and those of them have a limit."""
        self._mine = handlers
        self._limited = limited
        self._known = RouteTable(Declarations("", ()), limited=limited)

    def declare_and_read(self) -> None:
        self._inbox.declare(self._mine)
        self._learn(self._inbox.declarations())

    @property
    def routes(self) -> Routes:
        """What a claim may route by itself."""
        return self._known.routes

    def route(self, events: Sequence[Run], version: str, room: dict[str, int]) -> tuple[list[Run], list[Run]]:
        """Give each event its runs. Back come those leased to us, as far as there is room, and the events that are to
        be routed again: what was declared has changed since."""
        if version != self._known.version:
            self._learn(self._inbox.declarations())
        decisions = [(event, self._decide(event, room)) for event in events]
        replies = self._inbox.route(decisions, self._known.version)
        leased: list[Run] = []
        again: list[Run] = []
        for event, (word, *handlers) in zip(events, replies, strict=True):
            if word == "routed":
                leased += (_run_of(event, name) for name in handlers)
            elif word == "reroute":
                again.append(event)
        return leased, again

    def _decide(self, event: Run, room: dict[str, int]) -> list[Wanted]:
        chosen: list[Wanted] = []
        for name, queue, how in self._known.route(store=event.kept.store, topic=event.kept.topic):
            chosen.append((name, queue, room.get(name, 0) > 0 if how is True else how))
            room[name] = room.get(name, 0) - (how is True)
        return chosen

    def _learn(self, declared: Declarations) -> None:
        """By these declarations events are routed from now on."""
        if declared != self._known.declared:  # of one version, fewer are left when one was not declared for long
            self._known = RouteTable(declared, limited=self._limited)


def _run_of(event: Run, handler: str) -> Run:
    """The run of an event that was routed and leased to us at once, under the same token."""
    return replace(event, item=keys.run_item(event.kept.id, handler), handler=handler, attempts=0, losses=0, replays=0)
