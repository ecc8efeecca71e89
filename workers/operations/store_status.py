"""Store status: what config, Redis and the store's API say about one store, for `stores show`."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from redis import Redis

from receiver.config import Config
from receiver.contract.signing.signatures import Secret
from receiver.contract.topics import PROBE
from receiver.inbox import Administration, EventQueries
from receiver.inbox.keyring.learned_secrets import with_learned_secrets
from receiver.inbox.queries.events import EventSummary
from receiver.inbox.subscription_checks import Repair, SubscriptionChecks
from receiver.spool import StoreRefusals, open_existing_refusals
from workers.history.configured_history import open_history
from workers.history.event_filter import EventFilter
from workers.operations.all_events import AllEvents
from workers.operations.doctor.facts import ApiFacts
from workers.operations.doctor.network_facts import probe_store
from workers.subscriptions.managed_store import ManagedStore, declared_handlers, is_managed, keyring_of
from workers.subscriptions.plan import Plan

API_SECONDS = 4.0
"""Timeout for the store's API."""

LOOK_BACK = 200
"""Number of newest events that are searched for the one that arrived last. Released ones arrived earlier."""


@dataclass(frozen=True)
class StoreStatus:
    name: str
    scheme: str
    base_url: str
    callback: str
    """The URL that the store sends to."""
    paused: bool
    secrets: tuple[Secret, ...]
    api: ApiFacts
    counts: dict[str, int]
    last_event: EventSummary | None
    refused: StoreRefusals | None
    place: str
    """File and line of its config."""
    plan: Plan | None = None
    """Its subscriptions now; None if they cannot be managed."""
    last_repair: Repair | None = None

    def as_json(self, now: datetime) -> dict[str, Any]:
        last, refused = self.last_event, self.refused
        return {
            "store": self.name,
            "scheme": self.scheme,
            "state": "paused" if self.paused else "on",
            "base_url": self.base_url or None,
            "callback": self.callback,
            "config": self.place,
            "secrets": [
                {
                    "fingerprint": one.fingerprint,
                    "origin": one.origin,
                    "not_after": one.not_after,
                    "live": one.not_after is None or one.not_after > now,
                }
                for one in self.secrets
            ],
            "token": {
                "state": self.api.state,
                "reason": self.api.reason or None,
                "seconds_left": self.api.token_seconds_left,
            },
            "counts": dict(self.counts),
            "last_event": {"id": last.id, "topic": last.topic, "received_at": last.received_at} if last else None,
            "refused": {"total": refused.total, "stored": refused.with_body, "since": refused.first}
            if refused
            else None,
            "subscriptions": _plan_json(self.plan) if self.plan else None,
            "last_repair": {**asdict(self.last_repair), "gap": self.last_repair.gap} if self.last_repair else None,
        }


def store_status(config: Config, name: str, redis: Redis) -> StoreStatus:
    """Read the config, Redis and the API of one store."""
    given, queries = config.stores[name], EventQueries(redis)
    api = probe_store(config, name, redis, API_SECONDS)
    return StoreStatus(
        name=name,
        scheme=given.scheme,
        base_url=given.base_url,
        callback=config.public_url_of(name),
        paused=f"store:{name}" in Administration(redis).paused(),
        secrets=_secrets(config, name, redis),
        api=api,
        counts=queries.counters().stores.get(name, {}),
        last_event=_last_event(config, name, redis),
        refused=_refused(config, name),
        place=str(config.place("stores", name) or ""),
        plan=_plan(config, name, redis, api),
        last_repair=next(iter(SubscriptionChecks(redis).repairs(name, 1)), None),
    )


def _last_event(config: Config, name: str, redis: Redis) -> EventSummary | None:
    newest = AllEvents(redis, open_history(config, redis)).find(EventFilter(store=name), limit=LOOK_BACK).events
    sent = (one for one in newest if one.topic != PROBE)
    return max(sent, key=lambda one: one.received_at, default=None)


def _secrets(config: Config, name: str, redis: Redis) -> tuple[Secret, ...]:
    """Configured secrets, and those learned from the store."""
    return with_learned_secrets(config.known_stores[name], keyring_of(config, redis).secrets_of(name)).secrets


def _plan(config: Config, name: str, redis: Redis, api: ApiFacts) -> Plan | None:
    """If the API does not work, its subscriptions are not read either."""
    if not is_managed(config, name):
        return None
    if api.state != "fine":
        return Plan(name, unknown=api.reason)
    return ManagedStore(config, name, redis, timeout=API_SECONDS).plan(declared_handlers(redis))


def _plan_json(plan: Plan) -> dict[str, Any]:
    changes = [{"action": one.action, "topic": one.topic, "reason": one.reason} for one in plan.changes]
    return {**plan.as_json(), "changes": changes}


def _refused(config: Config, name: str) -> StoreRefusals | None:
    try:
        found = open_existing_refusals(config.data_dir).by_store()
    except (sqlite3.Error, OSError):
        return None
    return next((one for one in found if one.store == name), None)
