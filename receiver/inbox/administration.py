"""Administration: what a person decides about work in the inbox: replay, pause, resume, retire, drop."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from receiver.contract.intake import Delivery
from receiver.inbox import keys
from receiver.inbox.accept_batch import MAX_EVENT_NAMES, unreadable_detail
from receiver.inbox.history_place import place_host
from receiver.inbox.model import pack
from receiver.inbox.queries.damage import as_text
from receiver.inbox.queries.handlers import held_stores
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser
from receiver.inbox.redis.raw_connection import Argument

RETIRE_SLICE = 500
RESUME_SLICE = 10_000
"""Larger than other slices: only items that return in one step keep their order for sure. It takes the server 0.1 s."""


class ReopenResult(StrEnum):
    """What became of a run that was to be replayed. The script `reopen` returns these words.

    NOT_REPLAYED explains those that were not.
    """

    READY = "ready"
    """Replayed."""
    ALTHOUGH_PAUSED = "although-paused"
    """Replayed, and it begins although its handler is paused."""
    HANDLER_PAUSED = "handler-paused"
    """Replayed, and it waits until its handler is resumed."""
    STORE_PAUSED = "store-paused"
    """Replayed, and it waits until its store is resumed."""
    OPEN = "open"
    NO_BODY = "no-body"
    ERASED = "erased"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    """It was selected as a failure; only then it is examined for this."""
    ABSENT = "absent"
    GONE = "gone"
    DAMAGED = "damaged"

    @property
    def replayed(self) -> bool:
        return self not in NOT_REPLAYED


NOT_REPLAYED = {
    ReopenResult.OPEN: "already waiting or running",
    ReopenResult.NO_BODY: "the body was deleted by retention",
    ReopenResult.ERASED: "the event was erased, and nothing of its content is left",
    ReopenResult.UNREADABLE: "the delivery could not be read; see `storehooks events reread`",
    ReopenResult.CHANGED: "failed again since the start, or no failure any more",
    ReopenResult.ABSENT: "no such run",
    ReopenResult.GONE: "the event was deleted by retention",
    ReopenResult.DAMAGED: "the record is damaged; `storehooks doctor` names it",
}
"""Why runs were not replayed."""


class RereadResult(StrEnum):
    """What became of an event that was to be read again. The script `reread` returns these words."""

    READ = "read"
    """It was read, and is routed next."""
    UNREADABLE = "unreadable"
    """It stays a failure, with its current reason."""
    DUPLICATE = "duplicate"
    """It was delivered again and accepted since, so it is settled."""
    NO_BODY = "no-body"
    """Its body was removed by age."""
    ERASED = "erased"
    """The event was erased."""
    NOT_UNREADABLE = "not-unreadable"
    """It is not, or no longer, an event that could not be read."""
    DAMAGED = "damaged"
    """Its record is damaged."""


class DropResult(StrEnum):
    """What became of a failure that was to be dropped; see NOT_DROPPED. The script `drop` returns these words."""

    DROPPED = "dropped"
    KEPT = "kept"
    DAMAGED = "damaged"


NOT_DROPPED = {
    DropResult.KEPT: "running now, or no failure any more",
    DropResult.DAMAGED: "the record is damaged; `storehooks doctor` names it",
}
"""Why runs were not dropped."""


class BulkStep(NamedTuple):
    """One step of a bulk action, which is taken only if the action is at work and at this position."""

    action: str = ""
    position: str = ""
    next_position: str = ""
    due_ms: int = 0
    """When the next step may be taken."""


NO_STEP = BulkStep()


class ReplayStep(NamedTuple):
    """One step of a replay by selection. It is taken only if what is stored under its name is still `before`."""

    name: str = ""
    before: str = ""
    position: str = ""


NO_REPLAY = ReplayStep()


class Administration(ServerUser):
    def reopen(
        self,
        items: Sequence[str],
        queues: Mapping[str, str],
        *,
        make: bool = False,
        failures_only: bool = False,
        again: bool = False,
        urgent: bool = False,
        orders: Mapping[str, str] | None = None,
        replay: ReplayStep = NO_REPLAY,
        step: BulkStep = NO_STEP,
    ) -> list[ReopenResult]:
        """Make ended runs ready again; with `make`, also create runs for a handler that had none; with `failures_only`,
        not those that are no failures any more; with `again`, also repeat effects of `ctx.once`; with `urgent`, runs of
        a paused handler begin too.

        `orders` is the order of an item, for a run that has none yet; see lua/shared/order.lua. A step of a replay
        or of a bulk action that is not to be taken any more changes nothing and returns nothing.
        """
        which = "failed" if failures_only else int(make)
        parts: list[Argument] = []
        for item in items:
            parts += (item, queues.get(keys.split_item(item)[1], "default"), which, (orders or {}).get(item, ""))
        key = keys.CURSOR + replay.name if replay.name else ""
        options: list[Argument] = [key, replay.position, int(again), int(urgent), *step, replay.before]
        replies = script_runner.run_one(self.client, "reopen", *options, *parts)
        return [ReopenResult(reply.decode()) for reply in replies]

    def reread(self, deliveries: Sequence[tuple[str, Delivery]], *, repeat_window: float) -> list[RereadResult]:
        """Store what can be read now of events that could not be read, and route those events."""
        arguments: list[Argument] = [int(repeat_window * 1000), MAX_EVENT_NAMES]
        for event_id, one in deliveries:
            event = one.event
            arguments += (event_id, event.topic, one.theirs, event.delivery_id, event.resource_id)
            arguments += (event.occurred_at.isoformat() if event.occurred_at else "", event.data_path)
            arguments.append(unreadable_detail(one.unreadable) if one.unreadable else "")
            # Without a delivery id, the event's id is random.
            arguments += (event.id if event.delivery_id else "", one.first_id)
            arguments.append(one.content_hash if repeat_window else "")
            arguments.append(pack(event) if event.redacted else "")
        replies = script_runner.run_one(self.client, "reread", *arguments)
        return [RereadResult(reply.decode()) for reply in replies]

    def stored_replay(self, name: str) -> str:
        """Where an interrupted replay stopped, or after a space a mark of its own for one that came to its end."""
        found: Any = self.client.get(keys.CURSOR + name)
        return (found or b"").decode()

    def end_replay(self, name: str, before: str) -> None:
        """The replay has come to its end: another process that began the same meanwhile goes on no more."""
        mark = f" {secrets.token_hex(8)}"
        script_runner.run_one(self.client, "reopen", keys.CURSOR + name, mark, 0, 0, *NO_STEP, before)

    def make_due(self, items: Sequence[str]) -> None:
        """Make delayed runs and retries due at once; the next tick makes them ready."""
        self.client.zadd(keys.LATER, dict.fromkeys(items, 1), xx=True)

    def forget_host(self, host: str) -> None:
        """Forget what a host published about its spool, and that it has the history. A receiver that is alive publishes
        it again."""
        if place_host(self.client) == host:
            self.client.delete(keys.HISTORY_PLACE)
        named: Any = self.client.hkeys(keys.SPOOLS)
        for name in named:
            if keys.host_name(name) == host:
                self.client.hdel(keys.SPOOLS, name)

    def pause(self, *, handler: str = "", store: str = "") -> bool:
        """Begin no more runs of a handler or a store. False if it was paused already."""
        new = script_runner.run_one(self.client, "pause", _pause_name(handler, store))
        return bool(new)

    def resume(self, *, handler: str = "", store: str = "") -> int:
        """Let runs begin again, in their order. Returns the number of held items of a store that returned."""
        total = 0
        while True:
            returned = script_runner.run_one(self.client, "resume", _pause_name(handler, store), RESUME_SLICE)
            total += int(returned)
            if returned < RESUME_SLICE:
                return total

    def is_busy(self, handler: str) -> bool:
        """Whether a handler has closed the limit of this one, or itself, by Busy."""
        limit: Any = self.client.hget(keys.LIMITS, handler)
        return bool(self.client.hexists(keys.BUSY, keys.busy_field(handler, as_text(limit or b""))))

    def paused(self) -> set[str]:
        """Paused handlers and stores: "handler:NAME", "store:NAME"."""
        names: Any = self.client.smembers(keys.PAUSED)
        return {name.decode() for name in names}

    def retire(self, handler: str) -> int:
        """Remove a handler for good: its waiting runs, delayed, retried, held and queued ones too, become failures.

        Returns their number.
        """
        detail = orjson.dumps({"error": "no-such-handler: the handler was retired", "reason": "no-such-handler"})
        total = 0
        while ended := self._retire(handler, "queued", detail):  # first, or ended runs would let these begin
            total += ended
        for place in ("ready", "later", *(f"held:{store}" for store in held_stores(self.client))):
            total += self._retire(handler, place, detail)
        return total

    def _retire(self, handler: str, place: str, detail: bytes) -> int:
        cursor, total = b"0", 0
        while True:
            reply = script_runner.run_one(self.client, "retire", handler, place, cursor, RETIRE_SLICE, detail)
            cursor, ended = reply
            total += int(ended)
            if cursor == b"0":
                return total

    def drop(self, items: Sequence[str], *, reason: str, step: BulkStep = NO_STEP) -> list[DropResult]:
        """Give up failures, with a reason that is stored with them. A step of a bulk action is as in `reopen`."""
        detail = orjson.dumps({"result": reason, "dropped": "by hand"})
        replies = script_runner.run_one(self.client, "drop", detail, *step, *items)
        return [DropResult(reply.decode()) for reply in replies]


def _pause_name(handler: str, store: str) -> str:
    if bool(handler) == bool(store):
        raise ValueError("name either a handler or a store")
    return f"handler:{handler}" if handler else f"store:{store}"
