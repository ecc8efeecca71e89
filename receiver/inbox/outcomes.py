"""What can become of a run: in its child process, in the inbox, and for people. No I/O.

    Ending       how a run ended in a child process      from an exception or a return: workers/runtime/pool/child.py
      | kind_of; workers/runtime/worker/retries.py adds the delay before a retry
    OutcomeKind  what a worker has the inbox write       lua/finish.lua
      | finish.lua
    RunState     where the inbox has a run               lua/
      | status_of
    RunStatus    what commands, JSON and logs show       workers/operations/explain_handlers.py puts it into a sentence

To add a status, change at most five files: this one, pool/child.py (when a handler ends like that), worker/retries.py
(its delay), lua/finish.lua (what is written) and explain_handlers.py (how it is explained). An event's own status
(EventStatus) follows from its runs; the scripts derive it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from receiver.inbox.model import Run


class Ending(StrEnum):
    """How a run ended in its child process."""

    DONE = "done"
    """The handler returned."""
    DROPPED = "dropped"
    """The handler raised Drop, its `when=` condition was false, or the event is stale or the echo of the plugin's own
    write."""
    FAILED = "failed"
    """The handler raised Fail."""
    RETRY = "retry"
    """The handler raised Retry."""
    RAISED = "raised"
    """The handler raised any other exception, or its timeout passed."""
    BUSY = "busy"
    """The handler raised Busy."""
    WAIT = "wait"
    """Another run is performing the same `ctx.once` effect, the plugin's own writes delay the run, or it waits
    for the number before its own."""
    ABSENT = "absent"
    """The child process has no such handler."""
    LOST = "lost"
    """The worker lost the run's lease and killed the child process."""
    STOPPED = "stopped"
    """The worker killed the child process because it is stopping."""
    BEHIND = "behind"
    """It was not begun: an earlier run of its order key, in the same batch, has not ended for good."""
    DIED = "died"
    """The child process died, or was killed for its timeout or its memory."""


class RunResult(NamedTuple):
    """How a run ended in its child process, with what the handler returned or raised."""

    ending: Ending
    detail: dict[str, Any]
    after: float | None = None
    """Seconds to wait before the next attempt, where the handler asked for that."""


class OutcomeKind(StrEnum):
    """What a worker has the inbox write of a leased run."""

    DONE = "done"
    DROPPED = "dropped"
    FAILED = "failed"
    RETRY = "retry"
    """Counts as an attempt; due again after the delay."""
    BUSY = "busy"
    """No attempt; ready at once, and the handler's limit is closed until the delay is over."""
    WAIT = "wait"
    """No attempt; due again after the delay, and no limit is closed."""
    RELEASE = "release"
    """No attempt; ready at once, for any worker."""


@dataclass(slots=True)  # not frozen: that would take three times as long to make
class Outcome:
    """What is written of a leased run. `delay` is in seconds."""

    run: Run
    kind: OutcomeKind
    detail: Mapping[str, Any] = field(default_factory=dict)
    delay: float = 0.0
    settles: str = ""
    """Of a run that may be the newest of its resource that its handler has settled; see finish.lua."""


_KIND_OF = {
    Ending.DONE: OutcomeKind.DONE,
    Ending.DROPPED: OutcomeKind.DROPPED,
    Ending.FAILED: OutcomeKind.FAILED,
    Ending.BUSY: OutcomeKind.BUSY,
    Ending.WAIT: OutcomeKind.WAIT,
    Ending.ABSENT: OutcomeKind.RELEASE,
    Ending.LOST: OutcomeKind.RELEASE,
    Ending.STOPPED: OutcomeKind.RELEASE,
    Ending.BEHIND: OutcomeKind.RELEASE,
}


def kind_of(ending: Ending, *, retries_left: bool) -> OutcomeKind:
    """What is to be written of a run that ended like this. Endings not in the table are failed attempts."""
    return _KIND_OF.get(ending) or (OutcomeKind.RETRY if retries_left else OutcomeKind.FAILED)


class RunState(StrEnum):
    """Where the inbox has a run; the first word of its record."""

    READY = "ready"
    LATER = "later"
    HELD = "held"
    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class RunStatus(StrEnum):
    """A run as people see it."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


ENDED = (RunStatus.DONE, RunStatus.FAILED, RunStatus.DROPPED)
"""The statuses a run does not leave by itself. Only such a run can be replayed."""


class EventStatus(StrEnum):
    """An event as people see it: open until its last run has ended, then failed if any run failed."""

    OPEN = "open"
    SETTLED = "settled"
    FAILED = "failed"


_STATUS_OF: Mapping[str, RunStatus] = {RunState.LEASED: RunStatus.RUNNING, **{one.value: one for one in ENDED}}
"""In all other states a run is waiting."""


def status_of(state: str) -> RunStatus:
    """The status that people see, for the state that a run's record names.

    A state that cannot be read shows as waiting: the record is damaged, and is quarantined at the next claim.
    """
    return _STATUS_OF.get(state, RunStatus.WAITING)
