"""Gather all facts at once within a deadline, and run every check on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from redis.exceptions import RedisError

from receiver.config import Config
from receiver.inbox.redis.server_faults import fault_of_error
from workers.operations.doctor import local_facts, network_facts, store_checks, system_checks, worker_checks
from workers.operations.doctor.facts import ApiFacts, Facts, InboxFacts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding
from workers.plugins.validation_process import ValidationProcess

TIMEOUT = 4.0
"""Seconds for all requests over the network together."""

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    system_checks.check_config,
    system_checks.check_server,
    system_checks.check_memory,
    system_checks.check_disk,
    system_checks.check_spool,
    worker_checks.check_handlers,
    worker_checks.check_workers,
    worker_checks.check_housekeeper,
    worker_checks.check_open_issues,
    system_checks.check_public_urls,
    store_checks.check_stores,
)


def examine(config: Config, *, timeout: float = TIMEOUT) -> tuple[Facts, list[Finding]]:
    """Gather the facts and run all checks."""
    facts = gather_facts(config, timeout=timeout)
    return facts, [finding for check in CHECKS for finding in check(facts)]


def gather_facts(config: Config, *, timeout: float = TIMEOUT) -> Facts:
    """The validation process starts first: forking is unsafe once this process has threads."""
    validation = ValidationProcess(config)
    deadline = time.monotonic() + timeout
    server, inbox = _server_and_inbox(config)
    redis = local_facts.client_for(config) if not server.fault else None
    request_timeout = max(0.5, deadline - time.monotonic() - 0.3)
    urls = network_facts.public_urls(config)
    jobs: dict[str, Callable[[], WebFacts | ApiFacts]] = {
        **{f"web {url}": partial(network_facts.probe_public_url, config, url, request_timeout / 2) for url in urls},
        **{
            f"api {store}": partial(network_facts.probe_store, config, store, redis, request_timeout)
            for store in config.stores
        },
    }
    results, started = network_facts.run_in_parallel(jobs, deadline)
    webs = {result.url: result for result in results.values() if isinstance(result, WebFacts)}
    apis = {name.removeprefix("api "): result for name, result in results.items() if isinstance(result, ApiFacts)}
    return Facts(
        config=config,
        now=datetime.now(UTC),
        server=server,
        inbox=inbox,
        plugins=local_facts.plugin_facts(validation, max(deadline, time.monotonic() + 1)),
        host=local_facts.host_facts(config),
        web=tuple(webs.get(url) or WebFacts(url, "timed out") for url in urls),
        apis={store: apis.get(store) or _unanswered(f"api {store}" in started) for store in config.stores},
    )


def _unanswered(started: bool) -> ApiFacts:
    return ApiFacts("late" if started else "unasked")


def _server_and_inbox(config: Config) -> tuple[ServerFacts, InboxFacts | None]:
    client = local_facts.client_for(config)
    server = local_facts.server_facts(client)
    if server.fault:
        return server, None
    try:
        return server, local_facts.inbox_facts(client, config)
    except RedisError as error:
        return ServerFacts(server.address, fault=fault_of_error(error, client)), None
    finally:
        client.close()
