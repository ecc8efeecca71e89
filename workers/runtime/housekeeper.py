"""The housekeeper: moves due and lapsed work on, twice a second, and does the chores. `python -m
workers.runtime.housekeeper`.

Several may run; the one that holds the leader key does the work and the others save it. Nothing
rests on there being only one: every tick is one script, and may be run by anyone at any time.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import Housekeeping, connect_to
from receiver.inbox.housekeeping import TICK_SLICE
from receiver.inbox.inbox import LEASE_MS
from receiver.inbox.redis.connecting import check
from workers.processes import Clock, Signals
from workers.runtime import maintenance

if TYPE_CHECKING:
    from workers.subscriptions.repair import SubscriptionCheck

TICK_EVERY = 0.5
TICKS_AT_ONCE = 20
"""So many slices are moved in a row while each is full: a crowd that is due at one moment waits for no second round."""
LEADS_FOR_MS = 2_000
SCHEDULE = ((maintenance.retention, 5.0), (maintenance.orphans, 10.0))

log = logs.get("housekeeper")


class Housekeeper:
    def __init__(self, housekeeping: Housekeeping, config: Config) -> None:
        self.housekeeping = housekeeping
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._config = config
        self._clock = Clock()
        self._no_lapses_before = 0.0
        self._upkeep: SubscriptionCheck | None = None

    def round(self) -> None:
        """A tick and what is due of the schedule, if we lead."""
        try:
            if self.housekeeping.lead(self.name, LEADS_FOR_MS):
                self._tick()
                for chore, every in SCHEDULE:
                    if self._clock.due(chore.__name__, every):
                        chore(self.housekeeping, self._config)
        except RedisError as error:
            log.warning("the Redis server does not answer", why=type(error).__name__)
            self._no_lapses_before = time.monotonic() + LEASE_MS / 1000

    def read_again(self, explicit: str | None) -> None:
        """HUP: retention may have changed; a bad config is refused and the old one stays."""
        try:
            self._config = load_from_environment(explicit)
        except StorehooksError as error:
            log.error("config refused, the old one stays", why=str(error))

    def look_after_subscriptions(self) -> None:
        """In threads of their own: stores answer slowly, and ticks must not wait for them."""
        managed = any(store.base_url for store in self._config.stores.values())
        if self._upkeep is None and managed and self._config.subscriptions.check:
            from workers.subscriptions.repair import SubscriptionCheck  # it brings an HTTP client along

            self._upkeep = SubscriptionCheck(lambda: self._config)
            self._upkeep.start()

    def stop(self) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()

    def _tick(self) -> None:
        """After an outage workers get one lease's time to report before leases lapse."""
        for _ in range(TICKS_AT_ONCE):
            due, lapsed, failed = self.housekeeping.tick(lapses=time.monotonic() >= self._no_lapses_before)
            if lapsed:
                log.warning("leases lapsed", runs=lapsed, given_up=failed, due=due)
            if max(due, lapsed) < TICK_SLICE:
                return


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.runtime.housekeeper", description="Keeps the inbox moving."
    )
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    return run(parser.parse_args().config)


def run(explicit: str | None) -> int:
    """One housekeeper process, until it is told to stop; gives its exit code."""
    logs.setup("housekeeper")
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    try:
        config = load_from_environment(explicit)
        client = connect_to(config.redis, timeout=max(config.redis.timeout, 2.0))
        check(client, ack=config.redis.ack)
    except StorehooksError as error:
        print(f"storehooks housekeeper: {error}", file=sys.stderr)
        return 2
    housekeeper = Housekeeper(Housekeeping(client), config)
    housekeeper.look_after_subscriptions()
    while not {signal.SIGTERM, signal.SIGINT} & set(signals.seen):
        if signal.SIGHUP in signals.seen:
            signals.seen.remove(signal.SIGHUP)
            housekeeper.read_again(explicit)
            housekeeper.look_after_subscriptions()
        housekeeper.round()
        signals.wait(TICK_EVERY)
    housekeeper.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
