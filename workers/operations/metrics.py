"""Metrics: the figures of all processes for Prometheus, read from Redis at each scrape.

Runs are performed by forked processes on any number of hosts, so nothing is counted in memory. A figure that may become
less, as settled events do when they are replayed, is a gauge. The values of labels come from config, declarations and
closed lists, never from a delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from redis import Redis

from receiver import __version__
from receiver.config import Config
from receiver.inbox import EventQueries
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.event_pages import oldest_open_age
from receiver.inbox.queries.events import Counters
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.run_statistics import all_runs_of
from receiver.inbox.subscription_checks import SubscriptionChecks
from workers.operations.host_spools import find_hosts
from workers.operations.system_state import handler_rows
from workers.storeapi.call_counts import calls_by_status

BUCKETS = range(10, 33)
"""Histograms have a bucket for each power of two from 1 ms to 72 minutes, in us."""
_VERDICTS = {"accepted": "accepted", "duplicate": "duplicates", "refused": "refused"}

Samples = Mapping[tuple[str, ...], float]
"""By the values of labels."""


class MetricsCollector(Collector):
    def __init__(self, config: Config, client: Redis) -> None:
        self._config, self._client = config, client

    def collect(self) -> Iterator[Metric]:
        yield _gauge("storehooks_info", "The version of the console.", {(__version__,): 1}, "version")
        yield from self._of_stores(EventQueries(self._client).counters())
        yield from self._of_handlers()
        yield from self._of_processes()
        yield from self._of_redis()

    def _of_stores(self, counters: Counters) -> Iterator[Metric]:
        stores, other = counters.stores, counters.other
        yield _counter(
            "storehooks_deliveries",
            "Deliveries by the answer to them; those of unknown stores are of the store ?.",
            {(store, verdict): one[name] for store, one in stores.items() for verdict, name in _VERDICTS.items()},
            "store",
            "verdict",
        )
        yield _counter(
            "storehooks_deliveries_refused",
            "Refused deliveries by reason.",
            {
                (store, name.removeprefix("refused:")): number
                for (name, store), number in other.items()
                if name.startswith("refused:")
            },
            "store",
            "reason",
        )
        yield _gauge(
            "storehooks_events",
            "Events by status. All of a store together are its accepted deliveries.",
            {(store, status): one[status] for store, one in stores.items() for status in EventStatus},
            "store",
            "status",
        )
        yield _counter(
            "storehooks_retries",
            "Failed attempts of runs that were retried.",
            {(store,): one["retried"] for store, one in stores.items()},
            "store",
        )
        yield _gauge(
            "storehooks_last_event_timestamp_seconds",
            "When a store last sent an event.",
            {
                (store,): at.timestamp()
                for store, at in HealthQueries(self._client).last_events(self._config.stores).items()
            },
            "store",
        )
        yield _counter(
            "storehooks_subscription_repairs",
            "Subscriptions that were missing or disabled at the store, and were repaired.",
            {(store,): number for (name, store), number in other.items() if name == "repairs"},
            "store",
        )
        yield _gauge(
            "storehooks_subscriptions_faulty",
            "Whether subscriptions could not be checked, or lack a change without which events do not arrive.",
            {
                (store,): int(result.is_faulty)
                for store, result in SubscriptionChecks(self._client).last_results(list(self._config.stores)).items()
            },
            "store",
        )
        yield _counter(
            "storehooks_api_calls",
            "Calls of the stores' APIs by status; none is a call without an answer.",
            {(store, status): number for (store, status), number in calls_by_status(self._client).items()},
            "store",
            "status",
        )

    def _of_handlers(self) -> Iterator[Metric]:
        rows = handler_rows(self._client)
        runs = all_runs_of(self._client, [row.name for row in rows])
        yield _counter(
            "storehooks_runs",
            "Ended attempts of runs by outcome.",
            {(name, outcome): number for name, one in runs.items() for outcome, number in one.outcomes.items()},
            "handler",
            "outcome",
        )
        yield _histogram(
            "storehooks_run_duration_seconds",
            "Duration of attempts.",
            {name: (one.durations, one.duration_us) for name, one in runs.items()},
        )
        yield _histogram(
            "storehooks_run_waiting_seconds",
            "Time from the arrival of an event to the begin of a run's first attempt.",
            {name: (one.waiting, one.waiting_us) for name, one in runs.items()},
        )
        yield _gauge(
            "storehooks_handler_runs",
            "Runs that may begin now, are open after a failed attempt (also if due), or have failed for good.",
            {(row.name, state): getattr(row, state) for row in rows for state in ("ready", "retrying", "failed")},
            "handler",
            "state",
        )
        yield _gauge(
            "storehooks_handler_workers",
            "Whether a worker has the handler now.",
            {(row.name,): int(bool(row.versions)) for row in rows},
            "handler",
        )

    def _of_processes(self) -> Iterator[Metric]:
        queries = HealthQueries(self._client)
        workers, hosts = queries.workers(), find_hosts(self._config, self._client)
        yield _gauge("storehooks_workers", "Live worker processes.", {(): len(workers)})
        children = sum(one.child_processes for one in workers)
        yield _gauge("storehooks_child_processes", "Live child processes of workers.", {(): children})
        leads = int(bool(queries.housekeeper()))
        yield _gauge("storehooks_housekeeper_up", "Whether a housekeeper works.", {(): leads})
        yield _gauge(
            "storehooks_spooled_deliveries",
            "Deliveries in the spool of a host; of a silent host as it last reported.",
            {(one.name,): (one.reported if one.spooled is None else one.spooled) or 0 for one in hosts},
            "host",
        )
        silent: Samples = {(one.name,): int(one.spooled is None) for one in hosts}
        yield _gauge("storehooks_spool_unknown", "Whether a host may have more in its spool.", silent, "host")
        age = oldest_open_age(self._client)
        yield _gauge("storehooks_oldest_open_age_seconds", "Age of the oldest open event; 0 without one.", {(): age})

    def _of_redis(self) -> Iterator[Metric]:
        memory = self._client.info("memory")
        used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
        yield _gauge("storehooks_redis_memory_bytes", "Memory that Redis uses.", {(): used})
        yield _gauge("storehooks_redis_memory_max_bytes", "Maximum memory of Redis; 0 without a limit.", {(): most})


def as_text(collector: Collector) -> bytes:
    """What `prometheus_client.generate_latest` writes, in a third of its time, which is most of that of a scrape."""
    lines: list[str] = []
    for metric in collector.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines += (f"# HELP {name} {metric.documentation}", f"# TYPE {name} {metric.type}")
        for sample in metric.samples:
            labels = ",".join([_label(one, value) for one, value in sorted(sample.labels.items())])
            value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
            lines.append(f"{sample.name}{{{labels}}} {value}" if labels else f"{sample.name} {value}")
    return ("\n".join(lines) + "\n").encode()


@lru_cache(4096)
def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{escaped}"'


def _counter(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def _gauge(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _filled(metric: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for labels, value in samples.items():
        metric.add_metric(labels, value)
    return metric


def _histogram(name: str, text: str, of: Mapping[str, tuple[Mapping[int, int], int]]) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=["handler"])
    for handler, (buckets, sum_us) in of.items():
        if buckets:
            metric.add_metric([handler], list(_cumulative(buckets)), sum_us / 1e6)
    return metric


def _cumulative(buckets: Mapping[int, int]) -> Iterable[tuple[str, float]]:
    """The number of runs up to each bound, in seconds."""
    total = sum(number for power, number in buckets.items() if power < BUCKETS.start)
    for power in BUCKETS:
        total += buckets.get(power, 0)
        yield str(2**power / 1e6), total
    yield "+Inf", sum(buckets.values())
