"""Bulk work: carries bulk actions on, in steps. A step is one script that changes runs and the record together.

So a killed housekeeper loses nothing, the next one goes on where it was, and of two at work each step is taken by one.
The groups are walked in the order of their ids, and the runs of a group in the order of their failures: those that fail
again come behind the time at which the action began, where no step reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox import keys
from receiver.inbox.administration import Administration, BulkStep
from receiver.inbox.audit_trail import AuditEntry, AuditTrail
from receiver.inbox.bulk_actions import BulkAction, BulkActions, BulkState
from receiver.inbox.inbox import Inbox
from receiver.inbox.model import needs_data, order_for, order_of
from receiver.inbox.outcomes import ENDED, status_of
from receiver.inbox.queries.damage import DamagedRecord, as_text, is_wrong_type, read_each
from receiver.inbox.queries.events import EventQueries
from receiver.inbox.queries.failures import FailureQueries
from receiver.inbox.queries.runs import page_after
from receiver.inbox.redis.connecting import server_ms

STEP = 100
"""Maximum number of runs that one step reads."""
CATCH_UP_MS = 1_000
"""With a rate, how much of the time that was missed is made up for."""


class _Selected(NamedTuple):
    items: list[str]
    position: str
    """Where the next step begins."""


class BulkWork:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._actions, self._administration = BulkActions(client), Administration(client)
        self._groups: dict[str, list[str]] = {}
        """The groups of each action, in order. Groups that are created later have only later failures."""

    def carry_on(self, seconds: float) -> list[BulkAction]:
        """Take the steps that are due, for about this long. Returns the actions that have ended by that."""
        at_work, ended = self._actions.at_work(), []
        self._groups = {name: found for name, found in self._groups.items() if name in at_work}
        for name in at_work:
            deadline = time.monotonic() + seconds / len(at_work)
            while (is_more := self._step(name)) and time.monotonic() < deadline:
                pass
            if not is_more and (action := self._actions.find(name)) and not action.state.is_at_work:
                ended.append(action)
        return ended

    def _step(self, name: str) -> bool:
        """Whether the next step can be taken at once."""
        action = self._actions.find(name)
        if action is None:
            self._actions.forget_open(name)
            return False
        try:
            if action.state is BulkState.TRYING and self._has_tried(action):
                return self._judge(action)
            return self._change(action)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            self._end(action, BulkState.HALTED, f"a key is damaged, `storehooks doctor` names it: {error}")
            return False

    # The first runs

    def _has_tried(self, action: BulkAction) -> bool:
        return len(action.tried) >= action.first or self._select(action, 1) is None

    def _judge(self, action: BulkAction) -> bool:
        """Go on if the first runs have succeeded; end the action if one has failed again; else wait."""
        pipeline = self._client.pipeline(transaction=False)
        for item in action.tried:
            event_id, handler = keys.split_item(item)
            pipeline.hmget(keys.EVENT + event_id, f"r:{handler}", f"g:{handler}")
        failed = waiting = 0
        for fields in read_each(pipeline):
            run, group = fields or (None, None)
            # One without a run has succeeded, and was moved to the history since.
            waiting += run is not None and status_of(as_text(run).partition(" ")[0]) not in ENDED
            failed += bool(group)
        if failed:
            why = f"{failed} of the first {counted(len(action.tried), 'run')} failed again"
            self._end(action, BulkState.HALTED, why)
        elif not waiting:
            return self._actions.set_state(action.id, BulkState.RUNNING, only_if=BulkState.TRYING)
        return False

    # Steps

    def _change(self, action: BulkAction) -> bool:
        now = server_ms(self._client)
        if now < action.due_ms:
            return False
        most = STEP if not action.rate else max(1, min(STEP, int(action.rate / 5)))
        if action.state is BulkState.TRYING:
            most = min(most, action.first - len(action.tried))
        selected = self._select(action, most)
        if selected is None:
            self._end(action, BulkState.DONE)
            return False
        due = max(action.due_ms, now - CATCH_UP_MS) + len(selected.items) * 1000 / action.rate if action.rate else now
        step = BulkStep(action.id, action.position, selected.position, int(due))
        if action.action == "drop":
            self._administration.drop(selected.items, reason=action.reason, step=step)
        else:
            self._replay(action, selected.items, step)
        return True

    def _replay(self, action: BulkAction, items: Sequence[str], step: BulkStep) -> None:
        declared = Inbox(self._client).declarations().handlers
        queues = {one.handler: one.queue for one in declared}
        orders = {one.handler: order for one in declared if (order := order_of(one))}
        found = {item: self._order(item, orders) for item in items if keys.split_item(item)[1] in orders}
        is_urgent = action.state is BulkState.TRYING  # as with --first, they begin although their handler is paused
        self._administration.reopen(items, queues, urgent=is_urgent, orders=found, step=step)

    def _order(self, item: str, orders: dict[str, str]) -> str:
        """The order of a run that has none yet, because it is older than its handler's `order_by`."""
        event_id, handler = keys.split_item(item)
        if not needs_data(orders[handler]):
            return orders[handler]
        with suppress(DamagedRecord):
            if event := EventQueries(self._client).as_event(event_id):
                return order_for(orders[handler], event)
        return ""  # it is not replayed

    def _end(self, action: BulkAction, state: BulkState, why: str = "") -> None:
        if self._actions.set_state(action.id, state, only_if=action.state, why=why):
            ended = self._actions.find(action.id) or action
            begun = AuditEntry(action.audit_id, action.who, f"bulk {action.action}")
            AuditTrail(self._client).end(begun, ended.result)

    # The selection

    def _select(self, action: BulkAction, most: int) -> _Selected | None:
        """The next runs; None if there are no more. Of those that were read, some may be of another store."""
        group, _, rest = action.position.partition(" ")
        score, _, last = rest.partition(" ")
        for name in dropwhile(lambda one: one < group, self._groups_of(action)):
            start, after = (float(score), last) if name == group else ("-inf", "")
            page = page_after(self._client, keys.GROUP_RUNS + name, start, action.began_ms, after, many=most)
            if page:
                item, failed_at = page[-1]
                return _Selected(self._of_store(action, [one for one, _ in page]), f"{name} {failed_at:.0f} {item}")
        return None

    def _groups_of(self, action: BulkAction) -> list[str]:
        if action.id not in self._groups:
            found = FailureQueries(self._client).matching(action.selection)
            is_replay = action.action == "replay"
            self._groups[action.id] = sorted(one.id for one in found if not (is_replay and one.handler == keys.INTAKE))
        return self._groups[action.id]

    def _of_store(self, action: BulkAction, items: list[str]) -> list[str]:
        store = action.selection.store
        if not store:
            return items
        pipeline = self._client.pipeline(transaction=False)
        for item in items:
            pipeline.hget(keys.EVENT + keys.split_item(item)[0], "store")
        return [item for item, found in zip(items, read_each(pipeline), strict=True) if found == store.encode()]
