"""The targets: every line that is judged, with the ratio that must be reached and the one to stretch for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["more", "less"]


@dataclass(frozen=True)
class Target:
    """ours / theirs, of one figure of one bout. `more` is better, or `less`."""

    title: str
    bout: str
    figure: str
    ours: str
    theirs: str
    better: Better
    target: float
    stretch: float
    widest: float = 0.25
    """The widest spread of a round's ratios from which anything is concluded."""


TAIL = 0.5
"""The same for a 99th percentile: of some hundred requests it is the second or third worst."""
US = "storehooks"
FLAT = 1.1
"""What "flat" means for a ratio that is measured: no further from 1 than two runs of the same thing are."""

TARGETS = (
    Target("ingest against naive Flask + RQ", "ingest", "rate", US, "naive", "more", 5, 10),
    Target("ingest against adnanh/webhook (Go)", "ingest", "rate", US, "adnanh", "more", 1.1, 2),
    Target("ingest against FastAPI + uvicorn + arq", "ingest", "rate", US, "fastapi", "more", 2.5, 5),
    Target(
        "p99 at half of its own maximum, against naive at half of its",
        "p99",
        "p99",
        US,
        "naive",
        "less",
        0.3,
        0.1,
        TAIL,
    ),
    Target("runs/s, no-op handler, against rq SimpleWorker", "workers", "rate", US, "rq simple", "more", 15, 40),
    Target("the same against celery solo", "workers", "rate", US, "celery", "more", 5, 15),
    Target("the same against dramatiq", "workers", "rate", US, "dramatiq", "more", 2, 5),
    Target("the same against huey", "workers", "rate", US, "huey", "more", 1.2, 3),
    Target(
        "send to handler start, p99 at 150/s, against naive + SimpleWorker",
        "latency",
        "p99",
        US,
        "naive",
        "less",
        0.4,
        0.2,
        TAIL,
    ),
    Target("fan-out to five against enqueue_many", "fanout", "rate", US, "enqueue_many", "more", 7, 10),
    Target(
        "memory of an open event with five handlers, against naive", "memory", "bytes", US, "naive", "less", 0.4, 0.25
    ),
    Target("cost of ingest, 1M open events against 1k", "growth", "ingest", "many", "few", "less", 1.3, FLAT),
    Target("cost of a claim, 1M open events against 1k", "growth", "claim", "many", "few", "less", 1.3, FLAT),
    Target("cost of a console page, 1M open events against 1k", "growth", "page", "many", "few", "less", 1.3, FLAT),
    Target("two workers against one, handler sleeps 2 ms", "two", "rate", "two", "one", "more", 1.7, 1.95),
)
