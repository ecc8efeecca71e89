"""Event export: one event with its context in one JSON file, to be run on another machine.

    {"event_export": 1, "storehooks": version, "event": {...}, "headers": {...}, "body": base64,
     "store": {name, base_url}, "record": {...}, "settings": {plugin: {...}}, "runs": [...],
     "once": {"handler|key": result}}

Rule of this module: it never writes a signing secret, a token, or a setting that is or looks like a secret. The
payload is written unchanged.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from receiver import __version__
from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.contract.record_map import RecordMap
from receiver.contract.stored_headers import is_credential
from workers.operations.all_events import AllEvents
from workers.plugins.plugin_settings import general_settings, settings_of_store

MARK = "event_export"
"""The field that makes a JSON file an event export; its value is the version of the format."""
VERSION = 1
LEFT_OUT = "(left out: a secret)"
_SECRET = re.compile(r"secret|token|pass|credential|private|auth|api[_-]?key|(^|[_-])key$", re.IGNORECASE)
_TIMES = ("received_at", "occurred_at")
_FIELDS = ("id", "store", "topic", "delivery_id", "resource_id", "source", "data_path")


@dataclass(frozen=True)
class EventExport:
    event: Event
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    once: Mapping[str, Any] = field(default_factory=dict)
    """Results that `ctx.once` has stored for the event, by "handler|key"."""


def write(config: Config, events: AllEvents, event_id: str) -> bytes:
    """The export of a stored event. Raises ConfigError where there is no such event, or its body is gone."""
    event, record = events.as_event(event_id), events.event(event_id)
    if record is not None and record.erased_at:
        raise ConfigError(f"the event {event_id[:64]!r} was erased, and nothing of its content is left")
    if event is None or record is None:
        raise ConfigError(f"there is no event {event_id[:64]!r} with a body; `storehooks events` lists them")
    plugins = {run.handler.partition(".")[0] for run in record.runs} | set(config.plugins)
    base = config.stores[event.store].base_url if event.store in config.stores else ""
    document = {
        MARK: VERSION,
        "storehooks": __version__,
        "written_at": datetime.now(UTC),
        "event": {name: getattr(event, name) for name in (*_FIELDS, *_TIMES)},
        "headers": {name: value for name, value in event.headers.items() if not is_credential(name)},
        "body": base64.b64encode(event.body).decode(),
        "store": {"name": event.store, "base_url": _without_credentials(base)},
        "record": (config.record_map(event.store) or RecordMap()).as_table(),
        "settings": {name: _settings(config, name, event.store) for name in sorted(plugins)},
        "runs": [asdict(run) for run in record.runs],
        "once": dict(_once_results(events.once_marks(event_id))),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str)


def read(path: Path) -> EventExport | None:
    """The event export in a file; None if the file is other JSON. Raises ConfigError for an invalid one."""
    document = _read_json(path)
    if not isinstance(document, dict) or MARK not in document:
        return None
    if document[MARK] != VERSION:
        raise ConfigError(f"{path} is an event export of version {document[MARK]}; only {VERSION} is supported")
    try:
        fields: dict[str, Any] = {name: document["event"][name] for name in (*_FIELDS, *_TIMES)}
        for name in _TIMES:
            fields[name] = fields[name] and datetime.fromisoformat(fields[name])
        body = base64.b64decode(document["body"], validate=True)
        record_map = RecordMap().extended(dict(document.get("record", {})))
        event = Event(**fields, headers=document["headers"], body=body, record_map=record_map)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is an incomplete event export: {type(error).__name__} {error}") from None
    return EventExport(event, document.get("settings", {}), document.get("once", {}))


def read_event(config: Config, path: Path) -> Event:
    """An event from another JSON file: `{"topic": ..., "data": {...}}`; other fields of an event are optional."""
    given = _read_json(path)
    if not isinstance(given, dict) or "topic" not in given:
        raise ConfigError(f'{path}: an event file must look like {{"topic": "order.created", "data": {{"id": 1}}}}')
    payload = given.get("payload", {"data": given.get("data", {})})
    return Event(
        id=str(given.get("id", "local")),
        store=str(given.get("store") or next(iter(config.stores), "demo")),
        topic=str(given["topic"]),
        received_at=datetime.now(UTC),
        body=orjson.dumps(payload),
        headers=given.get("headers", {}),
        delivery_id=str(given.get("delivery_id", "")),
        resource_id=str(given.get("resource_id") or (given.get("data") or {}).get("id", "")),
        data_path=str(given.get("data_path", "" if "payload" in given else "data")),
        source="file",
    )


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None


def _settings(config: Config, plugin: str, store: str) -> dict[str, Any]:
    return {
        **_without_secrets(config, general_settings(config, plugin), ("plugins", plugin)),
        **_without_secrets(config, settings_of_store(config, plugin, store), ("stores", store, "plugins", plugin)),
    }


def _without_secrets(config: Config, values: Mapping[str, Any], above: tuple[str | int, ...]) -> dict[str, Any]:
    """Settings without values from the environment or a file, and without values whose name is a secret's."""
    return {
        name: LEFT_OUT if _SECRET.search(name) else _value(config, value, (*above, name))
        for name, value in values.items()
    }


def _value(config: Config, value: Any, at: tuple[str | int, ...]) -> Any:
    if config.is_reference(*at):
        return LEFT_OUT
    if isinstance(value, Mapping):
        return _without_secrets(config, value, at)
    if isinstance(value, list | tuple):
        return [_value(config, item, (*at, index)) for index, item in enumerate(value)]
    return _without_credentials(value) if isinstance(value, str) else value


def _without_credentials(url: str) -> str:
    """A URL without user name, password, query and fragment: each of them may contain a token."""
    try:
        parts = urlsplit(url) if "://" in url else None
    except ValueError:  # not a URL, but similar to one
        return LEFT_OUT if "@" in url or "?" in url else url
    if parts is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _once_results(marks: Mapping[bytes, bytes]) -> Iterator[tuple[str, Any]]:
    for name, mark in marks.items():
        state, _, result = mark.partition(b" ")
        if state == b"done":
            yield name.decode(), orjson.loads(result)
