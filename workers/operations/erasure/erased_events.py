"""Erased events: whether an event is about a person, and what stays of it in the history. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import orjson

from receiver.contract.record_map import RecordMap
from receiver.inbox.model import read_detail
from workers.history.past_events import PastEvent
from workers.operations.erasure.subject import Subject

STAYS = frozenset(
    name.encode()
    for name in (
        *("v", "store", "topic", "theirs", "received", "source", "digest", "state", "open", "bad", "reason", "secret"),
        *("repeated", "alias"),
    )
)
"""The same as in receiver/inbox/lua/erase.lua."""
_OF_RUN = (b"r:", b"p:", b"l:", b"m:")


def is_about(subject: Subject, one: PastEvent, record_map: RecordMap | None) -> bool:
    """Whether an event is to be erased: by its resource or payload, or since a text in it names the person."""
    if one.is_erased:
        return False
    if subject.is_in_event(replace(one.event, record_map=record_map)):
        return True
    texts = (one.content or b"", *one.fields.values(), *one.once.keys(), *one.once.values())
    return any(map(subject.is_in_text, texts))


def erased(one: PastEvent, stamp: bytes) -> PastEvent:
    """The event as the history has it once it was erased, as the script `erase` leaves one in Redis. It settled later
    than the one that a slow mover may have read before and write now: that is older than what is stored."""
    fields = {name: value for name, value in one.fields.items() if name in STAYS or name[:2] in _OF_RUN}
    for name in [name for name in one.fields if name.startswith(b"x:")]:
        version = read_detail(one.fields[name]).get("version") or ""
        fields[name] = orjson.dumps({"version": version, "reason": "erased"})
    fields |= {b"erased": stamp, b"same": _sameness(one.fields)}
    return PastEvent(one.id, one.accepted_at, one.settled_at + 1, fields)


def _sameness(fields: Mapping[bytes, bytes]) -> bytes:
    """The same as in receiver/inbox/lua/shared/repeats.lua."""
    theirs, resource, occurred = (fields.get(name, b"") for name in (b"theirs", b"resource", b"occurred"))
    named = hashlib.sha1(b"\n".join((theirs, resource, occurred)), usedforsecurity=False)
    return named.hexdigest()[:10].encode() if occurred else b""
