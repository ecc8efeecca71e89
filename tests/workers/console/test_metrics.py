"""Metrics for Prometheus: the token, figures that agree with `stats`, and rules and a dashboard made from them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from receiver.config import Config, load
from receiver.config.alert_settings import AlertRules
from receiver.contract.errors import ConfigError
from receiver.inbox import Declaration, keys
from receiver.inbox.outcomes import OutcomeKind
from tests.support.console import RunningConsole, running_console
from tests.support.harness import SECRET, System, eventually
from tests.support.programs import ROOT
from workers.console.application import create_app
from workers.operations.metrics import MetricsCollector, as_text

TOKEN = "a token for Prometheus"
PASSWORDS = f'password = "p"\nmetrics_token = "{TOKEN}"'
RULES, DASHBOARD = ROOT / "deploy/prometheus/storehooks.rules.yml", ROOT / "deploy/grafana/storehooks.json"
PAGE = ROOT / "docs/operating/metrics.md"
PROMTOOL = shutil.which("promtool")


def scrape(console: RunningConsole, **headers: str) -> httpx2.Response:
    return httpx2.get(f"{console.url}/metrics", headers=headers, timeout=30)


def figures(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name of a sample, and by the values of its labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("metrics"), "web", "worker", console=PASSWORDS) as found:
        system = found.system
        ids = [system.deliver(data={"id": number, "total": "200.00"}) for number in range(3)]
        again = system.request(delivery_id="msg_twice")
        assert {system.post(again).status_code for _ in range(2)} == {200}
        ids.append(system.deliver(data=found.broken_order(), store="south"))
        assert system.post(system.request(store="south"), "north").status_code == 401
        assert system.post(system.request(), "never-heard-of").status_code == 401
        for event_id in ids:
            system.settled(event_id)
        eventually(lambda: system.ledger.counters().total["refused"] == 2, what="refusals are counted")
        eventually(lambda: read(found).get("storehooks_runs_total"), 20, what="the worker has written its statistics")
        yield found


def read(console: RunningConsole) -> dict[str, dict[tuple[str, ...], float]]:
    answer = scrape(console, Authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200, answer.text
    return figures(answer.text)


@pytest.mark.parametrize("given", ["", TOKEN, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_without_the_token_there_are_no_metrics(console: RunningConsole, given: str) -> None:
    answer = scrape(console, **({"Authorization": given} if given else {}))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "storehooks_" not in answer.text


def test_a_login_is_no_token(console: RunningConsole) -> None:
    operator = console.browser().log_in("p")
    assert operator.get("/metrics").status_code == 401


def test_without_a_configured_token_the_page_says_what_to_set(system: System) -> None:
    answer = create_app(system.config).test_client().get("/metrics", base_url="http://127.0.0.1:0")
    assert answer.status_code == 404
    assert "[console] metrics_token" in answer.text


def test_the_type_is_that_of_the_text_format(console: RunningConsole) -> None:
    answer = scrape(console, Authorization=f"bearer {TOKEN}")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_figures_agree_with_stats(console: RunningConsole) -> None:
    found, stats = read(console), json.loads(console.system.run_cli("stats", "--json").stdout)
    names = {"accepted": "accepted", "duplicate": "duplicates", "refused": "refused"}
    for store, counts in stats["stores"].items():
        for verdict, name in names.items():
            assert found["storehooks_deliveries_total"][store, verdict] == counts[name], (store, name)
        for status in ("open", "settled", "failed"):
            assert found["storehooks_events"][status, store] == counts[status], (store, status)
        assert found["storehooks_retries_total"][store,] == counts["retried"]
    labels = {store for store, _ in found["storehooks_deliveries_total"]}
    assert labels == set(stats["stores"]) == {"north", "south", "?"}
    assert sum(found["storehooks_spooled_deliveries"].values()) == stats["spooled"] == 0
    assert stats["accepted"] == 5
    assert found["storehooks_deliveries_refused_total"] == {
        ("signature-mismatch", "north"): 1,
        ("unknown-store", "?"): 1,
    }


def test_runs_are_shown_by_handler_and_outcome(console: RunningConsole) -> None:
    expected = {
        ("erp.export", "done"): 4,
        ("erp.export", "failed"): 1,
        ("erp.vip", "done"): 3,
        ("erp.vip", "dropped"): 2,
    }
    eventually(lambda: read(console)["storehooks_runs_total"] == expected, 20, what="all runs are counted")
    found = read(console)
    for name in ("storehooks_run_duration_seconds", "storehooks_run_waiting_seconds"):
        assert found[f"{name}_count"] == {("erp.export",): 5, ("erp.vip",): 5}
        assert found[f"{name}_bucket"]["erp.export", "+Inf"] == 5
        assert 0 < found[f"{name}_sum"]["erp.export",] < 60
        bounds = sorted(float(bound) for handler, bound in found[f"{name}_bucket"] if handler == "erp.export")
        counts = [found[f"{name}_bucket"]["erp.export", str(bound).replace("inf", "+Inf")] for bound in bounds]
        assert counts == sorted(counts)
        assert bounds[0] == 0.001024
    assert found["storehooks_handler_runs"]["erp.export", "failed"] == 1
    assert found["storehooks_handler_workers"] == {("erp.export",): 1, ("erp.vip",): 1}


def test_processes_and_memory_are_shown(console: RunningConsole) -> None:
    found = read(console)
    assert found["storehooks_workers"][()] == 1
    assert found["storehooks_child_processes"][()] == 2
    assert found["storehooks_housekeeper_up"][()] == 0
    assert found["storehooks_redis_memory_bytes"][()] > 1e6
    assert found["storehooks_oldest_open_age_seconds"][()] == 0
    assert abs(found["storehooks_last_event_timestamp_seconds"]["south",] - time.time()) < 60


def test_the_text_is_that_of_the_library(console: RunningConsole) -> None:
    class Odd(MetricsCollector):
        def collect(self) -> Iterator[Metric]:
            yield from super().collect()
            odd = GaugeMetricFamily("storehooks_odd", "Odd values.", labels=["name"])
            for number, name in enumerate(('quo"te', "back\\slash", "new\nline", "plain", "ünicode")):
                odd.add_metric([name], (float("nan"), float("inf"), 0, 1234567.0, 1e-9)[number])
            yield odd

    collector = Odd(console.config, console.system.client)
    ours, theirs = as_text(collector), generate_latest(collector)
    changing = re.compile(rb"^(storehooks_redis_memory_bytes) .*$", re.MULTILINE)
    assert changing.sub(rb"\1", ours) == changing.sub(rb"\1", theirs)


def families(system: System) -> list[Metric]:
    return list(MetricsCollector(system.config, system.client).collect())


def names_of(found: list[Metric]) -> set[str]:
    """Every name that a sample may have."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {one.name + suffix for one in found for suffix in suffixes.get(one.type, ("",))}


@pytest.mark.parametrize("path", [RULES, DASHBOARD])
def test_rules_and_dashboard_have_no_other_names(path: Path, system: System) -> None:
    named = set(re.findall(r"\bstorehooks_\w+", path.read_text()))
    assert len(named) >= 12
    assert named - names_of(families(system)) == set()


def test_the_dashboard_shows_every_metric(system: System) -> None:
    shown = RULES.read_text() + DASHBOARD.read_text()
    assert {one.name for one in families(system) if one.name not in shown} <= {"storehooks_retries"}


def test_the_page_lists_every_metric(system: System) -> None:
    listed = set(re.findall(r"^\| `(storehooks_\w+)", PAGE.read_text(), flags=re.MULTILINE))
    counters = {one.name + "_total" * (one.type == "counter") for one in families(system)}
    assert listed == counters


def test_rules_of_prometheus_have_the_defaults_of_alerts() -> None:
    defaults, rules = AlertRules(), RULES.read_text()
    assert f'{{outcome=~"done|dropped|failed|retry"}}[10m])) >= {defaults.failing}\n' in rules
    assert f"storehooks_oldest_open_age_seconds > {defaults.oldest_open:.0f}\n" in rules
    assert f'{{verdict="refused", store!="?"}}[15m]) > {defaults.refused_in_a_row}\n' in rules
    assert f"(storehooks_redis_memory_max_bytes > 0) > {defaults.memory}\n" in rules


@pytest.mark.parametrize(("token", "is_long"), [("0123456789abcde", False), ("0123456789abcdef", True)])
def test_a_token_that_can_be_guessed_is_refused(make_system: Callable[..., System], token: str, is_long: bool) -> None:
    system = make_system()
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[console]", f'[console]\nmetrics_token = "{token}"', 1))
    if is_long:
        assert system.config.console.metrics_token.get_secret_value() == token
        return
    with pytest.raises(ConfigError, match=r"metrics_token.*shorter than 16 characters") as refused:
        _ = system.config
    assert token not in str(refused.value)


@pytest.mark.full
@pytest.mark.skipif(not PROMTOOL, reason="promtool, of Debian's package prometheus, is not installed")
def test_promtool_accepts_metrics_rules_and_the_page(console: RunningConsole, tmp_path: Path) -> None:
    assert PROMTOOL
    text = scrape(console, Authorization=f"Bearer {TOKEN}").content
    (tmp_path / "storehooks.rules.yml").write_text(RULES.read_text())
    (tmp_path / "storehooks.token").write_text(TOKEN)
    shown = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert shown
    config = tmp_path / "prometheus.yml"
    config.write_text(shown[1].replace("/etc/prometheus/", ""))
    for arguments, given in (
        (["check", "metrics"], text),
        (["check", "rules", str(RULES)], b""),
        (["check", "config", str(config)], b""),
    ):
        done = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        assert not given or not done.stderr, done.stderr.decode()


STORES, HANDLERS, EVENTS = 1_000, 100, 1_000_000


def fill(client: Redis, system: System) -> Config:
    """The keys that a scrape reads, as a large system has them."""
    text = system.config_file.read_text()
    names = [f"shop-{number:04d}" for number in range(STORES)]
    more = "".join(f'[stores.{name}]\nsigning_secrets = ["{SECRET}"]\n' for name in names)
    system.config_file.write_text(text.replace("[console]", f'{more}[console]\nmetrics_token = "{TOKEN}"', 1))
    handlers = [f"plugin{number // 10}.handler_{number}" for number in range(HANDLERS)]
    system.declare_as_worker(*(Declaration(name, "1.0", ("*",), ("*",), keys.DEFAULT_QUEUE, {}) for name in handlers))
    pipeline, now = client.pipeline(transaction=False), int(time.time() * 1e6)
    for first in range(0, EVENTS, 10_000):
        pipeline.zadd(keys.INDEX, {f"{number:026d}": now + number for number in range(first, first + 10_000)})
    pipeline.set(keys.OPEN_SINCE, now + EVENTS)
    each = {"accepted": EVENTS // STORES, "settled": EVENTS // STORES - 3, "open": 2, "failed": 1}
    each |= {"refused": 12, "refused:signature-mismatch": 10, "refused:too-old": 2, "duplicates": 5, "retried": 7}
    for name in names:
        pipeline.hset(keys.COUNTERS, mapping={f"{field}|{name}": number for field, number in each.items()})
        topics = ("orders/create", "orders/updated", "products/update", "customers/create", "app/uninstalled")
        pipeline.hset(keys.EVENT_NAMES + name, mapping={f"{kind}:{one}": 10**12 for one in topics for kind in "nl"})
    spread = {**{f"{kind}{power}": 9 for power in range(8, 31) for kind in "dw"}, "ds": 10**9, "ws": 10**9}
    for name in handlers:
        pipeline.hset(f"{keys.RUNS}all:{name}", mapping={**{str(kind): 100 for kind in OutcomeKind}, **spread})
    pipeline.execute()
    return load(system.config_file, {})


@pytest.mark.slow
def test_a_scrape_of_a_large_system_is_fast_and_small(
    system: System, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    app = create_app(fill(redis, system)).test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def timed() -> tuple[float, float, int]:
        began, cpu = time.perf_counter(), time.process_time()
        answer = app.get("/metrics", base_url="http://127.0.0.1:0", headers=headers)
        assert answer.status_code == 200
        return time.perf_counter() - began, time.process_time() - cpu, len(answer.data)

    timed()
    found = [timed() for _ in range(9)]
    wall, cpu, size = (sorted(one)[4] for one in zip(*found, strict=True))
    samples = figures(app.get("/metrics", base_url="http://127.0.0.1:0", headers=headers).text)
    with capsys.disabled():
        print(f"\nscrape: {wall * 1000:.0f} ms, {cpu * 1000:.0f} ms of CPU time, {size / 1e6:.2f} MB")
    assert sum(samples["storehooks_events"].values()) == EVENTS
    assert len(samples["storehooks_run_duration_seconds_count"]) == HANDLERS
    assert cpu < 0.3, "the time on the wall is also that of other processes"
    assert size < 2_000_000
