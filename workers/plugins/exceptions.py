"""The exceptions by which a handler decides how its run ends, other than by returning.

    RunControl
    ├── Retry(why, after=)   try this run again; counts as an attempt
    ├── Busy(why, after=)    the other side is overloaded: try again later; burns no attempt
    ├── Fail(why)            fail at once, without further attempts
    └── Drop(why)            settle the run; there is nothing to do

Any other exception counts as a failed attempt too, and its traceback is stored.
"""

from __future__ import annotations

from numbers import Number


class RunControl(Exception):
    """Base class of Retry, Busy, Fail and Drop."""

    def __init__(self, why: str = "no reason given") -> None:
        super().__init__(why)
        self.why = why


class _Delayed(RunControl):
    def __init__(self, why: str = "no reason given", *, after: float | None = None) -> None:
        super().__init__(why)
        if after is not None and not (isinstance(after, Number) and after >= 0):  # NaN is not
            raise ValueError(f"after= is a number of seconds, not less than 0, and not {after!r}")
        self.after = after


class Retry(_Delayed):
    """Raise it when the run cannot succeed yet: `raise Retry("customer not linked yet", after=60)`.

    The run is tried again after `after` seconds (30 days at most), else after the handler's next delay (`retries=`).
    It counts as an attempt: when no retries are left, the run is a failure, with `why` as its error.
    """


class Busy(_Delayed):
    """Raise it when the other side is overloaded or rate-limits you: `raise Busy("CRM says 429", after=30)`.

    No run of this handler, nor of any other handler with the same `limit=`, begins for `after` seconds (5 if not
    given, 30 days at most), on any machine. Then this run is tried again. It does not count as an attempt, so a long
    outage of the other side makes no failures.
    """


class Fail(RunControl):
    """Raise it when trying again cannot help: `raise Fail("the order has no customer")`.

    The run is a failure at once, whatever retries are left. It stays in `storehooks failures` with `why` as its error,
    until a person replays or drops it.
    """


class Drop(RunControl):
    """Raise it when there is nothing to do for this event: `raise Drop("test order")`.

    The run is settled, with `why` as its result. It is not a failure, and it is not tried again.
    """
