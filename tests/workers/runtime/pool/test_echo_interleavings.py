"""Outside edits, a plugin's own writes and the events of both, in seeded interleavings: each outside edit is handled.

The store and the handler are a model; what decides is the product's own code, with a real server.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from redis import Redis

from receiver.config import Config
from receiver.inbox import Run, keys
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import Ending
from tests.support.harness import System
from workers.plugins.router import Handler
from workers.runtime.pool.echoes import Echoes
from workers.storeapi.catalogue import bundled_catalogue
from workers.storeapi.writes import writes_in

HANDLER = "labels.label"
MOST_STEPS = 400
ACCEPT = "local t = redis.call('TIME'); return redis.call('ZADD', KEYS[1], t[1] * 1000000 + t[2], ARGV[1])"


def set_label(event: Any, ctx: Any) -> None:
    """Never called: the model below plays the handler."""


def with_api(config: Config) -> Config:
    """The config, with the URL of the store's API: without one, plugins do not write."""
    north = config.stores["north"].model_copy(update={"base_url": "https://north.example"})
    return config.model_copy(update={"stores": {**config.stores, "north": north}})


@dataclass
class Change:
    """A change at the store, and its webhook."""

    made: int
    """When, as the number of changes before it."""
    outside: bool
    data: dict[str, Any]
    """What the webhook shows."""
    name: str
    shows: int
    """Up to which change the data has all of them."""
    called: int = 0
    """When the handler was called with its event, in the same way; 0 if it was not."""


@dataclass
class Child:
    """A child process, and how far its run is."""

    echoes: Echoes
    run: Run | None = None
    change: Change | None = None
    writing: ExitStack | None = None
    answered: Any = None
    answer: dict[str, Any] | None = None


@dataclass
class Scenario:
    """One resource of one store. `step` does one thing of those that could happen next."""

    redis: Redis
    config: Config
    seed: int
    random: random.Random = field(init=False)
    state: dict[str, Any] = field(init=False)
    edits: list[str] = field(init=False)
    changes: list[Change] = field(default_factory=list)
    unsent: list[Change] = field(default_factory=list)
    waiting: list[Change] = field(default_factory=list)
    version: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.resource = str(self.seed)
        self.state = {"id": self.seed, "text": "t0", "label": "", "updated_at": 0}
        self.emits_always = self.random.random() < 0.5
        """Whether the store also sends an event for a write that changes nothing."""
        self.renders_late = self.random.random() < 0.3
        """Whether a webhook shows the resource as it is when it is sent, not as it was after the change."""
        self.in_order = self.random.random() < 0.5
        # A revert makes the resource equal to what it was, also to what the plugin wrote then.
        self.edits = [f"t{self.random.randint(1, 3)}" for _ in range(self.random.randint(1, 5))]
        handlers = [Handler(HANDLER, set_label, ("product.updated",))]
        self.children = [Child(Echoes(self.config, self.redis, handlers)) for _ in range(self.random.randint(1, 3))]

    def run(self) -> int:
        for steps in range(MOST_STEPS):
            possible = self._possible()
            if not possible:
                return steps
            self.random.choice(possible)()
        raise AssertionError(f"seed {self.seed}: the handler reacts to itself for ever")

    def _possible(self) -> list[Any]:
        steps: list[Any] = [self._edit] if self.edits else []
        steps += [self._send] if self.unsent else []
        for child in self.children:
            if child.change is not None:
                steps.append(lambda child=child: self._work(child))
            elif self.waiting:
                steps.append(lambda child=child: self._begin(child))
        return steps

    # The store

    def _edit(self) -> None:
        text = self.edits.pop(0)
        if text != self.state["text"]:
            self._change({"text": text}, outside=True)

    def _change(self, fields: dict[str, Any], *, outside: bool) -> dict[str, Any]:
        changed = any(self.state[name] != value for name, value in fields.items())
        if changed or self.emits_always:
            self.version += 1
            self.state |= fields | {"updated_at": self.version}
            name = f"{self.seed}-{self.version}"
            change = Change(self.version, outside, dict(self.state), name, self.version)
            self.changes.append(change)
            self.unsent.append(change)
        return dict(self.state)

    def _send(self) -> None:
        change = self.unsent.pop(0 if self.in_order else self.random.randrange(len(self.unsent)))
        if self.renders_late:
            change.shows, change.data = self.version, dict(self.state)
        change.data["updated_at"] += self.random.randint(0, 1)
        self.redis.eval(ACCEPT, 1, keys.INDEX, change.name)
        self.waiting.append(change)

    # A child process

    def _begin(self, child: Child) -> None:
        change = self.waiting.pop(self.random.randrange(len(self.waiting)))
        run = run_of(change, self.resource)
        child.echoes.examine([run])
        result = child.echoes.judge(run, run.event)
        if result is None or result.detail.get("reason") == "loop":  # a delayed run is run in the end
            change.called = self.version
            child.run, child.change = run, change
        elif result.ending is Ending.WAIT:
            self.waiting.append(change)

    def _work(self, child: Child) -> None:
        """Begin to write, have the store do it, and get the answer."""
        assert child.change is not None
        fields = {"label": f"label of {child.change.data['text']}"}
        if child.writing is None:
            child.writing = ExitStack()
            child.answered = child.writing.enter_context(child.echoes.watch("product", self.resource))
        elif child.answer is None:
            child.answer = self._change(fields, outside=False)
        else:
            catalogue = bundled_catalogue()
            update = catalogue.get("products", "update")
            child.answered(writes_in(update, catalogue, self.resource, fields, child.answer))
            child.writing.close()
            child.change, child.writing, child.answer = None, None, None

    def unhandled(self) -> list[Change]:
        """The outside edits that the handler was not called for: neither with the event of the edit, nor since then
        with the same data, nor if webhooks are rendered late, with a state that has the edit."""
        called = [one for one in self.changes if one.called]

        def is_handled(edit: Change) -> bool:
            if self.renders_late and any(one.shows >= edit.made for one in called):
                return True
            return edit.called > 0 or any(one.called >= edit.made and same(one.data, edit.data) for one in called)

        return [edit for edit in self.changes if edit.outside and not is_handled(edit)]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {**one, "updated_at": 0} == {**other, "updated_at": 0}


def run_of(change: Change, resource: str) -> Run:
    values = (b"north", b"product.updated", b"d", resource.encode(), b"0", b"", b"webhook", b"data")
    stored = StoredEvent(change.name, values, b"{}\n" + orjson.dumps({"data": change.data}))
    return Run(f"{change.name}|{HANDLER}", HANDLER, "token", 0, 0, stored)


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 1100), marks=pytest.mark.slow)], ids=len)
def test_each_outside_edit_is_handled(system: System, seeds: range) -> None:
    config, seen = with_api(system.config), Counter[str]()
    for seed in seeds:
        scenario = Scenario(system.client, config, seed)
        scenario.run()
        assert not scenario.unhandled(), (seed, scenario.unhandled(), scenario.changes)
        outside = sum(one.outside for one in scenario.changes)
        seen.update(edits=outside, runs=sum(one.called > 0 for one in scenario.changes), events=len(scenario.changes))
    print(f"{len(seeds)} interleavings: {seen['edits']} outside edits, {seen['events']} events, {seen['runs']} runs")
    assert seen["edits"] > len(seeds)
    assert seen["runs"] < 0.8 * seen["events"], "most events of own writes are dropped"
