"""Pathologies: how the sandbox store misbehaves, each by a chance of its own, seeded and repeatable. Pure.

Whether the nth thing is struck depends on the seed, the pathology's name and n alone: not on time, threads, or
which other pathologies are on.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from receiver.config.values import parse_duration, parse_size
from receiver.contract.errors import ConfigError

CHANCES = {
    # deliveries
    "duplicate": "a delivery is sent twice, with the same id",
    "reorder": "a delivery waits, and others overtake it",
    "late": "a delivery is sent hours later (late_by)",
    "lose": "a delivery is never sent",
    "unknown_topic": "a topic nobody has heard of",
    "huge": "a payload of megabytes (huge_size)",
    "malformed": "a payload that is no JSON, signed all the same",
    "rotate": "the secret changes after a delivery, and nobody is told",
    "disable": "the subscription is switched off after a delivery, and nobody is told",
    "delete": "the subscription is deleted after a delivery, and nobody is told",
    # the shopper
    "burst": "many customers at once (burst_size)",
    # the API
    "too_many": "429 (retry_after: seconds, or -1 for no header)",
    "fault": "500, 502 or 503",
    "slow": "an answer that takes long (slow_by)",
    "drop": "the connection is closed before the answer",
    "revoke": "401: the token is not good any more",
    "redirect": "302 to another host (elsewhere)",
    "foreign_link": "the next page is at another host (elsewhere)",
    "endless": "an answer of two gigabytes",
}
AMOUNTS: dict[str, float | str] = {
    "late_by": "3h",
    "reorder_by": "2s",
    "huge_size": "2MB",
    "burst_size": 50,
    "retry_after": 1,
    "slow_by": "5s",
    "token_life": "1h",
    "token_claims": "1h",
    "elsewhere": "http://elsewhere.invalid",
}
TWO_GIGABYTES = 2 << 30


class Planned(NamedTuple):
    """One sending of an event: how long it waits, and what is wrong with it."""

    delay: float
    twist: str = ""


class Misbehaviour:
    """What is on, and how much. Changed while running, by `set`."""

    def __init__(self, seed: int, values: Mapping[str, float | str] | None = None) -> None:
        self.seed = seed
        self._values: dict[str, float | str] = dict(AMOUNTS)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.set(values or {})

    def set(self, values: Mapping[str, float | str]) -> None:
        """Change some; a wrong name or value changes none."""
        for name, value in values.items():
            _check(name, value)
        self._values |= {name: value if name in AMOUNTS else float(value) for name, value in values.items()}

    def clear(self) -> None:
        """Behave, and count from the beginning again."""
        with self._lock:
            self._values = dict(AMOUNTS)
            self._counts.clear()

    @property
    def values(self) -> dict[str, float | str]:
        return dict(self._values)

    def strikes(self, name: str, n: int | None = None) -> bool:
        """Whether the nth is struck; without n, the next one of its kind."""
        chance = float(self._values.get(name, 0))
        if n is None:
            with self._lock:
                self._counts[name] += 1
                n = self._counts[name]
        return chance > 0 and self._roll(name, n) < chance

    def _roll(self, name: str, n: int) -> float:
        digest = hashlib.blake2b(f"{self.seed}|{name}|{n}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / (1 << 64)

    def plan(self, n: int) -> list[Planned]:
        """How the nth event is sent: not at all, once, twice, late, spoilt."""
        if self.strikes("lose", n):
            return []
        twist = next((name for name in ("unknown_topic", "huge", "malformed") if self.strikes(name, n)), "")
        delay = self.seconds("late_by") if self.strikes("late", n) else 0.0
        if self.strikes("reorder", n):
            delay += self._roll("reorder_by", n) * self.seconds("reorder_by")
        return [Planned(delay, twist)] * (2 if self.strikes("duplicate", n) else 1)

    def seconds(self, name: str) -> float:
        return parse_duration(self._values[name])

    def size(self, name: str) -> int:
        return parse_size(self._values[name])

    def number(self, name: str) -> int:
        return int(float(self._values[name]))

    def text(self, name: str) -> str:
        return str(self._values[name])


def _check(name: str, value: float | str) -> None:
    if name not in CHANCES and name not in AMOUNTS:
        near = difflib.get_close_matches(name, [*CHANCES, *AMOUNTS], n=1, cutoff=0.5)
        raise ConfigError(f"sandbox.misbehave.{name} is unknown{f'; did you mean {near[0]}?' if near else ''}")
    try:
        if name in CHANCES and not 0 <= float(value) <= 1:
            raise ValueError("not a chance; write a number from 0 to 1")
        if name.endswith(("_by", "_life", "_claims")):
            parse_duration(value)
        elif name == "huge_size":
            parse_size(value)
        elif name in ("retry_after", "burst_size"):
            float(value)
    except ValueError as error:
        raise ConfigError(f"sandbox.misbehave.{name}: {error}") from None
