"""Capsules: an event with its context in one file, to be run elsewhere. Secrets stay where they are.

    {"capsule": 1, "storehooks": version, "event": {...}, "headers": {...}, "body": base64, "store": {name, base_url},
     "settings": {plugin: {...}}, "runs": [...], "once": {"handler|key": result}}

Law of this room: no signing secret, token or setting that is or looks like a secret is ever written. The payload is,
as it came.
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
from redis import Redis

from receiver import __version__
from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.contract.intake import is_credential
from receiver.inbox import EventQueries, keys

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
    """What `ctx.once` remembered of the event: "handler|key" and the result."""


def write(config: Config, client: Redis, event_id: str) -> bytes:
    """An event as it is kept, with what its handlers were told."""
    ledger = EventQueries(client)
    event, record = ledger.as_event(event_id), ledger.event(event_id)
    if event is None or record is None:
        raise ConfigError(f"there is no event {event_id[:64]!r} with a body; `storehooks events` lists them")
    plugins = {run.handler.partition(".")[0] for run in record.runs} | set(config.plugins)
    base = config.stores[event.store].base_url if event.store in config.stores else ""
    told = {
        "capsule": VERSION,
        "storehooks": __version__,
        "written_at": datetime.now(UTC),
        "event": {name: getattr(event, name) for name in (*_FIELDS, *_TIMES)},
        "headers": {name: value for name, value in event.headers.items() if not is_credential(name)},
        "body": base64.b64encode(event.body).decode(),
        "store": {"name": event.store, "base_url": _bare_address(base)},
        "settings": {name: _settings(config, name, event.store) for name in sorted(plugins)},
        "runs": [asdict(run) for run in record.runs],
        "once": dict(_marks(client, event_id)),
    }
    return orjson.dumps(told, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str)


def read(path: Path) -> EventExport | None:
    """The capsule in a file; None where the file is something else."""
    try:
        told: Any = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(told, dict) or "capsule" not in told:
        return None
    if told["capsule"] != VERSION:
        raise ConfigError(f"{path} is a capsule of another version ({told['capsule']}); this one reads {VERSION}")
    try:
        about: dict[str, Any] = {name: told["event"][name] for name in (*_FIELDS, *_TIMES)}
        for name in _TIMES:
            about[name] = about[name] and datetime.fromisoformat(about[name])
        event = Event(
            **about,
            headers=told["headers"],
            body=base64.b64decode(told["body"], validate=True),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a whole capsule: {type(error).__name__} {error}") from None
    return EventExport(event, told.get("settings", {}), told.get("once", {}))


def _settings(config: Config, plugin: str, store: str) -> dict[str, Any]:
    general = config.plugins[plugin].plugin_values if plugin in config.plugins else {}
    own = config.stores[store].plugins.get(plugin, {}) if store in config.stores else {}
    return {
        **_shown(config, general, ("plugins", plugin)),
        **_shown(config, own, ("stores", store, "plugins", plugin)),
    }


def _shown(config: Config, values: Mapping[str, Any], above: tuple[str | int, ...]) -> dict[str, Any]:
    """Settings without what was read from the environment or a file, or has a secret's name."""
    return {
        name: LEFT_OUT if _SECRET.search(name) else _value(config, value, (*above, name))
        for name, value in values.items()
    }


def _value(config: Config, value: Any, at: tuple[str | int, ...]) -> Any:
    if config.is_reference(*at):
        return LEFT_OUT
    if isinstance(value, Mapping):
        return _shown(config, value, at)
    if isinstance(value, list | tuple):
        return [_value(config, one, (*at, number)) for number, one in enumerate(value)]
    return _bare_address(value) if isinstance(value, str) else value


def _bare_address(url: str) -> str:
    """An address without the name, the password and the query it may carry: a token stands in any of them."""
    try:
        parts = urlsplit(url) if "://" in url else None
    except ValueError:  # no address, but something that looks like one
        return LEFT_OUT if "@" in url or "?" in url else url
    if parts is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _marks(client: Redis, event_id: str) -> Iterator[tuple[str, Any]]:
    found: Any = client.hgetall(keys.ONCE + event_id)
    for name, mark in found.items():
        state, _, result = mark.partition(b" ")
        if state == b"done":
            yield name.decode(), orjson.loads(result)
