"""Routing facts: reads from Redis what explains why each handler was called for an event, or was not."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis

from receiver.config import Config
from receiver.inbox import Administration, Declaration, Inbox
from receiver.inbox.queries.events import EventRecord
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import HealthQueries
from workers.operations.explain_handlers import RoutingFacts
from workers.plugins.validation import missing_limits


def read_routing_facts(
    config: Config, client: Redis, event: EventRecord, loaded: Sequence[Declaration] = ()
) -> RoutingFacts:
    """`loaded` are the handlers that this config loads on this machine, if they were loaded."""
    queries, declared = HandlerQueries(client), Inbox(client).declarations().handlers
    limits = {name: one.concurrency for name, one in config.limits.items() if one.concurrency}
    limits |= dict.fromkeys(missing_limits(config, list(loaded or declared)), 1)
    return RoutingFacts(
        event=event,
        declared={one.handler: one for one in declared},
        loaded={one.handler: one for one in loaded},
        paused=frozenset(Administration(client).paused()),
        busy=queries.busy_limits(),
        full=frozenset(name for name, most in limits.items() if queries.slots_taken(name) >= most),
        paced=frozenset(name for name, one in config.limits.items() if one.rate),
        absent=queries.absent(),
        plugin_faults=frozenset(
            (plugin, one.plugin_fault) for one in HealthQueries(client).workers() for plugin in one.faulty_plugins
        ),
    )
