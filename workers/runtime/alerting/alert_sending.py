"""Sends alerts and the heartbeat next to the housekeeper's ticks, which do not wait for a target."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from redis import Redis
from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.config.alert_settings import AlertTarget
from receiver.contract.errors import StorehooksError
from receiver.inbox import connect_to
from receiver.inbox.alert_store import AlertMessage, AlertStore
from receiver.inbox.redis.server_faults import reason_of
from workers.processes import Schedule
from workers.runtime.alerting.alert_messages import request
from workers.storeapi.errors import ApiError, Redirected
from workers.storeapi.transport.http import HttpSession, host_of

ROUND_EVERY = 0.5
SEND_SECONDS = 10.0
FIRST_DELAY, GROWTH, LONGEST_DELAY = 2.0, 4.0, 1800.0
TRIES = 8
"""A message is given up after about an hour and a half."""
HEARTBEAT_EVERY = 60.0
STUCK_SECONDS = 20.0
"""Without a successful round of the housekeeper for this long there is no heartbeat."""
THREADS = 4
MAX_RESPONSE = 64 << 10

Task = Callable[[], None]

log = logs.get("alerts")


class NotSent(StorehooksError):
    """A target did not accept a message. The text never has the path of its URL, which may be a secret."""


def send(config: Config, target: AlertTarget, message: AlertMessage) -> None:
    """Send a message once. Raises NotSent."""
    headers, body = request(config, target, message, now=time.time())
    session = HttpSession(target.allow_private, MAX_RESPONSE, config.network)
    _call(session, "POST", target.url.get_secret_value(), headers, body)


def _call(session: HttpSession, method: str, url: str, headers: Mapping[str, str | bytes], body: bytes | None) -> None:
    host = host_of(url)
    try:
        response = session.send(method, url, headers=headers, content=body, until=time.monotonic() + SEND_SECONDS)
    except Redirected as error:
        raise NotSent(f"{host} answered {error.status}, a redirect to {error.target}; set the new URL") from None
    except ApiError as error:
        raise NotSent(f"{host}: {error.reason}") from None
    if not 200 <= response.status < 300:
        raise NotSent(f"{host} answered {response.status}")


class AlertThread:
    """Only the housekeeper that leads sends: others would send the heartbeat of one that is stuck."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._leads_until = 0.0
        self._config = config
        self._redis: Redis = connect_to(config().redis, timeout=max(config().redis.timeout, 5.0))
        self._store = AlertStore(self._redis)
        self._schedule = Schedule()
        self._stopping = threading.Event()
        self._free, self._heartbeat = threading.Semaphore(THREADS), threading.Semaphore()
        self._outage = logs.OutageLog(
            log, begins="the heartbeat URL does not answer", ends="the heartbeat URL answers again"
        )
        self._faults = logs.OutageLog(
            log, begins="alerts and the heartbeat cannot be sent", ends="alerts and the heartbeat can be sent again"
        )
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is being sent may be cut off; the next housekeeper sends it again, under the same id."""
        self._stopping.set()

    def rounded(self, leads: bool) -> None:
        """The housekeeper has completed a round."""
        self._leads_until = time.monotonic() + STUCK_SECONDS if leads else 0.0

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_EVERY):
            if time.monotonic() < self._leads_until:
                try:
                    self.round()
                    self._faults.worked()
                except RedisError:  # the housekeeper logs an outage
                    pass
                except Exception as error:  # noqa: BLE001  a limit of threads: this one goes on
                    self._faults.failed(why=reason_of(error))

    def round(self) -> None:
        config = self._config()
        if config.alerts.heartbeat_url.get_secret_value() and self._schedule.due("heartbeat", HEARTBEAT_EVERY):
            self._begin(self._heartbeat, lambda: partial(self._beat, config))  # not while the last one hangs
        while config.alerts.targets and self._begin(self._free, lambda: self._next_delivery(config)):
            pass

    def _begin(self, slots: threading.Semaphore, find: Callable[[], Task | None]) -> bool:
        """Find a task and do it in a thread, if there is a slot. Returns whether there was a slot and a task."""
        if not slots.acquire(blocking=False):
            return False
        began = False
        try:
            if task := find():
                threading.Thread(target=_do, args=(task, slots), name="alert", daemon=True).start()
                began = True
        finally:
            if not began:
                slots.release()
        return began

    def _next_delivery(self, config: Config) -> Task | None:
        message = self._store.claim()
        return partial(self._deliver, config, message) if message else None

    def _deliver(self, config: Config, message: AlertMessage) -> None:
        target = config.alerts.targets.get(message.target)
        with suppress(RedisError):  # it is sent again when the lease is over
            try:
                if target is None:  # another housekeeper may have it
                    raise NotSent("the config of this housekeeper has no such target")
                send(config, target, message)
            except NotSent as error:
                self._failed(message, str(error))
            else:
                self._store.delivered(message)

    def _failed(self, message: AlertMessage, why: str) -> None:
        tries = message.tries + 1
        fields = {"target": message.target, "rule": message.rule, "why": why, "tries": tries}
        if tries < TRIES:
            log.warning("an alert could not be sent; it will be tried again", **fields)
            self._store.failed(message, why, min(LONGEST_DELAY, FIRST_DELAY * GROWTH**message.tries))
        else:
            log.error("an alert could not be sent, and is given up", **fields)
            self._store.failed(message, why, None)

    def _beat(self, config: Config) -> None:
        alerts = config.alerts
        try:
            session = HttpSession(alerts.heartbeat_private, MAX_RESPONSE, config.network)
            _call(session, "GET", alerts.heartbeat_url.get_secret_value(), {}, None)
            self._outage.worked()
        except NotSent as error:
            self._outage.failed(why=str(error).replace("allow_private", "heartbeat_private"))  # the key to set here


def _do(task: Task, slots: threading.Semaphore) -> None:
    try:
        task()
    finally:
        slots.release()
