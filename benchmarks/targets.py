"""The targets: every ratio that is evaluated, with its goal and its stretch goal. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["more", "less"]


@dataclass(frozen=True)
class Target:
    """The ratio ours / theirs of one figure of a comparison. `better` says whether more or less is better."""

    title: str
    comparison: str
    figure: str
    ours: str
    theirs: str
    better: Better
    target: float
    stretch: float
    max_spread: float = 0.25
    """With a wider spread of the ratios there is no result."""


TAIL_SPREAD = 0.5
"""max_spread for a 99th percentile: of a few hundred requests it is the second or third slowest."""
US = "storehooks"
FLAT = 1.1
"""The ratio that counts as constant cost: two runs of the same system differ as much."""

TARGETS = (
    Target("ingest against naive Flask + RQ", "ingest", "rate", US, "naive", "more", 8.5, 10),
    Target("ingest against adnanh/webhook (Go)", "ingest", "rate", US, "adnanh", "more", 1.6, 2),
    Target("ingest against FastAPI + uvicorn + arq", "ingest", "rate", US, "fastapi", "more", 2.5, 5),
    Target(
        "p99 at the same rate, against naive Flask + RQ",
        "p99",
        "p99",
        US,
        "naive",
        "less",
        0.5,
        0.3,
        TAIL_SPREAD,
    ),
    Target(
        "highest rate with p99 under 10 ms, against naive Flask + RQ", "steady", "rate", US, "naive", "more", 4.5, 6
    ),
    Target("ingest with TLS to Redis, against plain TCP", "links", "rate", "TLS", "TCP", "more", 0.8, 0.95),
    Target("ingest with ack = replica, against fsync", "links", "rate", "replica", "TCP", "more", 0.8, 0.95),
    Target("judging a delivery, against hmac + json.loads", "judging", "us", US, "standard library", "less", 1.2, 1.0),
    Target("runs/s, no-op handler, against rq SimpleWorker", "workers", "rate", US, "rq simple", "more", 15, 40),
    Target("runs/s, no-op handler, against celery solo", "workers", "rate", US, "celery", "more", 5, 15),
    Target("runs/s, no-op handler, against dramatiq", "workers", "rate", US, "dramatiq", "more", 2, 5),
    Target("runs/s, no-op handler, against huey", "workers", "rate", US, "huey", "more", 1.2, 3),
    Target(
        "runs/s with order_by, 1,000 keys, against no order",
        "order",
        "rate",
        "1,000 keys",
        "not ordered",
        "more",
        0.6,
        0.8,
    ),
    Target(
        "runs/s with order_by, one key, against one child process",
        "order",
        "rate",
        "one key",
        "one child process",
        "more",
        0.8,
        1.0,
    ),
    Target(
        "p99 from sending to handler start at 150/s, against naive + rq SimpleWorker",
        "latency",
        "p99",
        US,
        "naive",
        "less",
        0.4,
        0.2,
        TAIL_SPREAD,
    ),
    Target("fan-out to five handlers, against enqueue_many", "fanout", "rate", US, "enqueue_many", "more", 7, 10),
    Target(
        "memory of an open event with five handlers, against naive", "memory", "bytes", US, "naive", "less", 0.4, 0.25
    ),
    Target("cost of ingest, 1M open events against 1k", "growth", "ingest", "many", "few", "less", 1.3, FLAT),
    Target("cost of a claim, 1M open events against 1k", "growth", "claim", "many", "few", "less", 1.3, FLAT),
    Target("cost of a console page, 1M open events against 1k", "growth", "page", "many", "few", "less", 1.3, FLAT),
    Target(
        "memory of an event in the history, against 200 bytes", "moved", "bytes", "moved", "at most", "less", 1, 0.95
    ),
    Target(
        "ingest at half of its maximum while events are moved",
        "moving",
        "rate",
        "moving",
        "not moving",
        "more",
        0.95,
        0.99,
    ),
    Target("runs/s meanwhile", "moving", "runs", "moving", "not moving", "more", 0.95, 0.99),
    Target("maximum of ingest while events are moved", "moving", "maximum", "moving", "not moving", "more", 0.9, 0.95),
    Target("two workers against one, handler sleeps 2 ms", "two", "rate", "two", "one", "more", 1.7, 1.95),
)
