"""The exchange between a worker and the inbox: outcomes are written, runs are claimed, and events are routed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from redis.exceptions import RedisError

from receiver import logs
from receiver.inbox import Claim, Declaration, Inbox, Limit, Outcome, Run
from receiver.inbox.outcomes import Ending, OutcomeKind, RunResult
from receiver.inbox.redis.data_format import is_format_error
from receiver.inbox.rq_records import fail_foreign_jobs
from receiver.inbox.run_statistics import RunStatistics
from workers.runtime.failure_log import FailureLog
from workers.runtime.pool.lease_guard import lease_clock
from workers.runtime.pool.pool import ChildPool
from workers.runtime.server_outage import ServerOutage
from workers.runtime.worker.claim_sizes import LARGEST_BATCH, ClaimSizes
from workers.runtime.worker.retries import outcome_of
from workers.runtime.worker.routing import EventRouter
from workers.runtime.worker.waiting_runs import WaitingRuns
from workers.runtime.worker.wake_ups import WakeUpListener, WakeUps

GATHER_SECONDS = 0.001
"""How long an outcome waits to be written with others, while its child process goes on with the rest of a batch."""
SAME_KEYS_PAUSE = 0.025
"""Seconds without a claim after one that brought several runs of each order key, unless a run ends that makes another
ready. The next events are probably of the same keys: routed now, their runs would be queued, and read once more."""
UNREACHABLE_PAUSE = 0.25
"""Seconds without a call to the server after it did not answer."""
OTHER_FORMAT_PAUSE = 60.0
"""The same after the data had another format. A heartbeat, which asks for the format, is made nevertheless."""
LONGEST_WAIT = 0.1

log = logs.get("worker")


class InboxExchange:
    def __init__(
        self,
        inbox: Inbox,
        pool: ChildPool,
        waiting: WaitingRuns,
        claim_sizes: ClaimSizes,
        wake_ups: WakeUps,
        *,
        worker: str = "",
    ) -> None:
        self.inbox = inbox
        self.router = EventRouter(inbox, worker)
        self.failures = FailureLog()
        self.statistics = RunStatistics(inbox.client)
        self.expects_work = True
        """Whether a claim may find work: after a wake-up, after the end of a run, and at each heartbeat."""
        self.stopping = False
        self._pool = pool
        self._waiting = waiting
        self._claim_sizes = claim_sizes
        self._wake_ups = wake_ups
        self.declarations: dict[str, Declaration] = {}
        """Also of handlers that a reload removed: their runs may still be under way."""
        self._handlers: Mapping[str, Declaration] = {}
        self._limits: Mapping[str, Limit] = {}
        self._one_at_a_time: Collection[str] = ()
        """Handlers of which a lost worker must not have been given two runs of an order key."""
        self._outcomes: list[Outcome] = []
        self._died: set[str] = set()
        """The runs among them whose child process has ended."""
        self._write_by = 0.0
        self._claim_again_at: float | None = None
        """When a claim may find work: a limit opens, or the pause after several runs of each order key is over."""
        self._pauses = False
        """Whether the last claim brought several runs of each order key, and the pause after it is not over."""
        self._unreachable_until = 0.0
        self._outage = ServerOutage(log)

    def adopt(self, handlers: Mapping[str, Declaration], limits: Mapping[str, Limit]) -> None:
        """Claim runs of these handlers from now on. `limits` has the limit of each handler that has one."""
        self._handlers, self._limits = handlers, limits
        # Runs that are leased together begin again with the first of them if their worker is lost.
        self._one_at_a_time = {name for name, one in handlers.items() if one.details.get("stale") == "skip"}
        self.declarations |= handlers
        self.router.adopt(list(handlers.values()), limited=limits)

    # When to exchange

    @property
    def unwritten(self) -> list[Run]:
        """The runs whose outcomes are not in the inbox yet."""
        return [outcome.run for outcome in self._outcomes]

    @property
    def _unreachable(self) -> bool:
        """Whether the server did not answer a moment ago."""
        return time.monotonic() < self._unreachable_until

    @property
    def _wants_work(self) -> bool:
        """Whether it can take a run. While it cannot, it takes no wake-up either: that is for another worker. One
        without handlers settles the events that no handler wants."""
        if self.stopping or self._waiting or self._waiting.guarded or not self._pool.idle:
            return False
        return not self._handlers or bool(self._quotas())

    @property
    def _more_to_come(self) -> bool:
        """Whether more outcomes are worth waiting for, so that they are written together."""
        return len(self._outcomes) < LARGEST_BATCH and self._pool.in_batches

    def seconds_until_due(self) -> float:
        """How long the worker may sleep: until outcomes are to be written or a claim is due, at most LONGEST_WAIT."""
        if self._unreachable:
            return LONGEST_WAIT
        if self._outcomes:
            return max(0.0, self._write_by - time.monotonic()) if self._more_to_come else 0.0
        if self.expects_work and self._wants_work:
            return 0.0
        if self._claim_again_at is None:
            return LONGEST_WAIT
        return min(LONGEST_WAIT, max(0.0, self._claim_again_at - time.monotonic()))

    def listen(self) -> None:
        """Wait for a wake-up, if this worker could take work and does not expect any."""
        if not self.expects_work and not self._pauses and self._wants_work:
            self._wake_ups.arm()

    def read_wake_up(self, listener: WakeUpListener) -> None:
        job = listener.read()
        if job is None:
            return
        # Also after another program's job: while that was in the queue, it got no wake-up. In a pause it claims soon
        # anyway, and most often its own claim has woken it, for events of the same keys.
        self.expects_work = self.expects_work or not self._pauses
        if job != listener.wake_up:
            self.report_foreign_jobs()

    def report_foreign_jobs(self) -> None:
        """Fail the jobs of other programs and log them, also those that a killed worker has taken."""
        jobs = self.try_at_server(lambda: list(fail_foreign_jobs(self.inbox.client, self._wake_ups.queues)))
        for queue, job in jobs or ():
            self.failures.foreign_job(queue, job)

    # What is written and claimed

    def record(self, run: Run, result: RunResult) -> None:
        """Have the outcome of a run written with the next exchange."""
        if not self._outcomes:
            self._write_by = time.monotonic() + GATHER_SECONDS
        self._outcomes.append(outcome_of(run, result, self.declarations[run.handler]))
        if result.ending is Ending.DIED:
            self._died.add(run.item)
        # While the next run of an order key is under way here, none becomes ready. A wake-up tells of other keys.
        self.expects_work = self.expects_work or not (run.order_key and _has_key_of(run, self._pool.under_way))

    def release(self, runs: Iterable[Run]) -> None:
        """Give runs back to the inbox, for any worker."""
        self._outcomes.extend(Outcome(run, OutcomeKind.RELEASE) for run in runs)

    def add_waiting(self, runs: Iterable[Run]) -> None:
        """Let runs wait for an idle child process; while the worker stops, release them."""
        if self.stopping:
            self.release(runs)
        else:
            self._waiting.add(runs)

    def write_and_claim(self) -> None:
        """Write outcomes and claim runs for the idle child processes: one round trip, and one more to route events."""
        if self._claim_again_at is not None and time.monotonic() >= self._claim_again_at:
            self._claim_again_at, self.expects_work, self._pauses = None, True, False
        claims = self.expects_work and self._wants_work
        if self._unreachable or not (self._outcomes or claims):
            return
        if not claims and self._more_to_come and time.monotonic() < self._write_by:
            return
        outcomes, self._outcomes = self._outcomes, []
        try:
            if not claims:
                self._note_written(outcomes, self.inbox.finish(outcomes))
                self._outage.worked()
                return
            written, claim = self._finish_and_claim(outcomes)
            if not isinstance(written, RedisError):
                self._note_written(outcomes, written)
                outcomes = []
            self._take(claim)
            if isinstance(written, RedisError):
                raise written
            self._outage.worked()
        except RedisError as error:
            self._outcomes = outcomes + self._outcomes  # may be written twice: the second is stale, and no error
            self._server_failed(error)
        self._waiting.dispatch(unwritten=bool(self._outcomes))

    def _finish_and_claim(self, outcomes: list[Outcome]) -> tuple[list[bool] | RedisError, Claim]:
        lanes, suspects_first = self._claim_sizes.next_claim(self._quotas(), slotted=self._waiting.slotted)
        if not (self._pool.busy or self._waiting):  # it holds no lease: the next ones begin now
            self._pool.lease.renewed(lease_clock())
        return self.inbox.finish_and_claim(
            outcomes,
            lanes,
            capacity=LARGEST_BATCH * self._pool.idle,
            limits=self._limits,
            routes=self.router.routes,
            suspects_first=suspects_first,
            one_at_a_time=self._one_at_a_time,
        )

    def _take(self, claim: Claim) -> None:
        """Let the claimed runs wait here, and create the runs of each claimed event. Those that this worker has
        capacity for wait here, too."""
        self._pauses = _has_several_of_each_key(claim.runs)
        self.expects_work = bool(claim.runs) and not self._pauses
        wait = SAME_KEYS_PAUSE if self._pauses else claim.retry_in
        self._claim_again_at = time.monotonic() + wait if wait else None
        self.add_waiting(run for run in claim.runs if run.handler)
        events, version = [run for run in claim.runs if not run.handler], claim.version
        while events:
            leased, events = self.router.route(events, version, self._waiting.capacity(self._quotas()))
            self.add_waiting(leased)
            version = ""  # the declarations have changed: an empty version makes the router read them again

    def _note_written(self, outcomes: Iterable[Outcome], written: Iterable[bool]) -> None:
        """Count the outcomes that are stored now, and log the failed attempts. A stale one is not stored: its run has
        begun again, or has ended."""
        now = time.time() * 1000
        for outcome, is_written in zip(outcomes, written, strict=True):
            if is_written:
                self.statistics.add(outcome, now)
            if outcome.kind in (OutcomeKind.RETRY, OutcomeKind.FAILED):
                died = outcome.run.item in self._died
                self._died.discard(outcome.run.item)
                if is_written:
                    self.failures.attempt_failed(outcome, died=died)

    def _quotas(self) -> dict[str, int]:
        """How many runs of each handler this worker can take."""
        busy, now = Counter(run.handler for run in self._pool.under_way), time.monotonic()
        if not self._pool.missing:
            return self._claim_sizes.quotas(self._handlers, idle=self._pool.idle, busy=busy, now=now)
        quotas: dict[str, int] = {}
        for handler in self._handlers:
            idle = len(self._pool.idle_with(handler))
            quotas |= self._claim_sizes.quotas([handler], idle=idle, busy=busy, now=now)
        return quotas

    # When the server does not answer

    def try_at_server(self, call: Callable[[], Any], *, always: bool = False) -> Any:
        """Call the server for something that can wait. None if the server did not answer.

        With `always`, also in the pause after it did not answer another call, or had data of another format.
        """
        if always:
            self._unreachable_until = 0.0
        if self._unreachable:
            return None
        try:
            answer = call()
        except RedisError as error:
            self._server_failed(error)
            return None
        self._outage.worked()
        return answer

    def _server_failed(self, error: RedisError) -> None:
        self._outage.failed(error)
        self._wake_ups.drop()
        pause = OTHER_FORMAT_PAUSE if is_format_error(error) else UNREACHABLE_PAUSE
        self._unreachable_until = time.monotonic() + pause
        self.expects_work = True


def _has_several_of_each_key(runs: Collection[Run]) -> bool:
    """Whether all runs are ordered, and have at most half as many keys."""
    found = {(run.handler, run.order_key) for run in runs}
    return 0 < 2 * len(found) <= len(runs) and all(key for _, key in found)


def _has_key_of(ended: Run, runs: Iterable[Run]) -> bool:
    """Whether one of the runs has the same order key."""
    return any((run.handler, run.order_key) == (ended.handler, ended.order_key) for run in runs)
