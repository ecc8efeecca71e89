"""The words a handler ends a run with, other than returning.

    Word
    ├── Retry(why, after=)   try again; counts as an attempt
    ├── Busy(why, after=)    try again when the other side has time; burns no attempt
    ├── Fail(why)            fail at once, visibly
    └── Drop(why)            settled; there is nothing to do

Any other exception counts as an attempt too, and its traceback is kept.
"""

from __future__ import annotations


class RunControl(Exception):
    """Base of the family."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Later(RunControl):
    def __init__(self, why: str, *, after: float | None = None) -> None:
        super().__init__(why)
        if after is not None and after < 0:
            raise ValueError("after= is a number of seconds, not less than 0")
        self.after = after


class Retry(_Later):
    """Try this run again, after `after` seconds or the handler's next delay. Counts as an attempt."""


class Busy(_Later):
    """The other side has no time. Try again after `after` seconds; burns no attempt."""


class Fail(RunControl):
    """Give up at once; the run is shown as a failure."""


class Drop(RunControl):
    """Settle this run with a reason; there is nothing to do."""
