"""Events for tests: samples of every topic, with the changes that a test needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from receiver.contract.event import Event, event_id

_numbers = itertools.count(1)


def make_event(
    topic: str = "order.created",
    data: Mapping[str, Any] | None = None,
    *,
    exact: bool = False,
    store: str = "demo",
    delivery_id: str = "",
    resource_id: str = "",
    occurred_at: datetime | None = None,
    received_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
    scheme: str = "",
) -> Event:
    """Make an event as a handler receives it: a sample of its topic, updated with `data`.

    With `exact`, the event contains `data` alone. With `scheme`, a preset such as "shopify", the event's data has the
    field names of that platform; `data` may have standard names or the platform's. Each event has its own id; two
    events with the same `delivery_id` are one event, delivered twice.
    """
    import orjson

    resource = sample_data(topic, data, exact=exact)
    resource_id = resource_id or str(resource.get("id", ""))
    record_map = None
    if scheme:
        from receiver.contract.compose import in_store_shape
        from receiver.contract.record_map import FIELDS
        from receiver.contract.signing.presets import PRESETS

        record_map = PRESETS[scheme].record
        standard = FIELDS.get(topic.partition(".")[0], ())
        own = {name: value for name, value in (data or {}).items() if name not in standard}
        resource = {**in_store_shape(PRESETS[scheme], topic, resource), **own}
    now = datetime.now(UTC)
    occurred = occurred_at or now
    delivery_id = delivery_id or new_delivery_id()
    return Event(
        id=event_id(store, delivery_id.encode()),
        store=store,
        topic=topic,
        received_at=received_at or now,
        body=orjson.dumps({"type": topic, "timestamp": occurred.isoformat(), "data": resource}, default=str),
        headers=dict(headers or {}),
        delivery_id=delivery_id,
        resource_id=resource_id,
        occurred_at=occurred,
        source="test",
        data_path="data",
        record_map=record_map,
    )


def sample_events(store: str = "demo") -> Iterator[Event]:
    """One event of every topic that a store is known to send."""
    from workers.storeapi.sandbox.shop import TOPICS

    return (make_event(topic, store=store) for topic in TOPICS)


def sample_data(topic: str, data: Mapping[str, Any] | None, *, exact: bool) -> dict[str, Any]:
    """The sample resource of a topic, updated with `data`; with `exact`, `data` alone."""
    from workers.storeapi.samples import sample

    return dict(data or {}) if exact else {**sample(topic), **(data or {})}


def new_delivery_id() -> str:
    return f"msg_test_{next(_numbers)}"
