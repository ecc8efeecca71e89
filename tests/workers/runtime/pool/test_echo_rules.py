"""Which runs are judged, and which writes are noted, in a child process. With a real server, without a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from redis import Redis

from receiver.config import Config
from receiver.inbox import Run, connect, keys
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import Ending
from tests.support.harness import System, free_port
from tests.workers.runtime.pool.test_echo_interleavings import ACCEPT, set_label, with_api
from workers.plugins.router import Handler
from workers.runtime.pool.echoes import Echoes
from workers.storeapi.writes import Write

MUG: dict[str, Any] = {"id": 7, "name": "Mug", "price": 4.50}
BLUE = {**MUG, "name": "Blue mug"}
HANDLERS = [Handler("shop.name", set_label, ("product.*",)), Handler("audit.note", set_label, ("order.*",))]


@pytest.fixture
def config(system: System) -> Config:
    return with_api(system.config)


class ChildProcess:
    def __init__(self, config: Config, redis: Redis) -> None:
        self.redis, self.count = redis, 0
        self.echoes = Echoes(config, redis, HANDLERS)

    def run(self, data: Any, *, handler: str = "shop.name", source: bytes = b"webhook", body: bytes = b"") -> Run:
        """A run of an event that arrives now."""
        self.count += 1
        name = f"event{self.count}"
        self.redis.eval(ACCEPT, 1, keys.INDEX, name)
        values = (b"north", b"product.updated", b"d", b"7", b"0", b"", source, b"data")
        stored = StoredEvent(name, values, b"{}\n" + (body or orjson.dumps({"data": data})))
        return Run(f"{name}|{handler}", handler, "token", 0, 0, stored)

    def judge(self, run: Run) -> Any:
        self.echoes.examine([run])
        return self.echoes.judge(run, run.event)

    def write(self, shown: Any, kind: str = "product", **sent: Any) -> None:
        with self.echoes.watch(kind, "7") as answered:
            answered(iter([Write(kind, "7", "updated", shown, sent)]))


@pytest.fixture
def child(config: Config, redis: Redis) -> ChildProcess:
    made = ChildProcess(config, redis)
    assert made.judge(made.run(MUG)) is None
    made.write(BLUE, name="Blue mug")
    return made


def test_the_echo_of_a_write_is_dropped_with_its_writer(child: ChildProcess) -> None:
    result = child.judge(child.run({**BLUE, "updated_at": 5}))
    assert result.ending is Ending.DROPPED
    assert result.detail == {"reason": "echo", "result": "echo of a write by shop.name, in its run of event event1"}


def test_another_plugin_gets_the_event(child: ChildProcess) -> None:
    assert child.judge(child.run(BLUE, handler="audit.note")) is None


@pytest.mark.parametrize("change", [{"attempts": 1}, {"replays": 1}])
def test_a_retry_and_a_replay_are_run(child: ChildProcess, change: dict[str, int]) -> None:
    assert child.judge(replace(child.run(BLUE), **change)) is None


def test_an_event_that_the_store_did_not_send_is_run(child: ChildProcess) -> None:
    assert child.judge(child.run(BLUE, source=b"release")) is None


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[1]", b'{"data": 1e999999999999999999999}', b'{"data":' + b"[" * 99_999]
)
def test_an_event_that_cannot_be_read_is_run(child: ChildProcess, body: bytes) -> None:
    assert child.judge(child.run(None, body=body)) is None


def test_a_write_to_what_the_plugin_does_not_listen_to_is_not_remembered(child: ChildProcess, redis: Redis) -> None:
    before = redis.keys(f"{keys.WRITTEN}*")
    child.write({"id": 7, "note": "x"}, "order", note="x")
    assert redis.keys(f"{keys.WRITTEN}*") == before


def test_a_write_that_fails_is_a_write_that_events_may_follow(config: Config, redis: Redis) -> None:
    child = ChildProcess(config, redis)
    child.judge(child.run(MUG))
    with pytest.raises(OSError, match="cut off"), child.echoes.watch("product", "7"):
        raise OSError("cut off")
    assert child.judge(child.run(BLUE)) is None, "it neither waits for the answer nor is it an echo"


def test_an_edit_between_a_write_without_an_answer_and_its_retry_is_run(config: Config, redis: Redis) -> None:
    """The retry changes nothing, so that a store may send only the event of the edit."""
    child = ChildProcess(config, redis)
    child.judge(child.run(MUG))
    with pytest.raises(OSError, match="cut off"), child.echoes.watch("product", "7"):
        raise OSError("cut off")
    edited = {**BLUE, "price": 9}
    child.write(edited, name="Blue mug")
    assert child.judge(child.run(edited)) is None


def test_an_edit_that_restores_what_the_plugin_wrote_is_run_although_a_write_was_not_shown(child: ChildProcess) -> None:
    child.write(None, stock=3)  # such as products.set_inventory
    assert child.judge(child.run({**BLUE, "price": 9})) is None
    assert child.judge(child.run(BLUE)) is None


def test_every_key_of_own_writes_expires(child: ChildProcess, redis: Redis) -> None:
    for number in range(12):
        child.write({**BLUE, "price": number}, price=number)
        child.judge(child.run({**BLUE, "price": -number}))
    names = {keys.WRITTEN + "shop|north|product|7", keys.PREFIX + "writes", keys.LOOPS}
    assert {name for name in names if redis.ttl(name) > 0} == names


@pytest.fixture
def unreachable() -> Iterator[Redis]:
    client = connect(f"redis://127.0.0.1:{free_port()}", timeout=0.2)
    yield client
    client.close()


def test_without_redis_writes_are_made_and_events_are_run(config: Config, unreachable: Redis, redis: Redis) -> None:
    child = ChildProcess(config, redis)
    child.echoes = Echoes(config, unreachable, HANDLERS)
    assert child.judge(child.run(MUG)) is None
    child.write(BLUE, name="Blue mug")
    assert child.judge(child.run(BLUE)) is None


def test_redis_is_not_asked_about_a_store_without_an_api(system: System, config: Config, redis: Redis) -> None:
    def questions(of: Config) -> int:
        child = ChildProcess(of, redis)
        redis.config_resetstat()
        child.judge(child.run(MUG))
        return int(redis.info("commandstats").get("cmdstat_exists", {"calls": 0})["calls"])

    assert questions(config) == 1
    assert questions(system.config) == 0


def test_an_edit_beside_a_write_without_effect_is_run_although_redacted_fields_differ(
    config: Config, redis: Redis
) -> None:
    """The answer has the address, the event has none: that is no effect of the write."""
    redacted = config.model_copy(update={"redact": config.redact.model_copy(update={"paths": ("maker.email",)})})
    child = ChildProcess(redacted, redis)
    before = {**MUG, "maker": {"name": "Ann", "email": None}, "note": "a"}
    edited = {**before, "note": "b"}
    assert child.judge(child.run(before)) is None
    child.write({**edited, "maker": {"name": "Ann", "email": "ann@example.com"}}, maker={"name": "Ann"})
    assert child.judge(child.run(edited)) is None, "a person has changed the note"
