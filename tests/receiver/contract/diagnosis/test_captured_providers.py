"""Detection over the captures of real providers: NAME.json, with url, secret and two messages with their events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import Detection, detect
from receiver.contract.errors import DeliveryRefused
from receiver.contract.signing.grammar import Scheme, Secret, extend
from receiver.contract.signing.signatures import PRESETS, verify
from receiver.contract.signing.sources import query_fields

FOLDER = Path(__file__).parents[1] / "captures"
CAPTURES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}

TWO_SEPARATORS = {"contentful", "plivo"}
"""Their signed content has more than one separator, which is not searched."""


class Judged(NamedTuple):
    """How a provider's captures were detected."""

    is_found: bool
    is_false: bool
    """A claim from the first message that does not hold for the second one, and is not said to be ambiguous."""
    wrong: tuple[str, ...]
    """What was read from the messages and is not as the provider says."""


def captured(message: dict[str, Any], url: str) -> Capture:
    headers = {name.lower(): str(value) for name, value in message["headers"].items()}
    return Capture({**headers, **query_fields(message.get("query", ""))}, message["body"].encode(), url)


def judged(given: dict[str, Any]) -> Judged:
    captures = [captured(message, given["url"]) for message in given["messages"]]
    one, both = detect(captures[:1], given["secret"]), detect(captures, given["secret"])
    schemes = [one.scheme, *one.alternatives] if one.scheme else []
    is_false = bool(schemes) and not any(verifies(scheme, captures[1], given) for scheme in schemes)
    return Judged(both.scheme is not None, is_false, tuple(wrong_parts(both, given["messages"])))


def can_be_said(given: dict[str, Any]) -> bool:
    """Whether the provider's preset, or the scheme that is given for it, verifies the first message."""
    if "scheme" not in given:
        scheme = PRESETS.get(given.get("preset", ""))
    else:
        keys = {key: tuple(value) if isinstance(value, list) else value for key, value in given["scheme"].items()}
        event = {key: tuple(value) for key, value in keys.pop("event", {}).items()}
        parent = PRESETS.get(keys.pop("extends", ""))
        topics = keys.pop("topics", {})
        keys.pop("record", None)
        scheme = extend(parent, name="given", changes=keys, event=event, topics=topics, record={})
    return scheme is not None and verifies(scheme, captured(given["messages"][0], given["url"]), given)


def verifies(scheme: Scheme, capture: Capture, given: dict[str, Any]) -> bool:
    secret, now = Secret(scheme.key_of(given["secret"])), float(given["signed_at"])
    try:
        verify(scheme, secrets=[secret], headers=capture.headers, body=capture.body, now=now, url=given["url"])
    except DeliveryRefused as refusal:
        return refusal.reason in ("too-old", "too-new")
    return True


def wrong_parts(found: Detection, messages: list[dict[str, Any]]) -> list[str]:
    return [
        f"{part}: {getattr(reading, part)!r} is not {event[key]!r}"
        for reading, message in zip(found.readings, messages, strict=False)
        for event in message["events"][:1]
        for part, key in (("topic", "theirs"), ("id", "id"), ("resource_id", "resource_id"))
        if getattr(reading, part) != event[key]
    ]


def test_the_captures_of_real_providers_are_detected() -> None:
    assert len(CAPTURES) >= 40
    results = {name: judged(given) for name, given in CAPTURES.items() if can_be_said(given)}
    found = [name for name, one in results.items() if one.is_found]
    right = [name for name in found if not results[name].wrong]
    print(f"{len(results)} providers: {len(found)} found, topic, id and resource of {len(right)} right")
    assert [name for name, one in results.items() if one.is_false] == []
    assert set(results) - set(found) <= TWO_SEPARATORS
    assert len(right) >= 0.9 * len(found), {name: results[name].wrong for name in found if name not in right}
