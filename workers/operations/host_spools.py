"""Hosts: what each host's receiver has reported about its spool, and for this host what its file says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import EventQueries, Inbox
from receiver.inbox.keys import host_of
from receiver.inbox.queries.events import Spool, SpoolState
from receiver.spool import events_files, is_damage, kept_files, newest_events_file, open_events

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Host:
    """A host and its spool. A silent one may have spooled more deliveries than it could report; on this host they are
    counted, and a silent web process runs."""

    name: str
    state: SpoolState
    reported: int | None
    """The number of deliveries in its spool, as it last reported; None if it did not know, or cannot be read."""
    spooled: int | None
    """The number now; None if it is not known."""
    oldest: datetime | None
    seen: datetime | None
    version: str = ""
    """The version of storehooks whose receiver has reported; empty if it is not known."""

    def as_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "spooled": UNKNOWN if self.spooled is None else self.spooled,
            "last_reported": UNKNOWN if self.reported is None else self.reported,
            "oldest": self.oldest and self.oldest.replace(microsecond=0),
            "last_seen": self.seen and self.seen.replace(microsecond=0),
            "version": self.version,
        }


def find_hosts(config: Config, client: Redis) -> list[Host]:
    """Every host that has reported and has not stopped with an empty spool, and this one if deliveries wait here."""
    hosts = {name: _as_reported(name, spool) for name, spool in EventQueries(client).spools().items()}
    here = host_of(config.data_dir)
    local = _read_here(config, hosts.get(here))
    if local is not None and (here in hosts or local.spooled != 0):
        hosts[here] = local
    return [hosts[name] for name in sorted(hosts)]


def spooled_here(config: Config) -> str:
    """A sentence about this host's spool, by its file."""
    try:
        count, _ = read_spool(config.data_dir)
    except (sqlite3.Error, OSError) as error:
        return f"The spool of this host cannot be read: {error}"
    return f"{accepted(count)} {'waits' if count == 1 else 'wait'} in the spool of this host"


def accepted(count: int | None) -> str:
    if count is None:
        return "an unknown number of accepted deliveries"
    return counted(count, "accepted delivery", "accepted deliveries")


def write_refusal(client: Redis) -> str:
    """What the server says if it refuses all writes now, and so every report; empty if it does not.

    At maxmemory it refuses new deliveries only.
    """
    try:
        Inbox(client).check_accept()
    except OutOfMemoryError:
        return ""
    except ResponseError as error:
        return str(error).rstrip(".")
    return ""


def total_spooled(hosts: list[Host]) -> int | str:
    """The deliveries in all spools; "unknown" as soon as one is not known, so that it is never taken for 0."""
    if any(one.spooled is None for one in hosts):
        return UNKNOWN
    return sum(one.spooled or 0 for one in hosts)


def choose_host(hosts: list[Host], name: str) -> Host:
    """The host of this name. Its data directory may be left out, if only one fits."""
    found = [one for one in hosts if one.name == name] or [one for one in hosts if one.name.partition(":")[0] == name]
    if not found:
        known = ", ".join(one.name for one in hosts)
        raise NotFound(f"no host {name}; known hosts: {known or 'none'}")
    if len(found) > 1:
        raise ConfigError(f"{name} has several spools; name one: {', '.join(one.name for one in found)}")
    return found[0]


def _as_reported(name: str, spool: Spool) -> Host:
    spooled = None if spool.state == "silent" else spool.count
    return Host(name, spool.state, spool.count, spooled, spool.oldest, spool.at, spool.version)


def _read_here(config: Config, reported: Host | None) -> Host | None:
    """This host, by its file. None where this user cannot read it."""
    count: int | None
    try:
        count, oldest = read_spool(config.data_dir)
    except (sqlite3.Error, OSError) as error:
        if not is_damage(error, newest_events_file(config.data_dir)):
            return None
        count, oldest = None, 0.0
    name, state = host_of(config.data_dir), _state_here(config.data_dir, reported)
    since = datetime.fromtimestamp(oldest, UTC) if oldest else None
    return replace(reported or Host(name, state, 0, count, since, seen=None), state=state, spooled=count, oldest=since)


def _state_here(data_dir: Path, reported: Host | None) -> SpoolState:
    """A web process that runs and does not report hangs, or is cut off from the server."""
    if not is_web_running(data_dir):
        return "stopped"
    return "silent" if reported and reported.state == "silent" else "receiving"


def is_web_running(data_dir: Path) -> bool:
    """Whether a web process runs on this host. It may hang."""
    from receiver.process.process_files import held  # it loads the logs, which `--help` does not need

    return any(one.role in ("web", "web-worker") for one in held(data_dir))


def read_spool(data_dir: Path) -> tuple[int, float]:
    """The number of deliveries in this host's spool, and when the oldest arrived. Raises sqlite3.Error and OSError."""
    damaged = [*events_files(data_dir)[:-1], *kept_files(data_dir)]
    if damaged:
        raise sqlite3.DatabaseError(f"{damaged[0].name} is damaged")
    if not newest_events_file(data_dir).exists():  # a command creates no file
        return 0, 0.0
    with closing(open_events(data_dir)) as events:
        return events.summary()
