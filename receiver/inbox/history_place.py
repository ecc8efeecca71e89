"""History place: which host has the files of past events, if they are in SQLite: no other host begins its own."""

from __future__ import annotations

from typing import Any

from redis import Redis

from receiver.inbox import keys


def other_host(client: Redis, place: str, host: str, *, claim: bool) -> str:
    """The host that has the history, if it is not at this place; else empty. With `claim`, one begins here if there is
    none."""
    if claim:
        client.set(keys.HISTORY_PLACE, f"{place} {host}", nx=True)
    known, _, name = _read(client)
    return name if known and known != place else ""


def place_host(client: Redis) -> str:
    """The host that has the history; empty if it is in no host's files."""
    return _read(client)[2]


def _read(client: Redis) -> tuple[str, str, str]:
    found: Any = client.get(keys.HISTORY_PLACE)
    return keys.host_name(found or b"").partition(" ")
