"""Uptime: a clock of this host that cannot be set, to measure how long something has waited."""

from __future__ import annotations

import secrets
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Uptime(NamedTuple):
    """A second clock of this host, which is never set back: milliseconds since a boot. It goes on while suspended."""

    boot: str
    ms: int

    def seconds_since(self, boot: str, ms: int) -> float | None:
        """None if it is not known, because the host was booted since."""
        known = boot == self.boot and isinstance(ms, int) and 0 <= ms <= self.ms
        return (self.ms - ms) / 1000 if known else None


def read_uptime() -> Uptime:
    return Uptime(_boot(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # some container runtimes have none: then each process counts as a boot of its own
        return secrets.token_hex(16)
