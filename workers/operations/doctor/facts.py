"""The facts about one installation, as values. The checks read nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from receiver.config import Config
from receiver.inbox import Declaration
from receiver.inbox.alert_store import Alert
from receiver.inbox.history_moves import MoveReport
from receiver.inbox.known_data import DataNotice
from receiver.inbox.own_writes import SuspectedLoop
from receiver.inbox.queries.damaged_keys import DamagedKey
from receiver.inbox.queries.events import Counters, EventName
from receiver.inbox.queries.failures import EndingFailures, StoppedKeys
from receiver.inbox.queries.handlers import AbsentHandler
from receiver.inbox.queries.health import Footprint, Heartbeat
from receiver.inbox.redis.server_state import ServerState
from receiver.inbox.subscription_checks import CheckResult
from receiver.spool import RESERVED_DISK_BYTES, StoreRefusals
from workers.operations.host_spools import Host

RESERVED_FILES = 100
"""With less room for files on the disk, the spool may not get the few that it needs."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts(ServerState):
    """The Redis server. If it does not answer, only its address and the fault are known."""

    address: str
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of this machine's."""
    round_trip: float = 0.0
    """Seconds from a command to its answer."""
    refusal: str = ""
    """What it says if it refuses all writes now. Then no process can report either, and silence says nothing."""
    default_denied: str = ""
    """Why its user `default` may not write our keys; empty if it may, or if our user may not ask."""


@dataclass(frozen=True)
class InboxFacts:
    counters: Counters
    topic_names: Mapping[str, list[EventName]]
    """The topic names that each store has sent."""
    last_events: Mapping[str, datetime]
    declared: tuple[Declaration, ...]
    running: Mapping[str, Collection[str]]
    """By handler: the versions that workers have now."""
    workers: tuple[Heartbeat, ...]
    housekeeper: str
    paused: frozenset[str]
    hosts: tuple[Host, ...]
    """The hosts that receive deliveries, with their spools."""
    failed: int
    """Runs that failed for good, and deliveries that could not be read."""
    retrying: int
    quarantined: tuple[int, list[str]]
    """How many damaged records, and some of them with the reason."""
    footprint: Footprint
    unconfirmed: Mapping[str, list[str]]
    """By store: assumed API operations that were used and have never answered 2xx."""
    checked: Mapping[str, CheckResult] = field(default_factory=dict)
    """By store: the result of the last subscription check."""
    learned: Mapping[str, int] = field(default_factory=dict)
    """By store: the number of signing secrets learned from it."""
    absent: Mapping[str, AbsentHandler] = field(default_factory=dict)
    """Handlers that no worker has any more, although runs wait for them or events are routed to them."""
    other_workers: tuple[str, ...] = ()
    """RQ workers of other programs that listen on our queues."""
    removed: frozenset[str] = frozenset()
    """Stores removed by `storehooks stores remove`; their subscriptions are not repaired."""
    data_notices: Mapping[str, DataNotice] = field(default_factory=dict)
    """By host: what it has noticed about the data in the server."""
    damaged: tuple[DamagedKey, ...] = ()
    loops: tuple[SuspectedLoop, ...] = ()
    """Resources whose runs were delayed in the last hour as a suspected loop; the newest first."""
    stopped: tuple[StoppedKeys, ...] = ()
    alerts: tuple[Alert, ...] = ()
    """The alerts that fire."""
    busy: Mapping[str, datetime] = field(default_factory=dict)
    """By limit or h:HANDLER: until when Busy has closed it."""
    moves: MoveReport | None = None
    """How moving events to the history went last; None if no housekeeper has reported."""
    unmoved: int = 0
    """Settled events that should be in the history, but are in Redis."""
    history_elsewhere: str = ""
    """Why this host cannot use the history, if another one has its files."""
    unreadable: int = 0
    """How many of `failed` are deliveries that could not be read."""
    ending: EndingFailures = field(default_factory=EndingFailures)
    """Failures that `[retention] failures` will soon remove."""


@dataclass(frozen=True)
class PluginFacts:
    """The handlers that this config loads on this host, or with a `fault`, why loading fails."""

    handlers: tuple[Declaration, ...] = ()
    fault: str = ""
    is_late: bool = False
    """Loading them was not done in time."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Installed plugins without their settings in this config -> what is missing."""


@dataclass(frozen=True)
class HostFacts:
    """This host: data directory, spool, refused deliveries, config files, and whether web runs."""

    data_dir: str
    writable: bool
    free: int
    free_files: int | None = None
    """Number of files that its disk has room for, by its inodes; None where it has no such limit."""
    write_fault: str = ""
    """Why no file can be created in it, if neither space nor the fields below say so."""
    read_only: bool = False
    """Whether the disk is mounted read-only."""
    hangs: bool = False
    """Whether the disk does not answer. Then nothing is read from the spool and the refused deliveries."""
    refused: tuple[StoreRefusals, ...] = ()
    """Without those that were answered 503 and are accepted events by now."""
    now_valid: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By store: how many refused deliveries were verified again, and how many of them the current config accepts."""
    refused_after: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """By store: how many were refused after the last accepted delivery, and the seconds from first to last of them."""
    spooled: int = 0
    refused_fault: str = ""
    spool_fault: str = ""
    web_runs: bool = False
    """Whether a web process runs on this host, although it may not answer."""
    history_files: int = 0
    """Files of an SQLite history in the data directory."""
    open_to_others: tuple[str, ...] = ()
    """Files of the data directory that other users may read or change."""
    exposed: tuple[str, ...] = ()
    """Config files that contain a secret and are readable by all users of this machine."""

    @property
    def has_few_files(self) -> bool:
        return self.free_files is not None and self.free_files < RESERVED_FILES

    @property
    def takes_deliveries(self) -> bool:
        """Whether the spool can store a delivery on its disk."""
        can_write = self.writable and not (self.read_only or self.hangs or self.write_fault)
        return can_write and not self.has_few_files and self.free >= RESERVED_DISK_BYTES


@dataclass(frozen=True)
class WebFacts:
    """One public URL of the receiver, requested as a store would request it."""

    url: str
    fault: str = ""
    ms: float = 0.0
    stores_in: str = ""
    asked: bool = True
    """False if there was no time to request it."""
    answers_at: str | None = ""
    """Where the web process itself answers, independent of the public URL; empty if it does not, None if there was no
    time to ask it."""


ApiState = Literal[
    "none", "fine", "config", "token", "no-token", "denied", "unreachable", "answered", "late", "unasked", "redis"
]


@dataclass(frozen=True)
class ApiFacts:
    """The result of requesting one product from a store's API."""

    state: ApiState
    """`token` was refused; `no-token`: its endpoint is down; `late` was requested and did not answer; `unasked` was not
    requested: out of time, or rate-limited. With `redis` the rate limit or the token could not be read there."""
    reason: str = ""
    fix: str = ""
    """Of a fault of Redis."""
    ms: float = 0.0
    clock_ahead: float | None = None
    """Seconds by which the store's clock is ahead of this machine's, if it sends a Date header."""
    token_seconds_left: float | None = None


@dataclass(frozen=True)
class Facts:
    config: Config
    now: datetime
    server: ServerFacts
    inbox: InboxFacts | None
    """None if the server does not answer."""
    plugins: PluginFacts
    host: HostFacts
    web: tuple[WebFacts, ...]
    apis: Mapping[str, ApiFacts]

    @property
    def web_stores_in(self) -> set[str]:
        """Where web processes say that they store deliveries: they know better than this user."""
        return {web.stores_in for web in self.web}
