"""Facts: what was found out about one installation, as the checks are handed it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from receiver.config import Config
from receiver.inbox import Declaration
from receiver.inbox.queries.activity import Footprint, Heartbeat
from receiver.inbox.queries.events import Counters, SeenName, Spool
from receiver.inbox.queries.handlers import Absent
from receiver.inbox.subscription_checks import Checked
from receiver.spool import RefusedOf


@dataclass(frozen=True)
class ServerFacts:
    """The Redis server; with `fault`, nothing else is known of it."""

    where: str
    fault: str = ""
    name: str = ""
    version: tuple[int, ...] = ()
    appendonly: str = ""
    appendfsync: str = ""
    policy: str = ""
    used: int = 0
    maxmemory: int = 0
    machine: int = 0
    """The memory of the machine it runs on."""
    role: str = "master"
    replicas: int = 0
    write_fault: str = ""
    """Why it takes no writes now: a full disk, a snapshot that failed."""
    ahead: float = 0.0
    """Seconds its clock is before ours."""


@dataclass(frozen=True)
class InboxFacts:
    counters: Counters
    names: Mapping[str, list[SeenName]]
    last_events: Mapping[str, datetime]
    declared: tuple[Declaration, ...]
    workers: tuple[Heartbeat, ...]
    housekeeper: str
    paused: frozenset[str]
    spools: Mapping[str, Spool]
    failed: int
    retrying: int
    set_aside: int
    footprint: Footprint
    unconfirmed: Mapping[str, list[str]]
    """Operations a store's API was asked for that are assumed and never answered 2xx there."""
    checked: Mapping[str, Checked] = field(default_factory=dict)
    """What the last look at each store's subscriptions found."""
    learned: Mapping[str, int] = field(default_factory=dict)
    """How many signing secrets were learned from each store."""
    absent: Mapping[str, Absent] = field(default_factory=dict)
    """Handlers that no worker has any more, though work waits for them or is routed to them."""
    removed: frozenset[str] = frozenset()
    """Stores that somebody removed; their subscriptions are not mended."""


@dataclass(frozen=True)
class PluginFacts:
    """What this config would load, here; with `fault`, why it would not."""

    handlers: tuple[Declaration, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class HostFacts:
    """This host's own disk."""

    data_dir: str
    writable: bool
    free: int
    refused: tuple[RefusedOf, ...] = ()
    fitting: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By store: of so many refused deliveries that were looked at, so many fit today's config."""
    spooled: int = 0
    spool_fault: str = ""
    exposed: tuple[str, ...] = ()
    """Config files with a secret in them that others on this machine can read."""


@dataclass(frozen=True)
class WebFacts:
    """An address of ours, asked as a store would ask it."""

    url: str
    fault: str = ""
    ms: float = 0.0
    stores_in: str = ""
    at_home: bool = False
    """Whether the web process answers at its own bind, whatever the public address says."""


ApiState = Literal["none", "fine", "config", "token", "denied", "unreachable", "answered", "late", "unasked"]


@dataclass(frozen=True)
class ApiFacts:
    """A store's API, asked for one product."""

    state: ApiState
    """`late` was asked and is silent; `unasked` did not get its turn, for want of time or by a rate limit."""
    reason: str = ""
    ms: float = 0.0
    ahead: float | None = None
    """Seconds the store's clock is before ours, if it tells the time."""
    token_left: float | None = None


@dataclass(frozen=True)
class Facts:
    config: Config
    now: datetime
    server: ServerFacts
    inbox: InboxFacts | None
    """None where the server does not answer."""
    plugins: PluginFacts
    host: HostFacts
    web: tuple[WebFacts, ...]
    apis: Mapping[str, ApiFacts]
