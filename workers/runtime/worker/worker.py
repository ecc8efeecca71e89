"""The worker: an RQ worker whose jobs are wake-ups, and whose work is in the inbox.

One single-threaded loop: claim, have events routed, give runs to child processes, write how they ended, renew leases.
It never runs plugin code and never waits for one child process. `python -m workers.runtime.worker` is one such
process.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.worker import Worker as RQWorker
from rq.worker.base import WorkerStatus

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import Declaration, Inbox, Limit, Outcome, Run, connect_to, keys
from receiver.inbox.outcomes import Ending, OutcomeKind, RunResult
from receiver.inbox.redis.connecting import check
from workers.plugins.loading import judge_elsewhere
from workers.processes import Clock, Signals
from workers.runtime.pool.pool import ChildPool
from workers.runtime.worker.batch_sizes import LARGEST_BATCH, LONG, ROUTES_AT_ONCE, BatchSizes
from workers.runtime.worker.config_reload import NewConfig
from workers.runtime.worker.outcomes import outcome_of
from workers.runtime.worker.routing import EventRouter
from workers.runtime.worker.waiting_runs import WaitingRuns
from workers.runtime.worker.wake_ups import WakeUpListener, is_wake_up

RENEW_EVERY = 1.0
WATCH_EVERY = 0.1
HEARTBEAT_EVERY = 5.0
GONE_AFTER = 20
"""Seconds after which RQ's tools no longer show a worker that was killed."""
AWAY_PAUSE = 0.25
GATHER = 0.001
"""How long an end waits to be written with others, while its child process goes on with the rest of a batch."""
KEEP_WAITING_RUNS = 5.0
"""How long a claimed run may wait here for a child process before it is given back."""

log = logs.get("worker")


class Worker(RQWorker):
    """Takes RQ jobs from RQ queues and shows in `rq info`; how it works is its own."""

    def __init__(self, config: Config, handlers: list[Declaration], *, name: str) -> None:
        self.config = config
        self.inbox = Inbox(connect_to(config.redis, timeout=max(config.redis.timeout, 2.0)), direct=True)
        self._stable = ChildPool(config, config.workers.child_processes)
        self._pace = BatchSizes(config.workers.child_processes)
        self._waiting = WaitingRuns(self._stable, self._pace)
        self._signpost = EventRouter(self.inbox)
        self._adopt(handlers)
        self._outcomes: list[Outcome] = []
        self._write_by = 0.0
        self._hungry = True
        self._away_until = 0.0
        self._stop_at: float | None = None
        self._turn = 0
        self._again_at: float | None = None
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        super().__init__(self._queues, name=name, connection=connect_to(config.redis, timeout=2.0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stable.fileno, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ, self._signals)
        self._bell = WakeUpListener(self.inbox.client, self._queues, self._selector)
        self._new_config = NewConfig(self._selector)
        self._clock = Clock()

    def _set_connection(self, connection: Redis) -> Redis:
        return connection  # RQ would stretch our timeouts to minutes

    def _adopt(self, handlers: list[Declaration]) -> None:
        self._mine = {one.handler: one for one in handlers}
        self._queues = sorted({keys.DEFAULT_QUEUE, *(one.queue for one in handlers)})
        self._limits = {
            one.handler: Limit(name, limit.concurrency, limit.rate)
            for one in handlers
            if (name := one.details["limit"]) and (limit := self.config.limits.get(name))
        }
        self._slotted = {handler for handler, limit in self._limits.items() if limit.concurrency}
        self._waiting.slotted = self._slotted
        self._signpost.adopt(handlers, limited=self._limits)

    # The loop

    def work(self, *_: Any, **__: Any) -> bool:
        """Work until told to stop; then finish what is under way and give back the rest."""
        self._signpost.declare_and_read()
        self._tell_rq(self.register_birth)
        self._tell_rq(lambda: self.set_state(WorkerStatus.IDLE))
        log.info("worker started", handlers=sorted(self._mine), child_processes=self.config.workers.child_processes)
        try:
            while not self._finished():
                if self._stop_at is None:
                    self._stable.fill()
                self._wait()
                self._listen_to_horses()
                self._look_after()
                # Not before the leases were looked after: this process may have been stopped for longer than they last.
                self._waiting.dispatch(unwritten=bool(self._outcomes))
                self._exchange()
        finally:
            self._stable.close()
            self._say_goodbye()
        return True

    def _finished(self) -> bool:
        if self._stop_at is None:
            return False
        if self._stable.busy and time.monotonic() > self._stop_at:
            self._stable.kill_all()
        return not (self._stable.busy or self._outcomes or self._waiting) or time.monotonic() > self._stop_at + 3

    def _wait(self) -> None:
        """Until a child process speaks, a wake-up comes, a signal arrives or something is due."""
        if self._wants_work and not self._hungry:
            self._bell.arm()
        for key, _ in self._selector.select(self._patience()):
            if key.data is self._bell:
                self._answer_the_bell()
            elif key.data is self._new_config:
                self._hear_the_verdict()
            elif key.data is self._signals:
                self._signals.clear()

    def _patience(self) -> float:
        """How long nothing needs us: until the next look round, or until a limit opens again."""
        if self._away:
            return WATCH_EVERY
        if self._outcomes:
            return max(0.0, self._write_by - time.monotonic()) if self._more_to_come else 0.0
        if self._hungry and self._wants_work:
            return 0.0
        if self._again_at is None:
            return WATCH_EVERY
        left = self._again_at - time.monotonic()
        if left <= 0:
            self._again_at = None
            self._hungry = True
        return min(WATCH_EVERY, max(0.0, left))

    @property
    def _away(self) -> bool:
        """The server did not answer a moment ago."""
        return time.monotonic() < self._away_until

    @property
    def _wants_work(self) -> bool:
        return self._stop_at is None and not self._waiting and self._stable.idle > 0 and not self._waiting.guarded

    @property
    def _more_to_come(self) -> bool:
        """Whether ends of runs are worth waiting for a moment, so that they are written together."""
        return len(self._outcomes) < LARGEST_BATCH and self._stable.in_batches

    def _answer_the_bell(self) -> None:
        job_id = self._bell.rung()
        if job_id is None:
            return
        if is_wake_up(job_id):
            self._hungry = True
        else:
            log.warning("a job that is not ours was quarantined", job=job_id[:64])
            self._at_server(lambda: self.inbox.quarantine(f"rq:job:{job_id}", "not a job of ours"))

    # Child processes

    def _listen_to_horses(self) -> None:
        ended, returned = self._stable.poll()
        if ended and not self._outcomes:
            self._write_by = time.monotonic() + GATHER
        for run, result in ended:
            self._measure(run.handler, result)
            self._outcomes.append(outcome_of(run, result, self._mine.get(run.handler)))
        # Behind a run that takes long there is no slot for the others: they go back, and wait where all can see them.
        self._outcomes.extend(Outcome(run, OutcomeKind.RELEASE) for run in returned if run.handler in self._slotted)
        self._keep_for_a_horse(run for run in returned if run.handler not in self._slotted)
        if ended:
            self._hungry = True

    def _measure(self, handler: str, result: RunResult) -> None:
        if result.ending is Ending.ABSENT:
            if self._pace.lacks(handler, time.monotonic()):
                log.warning("a child process does not have the handler that its worker declares", handler=handler)
        elif "ms" in result.detail:
            self._pace.measured(handler, result.detail["ms"] / 1000)
        elif result.ending is Ending.DIED:
            self._pace.measured(handler, float("inf"))

    def _timeout(self, handler: str) -> float:
        return float(self._mine[handler].details["timeout"]) if handler in self._mine else 60.0

    def _keep_for_a_horse(self, runs: Iterable[Run]) -> None:
        if self._stop_at is not None:
            self._outcomes.extend(Outcome(run, OutcomeKind.RELEASE) for run in runs)
        else:
            self._waiting.keep(runs)

    def _give_back_what_waits(self) -> None:
        self._outcomes.extend(Outcome(run, OutcomeKind.RELEASE) for run in self._waiting.take_all())

    # The inbox

    def _exchange(self) -> None:
        """Write how runs ended and claim what there is room for: one round trip, and one to route."""
        claims = self._hungry and self._wants_work
        if self._away or not (self._outcomes or claims):
            return
        if not claims and self._more_to_come and time.monotonic() < self._write_by:
            return
        lanes = self._lanes() if claims else {}
        outcomes, self._outcomes = self._outcomes, []
        try:
            if not lanes:
                self.inbox.finish(outcomes)
                return
            room = LARGEST_BATCH * self._stable.idle
            written, claim = self.inbox.settle_and_claim(
                outcomes,
                lanes,
                room=room,
                limits=self._limits,
                routes=self._signpost.routes,
                suspects_first=self._turn % 2 == 0,
            )
            outcomes = outcomes if isinstance(written, RedisError) else []
            self._hungry = bool(claim.runs)
            self._again_at = time.monotonic() + claim.again_in if claim.again_in else None
            self._keep_for_a_horse(run for run in claim.runs if run.handler)
            self._route([run for run in claim.runs if not run.handler], claim.version)
            if isinstance(written, RedisError):
                raise written
        except RedisError as error:
            self._outcomes = outcomes + self._outcomes  # may be written twice: the second is stale, and no error
            self._server_is_away(error)
        self._waiting.dispatch(unwritten=bool(self._outcomes))

    def _quotas(self) -> dict[str, int]:
        """How many runs of each of our handlers there is room for."""
        now, stable = time.monotonic(), self._stable
        return self._pace.quotas(self._mine, idle=stable.idle, holding=stable.holding(), now=now)

    def _lanes(self) -> dict[str, int]:
        """Which lanes to claim from and how much; each time another one is first."""
        quotas = self._quotas()
        quotas |= {name: self._pace.behind_each_other(name) for name in self._slotted & quotas.keys()}
        names = [keys.ROUTING_LANE, *quotas]
        self._turn += 1
        first = self._turn % len(names)
        ordered = names[first:] + names[:first]
        return {name: quotas.get(name, ROUTES_AT_ONCE) for name in ordered}

    def _route(self, events: list[Run], version: str) -> None:
        """Give each event its runs; keep those of our handlers that we have room for."""
        while events:
            leased, events = self._signpost.route(events, version, self._room())
            self._keep_for_a_horse(leased)
            version = ""

    def _room(self) -> dict[str, int]:
        """How many more runs of each handler we can take."""
        room = self._quotas()
        for handler, many in self._waiting.by_handler().items():
            room[handler] = room.get(handler, 0) - many
        return room

    def _at_server(self, call: Callable[[], Any]) -> Any:
        """Do something at the server that may wait for another time."""
        try:
            return None if self._away else call()
        except RedisError as error:
            self._server_is_away(error)
            return None

    @staticmethod
    def _tell_rq(call: Callable[[], Any]) -> None:
        """What only RQ's own tools look at; at maxmemory the server refuses it, and the work goes on."""
        try:
            call()
        except RedisError as error:
            log.info("RQ's own record could not be written", why=type(error).__name__)

    def _server_is_away(self, error: RedisError) -> None:
        if isinstance(error, ResponseError):
            log.error("the Redis server refused a script", why=str(error)[:300])
        elif not self._away:
            log.warning("the Redis server does not answer", why=type(error).__name__)
        self._bell.drop()
        self._away_until = time.monotonic() + AWAY_PAUSE
        self._hungry = True

    # What comes round

    def _look_after(self) -> None:
        self._heed_signals()
        if self._clock.due("watch", WATCH_EVERY):
            self._stable.kill_overdue(self._timeout, self.config.workers.memory)
            self._stable.take_back_the_rest(longer_than=LONG)
            if self._waiting.older_than(KEEP_WAITING_RUNS):
                self._give_back_what_waits()
        if self._clock.due("renew", RENEW_EVERY):
            held = [*self._stable.runs(), *self._waiting]
            if held and (lost := self._at_server(lambda: self.inbox.renew(held))):
                log.warning("leases lost", runs=len(lost))
                self._stable.kill_runs(lost)
                self._waiting.forget(lost)
        if self._clock.due("heartbeat", HEARTBEAT_EVERY):
            self._tell_rq(self.heartbeat)
            self._at_server(self._signpost.declare_and_read)
            self._hungry = True  # whatever became of a wake-up, nothing waits longer than this

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's, but so that a killed worker is gone from RQ's lists soon."""
        super().heartbeat(timeout or GONE_AFTER, pipeline)

    def register_birth(self) -> None:
        super().register_birth()
        self.heartbeat()

    def _hear_the_verdict(self) -> None:
        """Take the new handlers, or keep the old ones if the new are no good."""
        judged = self._new_config.verdict()
        if judged is None:
            return
        self.config, handlers = judged
        self._adopt(handlers)
        self._bell.listen_to(self._queues)
        self._stable.renew(self.config)
        self._at_server(self._signpost.declare_and_read)
        log.info("reloaded", handlers=sorted(self._mine))

    def _heed_signals(self) -> None:
        seen, self._signals.seen = self._signals.seen, []
        if signal.SIGHUP in seen and not self._new_config.begin(self.config.path):
            self._signals.seen.append(signal.SIGHUP)  # one after the other
        if self._stop_at is None and (signal.SIGTERM in seen or signal.SIGINT in seen):
            self._stop_at = time.monotonic() + self.config.workers.drain
            self._stable.stop()
            self._give_back_what_waits()

    def _say_goodbye(self) -> None:
        self._bell.drop()
        try:
            self.register_death()
        except RedisError:
            log.info("the server was away at the end; RQ forgets this worker by itself")
        log.info("worker stopped")


def run(explicit: str | None) -> int:
    """One worker process, until it is told to stop; gives its exit code."""
    logs.setup("worker")
    try:
        config = load_from_environment(explicit)
        check(connect_to(config.redis, timeout=2.0), ack=config.redis.ack)
        handlers = judge_elsewhere(config)
    except StorehooksError as error:
        print(f"storehooks worker: {error}", file=sys.stderr)
        return 2
    Worker(config, handlers, name=f"{socket.gethostname()}-{os.getpid()}-{int(time.time())}").work()
    return 0
