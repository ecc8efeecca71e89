"""The inbox with this receiver's settings for accepting: deduplication window, quotas, acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.inbox import AcceptResult, Inbox
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis.polled_connection import PolledConnection

RECONNECT_SECONDS = 1.0

log = logs.get("storage")


class InboxAccess:
    def __init__(self, config: Config, inbox: Inbox) -> None:
        self._inbox = inbox
        self.timeout = config.redis.timeout
        self._repeat_window = config.receiver.dedupe_window_unidentified
        self._record_seconds = config.receiver.dedupe_retention
        self._quotas = {name: store.max_stored for name, store in config.stores.items()}
        self._replicas = int(config.redis.ack == "replica")
        """The number of replicas that must have a delivery before it is answered."""
        self._connect_after = 0.0
        self.outage = logs.OutageLog(
            log, begins="the inbox cannot take deliveries", ends="the inbox takes deliveries again"
        )

    @property
    def client(self) -> Redis:
        return self._inbox.client

    def accept_each(
        self, deliveries: Sequence[Delivery], waited: Mapping[str, float] | None = None
    ) -> list[AcceptResult | RedisError]:
        """Accept deliveries in one round trip. An error affects only the delivery that caused it.

        `waited` has the seconds for which each event id has waited on this host; none has, if it is missing.
        """
        return self._inbox.accept_each(
            deliveries,
            repeat_window=self._repeat_window,
            quotas=self._quotas,
            replicas=self._replicas,
            waited=waited,
        )

    def batch(self, deliveries: Sequence[Delivery]) -> AcceptBatch:
        """The calls that accept deliveries, for a connection from `open_connection`."""
        return AcceptBatch(deliveries, self._repeat_window, self._quotas)

    def open_connection(self) -> PolledConnection | None:
        """A connection that never blocks; None if there is none now. Opening it may block."""
        if time.monotonic() < self._connect_after:
            return None
        try:
            return PolledConnection(self._inbox.client, self._replicas)
        except (RedisError, OSError):  # do not try again for every group: each try blocks the group
            self._connect_after = time.monotonic() + RECONNECT_SECONDS
            return None

    def remember_ids(self, repeated: Mapping[str, str]) -> None:
        """Remember which event each of these ids stands for, as long as the record of a duplicate is stored."""
        self._inbox.remember_ids(repeated, self._record_seconds)

    def check_accept(self) -> None:
        """Raise RedisError unless the inbox would accept a delivery now."""
        self._inbox.check_accept(replicas=self._replicas)

    def publish_spool(self, name: str, count: int | None, oldest: float, *, stopped: bool = False) -> None:
        """Write to the inbox how many deliveries this host's spool holds, and when the oldest arrived.

        Raises NotReplicatedError, although it is written, where a delivery would not be acknowledged either.
        """
        self._inbox.publish_spool(name, count, oldest, stopped=stopped, replicas=self._replicas)
