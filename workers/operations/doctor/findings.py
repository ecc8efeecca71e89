"""Finding: one thing that was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]
"""ok; to know: it works, and here is what it costs or will cost; to fix: events are lost, late or refused by it."""


@dataclass(frozen=True)
class Finding:
    level: Level
    name: str
    """What was looked at: config, server, a store's name, ..."""
    text: str
    more: tuple[str, ...] = ()
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "check": self.name,
            "text": self.text,
            "more": list(self.more),
            "fix": self.fix,
        }


def ok(name: str, text: str, *more: str) -> Finding:
    return Finding("ok", name, text, more)


def warn(name: str, text: str, *more: str, fix: str = "") -> Finding:
    return Finding("warn", name, text, more, fix)


def fail(name: str, text: str, *more: str, fix: str) -> Finding:
    """Something to fix always says how."""
    return Finding("fail", name, text, more, fix)


def count(findings: Iterable[Finding], level: Level) -> int:
    return sum(one.level == level for one in findings)
