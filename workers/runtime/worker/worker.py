"""The worker: an RQ worker whose jobs are wake-ups, and whose work is in the inbox.

One single-threaded loop: read what child processes report, renew leases, write outcomes, claim runs, and give them to
child processes. It never runs plugin code and never waits for one child process. `python -m workers.runtime.worker`
is one such process.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import sys
import time
from typing import Any
from zlib import crc32

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.config.reloading import adopt
from receiver.config.settings import ENV_PREFIX, LimitSettings
from receiver.contract.errors import StorehooksError
from receiver.inbox import Declaration, Inbox, Limit, connect_to, keys
from receiver.inbox.leases import RENEW_EVERY
from receiver.inbox.outcomes import Ending, RunResult
from workers.plugins.validation import missing_limits
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess
from workers.processes import Schedule, Signals, SignOfLife, begin_start
from workers.runtime.config_reload import ConfigReload
from workers.runtime.pool.lease_guard import lease_clock
from workers.runtime.pool.pool import ChildPool
from workers.runtime.server_outage import wait_for_server
from workers.runtime.worker.claim_sizes import LONG, ClaimSizes
from workers.runtime.worker.exchange import InboxExchange
from workers.runtime.worker.rq_registration import RegisteredWorker
from workers.runtime.worker.waiting_runs import WaitingRuns
from workers.runtime.worker.wake_ups import WakeUpListener, WakeUps

WATCH_EVERY = 0.1
HEARTBEAT_EVERY = 5.0
FAILURES_EVERY = 1.0
RELEASE_AFTER = 5.0
"""Seconds that a claimed run may wait here for a child process before it is released."""
VALIDATE_AGAIN_EVERY = 5.0
"""Seconds between two tries while a plugin on disk cannot be loaded as it was validated."""
ONE_AT_A_TIME = LimitSettings(concurrency=1)
"""For a limit that an installed plugin names and the config does not have."""
NO_LIMIT = "a plugin's limit has no [limits.NAME] in config; its runs are done one at a time"
CLOSE_SECONDS = 3.0
"""Seconds after the drain time in which the last outcomes must be written."""

log = logs.get("worker")


class Worker(RegisteredWorker):
    def __init__(self, config: Config, plugins: ValidatedPlugins, *, name: str) -> None:
        self.config = config
        queues = _queues_of(plugins.handlers)
        inbox = Inbox(connect_to(config.redis, timeout=max(config.redis.timeout, 2.0)), direct=True)
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._selector = selectors.DefaultSelector()
        self._pool = ChildPool(config, plugins.code, config.workers.child_processes)
        self._claim_sizes = ClaimSizes(config.workers.child_processes)
        self._waiting = WaitingRuns(self._pool, self._claim_sizes)
        self._wake_ups = WakeUps(inbox.client, self._selector)
        worker = f"{name}|{place_of(config)}"
        self._exchange = InboxExchange(
            inbox, self._pool, self._waiting, self._claim_sizes, self._wake_ups, worker=worker
        )
        self._reload = ConfigReload(self._selector, config.path, self._adopt_reloaded, self._publish_fault)
        self._schedule = Schedule()
        self._stop_at: float | None = None
        self._selector.register(self._pool.fileno, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ, self._signals.clear)
        self._adopt(plugins)
        self._wake_ups.listen_to(queues)
        super().__init__(queues, name=name, connection=connect_to(config.redis, timeout=2.0))

    def _adopt(self, plugins: ValidatedPlugins) -> None:
        """Work for the handlers of these plugins from now on."""
        for name, why in plugins.left_out.items():
            log.warning("installed plugin left out: it is not configured", plugin=name, why=why)
        handlers, self._code = plugins.handlers, plugins.code
        self._handlers = {one.handler: one for one in handlers}
        limits = {
            one.handler: Limit(name, limit.concurrency, limit.rate)
            for one in handlers
            if (name := one.details["limit"]) and (limit := self.config.limits.get(name, ONE_AT_A_TIME))
        }
        for name, limited in missing_limits(self.config, handlers).items():
            log.warning(NO_LIMIT, limit=name, handlers=limited)
        self._waiting.slotted = {handler for handler, limit in limits.items() if limit.concurrency}
        self._exchange.adopt(self._handlers, limits)

    @property
    def child_processes(self) -> int:
        return len(self._pool.children)

    @property
    def start_fault(self) -> str:
        return self._pool.start_fault

    def work(self, *_: Any, **__: Any) -> bool:
        """Work until asked to stop; then finish the runs under way and release the rest."""
        self._exchange.try_at_server(self._exchange.router.declare_and_read)
        self.refresh_registration()
        log.info("worker started", handlers=sorted(self._handlers), child_processes=self.config.workers.child_processes)
        try:
            while not self._finished():
                SignOfLife.show()
                if self._stop_at is None:
                    self._pool.fill()
                self._wait()
                self._read_results()
                self._handle_signals()
                self._do_periodic_work()
                # Only after the leases were renewed: this process may have been suspended for longer than they last.
                self._waiting.dispatch(unwritten=bool(self._exchange.unwritten))
                self._exchange.write_and_claim()
        finally:
            self._pool.close()
            self._wake_ups.drop()
            self.unregister()
            self._exchange.failures.flush()
            self._exchange.try_at_server(self._exchange.statistics.flush)
            log.info("worker stopped")
        return True

    def _finished(self) -> bool:
        if self._stop_at is None:
            return False
        if self._pool.busy and time.monotonic() > self._stop_at:
            self._pool.kill_all()
        open_work = self._pool.busy or self._exchange.unwritten or self._waiting
        return not open_work or time.monotonic() > self._stop_at + CLOSE_SECONDS

    def _wait(self) -> None:
        """Sleep until a child process reports, a wake-up or a signal arrives, plugins are validated, or work is due."""
        self._exchange.listen()
        for key, _ in self._selector.select(self._exchange.seconds_until_due()):
            if isinstance(key.data, WakeUpListener):
                self._exchange.read_wake_up(key.data)
            elif key.data:
                key.data()

    def _read_results(self) -> None:
        ended, returned = self._pool.poll()
        for run, result in ended:
            self._measure(run.handler, result)
            self._exchange.record(run, result)
        # Runs of one slot, or of one order key, must stay in one child process. Taken back from it, they are released.
        slotted = self._waiting.slotted
        bound = [run for run in returned if run.handler in slotted or run.order_key]
        self._exchange.release(bound)
        self._exchange.add_waiting(run for run in returned if run not in bound)

    def _measure(self, handler: str, result: RunResult) -> None:
        if result.ending is Ending.ABSENT:
            if self._claim_sizes.note_absent(handler, time.monotonic()):
                log.warning("a child process does not have the handler that its worker declares", handler=handler)
        elif "ms" in result.detail:
            self._claim_sizes.note_duration(handler, result.detail["ms"] / 1000)
        elif result.ending is Ending.DIED:
            self._claim_sizes.note_duration(handler, float("inf"))

    def _do_periodic_work(self) -> None:
        if self._schedule.due("watch", WATCH_EVERY):
            declared = self._exchange.declarations
            self._pool.kill_overdue(lambda name: float(declared[name].details["timeout"]), self.config.workers.memory)
            self._pool.take_back_waiting(longer_than=LONG)
            if self._waiting.older_than(RELEASE_AFTER):
                self._exchange.release(self._waiting.take_all())
        if self._schedule.due("failures", FAILURES_EVERY):
            self._exchange.failures.flush()
        if (missing := self._pool.missing) and self._schedule.due("validate", VALIDATE_AGAIN_EVERY):
            self._reload.validate_again(self.config, self._code, missing)
        if self._schedule.due("renew", RENEW_EVERY):
            self._renew_leases()
        if self._schedule.due("heartbeat", HEARTBEAT_EVERY):
            self.refresh_registration()
            self._exchange.report_foreign_jobs()
            self._publish_fault()
            self._exchange.try_at_server(self._exchange.statistics.flush)
            self._exchange.try_at_server(self._exchange.router.declare_and_read, always=True)
            self._exchange.expects_work = True  # if a wake-up was lost, no work waits longer than this

    def _publish_fault(self) -> None:
        """Let `doctor` report that a plugin cannot be loaded any more."""
        if self._reload.fault:
            if self._pool.is_complete:
                self._reload.fault = ""
                log.info("all plugins can be loaded again")
            fault, plugins = self._reload.fault, self._reload.faulty
            self._exchange.try_at_server(lambda: self._exchange.inbox.publish_plugin_fault(self.name, fault, plugins))

    def _renew_leases(self) -> None:
        # An ordered run whose outcome is not written must not lapse before those behind it: it would be repeated last.
        unwritten = [run for run in self._exchange.unwritten if run.order_key]
        held, asked = [*self._pool.runs(), *self._waiting, *unwritten], lease_clock()
        lost = self._exchange.try_at_server(lambda: self._exchange.inbox.renew(held)) if held else None
        if lost is not None and self._pool.lease.renewed(asked):
            # Too late for ordered runs: their child processes have ended, or end now. These runs have not failed.
            lost |= {run.item for run in self._pool.under_way if run.order_key}
        if lost:
            log.warning("leases lost", runs=len(lost))
            self._pool.kill_runs(lost)
            self._exchange.release(self._waiting.forget(lost))

    def _handle_signals(self) -> None:
        seen, self._signals.seen = self._signals.seen, []
        if signal.SIGHUP in seen:
            self._reload.begin()
        if self._stop_at is None and (signal.SIGTERM in seen or signal.SIGINT in seen):
            self._stop_at = time.monotonic() + self.config.workers.drain
            self._exchange.stopping = True
            self._pool.stop()
            self._exchange.release(self._waiting.take_all())

    def _adopt_reloaded(self, config: Config, plugins: ValidatedPlugins) -> None:
        """Work with a config and plugins that were valid."""
        if config is self.config and plugins.code == self._code:  # valid, but child processes could not load them
            self._pool.reload(config, plugins.code)
            return
        self._reload.fault = ""
        self.config, _ = adopt(self.config, config)  # the supervisor logs what needs a restart
        before = set(self._handlers)
        self._adopt(plugins)
        if gone := sorted(before - set(self._handlers)):
            log.warning("handlers are gone after a reload", handlers=gone)
        self._claim_sizes.resize(self.config.workers.child_processes)
        self._wake_ups.listen_to(_queues_of(plugins.handlers))
        self.register(_queues_of(plugins.handlers))
        self._pool.reload(self.config, plugins.code)
        self._exchange.try_at_server(self._exchange.router.declare_and_read, always=True)
        self._exchange.try_at_server(lambda: self._exchange.inbox.publish_plugin_fault(self.name, ""))
        log.info("reloaded", handlers=sorted(self._handlers), child_processes=self.config.workers.child_processes)


def place_of(config: Config) -> str:
    """Where a worker runs: host, config, and the variables that change it, as two services with one config may have. A
    worker that begins in the place of a silent one is its successor."""
    variables = sorted(item for item in os.environ.items() if item[0].startswith(ENV_PREFIX))
    path = config.path and os.path.realpath(config.path)  # unlike Path.resolve, it takes a loop of links
    return f"{keys.host_of(config.data_dir)} {path} {crc32(repr(variables).encode()):x}"


def _queues_of(handlers: list[Declaration]) -> list[str]:
    return sorted({keys.DEFAULT_QUEUE, *(one.queue for one in handlers)})


def run(config_path: str | None, supervised: tuple[Config, ValidatedPlugins] | None = None) -> int:
    """Run one worker process until it is asked to stop; returns its exit code.

    Under a supervisor it works with the config and the plugins that the supervisor has validated, not with the files:
    an edit has no effect before HUP, and one that was refused must not end a process that is started again.
    """
    begin_start()
    logs.setup("worker")
    try:
        config = supervised[0] if supervised else load_from_environment(config_path)
        wait_for_server(config.redis, log)
        plugins = supervised[1] if supervised else ValidationProcess(config).result()
    except StorehooksError as error:
        print(f"storehooks worker: {error}", file=sys.stderr)
        return 2
    # Containers may share a host name, and begin with the same process ids in the same second.
    Worker(config, plugins, name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}").work()
    return 0
