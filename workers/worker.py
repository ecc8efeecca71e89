"""The worker: an RQ worker whose jobs are wake-ups, and whose work is in the inbox.

One single-threaded loop: claim, route, give runs to horses, write how they ended, renew leases. It
never runs plugin code and never waits for one horse. `python -m workers.worker` is one such process.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq.worker import Worker as RQWorker
from rq.worker.base import WorkerStatus

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import Declaration, Inbox, Limit, Outcome, Run, connect_to, keys
from receiver.inbox.client import check
from receiver.inbox.inbox import Declarations, Wanted
from workers import attempts
from workers.bell import Bell
from workers.jobs import WakeUp, read_job
from workers.pace import LARGEST_BATCH, LONG, ROUTES_AT_ONCE, Pace
from workers.plugins import Judge, judge_elsewhere
from workers.processes import Clock, Signals
from workers.routing import wanted_by
from workers.stable import Ended, Stable

RENEW_EVERY = 1.0
WATCH_EVERY = 0.1
HEARTBEAT_EVERY = 5.0
GONE_AFTER = 20
"""Seconds after which RQ's tools no longer show a worker that was killed."""
AWAY_PAUSE = 0.25
PROBATION = 0.2
SUSPECT_PROBATION = 3.0
KEEP_WAITING_RUNS = 5.0
"""How long a claimed run may wait here for a horse before it is given back."""

log = logs.get("worker")


class Worker(RQWorker):
    """Takes RQ jobs from RQ queues and shows in `rq info`; how it works is its own."""

    def __init__(self, config: Config, handlers: list[Declaration], *, name: str) -> None:
        self.config = config
        self.inbox = Inbox(connect_to(config.redis, timeout=max(config.redis.timeout, 2.0)))
        self._adopt(handlers)
        self._stable = Stable(config, config.workers.horses)
        self._pace = Pace(config.workers.horses)
        self._waiting: deque[Run] = deque()
        self._waiting_since = 0.0
        self._outcomes: list[Outcome] = []
        self._hungry = True
        self._away_until = 0.0
        self._stop_at: float | None = None
        self._turn = 0
        self._let_out_at = 0.0
        self._judge_at_work: Judge | None = None
        self._again_at: float | None = None
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        super().__init__(self._queues, name=name, connection=connect_to(config.redis, timeout=2.0))
        self._bell = Bell(self.inbox.client, self._queues)
        self._clock = Clock()

    def _set_connection(self, connection: Redis) -> Redis:
        return connection  # RQ would stretch our timeouts to minutes

    def _adopt(self, handlers: list[Declaration]) -> None:
        self._mine = {one.handler: one for one in handlers}
        self._queues = sorted({keys.DEFAULT_QUEUE, keys.CHORES_QUEUE, *(one.queue for one in handlers)})
        self._declared = Declarations("", ())
        self._limits = {
            one.handler: Limit(name, limit.concurrency, limit.rate)
            for one in handlers
            if (name := one.details["limit"]) and (limit := self.config.limits.get(name))
        }
        self._slotted = {handler for handler, limit in self._limits.items() if limit.concurrency}

    # The loop

    def work(self, *_: Any, **__: Any) -> bool:
        """Work until told to stop; then finish what is under way and give back the rest."""
        self._declare_and_read()
        self._tell_rq(self.register_birth)
        self._tell_rq(lambda: self.set_state(WorkerStatus.IDLE))
        log.info("worker started", handlers=sorted(self._mine), horses=self.config.workers.horses)
        try:
            while not self._finished():
                if self._stop_at is None:
                    self._stable.fill()
                self._wait()
                self._listen_to_horses()
                self._look_after()
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
        """Until a horse speaks, a wake-up comes, a signal arrives or something is due."""
        if self._outcomes and not self._away:
            return
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._stable.fileno, selectors.EVENT_READ)
            waiting.register(self._signals, selectors.EVENT_READ)
            if self._judge_at_work is not None:
                waiting.register(self._judge_at_work, selectors.EVENT_READ, "verdict")
            if self._wants_work and not self._hungry and self._bell.arm():
                waiting.register(self._bell.fileno, selectors.EVENT_READ, "bell")
            patience = 0.0 if self._hungry and self._wants_work and not self._away else self._patience()
            for key, _ in waiting.select(patience):
                if key.data == "bell":
                    self._answer_the_bell()
                elif key.data == "verdict":
                    self._hear_the_verdict()
                elif key.fileobj is self._signals:
                    self._signals.clear()

    def _patience(self) -> float:
        """How long nothing needs us: until the next look round, or until a limit opens again."""
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
        return self._stop_at is None and not self._waiting and self._stable.idle > 0

    def _answer_the_bell(self) -> None:
        job_id = self._bell.rung()
        if job_id is None:
            return
        match read_job(job_id):
            case WakeUp():
                self._hungry = True
            case None:
                log.warning("a job that is not ours was set aside", job=job_id[:64])
                self._at_server(lambda: self.inbox.set_aside(f"rq:job:{job_id}", "not a job of ours"))
            case chore:
                log.warning("no such chore", chore=chore.name)

    # Horses

    def _listen_to_horses(self) -> None:
        ended, returned = self._stable.poll()
        for one in ended:
            self._outcomes.append(self._judge(one))
        # Behind a run that takes long there is no slot for the others: they go back, and wait where all can see them.
        self._outcomes.extend(Outcome(run, "release") for run in returned if run.handler in self._slotted)
        self._keep_for_a_horse(run for run in returned if run.handler not in self._slotted)
        self._dispatch()
        if ended:
            self._hungry = True

    def _judge(self, ended: Ended) -> Outcome:
        """What an end in the horse means for the run."""
        run, detail = ended.run, ended.detail
        if "ms" in detail:
            self._pace.measured(run.handler, detail["ms"] / 1000)
        match ended.end:
            case "done" | "dropped" | "failed":
                return Outcome(run, ended.end, detail)
            case "raised":
                return attempts.after_error(run, detail, retries=self._retries(run.handler), after=ended.after)
            case "died":
                self._pace.measured(run.handler, float("inf"))
                told = {
                    **detail,
                    "group": attempts.fingerprint("died", [run.handler]),
                    "version": self._version(run),
                }
                # Most often it was killed from outside, so the first time it is tried again at once.
                after = 0.0 if run.attempts == 0 else None
                return attempts.after_error(run, told, retries=self._retries(run.handler), after=after)
            case "busy":
                delay = ended.after if ended.after is not None else attempts.BUSY_DELAY
                return Outcome(run, "busy", detail, delay=delay)
            case "absent":  # declared, and not there in the horse: not again at once
                return Outcome(run, "busy", {"error": "the handler is not loaded here"}, delay=attempts.BUSY_DELAY)
            case _:  # lost, stopped: nobody's fault
                return Outcome(run, "release")

    def _retries(self, handler: str) -> attempts.Retries:
        retries: attempts.Retries = self._mine[handler].details["retries"] if handler in self._mine else 0
        return retries

    def _timeout(self, handler: str) -> float:
        return float(self._mine[handler].details["timeout"]) if handler in self._mine else 60.0

    def _version(self, run: Run) -> str:
        return self._mine[run.handler].version if run.handler in self._mine else "?"

    def _dispatch(self) -> None:
        """Give what waits here to idle horses: fast handlers in batches, any other alone."""
        held: deque[Run] = deque()
        while self._waiting and self._stable.idle:
            run = self._waiting[0]
            if not self._may_begin(run):
                held.append(self._waiting.popleft())
                continue
            batch = self._batch_of(run)
            self._stable.give(batch)
            given = {one.item for one in batch}
            self._waiting = deque(one for one in self._waiting if one.item not in given)
        self._waiting.extendleft(reversed(held))

    def _batch_of(self, first: Run) -> list[Run]:
        """What goes to one horse together with a run. What was claimed on one slot of a limit stays together."""
        if first.handler in self._slotted:
            return [one for one in self._waiting if (one.handler, one.token) == (first.handler, first.token)]
        most = 1 if first.losses else self._pace.batch(first.handler)
        same = [one for one in self._waiting if one.handler == first.handler and (one is first or not one.losses)]
        return same[:most]

    def _may_begin(self, run: Run) -> bool:
        """What might take this process down is let out alone: a run that lost its worker twice, and one of a handler
        that has not yet ended a run here. Runs that ended a moment ago are not written yet. It waits for its
        neighbours, but not for long.
        """
        suspect = run.losses >= 2
        if not suspect and self._pace.proven(run.handler):
            return True
        alone = not self._stable.busy and not self._outcomes
        patience = SUSPECT_PROBATION if suspect else PROBATION
        if alone or time.monotonic() - self._let_out_at > patience:
            self._let_out_at = time.monotonic()
            return True
        return False

    def _keep_for_a_horse(self, runs: Iterable[Run]) -> None:
        runs = list(runs)
        if self._stop_at is not None:
            self._outcomes.extend(Outcome(run, "release") for run in runs)
            return
        if runs and not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting.extend(runs)

    def _give_back_what_waits(self) -> None:
        self._outcomes.extend(Outcome(run, "release") for run in self._waiting)
        self._waiting.clear()

    # The inbox

    def _exchange(self) -> None:
        """Write how runs ended and claim what there is room for: one round trip, and one to route."""
        claims = self._hungry and self._wants_work
        if self._away or not (self._outcomes or claims):
            return
        lanes = self._lanes() if claims else {}
        outcomes, self._outcomes = self._outcomes, []
        try:
            if not lanes:
                self.inbox.finish(outcomes)
                return
            room = LARGEST_BATCH * self._stable.idle
            _, claim = self.inbox.settle_and_claim(outcomes, lanes, room=room, limits=self._limits)
            outcomes = []
            self._hungry = bool(claim.runs)
            self._again_at = time.monotonic() + claim.again_in if claim.again_in else None
            self._keep_for_a_horse(run for run in claim.runs if run.handler)
            self._route([run for run in claim.runs if not run.handler], claim.version)
        except RedisError as error:
            self._outcomes = outcomes + self._outcomes  # may be written twice: the second is stale, and no error
            self._server_is_away(error)
        self._dispatch()

    def _lanes(self) -> dict[str, int]:
        """Which lanes to claim from and how much; each time another one is first."""
        quotas = self._pace.quotas(self._mine, idle=self._stable.idle, holding=self._stable.holding())
        quotas |= {name: self._pace.behind_each_other(name) for name in self._slotted & quotas.keys()}
        names = [keys.ROUTING_LANE, *quotas]
        self._turn = (self._turn + 1) % len(names)
        ordered = names[self._turn :] + names[: self._turn]
        return {name: quotas.get(name, ROUTES_AT_ONCE) for name in ordered}

    def _route(self, events: list[Run], version: str) -> None:
        """Give each event its runs; keep those of our handlers that we have room for."""
        while events:
            if version != self._declared.version:
                self._declared = self.inbox.declarations()
            room = self._pace.quotas(self._mine, idle=self._stable.idle, holding=self._stable.holding())
            for run in self._waiting:
                room[run.handler] = room.get(run.handler, 0) - 1
            decisions = [(event, self._decide(event, room)) for event in events]
            replies = self.inbox.route(decisions, self._declared.version)
            again = []
            for (event, _), reply in zip(decisions, replies, strict=True):
                if reply[0] == "routed":
                    self._keep_for_a_horse(_run_of(event, name) for name in reply[1:])
                elif reply[0] == "reroute":
                    again.append(event)
            events, version = again, ""

    def _decide(self, event: Run, room: dict[str, int]) -> list[Wanted]:
        chosen: list[Wanted] = []
        for name, wanted in wanted_by(
            self._declared.handlers, topic=event.event.topic, store=event.event.store
        ).items():
            if delay := float(wanted.details.get("delay", 0)):
                chosen.append((name, wanted.queue, delay))
                continue
            mine = room.get(name, 0) > 0 and name not in self._limits
            room[name] = room.get(name, 0) - 1
            chosen.append((name, wanted.queue, mine))
        return chosen

    def _declare_and_read(self) -> None:
        self.inbox.declare(self._mine.values())
        self._declared = self.inbox.declarations()

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
            if self._waiting and time.monotonic() - self._waiting_since > KEEP_WAITING_RUNS:
                self._give_back_what_waits()
        if self._clock.due("renew", RENEW_EVERY):
            held = [*self._stable.runs(), *self._waiting]
            if held and (lost := self._at_server(lambda: self.inbox.renew(held))):
                log.warning("leases lost", runs=len(lost))
                self._stable.kill_runs(lost)
                self._waiting = deque(run for run in self._waiting if run.item not in lost)
        if self._clock.due("heartbeat", HEARTBEAT_EVERY):
            self._tell_rq(self.heartbeat)
            self._at_server(self._declare_and_read)
            self._hungry = True  # whatever became of a wake-up, nothing waits longer than this

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's, but so that a killed worker is gone from RQ's lists soon."""
        super().heartbeat(timeout or GONE_AFTER, pipeline)

    def register_birth(self) -> None:
        super().register_birth()
        self.heartbeat()

    def _read_again(self) -> None:
        """HUP: read the config and have the plugins judged, beside the work; the verdict comes later."""
        try:
            config = load_from_environment(str(self.config.path) if self.config.path else None)
        except StorehooksError as error:
            log.error("reload refused, the old config and plugins stay", why=str(error))
            return
        if self._judge_at_work is None:
            self._judge_at_work = Judge(config)
        else:
            self._signals.seen.append(signal.SIGHUP)  # one after the other

    def _hear_the_verdict(self) -> None:
        """Take the new handlers, or keep the old ones if the new are no good."""
        assert self._judge_at_work is not None
        judge, self._judge_at_work = self._judge_at_work, None
        try:
            handlers = judge.verdict()
        except StorehooksError as error:
            log.error("reload refused, the old config and plugins stay", why=str(error))
            return
        self.config = judge.config
        self._adopt(handlers)
        self._bell.listen_to(self._queues)
        self._stable.renew(judge.config)
        self._at_server(self._declare_and_read)
        log.info("reloaded", handlers=sorted(self._mine))

    def _heed_signals(self) -> None:
        seen, self._signals.seen = self._signals.seen, []
        if signal.SIGHUP in seen:
            self._read_again()
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


def _run_of(event: Run, handler: str) -> Run:
    """The run of an event that was routed and leased to us at once, under the same token."""
    return replace(event, item=keys.run_item(event.event.id, handler), handler=handler, attempts=0, losses=0, replays=0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.worker", description="One worker with its horses.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    return run(parser.parse_args().config)


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


if __name__ == "__main__":
    sys.exit(main())
