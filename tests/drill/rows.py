"""All rows of the drill, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.drill import faults
from tests.drill.installations import (
    Installation,
    Opened,
    behind_a_proxy,
    of_release,
    on_one_server,
    with_sentinels,
)


@dataclass(frozen=True)
class Row:
    """One fault, and what it may cost."""

    name: str
    fault: Callable[[Installation], None]
    installation: Opened = on_one_server
    """Rows with the same one that follow each other share it."""
    none_may_fail: bool = False
    """Whether every delivery must be answered 2xx."""
    may_lose_seconds: float = 0.0
    """Accepted deliveries of this time, at most, may be lost; their number is printed. It is documented where that is
    so. If `doctor` has noticed a loss, an operator says `hosts accept`."""


NOTICED_SECONDS = 5.0
"""Within this time after the promotion every process has left the old primary."""
UNNOTICED_SECONDS = 1.0
"""Within this time the old primary notices that its replica has left: milliseconds, unless the machine is busy."""
MIN_REPLICAS = ("--min-replicas-to-write", "1")


def failover(fault: Callable[[Installation], None], ack: str, settings: tuple[str, ...]) -> Row:
    alive = fault is faults.replace_live_primary
    name = f"failover from {'live' if alive else 'dead'} primary ({ack}{' + min-replicas' if settings else ''})"
    left_after = UNNOTICED_SECONDS if settings else NOTICED_SECONDS
    may_lose = left_after if alive and ack == "stored" else 0.0
    return Row(name, fault, with_sentinels(ack, *settings), may_lose_seconds=may_lose)


ROWS = (
    Row("kill web", faults.kill_web),
    Row("kill web child", faults.kill_web_child),
    Row("kill worker", faults.kill_worker),
    Row("kill supervisor", faults.kill_supervisor),
    Row("kill housekeeper", faults.kill_housekeeper),
    Row("kill server", faults.kill_server),
    Row("stop a host for 30 s", faults.stop_host),
    Row("12 HUPs", faults.reload_often, none_may_fail=True),
    Row("rolling stop and start", faults.restart_one_by_one, none_may_fail=True),
    Row("plugin upgrade", faults.upgrade_plugin, none_may_fail=True),
    Row("maxmemory", faults.fill_memory),
    Row("Redis black-holed", faults.black_hole, behind_a_proxy),
    Row("Redis refused", faults.refuse, behind_a_proxy),
    Row("Redis delayed", faults.delay, behind_a_proxy),
    Row("rolling upgrade from 0.1", faults.upgrade_one_by_one, of_release, none_may_fail=True),
    *(failover(fault, ack, settings) for ack in ("stored", "replica") for settings in ((), MIN_REPLICAS)
      for fault in (faults.kill_primary, faults.replace_live_primary)),
)  # fmt: skip
