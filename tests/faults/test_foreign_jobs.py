"""Other programs that use RQ on the same server: their jobs and workers are theirs, and ours are ours."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry
from rq.results import Result

from receiver.inbox.redis.connecting import socket_path
from receiver.logs import LINES_A_SECOND
from tests.support.harness import Server, System, eventually
from tests.support.proxy import Proxy

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    return "hello"
@router.on("order.created", queue="slow")
def count(event, ctx):
    return "counted"
"""


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    system = make_system(plugin=PLUGIN)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "settled"
    return system


def stock_worker(queue: Queue) -> SimpleWorker:
    return SimpleWorker([queue], connection=queue.connection)


@pytest.mark.parametrize("name", ["default", "slow", "high"])
def test_a_job_of_another_program_stays_in_its_queue_until_its_own_worker_runs_it(shop: System, name: str) -> None:
    theirs = Queue(name, connection=shop.client)
    jobs = [theirs.enqueue(operator.add, 1, number) for number in range(3)]
    for event_id in [shop.deliver() for _ in range(20)]:
        assert shop.settled(event_id) == "settled"
    assert theirs.job_ids == [job.id for job in jobs]
    assert {job.get_status() for job in jobs} == {JobStatus.QUEUED}
    stock_worker(theirs).work(burst=True)
    assert [job.return_value(refresh=True) for job in jobs] == [1, 2, 3]


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def failed_in(queue: Queue) -> list[str]:
    return FailedJobRegistry(queue=queue).get_job_ids(cleanup=False)


@pytest.mark.parametrize("name", ["storehooks", "storehooks:slow"])
def test_a_job_put_on_our_queue_fails_with_a_reason_and_is_not_lost(shop: System, name: str, tmp_path: Path) -> None:
    ours, theirs = Queue(name, connection=shop.client), Queue("reports", connection=shop.client)
    sum_of = ours.enqueue(operator.add, 1, 2, ttl=60, failure_ttl=0)
    wake_me = ours.enqueue(operator.add, 1, 2, job_id="wake-me")
    ours.enqueue(operator.add, Bomb(tmp_path / "pwned"), 2)
    ours.enqueue("os.mkdir", str(tmp_path / "pwned"))
    eventually(lambda: len(failed_in(ours)) == 4, what="four failed jobs in RQ's registry")
    assert shop.settled(shop.deliver()) == "settled"
    assert not (tmp_path / "pwned").exists()

    for job in (sum_of, wake_me):
        fetched = Job.fetch(job.id, connection=shop.client)
        result = fetched.latest_result()
        assert fetched.get_status() == JobStatus.FAILED
        assert isinstance(fetched.ended_at, datetime)
        assert result is not None
        assert result.type == Result.Type.FAILED
        assert f"The RQ queue {name} belongs to storehooks" in str(result.exc_string)
        assert shop.client.ttl(fetched.key) > 3600, "the job outlives its time in the queue"
    lines = [line for line in shop.log("worker").splitlines() if "was put on a queue of storehooks" in line]
    assert [json.loads(line)["queue"] for line in lines] == [name] * 4

    moved = Job.fetch(sum_of.id, connection=shop.client)
    FailedJobRegistry(queue=ours).remove(moved)
    theirs.enqueue_job(moved)
    stock_worker(theirs).work(burst=True)
    assert moved.return_value(refresh=True) == 3


def test_many_jobs_put_on_our_queue_do_not_fill_the_log(shop: System) -> None:
    began = time.monotonic()
    shop.client.rpush("rq:queue:storehooks", *(f"job-{number}" for number in range(300)))
    eventually(lambda: not shop.client.exists("rq:queue:storehooks"), 60)
    assert shop.settled(shop.deliver()) == "settled"
    lines = shop.log("worker").count("was put on a queue of storehooks")
    assert lines <= LINES_A_SECOND * (time.monotonic() - began + 1)


def test_a_job_whose_record_is_broken_is_in_the_failed_registry_too(shop: System) -> None:
    shop.client.hset("rq:job:poison", mapping={"created_at": "not a date", "data": pickle.dumps("junk")})
    shop.client.set("rq:job:text", "not a hash")
    odd = b"\xff\xfe|\r\n"
    shop.client.hset(b"rq:job:" + odd, "data", "x")
    shop.client.rpush("rq:queue:storehooks", "poison", "text", "without-a-record", "", odd)
    assert shop.settled(shop.deliver()) == "settled"
    failed = {b"poison", b"text", odd}
    eventually(lambda: set(shop.client.zrange("rq:failed:storehooks", 0, -1)) == failed, what=f"{failed} failed")
    assert shop.client.hget("rq:job:poison", "status") == b"failed"
    result = Result.fetch_latest(Job("poison", connection=shop.client))
    assert result is not None
    assert "belongs to storehooks" in str(result.exc_string)
    assert shop.client.get("rq:job:text") == b"not a hash"
    assert shop.settled(shop.deliver()) == "settled"


def test_a_job_is_not_lost_if_it_cannot_be_recorded(shop: System) -> None:
    """Up to 100 jobs were taken from the list before the first of them was recorded."""
    shop.client.set("rq:failed:storehooks", "damaged")
    shop.client.hset("rq:job:one", "data", "x")
    shop.client.rpush("rq:queue:storehooks", "one")
    intermediate = "rq:queue:storehooks:intermediate"
    eventually(lambda: shop.client.lrange(intermediate, 0, -1) == [b"one"], what="it is taken")
    eventually(lambda: "WRONGTYPE" in shop.log("worker"), what="recording it fails")
    assert shop.client.lrange(intermediate, 0, -1) == [b"one"]
    shop.client.delete("rq:failed:storehooks")
    eventually(lambda: shop.client.zrange("rq:failed:storehooks", 0, -1) == [b"one"], 15)


def test_a_job_is_not_lost_if_the_server_goes_away_before_it_is_recorded(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    system = make_system(url=proxy.url, plugin=PLUGIN)
    system.start("worker", quicker={"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.5})
    ours = Queue("storehooks", connection=own_redis.client)

    def kill_the_server() -> bool:
        own_redis.kill()
        return True

    eventually(lambda: own_redis.client.info("clients")["blocked_clients"] == 2, what="the worker waits for wake-ups")
    proxy.at_reply(b"rq:queue:storehooks\r\n", kill_the_server)
    first = ours.enqueue(operator.add, 1, 2)  # taken by a BLMOVE that was sent before
    eventually(lambda: failed_in(ours) == [first.id])
    second = ours.create_job(operator.add, (1, 2))
    with contextlib.suppress(RedisError):  # the server is killed while it answers
        ours.enqueue_job(second)
    assert proxy.fired.wait(10)
    own_redis.start()
    assert ours.job_ids == []
    eventually(lambda: set(failed_in(ours)) == {first.id, second.id})
    system.close()
    proxy.close()


@pytest.mark.parametrize("name", ["storehooks", "storehooks:slow"])
def test_a_job_is_not_lost_if_the_worker_that_takes_it_is_killed(
    make_system: Callable[..., System], own_redis: Server, name: str
) -> None:
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    system = make_system(url=proxy.url, plugin=PLUGIN)
    (worker,) = system.start("worker")
    ours = Queue(name, connection=own_redis.client)

    def kill_the_worker() -> bool:
        worker.kill()
        return False

    eventually(lambda: own_redis.client.info("clients")["blocked_clients"] == 2, what="the worker waits for wake-ups")
    proxy.at_reply(f"rq:queue:{name}\r\n".encode(), kill_the_worker)
    job = None
    while not proxy.fired.wait(0.1):  # the wait that is under way was sent before; the next one is noticed
        job = ours.enqueue(operator.add, 1, 2)
    assert job is not None
    eventually(lambda: ours.job_ids == [], what="the job was taken")
    assert failed_in(ours) != [job.id]
    system.start("worker")
    eventually(lambda: job.id in failed_in(ours), what="the job in RQ's registry of failed jobs")
    assert Job.fetch(job.id, connection=own_redis.client).get_status() == JobStatus.FAILED
    system.close()
    proxy.close()


def test_a_worker_of_another_program_does_not_count_as_ours(system: System) -> None:
    theirs = stock_worker(Queue("default", connection=system.client))
    theirs.register_birth()
    theirs.heartbeat()
    output = system.run_cli("doctor").stdout
    assert "no worker is running" in output


@pytest.mark.parametrize("name", ["storehooks", "storehooks:slow"])
def test_a_worker_of_another_program_on_our_queue_is_reported_and_does_not_count(
    make_system: Callable[..., System], name: str
) -> None:
    system = make_system(plugin=PLUGIN)
    (worker,) = system.start("worker")
    eventually(lambda: system.client.hget("sh:lanes", "shop.count"), what="the worker has declared its handlers")
    theirs = stock_worker(Queue(name, connection=system.client))
    theirs.register_birth()
    output = system.run_cli("doctor").stdout
    assert f"1 RQ worker of another program listens on queues of storehooks: {theirs.name}" in output
    assert "1 running on 1 host" in output
    worker.stop()
    assert "no worker is running" in system.run_cli("doctor").stdout


OFTEN = {"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.1}


def test_killed_workers_of_ours_leave_rqs_lists_and_those_of_others_stay(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    for queue in ("storehooks", "storehooks:slow", "default"):
        for name in range(50):
            for registry in ("rq:workers", f"rq:workers:{queue}"):
                system.client.sadd(registry, f"rq:worker:{queue}-{name}")
    (worker,) = system.start("worker", quicker=OFTEN)
    eventually(lambda: system.client.scard("rq:workers") == 51, what="50 dead workers of another program, and ours")
    (ours,) = system.client.smembers("rq:workers:storehooks")
    assert f"-{worker.pid}-".encode() in ours
    eventually(lambda: system.client.smembers("rq:workers:storehooks:slow") == {ours})
    assert system.client.scard("rq:workers:default") == 50
    system.client.delete("rq:queues")
    ours = {b"rq:queue:storehooks", b"rq:queue:storehooks:slow"}
    eventually(lambda: system.client.smembers("rq:queues") == ours, what="RQ's tools see the queues again")


def test_doctor_knows_a_workers_queues_after_the_server_was_away_for_long(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    system.start("worker", "housekeeper", quicker=OFTEN)
    (key,) = eventually(lambda: system.client.smembers("rq:workers:storehooks"))
    system.client.delete(key, "rq:workers", "rq:workers:storehooks")  # as after 20 s without a heartbeat
    eventually(lambda: system.client.exists(key))
    assert system.client.hget(key, "queues") == b"storehooks,storehooks:slow"
    assert key in system.client.smembers("rq:workers")
    output = system.run_cli("doctor").stdout
    assert "1 running on 1 host" in output
    assert "no worker serves" not in output


def test_a_reload_changes_the_queues_that_rq_and_doctor_show(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    worker, _ = system.start("worker", "housekeeper")
    (key,) = eventually(lambda: system.client.smembers("rq:workers:storehooks:slow"))
    system.plugin.write_text(PLUGIN.replace('"slow"', '"patient"'))
    worker.send(signal.SIGHUP)
    eventually(lambda: system.client.smembers("rq:workers:storehooks:patient") == {key})
    assert not system.client.exists("rq:workers:storehooks:slow")
    assert "no worker serves" not in system.run_cli("doctor").stdout
