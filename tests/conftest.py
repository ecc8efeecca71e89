"""Fixtures. The server is real: an embedded one of this run, or the one REDIS_URL names."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis
from redis.exceptions import ResponseError

from receiver.inbox import connect
from receiver.inbox.redis.script_library import library
from tests.support import soak_summary
from tests.support.harness import Server, System, own_server

if TYPE_CHECKING:
    from tests.support.sandbox_shop import Shop

settings.register_profile("busy machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy machine")
MARK = "storehooks-tests"
HERE = Path(__file__).parent
LONGEST_FIRST = (
    "receiver/spool/test_spool.py",
    "workers/cli/test_dev.py",
    "faults/test_hosts.py",
    "workers/cli/test_dev_subscriptions.py",
    "faults/test_fault_matrix.py",
    "faults/test_repeats_without_ids.py",
    "faults/test_validated_code.py",
    "receiver/process/test_start_checks.py",
    "workers/runtime/test_worker.py",
    "faults/test_foreign_jobs.py",
    "faults/test_receiver_regressions.py",
    "faults/test_harmful_handlers.py",
    "faults/test_soak.py",
    "docs/test_examples.py",
    "faults/test_subscription_faults.py",
    "workers/cli/test_stores.py",
    "workers/storeapi/test_retry.py",
    "receiver/server/test_bad_input.py",
    "workers/operations/doctor/test_doctor.py",
    "workers/subscriptions/test_repair.py",
    "workers/plugins/test_discovery.py",
    "docs/test_plugin_types.py",
    "docs/test_integrator_pages.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is done by one process: a long one that begins last would keep one busy after the others have ended."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    soak_summary.mark_slow_tests(items)
    items.sort(key=lambda item: places.get(os.path.relpath(item.path, HERE), len(places)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [one for word in ("passed", "failed", "error") for one in terminalreporter.getreports(word)]
    if lines := list(soak_summary.lines(reports)):
        terminalreporter.section("the slow tests, and what they measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def given_server() -> str:
    """What REDIS_URL names, taken out of the environment: there it would win over the config of each test."""
    return os.environ.pop("REDIS_URL", "")


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory, given_server: str) -> Iterator[str]:
    if given_server:
        url = _a_database_of_our_own(given_server)
        yield url
        _forget_our_functions(url)
        return
    folder = tmp_path_factory.mktemp("server")
    with own_server(folder) as server:
        yield server.url


def _a_database_of_our_own(given: str) -> str:
    """Tests flush, so only an empty database is used. Each process of a parallel run has its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    parts = urlsplit(given)
    if parts.scheme == "unix":
        url = f"unix://{parts.netloc}{parts.path}?db={15 - worker}"  # geturl() would leave the slashes out
    else:
        url = parts._replace(path=f"/{int(parts.path.strip('/') or 15) - worker}").geturl()
    client = connect(url, timeout=5.0)
    if client.dbsize() and not client.exists(MARK):
        pytest.exit(f"REDIS_URL: {url} is not empty; the tests flush it, so they need an empty database", 2)
    client.set(MARK, 1)
    client.close()
    return url


def _forget_our_functions(url: str) -> None:
    """Functions belong to the server, not to a database. Other processes load them again when they need them."""
    client = connect(url, timeout=5.0)
    with suppress(ResponseError):
        client.function_delete(library().name)
    client.close()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and so would the programs that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def redis(server_url: str, given_server: str) -> Iterator[Redis]:
    """A client of a clean database."""
    client = connect(server_url, timeout=5.0)
    client.flushdb()
    client.set(MARK, 1) if given_server else None
    yield client
    _end_timers()
    client.flushdb()
    client.close()


def _end_timers() -> None:
    """A counter buffer writes a second later, which would be into the database of the next test."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
            thread.join()


@pytest.fixture
def make_system(tmp_path: Path, server_url: str, redis: Redis) -> Iterator[Callable[..., System]]:
    """Makes systems that are stopped with the test."""
    made: list[System] = []

    def make(**how: Any) -> System:
        folder = tmp_path / f"system-{len(made)}"
        (folder / "data").mkdir(mode=0o700, parents=True)
        system = System(folder, how.pop("url", server_url), **how)
        made.append(system)
        return system

    yield make
    for system in made:
        system.close()


@pytest.fixture
def system(make_system: Callable[..., System]) -> System:
    return make_system()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may kill."""
    folder = tmp_path / "own-server"
    folder.mkdir()
    with own_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One server, one receiver and one sandbox for all tests of a file."""
    from tests.support.sandbox_shop import running_shop  # few tests need it, and it loads an HTTP client

    with running_shop(tmp_path_factory.mktemp("shop"), "web") as shop:
        yield shop


@pytest.fixture
def shop(open_shop: Shop) -> Iterator[Shop]:
    """An empty store, and the config as it was."""
    from tests.support.sandbox_shop import reset

    text = open_shop.system.config_file.read_text()
    yield reset(open_shop)
    open_shop.system.config_file.write_text(text)
