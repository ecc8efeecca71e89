"""A finding: what was checked, its state, and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]
"""ok; warn: it works, with a cost or a risk that the operator should know; fail: events are lost, late or refused."""


@dataclass(frozen=True)
class Finding:
    level: Level
    name: str
    """What was checked: config, server, a store's name, ..."""
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
    """A failure always has a fix."""
    return Finding("fail", name, text, more, fix)


def count(findings: Iterable[Finding], level: Level) -> int:
    return sum(finding.level == level for finding in findings)
