"""Echoes: in a child process, notes what runs write to stores, and finds the events that only show such a write.

A plugin that updates the product it was called for gets an event about its own update. That run is dropped if the
event's data is exactly what the store answered to the write; anything else is run. Events that follow a plugin's writes
and are no echoes may be a loop: past a number of them in a minute, runs are delayed. `receiver/inbox/own_writes.py`
remembers the writes, for all processes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.event import Event
from receiver.contract.redaction import without_values
from receiver.contract.topics import matches
from receiver.inbox import Run
from receiver.inbox.outcomes import Ending, RunResult
from receiver.inbox.own_writes import MAX_DEPTH, Judgement, OwnWrites, resource_name
from workers.plugins.router import Handler

if TYPE_CHECKING:
    from workers.storeapi.writes import Write

LOOP = "suspected loop: more than {many} events in a minute followed the plugin's own writes to this {kind}"
IN_PROGRESS = "the plugin is writing to the same resource; this run waits for the store's answer"

log = logs.get("echoes")


class Echoes:
    """One for each child process. It is the watcher of the clients that handlers write with."""

    def __init__(self, config: Config, redis: Redis, handlers: Sequence[Handler]) -> None:
        self._config = config
        self._stores = frozenset(name for name, store in config.stores.items() if store.base_url)
        """Those with an API. Plugins write only to these."""
        self._writes = OwnWrites(redis)
        self._handlers = {one.name: one for one in handlers}
        self._any_written = False
        self._current: Run | None = None

    def examine(self, runs: Sequence[Run]) -> None:
        """Ask once for a batch whether any of its resources was written to. If not, its runs need no question: their
        events have arrived, so none is the echo of a write that begins later."""
        self._any_written = False
        asked = [run for run in runs if run.stored.store in self._stores and _may_be_echo(run)] if self._stores else ()
        with suppress(RedisError):  # without an answer they are run
            new = [_resource(run, _kind(run.event), "") for run in asked if run.event.topic.endswith(".created")]
            self._any_written = self._writes.any_of([*map(_own_resource, asked), *new])

    def judge(self, run: Run, event: Event) -> RunResult | None:
        """How the run ends without a call; None if the handler is to be called. Its writes are noted from now on."""
        self._current = run
        if not self._any_written or not _may_be_echo(run):
            return None
        from workers.storeapi.writes import data_digest  # a child process without writes does not load the client

        digest = data_digest(_exact_data(event), self._volatile(event.store))
        drop, action = self._handlers[run.handler].echo == "drop", event.topic.partition(".")[2]
        try:
            found = self._writes.judge(_own_resource(run), event.id, action=action, digest=digest, drop=drop)
        except RedisError:
            return None
        return self._result_of(found, run, event)

    def _result_of(self, found: Judgement, run: Run, event: Event) -> RunResult | None:
        match found.word:
            case "echo":
                writer, _, handler = found.by.partition("|")
                text = f"echo of a write by {handler}, in its run of event {writer}"
                return RunResult(Ending.DROPPED, {"result": text, "reason": "echo"})
            case "wait":
                return RunResult(Ending.WAIT, {"error": IN_PROGRESS, "reason": "own-write"}, found.seconds)
            case "loop":
                kind = _kind(event)
                if found.is_new:
                    resource = f"{kind} {event.resource_id}"
                    log.warning("suspected loop; runs are delayed", handler=run.handler, store=event.store, of=resource)
                detail = {"error": LOOP.format(many=MAX_DEPTH, kind=kind), "reason": "loop"}
                return RunResult(Ending.WAIT, detail, found.seconds)
        return None

    @contextmanager
    def watch(self, kind: str, resource_id: str) -> Iterator[Callable[[Iterator[Write]], None]]:
        """Remember a write of the current run: that it begins, and what the answer shows.

        A write without an answer may have happened, so an event may follow it. If Redis cannot be reached, the write is
        made all the same, and its echo is run.
        """
        run, answers = self._current, []  # type: tuple[Run | None, list[Write]]
        if run is None or not self._listens(run, kind):
            yield lambda _: None
            return
        name, began = secrets.token_hex(4), time.monotonic()
        named = _resource(run, kind, resource_id)
        with suppress(RedisError):
            self._writes.begin(named, name, run.item)
        try:
            yield answers.extend
        finally:
            seconds = time.monotonic() - began
            with suppress(RedisError):
                for one in answers:
                    written, (digest, sent) = _resource(run, one.kind, one.resource_id), self._digests(one, run.event)
                    self._writes.end(
                        written, name, run.item, seconds=seconds, action=one.action, digest=digest, sent=sent
                    )
                if not resource_id:
                    self._writes.forget(named, name)
                elif not any(one.resource_id == resource_id for one in answers):
                    self._writes.end(named, name, run.item, seconds=seconds, action="updated", digest="", sent="?")

    def _digests(self, write: Write, event: Event) -> tuple[str, str]:
        from workers.storeapi.writes import echo_digests

        is_same = (write.kind, write.resource_id) == (_kind(event), event.resource_id)
        # An answer has the fields that `[redact]` removes from events.
        write = replace(write, shown=reduce(without_values, self._config.redact.paths, write.shown))
        return echo_digests(write, _exact_data(event) if is_same else None, self._volatile(event.store))

    def _listens(self, run: Run, kind: str) -> bool:
        """Whether the plugin of a run gets events of a kind."""
        own = [one for one in self._handlers.values() if _plugin(one.name) == _plugin(run.handler)]
        topics = (topic for one in own for topic in one.topics)
        return any(matches(topic.partition(".")[0], kind) for topic in topics)

    def _volatile(self, store: str) -> tuple[str, ...]:
        settings = self._config.stores.get(store)
        return settings.volatile_fields if settings else ()


def _plugin(handler: str) -> str:
    return handler.partition(".")[0]


def _kind(event: Event) -> str:
    return event.topic.partition(".")[0]


def _resource(run: Run, kind: str, resource_id: str) -> str:
    return resource_name(plugin=_plugin(run.handler), store=run.stored.store, kind=kind, resource_id=resource_id)


def _own_resource(run: Run) -> str:
    return _resource(run, _kind(run.event), run.event.resource_id)


def _may_be_echo(run: Run) -> bool:
    """A retry or a replay was decided before, and an event that was not sent by the store is meant to be handled."""
    return not (run.attempts or run.replays) and run.event.source == "webhook" and bool(run.event.resource_id)


def _exact_data(event: Event) -> Any:
    try:
        return event.exact_data
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return None
