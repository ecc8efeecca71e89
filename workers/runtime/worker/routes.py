"""Known: who wants which events, by the declarations of all workers, and the routes a worker sends along. No I/O."""

from __future__ import annotations

from collections.abc import Collection

from receiver.inbox import Declaration, Routes
from receiver.inbox.model import Declarations, Wanted
from workers.plugins.router import wanted_by

MOST_ROUTES = 16
MOST_HANDLERS = 16
"""More are not sent along with each claim: such events take one step more."""


class RouteTable:
    """The declarations events are routed by, and the routes that were found by them lately."""

    def __init__(self, declared: Declarations, *, limited: Collection[str]) -> None:
        self.declared = declared
        self.version = declared.version
        self._limited = limited
        self._found: dict[tuple[str, str], list[Wanted]] = {}
        self.routes = Routes()

    def route(self, *, store: str, topic: str) -> list[Wanted]:
        """The handlers that want such an event. True says of one that its run may be leased to us."""
        found = self._found.get((store, topic))
        if found is None:
            wanted = wanted_by(self.declared.handlers, topic=topic, store=store)
            found = [(name, one.queue, self._how(one)) for name, one in wanted.items()]
            self._remember(store, topic, found)
        return found

    def _how(self, wanted: Declaration) -> bool | float:
        """Its delay, where it has one. A limit counts at the claim of a run, so what has one is never leased here."""
        return float(wanted.details.get("delay", 0)) or wanted.handler not in self._limited

    def _remember(self, store: str, topic: str, found: list[Wanted]) -> None:
        """The latest are kept. An event that nobody wants is not sent along: its end is written by routing it."""
        while len(self._found) >= MOST_ROUTES:
            del self._found[next(iter(self._found))]
        self._found[store, topic] = found
        handlers = {name for one in self._found.values() for name, _, _ in one}
        sent = {pair: one for pair, one in self._found.items() if one} if len(handlers) <= MOST_HANDLERS else {}
        self.routes = Routes(self.version, sent)
