"""Past events for tests: settled events as Redis has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from receiver.contract.event import body_digest, event_id
from workers.history.past_events import PastEvent

DAY = 86_400_000_000
NOVEMBER = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()) * 1_000_000


def past_event(number: int = 1, /, *, at: int | None = None, **changed: Any) -> PastEvent:
    """A settled event with one run. Events with a higher number are newer, by a second."""
    accepted_at = NOVEMBER + number * 1_000_000 if at is None else at
    body = changed.pop("body", None)
    if body is None:
        data = changed.pop(
            "data", {"id": number, "total": "42.50", "customer": {"email": f"buyer{number}@example.com"}}
        )
        body = orjson.dumps({"data": data})
    handler = changed.pop("handler", "erp.book")
    detail = changed.pop("detail", {"version": "1", "result": {"booked": number}})
    fields = {
        "v": "1",
        "store": "north",
        "topic": "order.created",
        "theirs": "orders/create",
        "delivery": f"msg_{number}",
        "resource": f"{number}",
        "received": f"{accepted_at // 1000 - 5}",
        "occurred": "2026-11-16T12:00:00+00:00",
        "source": "webhook",
        "data_path": "data",
        "digest": body_digest(body),
        "state": "settled",
        "open": "0",
        f"r:{handler}": "done 1 0 default ",
        f"x:{handler}": orjson.dumps(detail).decode() if isinstance(detail, dict) else detail,
        **changed.pop("fields", {}),
    }
    headers = changed.pop("headers", {"content-type": "application/json", "webhook-id": f"msg_{number}"})
    values: dict[str, Any] = {
        "id": event_id(fields["store"], f"{number}".encode()),
        "accepted_at": accepted_at,
        "settled_at": accepted_at // 1000 + 20,
        "fields": {
            name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()
        },
        "content": orjson.dumps(headers) + b"\n" + body,
        **changed,
    }
    return PastEvent(**values)
