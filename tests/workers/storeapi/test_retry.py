"""Retries, rate limits and deadlines: only safe calls are retried, and every call ends by its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from receiver import config as config_room
from tests.support.harness import SECRET, eventually, free_port
from tests.support.raw_server import RawServer
from tests.workers.conftest import AUTH, SandboxRun
from tests.workers.storeapi.test_auth import call_at_once
from workers.storeapi import Client, client_for_store
from workers.storeapi.call_counts import CallCounts, calls_by_status
from workers.storeapi.errors import RateLimited, ResourceNotFound, ServerError, StatusError, Unreachable
from workers.storeapi.transport.rate_limit import LocalRateLimiter, SharedRateLimiter
from workers.storeapi.transport.retry import retry_after


class CallInThread:
    """Runs a call in its own thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001
            self.result = error

    def join(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.result


def statuses(sandbox: SandboxRun) -> list[int]:
    return [status for *_, status in sandbox.log()]


@pytest.mark.parametrize(("after", "at_least"), [(1, 1.0), (-1, 0.0)])
def test_a_429_is_retried_with_and_without_retry_after(
    sandbox: SandboxRun, redis: Redis, after: int, at_least: float
) -> None:
    client = sandbox.client(redis)
    client.products.get(1)
    sandbox.misbehave(too_many=1, retry_after=after)
    pending = CallInThread(lambda: client.products.create(name="Mug", price="1.00"))
    eventually(lambda: 429 in statuses(sandbox))
    sandbox.misbehave(too_many=0)
    assert pending.join().name == "Mug"
    times = [when for when, method, *_ in sandbox.log() if method == "POST"]
    assert times[1] - times[0] >= at_least
    assert statuses(sandbox)[-1] == 201


def test_a_429_pauses_the_calls_of_every_process(sandbox: SandboxRun, redis: Redis) -> None:
    """Every other client of the store waits too, in any process."""
    first, second = sandbox.client(redis), sandbox.client(redis)
    first.products.get(1)
    sandbox.misbehave(too_many=1, retry_after=1)
    pending = CallInThread(lambda: first.products.get(1))
    eventually(lambda: redis.hget("sh:api:rate_limit:demo", "paused_until"))
    sandbox.misbehave(too_many=0)
    second.products.get(2)
    pending.join()
    refused = next(when for when, *_, status in sandbox.log() if status == 429)
    assert all(when - refused >= 0.99 for when, *_ in sandbox.log() if when > refused)


def test_calls_are_counted_by_status(sandbox: SandboxRun, redis: Redis) -> None:
    client = sandbox.client(redis)
    client.products.get(1)
    client.products.create(name="Mug", price="1.00")
    with pytest.raises(ResourceNotFound):
        client.products.get(10**9)
    assert calls_by_status(redis) == {("demo", "200"): 1, ("demo", "201"): 1, ("demo", "404"): 1}
    sandbox.misbehave(drop=1)
    with pytest.raises(Unreachable):
        client.products.create(name="Cup", price="1.00")
    CallCounts(redis, "demo").add(799)
    counted = calls_by_status(redis)
    assert (counted["demo", "none"], counted["demo", "other"]) == (1, 1)


def test_a_retry_after_beyond_the_deadline_is_an_error_at_once(sandbox: SandboxRun) -> None:
    sandbox.misbehave(too_many=1, retry_after=600)
    started = time.monotonic()
    with pytest.raises(RateLimited) as caught:
        sandbox.client(timeout=5).products.get(1)
    assert caught.value.retry_after == 600
    assert time.monotonic() - started < 5, "it does not wait for its deadline"


@pytest.mark.parametrize(("asked", "pause"), [(600, 600), (86_400, 3_600)])
def test_a_retry_after_beyond_the_deadline_pauses_the_calls_of_every_process(
    sandbox: SandboxRun, redis: Redis, asked: int, pause: int
) -> None:
    """For an hour at most. A call that cannot wait so long is not sent."""
    first, second = sandbox.client(redis, timeout=5), sandbox.client(redis, timeout=5)
    sandbox.misbehave(too_many=1, retry_after=asked)
    with pytest.raises(RateLimited) as caught:
        first.products.get(1)
    assert caught.value.retry_after == asked
    sandbox.misbehave(too_many=0)
    with pytest.raises(RateLimited) as caught:
        second.products.get(2)
    assert caught.value.retry_after == pytest.approx(pause, abs=5)
    assert statuses(sandbox).count(429) == 1
    assert 200 not in [status for _, _, path, status in sandbox.log() if "products" in path]


def test_a_fault_is_retried_where_that_is_safe(sandbox: SandboxRun) -> None:
    client = sandbox.client()
    sandbox.misbehave(fault=1)
    pending = CallInThread(lambda: client.products.update(1, price="2.00"))
    eventually(lambda: len(statuses(sandbox)) >= 2)
    sandbox.misbehave(fault=0)
    assert str(pending.join().price) == "2.00"


def test_a_fault_is_not_retried_where_the_store_might_do_it_twice(sandbox: SandboxRun) -> None:
    sandbox.misbehave(fault=1)
    with pytest.raises(ServerError) as caught:
        sandbox.client().products.create(name="Mug", price="1.00")
    assert len(statuses(sandbox)) == 1
    assert caught.value.status in (500, 502, 503)
    assert caught.value.request_id.startswith("req-")
    assert "internal error" in caught.value.excerpt
    assert caught.value.operation == "products.create"
    assert caught.value.store == "demo"


def test_retries_of_faults_are_limited(sandbox: SandboxRun) -> None:
    """A call ends after six faults, or earlier when the next pause would pass the deadline."""
    sandbox.misbehave(fault=1)
    started = time.monotonic()
    with pytest.raises(ServerError):
        sandbox.client(timeout=2).products.get(1)
    assert 2 <= len(statuses(sandbox)) <= 6
    assert time.monotonic() - started < 6


@pytest.mark.parametrize(("status", "error"), [("503 Unavailable", ServerError), ("429 Slow Down", RateLimited)])
def test_a_call_is_not_repeated_when_it_has_no_time_for_an_answer(status: str, error: type[StatusError]) -> None:
    """Its timeout would hide what the store has answered."""
    server = RawServer(f"HTTP/1.1 {status}\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".encode())
    with pytest.raises(error) as caught:
        Client(server.url, token="t", allow_private=True, timeout=1.2).products.get(1)
    assert caught.value.retry_after == 1
    assert len([one for one in server.received if one]) == 1
    server.close()


def test_a_dropped_connection_is_retried_only_where_that_is_safe(sandbox: SandboxRun) -> None:
    client = sandbox.client()
    sandbox.misbehave(drop=1)
    with pytest.raises(Unreachable) as caught:
        client.products.create(name="Mug", price="1.00")
    assert caught.value.sent
    # The log has the drop, and a moment later the operation. The client cannot know of it, so it does not retry.
    eventually(lambda: len(sandbox.log()) >= 2)
    assert len(sandbox.log()) == 2
    pending = CallInThread(lambda: client.products.get(1))
    eventually(lambda: len(sandbox.log()) >= 4)
    sandbox.misbehave(drop=0)
    assert pending.join().id == 1


def test_calls_with_one_idempotency_key_are_done_once(sandbox: SandboxRun) -> None:
    client = sandbox.client()
    made = [client.call("products", "create", name="Mug", price="1.00", idempotency_key="k1") for _ in range(3)]
    assert len({one.id for one in made}) == 1
    assert sandbox.status()["products"] == 41


def test_a_refused_connection_is_unreachable_and_not_sent() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", token="t", allow_private=True, timeout=1)
    with pytest.raises(Unreachable) as caught:
        client.products.create(name="Mug", price="1.00")
    assert not caught.value.sent


@pytest.mark.timed
def test_a_slow_response_times_out_at_the_deadline(sandbox: SandboxRun) -> None:
    client = sandbox.client()
    client.products.get(1)
    sandbox.misbehave(slow=1, slow_by="3s")
    started = time.monotonic()
    with pytest.raises(Unreachable, match="timed out"):
        client.call("products", "get", 1, timeout=0.5)
    assert 0.4 < time.monotonic() - started < 2.9, "the response takes 3 s"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200,
        b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + b" " * 500,
    ],
    ids=["headers", "body"],
)
def test_a_response_sent_byte_by_byte_times_out_at_the_deadline(answer: bytes) -> None:
    server = RawServer(answer, pause=0.05)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="timed out"):
        Client(server.url, token="t", allow_private=True, timeout=0.6).products.get(1)
    assert time.monotonic() - started < 10, "the whole response takes 25 s"
    server.close()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("99999999", 366 * 86_400.0),
        ("9" * 5_000, 366 * 86_400.0),
        (None, None),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("\u0663", None),
    ],
)
def test_retry_after_is_parsed_strictly(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now=784111770.0) == 7.0
    assert retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now=784111790.0) == 0.0


@pytest.mark.parametrize("kind", ["shared", "local"])
def test_the_rate_limiter_gives_slots_at_the_rate(redis: Redis, kind: str) -> None:
    limiter = SharedRateLimiter(redis, "demo", 50.0) if kind == "shared" else LocalRateLimiter(50.0)
    start = time.monotonic()

    def next_slot() -> float:
        """The time of the next slot, from the start; the duration of the call itself does not matter."""
        wait = limiter.take_slot(10)
        return wait + time.monotonic() - start

    slots = [next_slot() for _ in range(51)]
    assert slots[4] < slots[5]
    # A busy machine can only delay what is measured: of several slots, the least delayed ones are compared.
    begins = [slot - at / 43.5 for at, slot in enumerate(slots)]
    assert min(begins[28:]) - min(begins[5:28]) == pytest.approx(0, abs=0.1)
    assert slots[50] >= 0.99, "the 51st call is in the next second"
    assert limiter.take_slot(0.01) < 0, "no slot is taken that is later than the longest wait"
    assert next_slot() - slots[50] == pytest.approx(1 / 43.5, abs=0.5)


def busiest_second(sandbox: SandboxRun) -> int:
    """The highest number of requests that the store got in any second."""
    times = sorted(when for when, *_ in sandbox.log())
    return max(sum(start <= when < start + 1 for when in times[at:]) for at, start in enumerate(times))


def call_faulty_store(sandbox: SandboxRun, *, calls: int, rate: int) -> tuple[int, int]:
    """Call a store with 30 % 429s and 10 % 5xx from four processes; return successful calls and the busiest second."""
    config = sandbox.with_config(f'\n[store_defaults]\nrate_limit = "{rate}/s"\n')
    sandbox.misbehave(too_many=0.3, retry_after=0, fault=0.1)
    found = call_at_once(sandbox, processes=4, threads=4, calls=calls // 16, config=config)
    assert [one["errors"] for one in found] == [[]] * 4
    return sum(int(str(one["ok"])) for one in found), busiest_second(sandbox)


@pytest.mark.full
def test_calls_succeed_within_the_rate_limit_across_processes(sandbox: SandboxRun, redis: Redis) -> None:
    ok, busiest = call_faulty_store(sandbox, calls=96, rate=60)
    assert ok == 96
    assert {429, 200} <= set(statuses(sandbox))
    assert busiest <= 60


def test_the_calls_to_all_stores_share_the_overall_rate_limit(sandbox: SandboxRun, redis: Redis) -> None:
    more = f'[stores.two]\nbase_url = "http://127.0.0.1:{sandbox.port}"\nallow_private = true\nauth = {AUTH}\n'
    file = sandbox.with_config(f'{more}signing_secrets = ["{SECRET}"]\n[api]\nrate_limit = "20/s"\n')
    config = config_room.load(file, {})
    clients = [client_for_store(config, store, redis) for store in ("demo", "two")]
    for number in range(12):
        clients[number % 2].products.get(1)
    times = [when for when, *_ in sandbox.log()]
    assert len(times) >= 12, "a call that a busy machine delays is repeated, and has a slot of its own"
    assert times[-1] - times[0] > 0.5, "twelve calls at 20 a second"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_calls_succeed_despite_429s_and_faults(sandbox: SandboxRun, redis: Redis) -> None:
    ok, busiest = call_faulty_store(sandbox, calls=1008, rate=60)
    counted = statuses(sandbox)
    print(
        f"\n{ok} of 1008 calls; {len(counted)} requests, {counted.count(429)} answered 429, "
        f"{sum(one >= 500 for one in counted)} 5xx; busiest second {busiest} at a limit of 60/s"
    )
    assert ok == 1008
    assert busiest <= 60
