"""Facts from the network: the public URLs and the stores' APIs, all requested in parallel with a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Generic, TypeVar

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.config.settings import NetworkSettings
from receiver.contract.errors import ConfigError
from receiver.inbox.redis.server_faults import fault_of_error
from receiver.process.process_files import web_addresses
from workers.operations.doctor.facts import ApiFacts, ApiState, WebFacts
from workers.storeapi.configured_client import client_for_store, credentials_for_store
from workers.storeapi.errors import (
    AccessDenied,
    ApiError,
    RateLimited,
    StatusError,
    TokenRefused,
    TokenUnreachable,
    Unreachable,
)
from workers.storeapi.pages import ApiReply
from workers.storeapi.transport.auth import token_seconds_left
from workers.storeapi.transport.network import DIRECT, call_options

PARALLEL = 32
T = TypeVar("T")


class ParallelJobs(Generic[T]):
    """Jobs that run in threads from now until the deadline. One that hangs is abandoned."""

    def __init__(self, jobs: Mapping[str, Callable[[], T]], deadline: float) -> None:
        self._jobs, self._deadline = jobs, deadline
        self._todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, T | None]] = queue.SimpleQueue()
        self.started: set[str] = set()
        for name in jobs:
            self._todo.put(name)
        for _ in range(min(PARALLEL, len(jobs))):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                name = self._todo.get_nowait()
            except queue.Empty:
                return
            self.started.add(name)
            self._done.put((name, _guarded(self._jobs[name])))

    def results(self) -> dict[str, T]:
        """Wait until all jobs are done, at most until the deadline; return the results that there are."""
        results: dict[str, T] = {}
        for _ in self._jobs:
            try:
                name, value = self._done.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                break
            if value is not None:
                results[name] = value
        return results


def _guarded(job: Callable[[], T]) -> T | None:
    """An error of ours in one job must not hide the results of the others."""
    try:
        return job()
    except Exception:  # noqa: BLE001  reported as not answered
        return None


# The public URLs


def public_urls(config: Config) -> list[str]:
    """The public URL, and the URLs of stores that have their own."""
    own = config.receiver.public_url.rstrip("/")
    others = [store.url for store in config.stores.values() if store.url and not store.url.startswith(f"{own}/")]
    return [own, *dict.fromkeys(others)]


def probe_public_url(config: Config, url: str, seconds: float) -> WebFacts:
    started = time.monotonic()
    at_root = url == config.receiver.public_url.rstrip("/")
    try:
        answer = _get(config.network, f"{url}/healthz" if at_root else url, seconds)
        fault = _health_fault(answer) if at_root else _webhook_route_fault(answer)
        took = (time.monotonic() - started) * 1000
        stores_in = ""
        if at_root and not fault:
            ready = _get(config.network, f"{url}/readyz", seconds)
            stores_in = _stores_in(ready)
            fault = "" if stores_in else f"answered /readyz with {ready.status_code} and no storehooks answer"
        return WebFacts(url, fault, took, stores_in, answers_at=_answers_at(config, seconds) if fault else "")
    except (httpx2.HTTPError, OSError) as error:  # OSError: of ca_file
        return WebFacts(url, str(error) or type(error).__name__, answers_at=_answers_at(config, seconds))


def _get(network: NetworkSettings, url: str, seconds: float) -> httpx2.Response:
    return httpx2.get(url, timeout=seconds, follow_redirects=False, **call_options(network, url))


def _health_fault(answer: httpx2.Response) -> str:
    if answer.status_code == 200 and b'"alive"' in answer.content[:200]:
        return ""
    return _unexpected(answer)


def _webhook_route_fault(answer: httpx2.Response) -> str:
    """The webhook route answers a GET with 405 and a problem document. Any other answer is from another server."""
    is_ours = answer.status_code == 405 and "problem+json" in answer.headers.get("content-type", "")
    return "" if is_ours else _unexpected(answer)


def _unexpected(answer: httpx2.Response) -> str:
    if answer.has_redirect_location:
        target = answer.headers["location"][:80]
        return f"answered {answer.status_code}, a redirect to {target}; stores do not follow redirects"
    return f"answered {answer.status_code}, which is not a storehooks answer; another server listens there"


def _stores_in(answer: httpx2.Response) -> str:
    """Where deliveries are stored, from the answer of `/readyz`; empty if it is not ours, such as a page of a proxy."""
    try:
        found = answer.json()
    except ValueError:
        return ""
    if answer.status_code == 503 and "status" in found:
        return "nowhere"
    return str(found.get("stores_in", "")) if isinstance(found, dict) else ""


def _answers_at(config: Config, seconds: float) -> str:
    """The address at which the web process of this host answers; empty if there is none.

    Its own environment may make it listen elsewhere than this config says, so it is asked where it says it listens.
    """
    addresses = dict.fromkeys((config.receiver.bind, *web_addresses(config.data_dir)))
    probes = {address: partial(_is_alive, address, seconds) for address in addresses}
    alive = ParallelJobs(probes, time.monotonic() + seconds).results()
    return next((address for address in addresses if alive.get(address)), "")


def _is_alive(address: str, seconds: float) -> bool:
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)  # noqa: S104
    try:
        return not _health_fault(_get(DIRECT, f"http://{host}:{port}/healthz", seconds))
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return False


# The stores


def probe_store(config: Config, store: str, redis: Redis | None, seconds: float) -> ApiFacts:
    """Request one product: that needs a token, the right base_url, and an API that answers."""
    if not config.stores[store].base_url:
        return ApiFacts("none")
    started = time.monotonic()
    try:
        client = client_for_store(config, store, redis, timeout=seconds)
        path, size = client.catalogue.get("products", "list").path, client.catalogue.paging.size_param
        before = time.time()
        reply = client.request("GET", path, query={size: 1} if size else None)
        ahead = _clock_ahead(reply, before, time.time())
    except (ConfigError, ApiError) as error:
        reason = error.reason if isinstance(error, ApiError) else str(error)
        return ApiFacts(_state(error), reason.splitlines()[0])
    except RedisError as error:
        assert redis is not None
        fault = fault_of_error(error, redis)
        return ApiFacts("redis", fault.text, fault.fix)
    ms, left = (time.monotonic() - started) * 1000, _token_left(config, store, redis)
    return ApiFacts("fine", ms=ms, clock_ahead=ahead, token_seconds_left=left)


def _state(error: ConfigError | ApiError) -> ApiState:
    states: Iterable[tuple[type[Exception], ApiState]] = (
        (ConfigError, "config"),
        (TokenRefused, "token"),
        (TokenUnreachable, "no-token"),
        (AccessDenied, "denied"),
        (RateLimited, "unasked"),
        (Unreachable, "unreachable"),
        (StatusError, "answered"),
    )
    return next((state for kind, state in states if isinstance(error, kind)), "answered")


def _clock_ahead(reply: ApiReply, before: float, after: float) -> float | None:
    """Seconds by which the Date header, which has whole seconds, is ahead; None for a cached answer."""
    if "age" in reply.headers or "date" not in reply.headers:
        return None
    try:
        sent = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except ValueError:
        return None
    earliest, latest = sent - after, sent + 1 - before
    return 0.0 if earliest <= 0 <= latest else min(earliest, latest, key=abs)


def _token_left(config: Config, store: str, redis: Redis | None) -> float | None:
    credentials = credentials_for_store(config, store)
    if credentials is None or redis is None:
        return None
    try:
        return token_seconds_left(redis, store, credentials)
    except RedisError:
        return None
