"""Edited events: a person changes the body of an event, and the handlers get it as a new event. The old one stays."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from receiver.config import Config
from receiver.contract.errors import ConfigError, DeliveryRefused
from receiver.contract.event import Event, event_id
from receiver.contract.intake import Delivery, NoEvents, read_again
from receiver.inbox import Inbox

SOURCE = "edited"
EDITED_FROM = "storehooks-edited-from"
"""Stored like a header with an edited event: the event that it was made from. Only with this source it says so."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING, _CLOSING = frozenset("{["), frozenset("}]")
_INDENT = "  "
MAX_INDENTS = 300_000
"""Characters of indents: deep JSON would have many more of them than of content."""


def resend(config: Config, inbox: Inbox, event: Event, body: bytes) -> list[str]:
    """Accept an event with this body in place of its own, and return the new event's id; those of a batch, if it was an
    unreadable one.

    It is read with the store's scheme, like a delivery, so topic and resource may be others than before. It is not
    signed: a person sends it, and the audit trail says who.
    """
    store = config.known_stores.get(event.store)
    if store is None:
        raise ConfigError(f"the store {event.store} is not in the config, so its events cannot be read")
    if len(body) > config.receiver.max_body:
        raise ConfigError(f"the body has {len(body):,} bytes; [receiver] max_body is {config.receiver.max_body:,}")
    changed = replace(event, body=body, received_at=datetime.now(UTC), source=SOURCE)
    try:
        read = read_again(changed, store)
    except (DeliveryRefused, NoEvents) as error:
        raise ConfigError(f"it cannot be read: {error or 'it has no events'}") from None
    items = (read, *read.rest)
    for place, one in enumerate(items, 1):
        if one.unreadable:
            what = f"event {place} of the batch" if read.rest else "it"
            raise ConfigError(f"{what} cannot be read: {one.unreadable}")
    first, *rest = (_edited(one, event) for one in items)
    delivery, given = replace(first, rest=tuple(rest)), config.stores[event.store].max_stored
    (answer,) = inbox.accept([delivery], quotas={event.store: given}, replicas=int(config.redis.ack == "replica"))
    if answer.status != "accepted":
        raise ConfigError("the store has too many open events; see [stores.NAME] max_stored")
    return [one.id for one in answer.items or (answer,)]


def _edited(read: Delivery, event: Event) -> Delivery:
    """A delivery with an identity of its own, that says which event it was made from."""
    own = event_id(event.store, b"edited\0" + secrets.token_bytes(16))
    headers = {**read.event.headers, EDITED_FROM: event.id}
    new = replace(read.event, id=own, delivery_id=f"edited_{own[:12].lower()}", headers=headers)
    return replace(read, event=new, content_hash="", first_id="", others_count=False, rest=())


def edited_from(source: str, headers: Mapping[str, str]) -> str:
    """The id of the event that an edited one was made from; empty for any other event."""
    return headers.get(EDITED_FROM, "") if source == SOURCE else ""


def text_of(body: bytes) -> tuple[str, bool]:
    """A body as text to be edited, and whether it is JSON. The lines of JSON end as a form has them."""
    try:
        text = body.decode()
        json.loads(text)
    except UnicodeDecodeError:
        raise ConfigError("the body is not text, so it cannot be edited here") from None
    except (ValueError, RecursionError):
        return text, False
    return text.replace("\r\n", "\n").replace("\r", "\n"), True


def indented(text: str) -> str:
    """JSON with one member on each line, every token as it was sent. As it is, if it has lines, or would be long."""
    if "\n" in text.strip():
        return text
    lines, depth, before, indents = [""], 0, "", 0
    for part in _TOKEN.findall(text):
        is_end = part in _CLOSING
        depth -= is_end
        if before not in _OPENING if is_end else before == "," or before in _OPENING:
            indents += len(_INDENT) * depth
            if indents > MAX_INDENTS:
                return text
            lines.append(_INDENT * depth)
        lines[-1] += ": " if part == ":" else part
        depth += part in _OPENING
        before = part
    return "\n".join(lines)
