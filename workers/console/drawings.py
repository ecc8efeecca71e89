"""Drawings: data of charts, which a script draws, and small pictures that need no script. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson
from markupsafe import Markup

from receiver.inbox.queries.time_series import HOUR, SeriesChange
from workers.operations.traffic import HourState, StoreHour, Traffic

RATES = ("accepted", "settled", "refused", "duplicates", "retried")
LEVELS = ("open", "failed", "spooled")
LONGEST_STEP = 3
"""Figures further apart than this number of steps are not joined by a line."""
_WIDTH, _HEIGHT = 4, 20
_OUTLINES = {
    HourState.NORMAL: "M0 0h9v20h-9z",
    HourState.LOW: "M0 12h9v8h-9z",
    HourState.GAP: "M0 0h9v3h-9zM0 17h9v3h-9z",
    HourState.REFUSED: "M0 0l9 7v13l-9-7z",
    HourState.REPAIRED: "M4.5 0l4.5 10l-4.5 10l-4.5-10z",
    HourState.UNKNOWN: "M0 9h9v2h-9z",
}
SHAPES = {state: Markup('<path class="{}" d="{}"/>').format(state, path) for state, path in _OUTLINES.items()}
"""An hour of each state. They differ in shape too, for those who cannot tell the colours apart."""


def chart_data(traffic: Traffic) -> str:
    """Columns of numbers as JSON: events per minute, and how many there were at the time. Empty if no step is over."""
    columns: dict[str, list[float | None]] = {name: [] for name in ("at", *RATES, *LEVELS)}
    values = {one.at: one.values for one in traffic.samples}
    shown = traffic.changes[:-1] if traffic.changes and _is_short(traffic) else traffic.changes
    if not shown:
        return ""
    for change in shown:
        seconds = max(_seconds(change), traffic.step)
        if seconds > LONGEST_STEP * traffic.step:
            columns["at"].append(change.since.timestamp() + 1)
            for name in (*RATES, *LEVELS):
                columns[name].append(None)
        columns["at"].append(change.until.timestamp())
        for name in RATES:
            columns[name].append(round(change.counts[name] * 60 / seconds, 2))
        for name in LEVELS:
            columns[name].append(values[change.until][name])
    deploys = [{"at": one.at.timestamp(), "text": one.text} for one in traffic.deploys]
    return orjson.dumps({**columns, "deploys": deploys}).decode()


def _is_short(traffic: Traffic) -> bool:
    """Whether the last step is not over. Samples may be a moment early."""
    return _seconds(traffic.changes[-1]) < traffic.step - HOUR.step / 2


def _seconds(change: SeriesChange) -> float:
    return (change.until - change.since).total_seconds()


def trend(numbers: Sequence[int]) -> Markup:
    """A picture of some numbers as bars."""
    most = max(numbers, default=0) or 1
    bars = "".join(
        f"M{at * _WIDTH} {_HEIGHT}v-{max(2, round(number * _HEIGHT / most))}h{_WIDTH - 1}V{_HEIGHT}z"
        for at, number in enumerate(numbers)
        if number
    )
    text = f"{sum(numbers):,} in the last {len(numbers)} hours, {numbers[-1] if numbers else 0:,} in the last one"
    return Markup('<svg class="trend" viewBox="0 0 {} {}" role="img"><title>{}</title><path d="{}"/></svg>').format(
        len(numbers) * _WIDTH, _HEIGHT, text, bars
    )


def band(hours: Sequence[StoreHour]) -> list[tuple[StoreHour, Markup]]:
    """A picture of each day of a week, with its first hour."""
    return [(hours[first], _day(hours[first : first + 24])) for first in range(0, len(hours), 24)]


def _day(hours: Iterable[StoreHour]) -> Markup:
    cells = Markup("").join(
        Markup('<g transform="translate({} 0)"><title>{}</title>{}</g>').format(at * 10, _words(one), SHAPES[one.state])
        for at, one in enumerate(hours)
    )
    return Markup(
        '<svg class="band" viewBox="0 0 240 20" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(cells)


def _words(hour: StoreHour) -> str:
    when = f"{hour.since:%Y-%m-%d %H:%M} UTC: {hour.state}"
    if hour.state is HourState.UNKNOWN:
        return when
    return f"{when}, {hour.accepted:,} accepted, {hour.refused:,} refused; {hour.usual:,.0f} are usual"
