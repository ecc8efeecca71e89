"""The housekeeper: twice a second it makes due and lapsed work ready, and it does periodic maintenance.

`python -m workers.runtime.housekeeper` is one. Several may run; only the one that holds the leader key works. That
saves work, and correctness does not depend on it: every tick is one script that any process may run at any time.
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
from receiver.config.reloading import adopt
from receiver.contract.errors import StorehooksError
from receiver.inbox import Housekeeping, connect_to
from receiver.inbox.housekeeping import TICK_SLICE
from receiver.inbox.known_data import KnownData
from receiver.inbox.leases import LEADS_FOR_MS, LEASE_MS
from workers.processes import Schedule, Signals, SignOfLife, begin_start
from workers.runtime import maintenance
from workers.runtime.failure_log import log_failed_runs
from workers.runtime.server_outage import ServerOutage, wait_for_server

if TYPE_CHECKING:
    from workers.runtime.alerting.alert_sending import AlertThread
    from workers.runtime.history_thread import HistoryThread
    from workers.subscriptions.repair import SubscriptionCheck

TICK_EVERY = 0.5
TICKS_AT_ONCE = 20
"""Maximum number of full slices in one round: much work that is due at one moment does not wait for the next round."""
MAINTENANCE = (
    (maintenance.retention, 5.0),
    (maintenance.orphans, 10.0),
    (maintenance.stranded, 1.0),
    (maintenance.sample, 0.5),
    (maintenance.oldest_open, 1.0),
    (maintenance.bulk_actions, 0.0),
)

log = logs.get("housekeeper")


class Housekeeper:
    def __init__(self, housekeeping: Housekeeping, config: Config) -> None:
        self.housekeeping = housekeeping
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._config = config
        self._schedule = Schedule()
        self._no_lapses_before = 0.0
        self._outage = ServerOutage(log)
        self._known_data = KnownData(config.data_dir, log, ack=config.redis.ack)
        self._subscription_check: SubscriptionCheck | None = None
        self._history: HistoryThread | None = None
        self._alerts: AlertThread | None = None

    def round(self) -> None:
        """One tick and the maintenance that is due, if this housekeeper leads."""
        try:
            leads = self.housekeeping.lead(self.name, LEADS_FOR_MS)  # raises if the data has another format
            self._known_data.compare(self.housekeeping.client)
            if self._history is not None:
                self._history.leads = leads
            if leads:
                self._tick()
                for task, every in MAINTENANCE:
                    SignOfLife.show()
                    if self._schedule.due(task.__name__, every):
                        task(self.housekeeping, self._config)
                if self._schedule.due("alerts", maintenance.ALERTS_EVERY):
                    maintenance.alerts(self.housekeeping, self._config)
            self._outage.worked()
            if self._alerts is not None:
                self._alerts.rounded(leads)
        except RedisError as error:
            self._outage.failed(error)
            self._no_lapses_before = time.monotonic() + LEASE_MS / 1000

    def reload_config(self, explicit: str | None) -> None:
        """Read the config again, on HUP. A bad config is refused, and the old one stays."""
        try:
            self._config, _ = adopt(self._config, load_from_environment(explicit))  # the supervisor logs the rest
        except StorehooksError as error:
            log.error("config refused, the old one stays", why=error.logged)

    def check_subscriptions(self) -> None:
        """Start the subscription check, if a store has an API. It has its own threads: ticks do not wait for stores."""
        managed = any(store.base_url for store in self._config.stores.values())
        if self._subscription_check is None and managed and self._config.subscriptions.check:
            from workers.subscriptions.repair import SubscriptionCheck  # it loads an HTTP client

            self._subscription_check = SubscriptionCheck(lambda: self._config)
            self._subscription_check.start()

    def move_to_history(self) -> None:
        """Start moving settled events to the history, if there is one."""
        if self._history is None and self._config.history_url != "off":
            from workers.runtime.history_thread import HistoryThread  # it loads a database's driver

            self._history = HistoryThread(lambda: self._config)
            self._history.start()

    def send_alerts(self) -> None:
        """Start sending alerts, if there is a target or a heartbeat."""
        alerts = self._config.alerts
        if self._alerts is None and (alerts.targets or alerts.heartbeat_url.get_secret_value()):
            from workers.runtime.alerting.alert_sending import AlertThread  # it loads an HTTP client

            self._alerts = AlertThread(lambda: self._config)
            self._alerts.start()

    def start_threads(self) -> None:
        """Start what the config asks for and does not run yet."""
        self.check_subscriptions()
        self.move_to_history()
        self.send_alerts()

    def stop(self) -> None:
        for thread in (self._history, self._subscription_check, self._alerts):
            if thread is not None:
                thread.stop()

    def _tick(self) -> None:
        """Make due and lapsed work ready. After an outage, workers have the time of one lease before leases lapse."""
        for _ in range(TICKS_AT_ONCE):
            due, lapsed, failed = self.housekeeping.tick(lapses=time.monotonic() >= self._no_lapses_before)
            if lapsed:
                log.warning("leases lapsed", runs=lapsed, failed=len(failed), due=due)
                log_failed_runs(failed, reason="lost-worker")
            if max(due, lapsed) < TICK_SLICE:
                return


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.runtime.housekeeper",
        description="Makes due and lapsed work ready, and does maintenance.",
    )
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    return run(parser.parse_args().config)


def run(explicit: str | None, supervised: Config | None = None) -> int:
    """Run one housekeeper process until it is asked to stop; returns its exit code. Under a supervisor it works with
    the supervisor's config, as a worker does."""
    begin_start()
    logs.setup("housekeeper")
    try:
        config = supervised or load_from_environment(explicit)
        wait_for_server(config.redis, log, works=False)
    except StorehooksError as error:
        print(f"storehooks housekeeper: {error}", file=sys.stderr)
        return 2
    client = connect_to(config.redis, timeout=max(config.redis.timeout, 2.0))
    housekeeper = Housekeeper(Housekeeping(client), config)
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    housekeeper.start_threads()
    while not {signal.SIGTERM, signal.SIGINT} & set(signals.seen):
        if signal.SIGHUP in signals.seen:
            signals.seen.remove(signal.SIGHUP)
            housekeeper.reload_config(explicit)
            housekeeper.start_threads()
        SignOfLife.show()
        housekeeper.round()
        signals.wait(TICK_EVERY)
    housekeeper.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
