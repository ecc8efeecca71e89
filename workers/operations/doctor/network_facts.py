"""Ask: facts that come over the network, from our public address and the stores: all at once, none waited for long."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.errors import ConfigError
from workers.operations.doctor.facts import ApiFacts, ApiState, WebFacts
from workers.storeapi.client import ApiReply
from workers.storeapi.configured_client import client_for_store, credentials_for_store
from workers.storeapi.errors import AccessDenied, ApiError, RateLimited, StatusError, TokenRefused, Unreachable
from workers.storeapi.transport.auth import token_seconds_left

AT_ONCE = 32
T = TypeVar("T")


def together(jobs: Mapping[str, Callable[[], T]], until: float) -> tuple[dict[str, T], set[str]]:
    """Do all jobs at once; give what is there when time is up, and the names of those that were begun.

    A job that hangs is left behind.
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, T | None]] = queue.SimpleQueue()
    begun: set[str] = set()
    for name in jobs:
        todo.put(name)

    def work() -> None:
        while time.monotonic() < until:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            begun.add(name)
            done.put((name, _guarded(jobs[name])))

    for _ in range(min(AT_ONCE, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    found: dict[str, T] = {}
    for _ in jobs:
        try:
            name, value = done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if value is not None:
            found[name] = value
    return found, set(begun)


def _guarded(job: Callable[[], T]) -> T | None:
    """A fault of our own in one job must not hide what the others found."""
    try:
        return job()
    except Exception:  # noqa: BLE001  told as "not known"
        return None


# Our own address


def addresses(config: Config) -> list[str]:
    """What to ask: the public address, and those of stores that were given another."""
    own = config.receiver.public_url.rstrip("/")
    others = [store.url for store in config.stores.values() if store.url and not store.url.startswith(f"{own}/")]
    return [own, *dict.fromkeys(others)]


def ask_ourselves(config: Config, url: str, seconds: float) -> WebFacts:
    started = time.monotonic()
    at_root = url == config.receiver.public_url.rstrip("/")
    try:
        answer = _get(f"{url}/healthz" if at_root else url, seconds)
        fault = _health_fault(answer) if at_root else _door_fault(answer)
        took = (time.monotonic() - started) * 1000
        stores_in = "" if fault or not at_root else _stores_in(_get(f"{url}/readyz", seconds))
        return WebFacts(url, fault, took, stores_in, at_home=bool(fault) and _at_home(config, seconds))
    except httpx2.HTTPError as error:
        return WebFacts(url, str(error) or type(error).__name__, at_home=_at_home(config, seconds))


def _get(url: str, seconds: float) -> httpx2.Response:
    return httpx2.get(url, timeout=seconds, follow_redirects=False, trust_env=False)


def _health_fault(answer: httpx2.Response) -> str:
    if answer.status_code == 200 and b'"alive"' in answer.content[:200]:
        return ""
    return _what_came(answer)


def _door_fault(answer: httpx2.Response) -> str:
    """GET is not how deliveries come: our own door says so in its own way."""
    ours = answer.status_code == 405 and "problem+json" in answer.headers.get("content-type", "")
    return "" if ours else _what_came(answer)


def _what_came(answer: httpx2.Response) -> str:
    if answer.has_redirect_location:
        return (
            f"answered {answer.status_code}, a redirect to {answer.headers['location'][:80]}; stores do not follow it"
        )
    return f"answered {answer.status_code}, and not as storehooks does; another server listens there"


def _stores_in(answer: httpx2.Response) -> str:
    if answer.status_code == 503:
        return "nowhere"
    return str(answer.json().get("stores_in", "")) if answer.status_code == 200 else ""


def _at_home(config: Config, seconds: float) -> bool:
    host, _, port = config.receiver.bind.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)  # noqa: S104
    try:
        return not _health_fault(_get(f"http://{host}:{port}/healthz", seconds))
    except httpx2.HTTPError:
        return False


# The stores


def ask_store(config: Config, store: str, redis: Redis | None, seconds: float) -> ApiFacts:
    """One product of a store: that needs a token, the right address, and an API that answers."""
    if not config.stores[store].base_url:
        return ApiFacts("none")
    started = time.monotonic()
    try:
        client = client_for_store(config, store, redis, timeout=seconds)
        path, size = client.catalogue.get("products", "list").path, client.catalogue.paging.size_param
        before = time.time()
        reply = client.request("GET", path, query={size: 1})
        ahead = _ahead(reply, before, time.time())
    except (ConfigError, ApiError) as error:
        return ApiFacts(_kind(error), _first_line(error), ahead=None)
    return ApiFacts("fine", "", (time.monotonic() - started) * 1000, ahead, _token_left(config, store, redis))


def _kind(error: ConfigError | ApiError) -> ApiState:
    kinds: Iterable[tuple[type[Exception], ApiState]] = (
        (ConfigError, "config"),
        (TokenRefused, "token"),
        (AccessDenied, "denied"),
        (RateLimited, "unasked"),
        (Unreachable, "unreachable"),
        (StatusError, "answered"),
    )
    return next((state for kind, state in kinds if isinstance(error, kind)), "answered")


def _first_line(error: ConfigError | ApiError) -> str:
    return (error.reason if isinstance(error, ApiError) else str(error)).splitlines()[0]


def _ahead(reply: ApiReply, before: float, after: float) -> float | None:
    """By its Date header, which has whole seconds; what a cache kept says nothing of now."""
    if "age" in reply.headers or "date" not in reply.headers:
        return None
    try:
        told = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except ValueError:
        return None
    earliest, latest = told - after, told + 1 - before
    return 0.0 if earliest <= 0 <= latest else min(earliest, latest, key=abs)


def _token_left(config: Config, store: str, redis: Redis | None) -> float | None:
    credentials = credentials_for_store(config, store)
    if credentials is None or redis is None:
        return None
    try:
        return token_seconds_left(redis, store, credentials)
    except RedisError:
        return None
