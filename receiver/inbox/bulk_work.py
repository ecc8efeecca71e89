"""Bulk work: carries bulk actions on, in steps. A step is one script that changes runs and the record together.

So a killed housekeeper loses nothing, the next one goes on where it was, and of two at work each step is taken by one.
The groups are walked in the order of their ids, and the runs of a group in the order of their failures: those that fail
again come behind the time at which the action began, where no step reads. If some runs are tried first, the groups are
walked twice: for the first runs of each handler, and then for all others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox import keys
from receiver.inbox.administration import Administration, BulkStep
from receiver.inbox.bulk_actions import BulkAction, BulkActions, BulkState
from receiver.inbox.inbox import Inbox
from receiver.inbox.model import needs_data, order_for, order_of
from receiver.inbox.outcomes import ENDED, status_of
from receiver.inbox.queries.damage import DamagedRecord, as_text, is_wrong_type, read_each
from receiver.inbox.queries.events import EventQueries
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

    def carry_on(self, seconds: float) -> list[BulkAction]:
        """Take the steps that are due, for about this long. Returns the actions that have ended by that."""
        at_work, ended = self._actions.at_work(), []
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
        if not action.state.is_at_work:  # what ended it was killed before it audited that
            self._actions.close(name)
            return False
        try:
            return self._change(action)
        except ResponseError as error:
            if not is_wrong_type(error) and "not an integer" not in str(error):  # as in lua/shared/call.lua
                raise
            self._end(action, BulkState.HALTED, f"a key is damaged, `storehooks doctor` names it: {error}")
        except (ValueError, OverflowError) as error:
            self._end(action, BulkState.HALTED, f"its record is damaged, start another one: {error}")
        return False

    # The first runs

    def _judge(self, action: BulkAction) -> bool:
        """Go on if the first runs have succeeded; end the action if one has failed again; else wait.

        A failed attempt that is retried counts: the retry may be due in hours, and is not done while its handler is
        paused, so waiting for it would leave the others undecided.
        """
        pipeline = self._client.pipeline(transaction=False)
        for item in action.tried:
            event_id, handler = keys.split_item(item)
            pipeline.hmget(keys.EVENT + event_id, f"r:{handler}", f"g:{handler}", "store")
        failed = waiting = damaged = 0
        for fields in read_each(pipeline):
            run, group, store = fields or (None, None, b"")
            # One without a run and a store has succeeded, and was moved to the history since.
            damaged += run is None and store is not None
            waiting += run is not None and not group and status_of(as_text(run).partition(" ")[0]) not in ENDED
            failed += bool(group)
        first = counted(len(action.tried), "run")
        if failed:
            open_ = f", and {waiting} had not ended yet" if waiting else ""
            self._end(action, BulkState.HALTED, f"{failed} of the first {first} failed again{open_}")
        elif damaged:
            self._end(action, BulkState.HALTED, f"the records of {damaged} of the first {first} are damaged")
        elif not waiting:
            return self._actions.set_state(action.id, BulkState.RUNNING, only_if=BulkState.TRYING)
        return False

    # Steps

    def _change(self, action: BulkAction) -> bool:
        now = server_ms(self._client)
        if now < action.due_ms:
            return False
        selected = self._select(action, now)
        if selected is None:
            if action.state is BulkState.TRYING:
                return self._judge(action)
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
        self._actions.end(action.id, state, only_if=action.state, why=why)

    # The selection

    def _select(self, action: BulkAction, now: float) -> _Selected | None:
        """The next runs; None if there are no more. There may be none of the store among those that were read."""
        maximum = STEP if not action.rate else max(1, min(STEP, int(action.rate / 5)))
        tried = Counter(keys.split_item(item)[1] for item in action.tried)
        group, _, rest = action.position.partition(" ")
        for name, handler in dropwhile(lambda one: one[0] < group, sorted(action.groups.items())):
            most = min(maximum, action.first - tried[handler]) if action.state is BulkState.TRYING else maximum
            page = self._page(action, name, rest if name == group else "", now) if most > 0 else []
            if page:
                items = self._of_store(action, [item for item, _ in page])[:most]
                last = next(one for one in reversed(page) if len(items) < most or one[0] == items[-1])
                return _Selected(items, f"{name} {last[1]:.0f} {last[0]}")
        return None

    def _page(self, action: BulkAction, group: str, position: str, now: float) -> list[tuple[str, float]]:
        """The next runs of a group, of any store. Times ahead of the server's, as in `members`, come first."""
        score, _, last = position.partition(" ")
        start, runs = int(score) if score else None, keys.GROUP_RUNS + group
        if start is None or start > action.began_ms:
            ahead = f"({now}" if start is None or start <= now else start
            if page := page_after(self._client, runs, ahead, "+inf", last, many=STEP):
                return page
            start, last = None, ""
        return page_after(self._client, runs, "-inf" if start is None else start, action.began_ms, last, many=STEP)

    def _of_store(self, action: BulkAction, items: list[str]) -> list[str]:
        store = action.selection.store
        if not store:
            return items
        pipeline = self._client.pipeline(transaction=False)
        for item in items:
            pipeline.hget(keys.EVENT + keys.split_item(item)[0], "store")
        return [item for item, found in zip(items, read_each(pipeline), strict=True) if found == store.encode()]
