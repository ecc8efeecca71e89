"""Gather all facts at once within a deadline, and run every check on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from redis.exceptions import RedisError

from receiver.config import Config
from receiver.inbox.queries.damage import PartialReader
from receiver.inbox.redis.server_faults import fault_of_error
from workers.operations.doctor import (
    data_checks,
    handler_checks,
    local_facts,
    network_facts,
    store_checks,
    system_checks,
    worker_checks,
)
from workers.operations.doctor.facts import ApiFacts, Facts, InboxFacts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding
from workers.operations.doctor.network_facts import ParallelJobs
from workers.plugins.validation_process import ValidationProcess

TIMEOUT = 4.0
"""Seconds for all requests over the network together."""

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    system_checks.check_config,
    system_checks.check_server,
    worker_checks.check_keys,
    data_checks.check_memory,
    data_checks.check_history,
    system_checks.check_disk,
    system_checks.check_spool,
    handler_checks.check_handlers,
    worker_checks.check_workers,
    worker_checks.check_housekeeper,
    worker_checks.check_open_issues,
    system_checks.check_public_urls,
    store_checks.check_stores,
)


def examine(config: Config, *, timeout: float = TIMEOUT) -> tuple[Facts, list[Finding]]:
    """Gather the facts and run all checks."""
    facts = gather_facts(config, timeout=timeout)
    findings = [finding for check in CHECKS for finding in check(facts)]
    failed = {finding.name for finding in findings if finding.level == "fail"}
    return facts, [one for one in findings if one.level != "ok" or one.name not in failed]


def gather_facts(config: Config, *, timeout: float = TIMEOUT) -> Facts:
    """The validation process starts first: forking is unsafe once this process has threads."""
    validation = ValidationProcess(config)
    deadline = time.monotonic() + timeout
    urls = network_facts.public_urls(config)
    seconds = 0.4 * _time_left(deadline)  # two requests, one after the other, and some time to spare
    webs = ParallelJobs(  # from the start, so that a slow Redis server takes none of their time
        {url: partial(network_facts.probe_public_url, config, url, seconds) for url in urls}, deadline
    )
    server, inbox = _server_and_inbox(config)
    redis = local_facts.client_for(config) if not server.fault else None
    seconds = _time_left(deadline)
    apis = ParallelJobs(
        {
            name: partial(network_facts.probe_store, config, name, redis, seconds)
            for name, store in config.stores.items()
            if store.base_url
        },
        deadline,
    )
    answers, api_answers = webs.results(), apis.results()
    return Facts(
        config=config,
        now=datetime.now(UTC),
        server=server,
        inbox=inbox,
        plugins=local_facts.plugin_facts(validation, max(deadline, time.monotonic() + 1)),
        host=local_facts.host_facts(config, inbox.last_events if inbox else {}, redis if inbox else None),
        web=tuple(answers.get(url) or _unanswered_url(url, url in webs.started) for url in urls),
        apis={
            name: api_answers.get(name) or _unanswered_api(bool(store.base_url), name in apis.started)
            for name, store in config.stores.items()
        },
    )


def _time_left(deadline: float) -> float:
    """Seconds for one request, so that its result is there at the deadline."""
    return max(0.5, deadline - time.monotonic() - 0.3)


def _unanswered_url(url: str, started: bool) -> WebFacts:
    return WebFacts(url, "timed out", answers_at=None) if started else WebFacts(url, asked=False)


def _unanswered_api(has_api: bool, started: bool) -> ApiFacts:
    return ApiFacts("none" if not has_api else "late" if started else "unasked")


def _server_and_inbox(config: Config) -> tuple[ServerFacts, InboxFacts | None]:
    client = local_facts.client_for(config)
    server = local_facts.server_facts(client)
    if server.fault or server.round_trip >= config.redis.timeout:  # reading the inbox would take too long
        return server, None
    try:
        return server, local_facts.inbox_facts(PartialReader(client), config)
    except RedisError as error:
        return ServerFacts(address=server.address, fault=fault_of_error(error, client)), None
    finally:
        client.close()
