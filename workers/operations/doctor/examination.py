"""Examine: gather the facts, all at once and within a deadline, and let every check judge them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

from redis.exceptions import RedisError

from receiver.config import Config
from workers.operations.doctor import local_facts, network_facts, store_checks, system_checks, worker_checks
from workers.operations.doctor.facts import ApiFacts, Facts, InboxFacts, ServerFacts, WebFacts
from workers.operations.doctor.findings import Finding
from workers.plugins.loading import ValidationProcess

PATIENCE = 4.0
"""Seconds for everything that is asked over a network; whoever has not answered by then counts as silent."""

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
    worker_checks.check_work,
    system_checks.check_web,
    store_checks.check_stores,
)


def examine(config: Config, *, patience: float = PATIENCE) -> tuple[Facts, list[Finding]]:
    """Look at everything, and say what was found."""
    facts = facts_of(config, patience=patience)
    return facts, [finding for check in CHECKS for finding in check(facts)]


def facts_of(config: Config, *, patience: float = PATIENCE) -> Facts:
    """The judge of plugins is forked first: a process with threads had better not fork."""
    judge = ValidationProcess(config)
    until = time.monotonic() + patience
    server, inbox = _server_and_inbox(config)
    redis = local_facts.client_for(config) if not server.fault else None
    each = max(0.5, until - time.monotonic() - 0.3)
    urls = network_facts.addresses(config)
    jobs: dict[str, Callable[[], WebFacts | ApiFacts]] = {
        **{f"web {url}": partial(network_facts.ask_ourselves, config, url, each / 2) for url in urls},
        **{f"api {store}": partial(network_facts.ask_store, config, store, redis, each) for store in config.stores},
    }
    found, begun = network_facts.together(jobs, until)
    webs = {one.url: one for one in found.values() if isinstance(one, WebFacts)}
    apis = {name.removeprefix("api "): one for name, one in found.items() if isinstance(one, ApiFacts)}
    return Facts(
        config=config,
        now=datetime.now(UTC),
        server=server,
        inbox=inbox,
        plugins=local_facts.plugin_facts(judge, max(until, time.monotonic() + 1)),
        host=local_facts.host_facts(config),
        web=tuple(webs.get(url) or WebFacts(url, "no answer in time") for url in urls),
        apis={store: apis.get(store) or _silent(f"api {store}" in begun) for store in config.stores},
    )


def _silent(begun: bool) -> ApiFacts:
    return ApiFacts("late" if begun else "unasked")


def _server_and_inbox(config: Config) -> tuple[ServerFacts, InboxFacts | None]:
    client = local_facts.client_for(config)
    server = local_facts.server_facts(client)
    if server.fault:
        return server, None
    try:
        return server, local_facts.inbox_facts(client, config)
    except RedisError as error:
        return ServerFacts(server.where, fault=str(error) or type(error).__name__), None
    finally:
        client.close()
