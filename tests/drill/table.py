"""The rows as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.drill.counting import Counted
from tests.drill.rows import Row

HEAD = (
    "row", "sent", "failed", "not handled", "runs > 1", "worst delay", "doctor ok after", "doctor at that moment",
)  # fmt: skip
WIDEST = 60


@dataclass
class Result:
    """What a row showed."""

    row: Row
    counted: Counted
    doctor: str = ""
    """What `doctor` found during the fault."""
    well_after: float | None = None
    """Seconds from the end of the load until `doctor` found nothing; None if it always found something."""
    left: str = ""
    """What `doctor` still found at the end."""
    broken: str = ""
    """Why the row could not be run to its end."""
    wrong: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.wrong = [self.broken] if self.broken else []
        lost, seconds = len(self.counted.not_handled), self.counted.lost_seconds
        if lost and (not self.row.may_lose_seconds or seconds > self.row.may_lose_seconds):
            self.wrong.append(f"{lost:,} accepted and not handled, answered within {seconds:.1f} s")
        if self.counted.failed and self.row.none_may_fail:
            self.wrong.append(f"{sum(self.counted.failed.values()):,} failed deliveries")
        if not self.broken and not self.counted.accepted:
            self.wrong.append("no delivery was accepted")
        if not self.broken and self.well_after is None:
            self.wrong.append(f"doctor: {self.left}")

    @property
    def cells(self) -> tuple[str, ...]:
        counted = self.counted
        kinds = ", ".join(f"{number} x {kind}" for kind, number in sorted(counted.failed.items()))
        return (
            self.row.name,
            f"{counted.sent:,}",
            kinds or "0",
            f"{len(counted.not_handled):,}",
            f"{counted.beyond_one:,}",
            f"{counted.worst_delay:.1f} s",
            "never" if self.well_after is None else f"{self.well_after:.0f} s",
            shortened(self.doctor),
        )


def shortened(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3].rstrip()}..."


def table(results: Sequence[Result]) -> str:
    lines = [HEAD, *(one.cells for one in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(_line(one, widths) for one in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = (
        cell.rjust(width) if 0 < place < len(cells) - 1 else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *middle, last]).rstrip()


def summary(results: Sequence[Result], seconds: float) -> str:
    wrong = [f"FAILED  {one.row.name}: {reason}" for one in results for reason in one.wrong]
    failed = len({one.row.name for one in results if one.wrong})
    return "\n".join([*wrong, f"{len(results)} rows, {failed} failed, {seconds / 60:.1f} minutes"])
