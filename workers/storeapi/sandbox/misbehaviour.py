"""Misbehaviour: the faults of the sandbox store, each with its own probability, seeded and repeatable. Pure.

Whether a fault happens to the nth delivery or request depends only on the seed, the fault's name and n: not on time,
threads, or which other faults are on.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from receiver.config.errors import did_you_mean
from receiver.config.values import parse_duration, parse_size
from receiver.contract.errors import ConfigError

FAULTS = {
    # deliveries
    "duplicate": "a delivery is sent twice with the same id",
    "reorder": "a delivery is delayed, and later ones overtake it (reorder_by)",
    "late": "a delivery is sent hours later (late_by)",
    "lose": "a delivery is never sent",
    "unknown_topic": "a delivery has an unknown topic",
    "huge": "a payload has megabytes (huge_size)",
    "malformed": "a payload is not JSON, with a valid signature",
    "rotate": "the secret changes after a delivery, without notice",
    "disable": "the subscription is disabled after a delivery, without notice",
    "delete": "the subscription is deleted after a delivery, without notice",
    # the shopper
    "burst": "the shopper makes many events at once (burst_size)",
    # the API
    "too_many": "the API answers 429 (retry_after: seconds, or -1 for no header)",
    "fault": "the API answers 500, 502 or 503",
    "slow": "the API answers late (slow_by)",
    "drop": "the API closes the connection before it answers",
    "revoke": "the API revokes the token and answers 401",
    "redirect": "the API answers 302 to another host (elsewhere)",
    "foreign_link": "the link to the next page leads to another host (elsewhere)",
    "endless": "the API answers with two gigabytes",
    "short_page": "a page of a listing has only half of its records",
    "repeated_page": "a page of a listing has the records of the page before",
    "changing_total": "a page of a listing reports a total that is too small",
}
FAULT_SETTINGS: dict[str, float | str] = {
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


class PlannedDelivery(NamedTuple):
    """One delivery of an event: its delay, and its defect if it has one."""

    delay: float
    defect: str = ""


class Misbehaviour:
    """The faults that are on, and their settings. `set` changes them while the sandbox runs."""

    def __init__(self, seed: int, values: Mapping[str, float | str] | None = None) -> None:
        self.seed = seed
        self._values: dict[str, float | str] = dict(FAULT_SETTINGS)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.set(values or {})

    def set(self, values: Mapping[str, float | str]) -> None:
        """Change some faults. An unknown name or a wrong value raises ConfigError, and changes none."""
        for name, value in values.items():
            _check(name, value)
        self._values |= {name: value if name in FAULT_SETTINGS else float(value) for name, value in values.items()}

    def clear(self) -> None:
        """Turn every fault off, and restart the counts."""
        with self._lock:
            self._values = dict(FAULT_SETTINGS)
            self._counts.clear()

    @property
    def values(self) -> dict[str, float | str]:
        return dict(self._values)

    def happens(self, name: str, n: int | None = None) -> bool:
        """Whether the fault happens to the nth delivery or request; without n, to the next one."""
        chance = float(self._values.get(name, 0))
        if n is None:
            with self._lock:
                self._counts[name] += 1
                n = self._counts[name]
        return chance > 0 and self._draw(name, n) < chance

    def _draw(self, name: str, n: int) -> float:
        digest = hashlib.blake2b(f"{self.seed}|{name}|{n}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / (1 << 64)

    def plan(self, n: int) -> list[PlannedDelivery]:
        """The deliveries of the nth event: none, one or two, each with its delay and defect."""
        if self.happens("lose", n):
            return []
        defect = next((name for name in ("unknown_topic", "huge", "malformed") if self.happens(name, n)), "")
        delay = self.seconds("late_by") if self.happens("late", n) else 0.0
        if self.happens("reorder", n):
            delay += self._draw("reorder_by", n) * self.seconds("reorder_by")
        return [PlannedDelivery(delay, defect)] * (2 if self.happens("duplicate", n) else 1)

    def seconds(self, name: str) -> float:
        return parse_duration(self._values[name])

    def size(self, name: str) -> int:
        return parse_size(self._values[name])

    def number(self, name: str) -> int:
        return int(float(self._values[name]))

    def text(self, name: str) -> str:
        return str(self._values[name])


def _check(name: str, value: float | str) -> None:
    if name not in FAULTS and name not in FAULT_SETTINGS:
        near = did_you_mean(name, [*FAULTS, *FAULT_SETTINGS], cutoff=0.5)
        raise ConfigError(f"sandbox.misbehave.{name} is unknown{near}")
    try:
        if name in FAULTS and not 0 <= float(value) <= 1:
            raise ValueError("not a probability; write a number from 0 to 1")
        if name.endswith(("_by", "_life", "_claims")):
            parse_duration(value)
        elif name == "huge_size":
            parse_size(value)
        elif name in ("retry_after", "burst_size"):
            float(value)
    except ValueError as error:
        raise ConfigError(f"sandbox.misbehave.{name}: {error}") from None
