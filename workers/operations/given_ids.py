"""Ids as people give them: whole, shortened to a unique prefix, or `last`. The same for events, groups and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from receiver.contract.diagnosis.formatting import some
from receiver.contract.errors import ConfigError, NotFound

LAST = "last"
NEWEST = 10_000
"""A prefix must be unique among this number of the newest ids."""
SHORTEST = 4
"""Shorter ones are no prefix: a command that is repeated after its target is gone would soon find another one."""


def choose(which: str, newest: Iterable[str], *, kind: str, missing: str) -> str:
    """The id that is meant, given all of them with the newest first. `missing` is the sentence if there is none."""
    ids = list(islice(newest, NEWEST))
    if which == LAST and ids:
        return ids[0]
    if which in ids:
        return which
    found = [one for one in ids if one.startswith(which)] if len(which) >= SHORTEST else []
    if len(found) > 1:
        raise ConfigError(f"{len(found):,} {kind} begin with {which[:64]!r}: {some(found)}; give more of the id")
    if not found:
        is_short = any(one.startswith(which) for one in ids)
        raise NotFound(f"{missing}; a shortened id has at least {SHORTEST} characters" if is_short else missing)
    return found[0]
