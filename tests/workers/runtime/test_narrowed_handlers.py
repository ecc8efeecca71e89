"""A handler that is given fewer topics or stores gets no other events from then on, and every command says the same."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from receiver.config import load
from receiver.inbox import Declaration, keys
from tests.support.harness import Process, System, eventually
from workers.runtime.worker.worker import place_of

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("*")
def note(event, ctx):
    return "noted"
"""
NARROWER = PLUGIN.replace('"*"', '"order.*"')
NOTE = "shop.note"


def reload(system: System, *workers: Process) -> None:
    before = system.log("worker").count('"reloaded"')
    for worker in workers:
        worker.send(signal.SIGHUP)
    eventually(lambda: system.log("worker").count('"reloaded"') == before + len(workers))


def handled(system: System, topic: str, store: str = "north") -> bool:
    """Whether an event that is sent now is handled."""
    event_id = system.deliver(topic, store=store)
    assert system.settled(event_id) == "settled"
    return system.run_of(event_id, NOTE) is not None


def test_fewer_topics_count_once_every_worker_has_reloaded(make_system: Callable[..., System]) -> None:
    """For 15 minutes the handler got events that only its old version wanted, and handled them with the new one."""
    system = make_system(plugin=PLUGIN)
    system.start("web", "housekeeper")
    workers = system.start("worker", "worker")
    eventually(lambda: system.log("worker").count('"worker started"') == 2)
    system.client.set(keys.DECLARED_SINCE, 1)
    assert handled(system, "product.updated")
    system.plugin.write_text(NARROWER)
    reload(system, workers[0])
    assert handled(system, "product.updated"), "the other worker has the old version, which wants it"
    reload(system, workers[1])
    assert not handled(system, "product.updated")
    assert handled(system, "order.created")
    last = system.deliver("product.updated")
    system.settled(last)
    (told,) = json.loads(system.run_cli("handlers", "explain", last, "--json").stdout)
    assert (told["reason"], told["why"]) == ("topic", "it listens to order.*, not product.updated")
    sent = {row["theirs"]: row["handlers"] for row in json.loads(system.run_cli("topics", "--json").stdout)}
    assert sent == {"product.updated": [], "order.created": [NOTE]}


def test_fewer_stores_count_after_a_reload_and_stay_so_after_a_restart(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    system.start("web", "housekeeper")
    (worker,) = system.start("worker")
    assert handled(system, "order.created", "south")
    system.client.set(keys.DECLARED_SINCE, 1)
    system.config_file.write_text(system.config_file.read_text() + '[plugins.shop]\nstores = ["north"]\n')
    reload(system, worker)
    assert not handled(system, "order.created", "south")
    worker.send(signal.SIGTERM)
    worker.wait()
    age_declarations(system, 120)
    system.start("worker")
    assert not handled(system, "order.created", "south")
    assert handled(system, "order.created", "north")


def test_fewer_topics_count_soon_after_a_restart(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    system.start("web", "housekeeper")
    (worker,) = system.start("worker")
    assert handled(system, "product.updated")
    system.client.set(keys.DECLARED_SINCE, 1)
    worker.send(signal.SIGTERM)
    worker.wait()
    system.plugin.write_text(NARROWER)
    age_declarations(system, 120)
    quicker = {"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.2, "receiver.inbox.inbox.WORKER_SILENT_MS": 1000}
    system.start("worker", quicker=quicker)
    eventually(lambda: topics(system) == {"order.*"}, 10, what="the old version has ended")
    assert not handled(system, "product.updated")
    assert handled(system, "order.created")


# The rule itself, with workers that this test plays


def wants(*topics: str, version: str = "1", handler: str = NOTE) -> list[Declaration]:
    return [Declaration(handler, version, topics, ("*",))]


def topics(system: System) -> set[str]:
    """The topics that events are routed by."""
    return {topic for one in system.inbox.declarations().handlers for topic in one.topics}


def age_declarations(system: System, seconds: float, workers: Collection[str] | None = None) -> None:
    """As if this time had passed since the declarations of these workers, or of all."""
    for worker, value in system.client.hgetall(keys.DECLARED_BY).items():
        at, rest = value.split(b" ", 1)
        if workers is None or worker.decode() in workers:
            system.client.hset(keys.DECLARED_BY, worker, b"%d %s" % (int(at) - seconds * 1000, rest))
    for name, at in system.client.hgetall(keys.DECLARED_AT).items() if workers is None else ():
        system.client.hset(keys.DECLARED_AT, name, int(int(at) - seconds * 1000))


def record_of(system: System, worker: str, *, since: float) -> tuple[int, int, bytes]:
    """What is recorded of a worker, as if it had declared since then."""
    times, names = (system.client.hget(keys.DECLARED_BY, worker) or b"").split(b"\n", 1)
    last, first = map(int, times.split())
    return last, int(first + since * 1000), names


def test_each_change_of_what_is_wanted_is_a_new_version(system: System) -> None:
    """A worker that routes by an old one is told to read them again."""
    first = system.inbox.declare(wants("order.*", "product.*"), worker="one")
    second = system.inbox.declare(wants("order.*"), worker="one")
    assert topics(system) == {"order.*"}
    third = system.inbox.declare(wants("order.*", "product.*"), worker="one")
    assert topics(system) == {"order.*", "product.*"}
    assert len({first, second, third}) == 3
    assert system.inbox.declare(wants("order.*", "product.*"), worker="one") == third


def test_a_declaration_ends_when_its_last_worker_is_silent_and_has_a_successor(system: System) -> None:
    system.inbox.declare(wants("product.*"), worker="old|here")
    version = system.inbox.declare(wants("order.*", version="2"), worker="new|here")
    age_declarations(system, 10, ["old|here"])
    system.inbox.declare(wants("order.*", version="2"), worker="new|here")
    assert topics(system) == {"product.*", "order.*"}
    age_declarations(system, 10, ["old|here"])
    assert system.inbox.declare(wants("order.*", version="2"), worker="new|here") != version
    assert topics(system) == {"order.*"}


def test_a_worker_that_declared_beside_another_is_no_successor_of_it(system: System) -> None:
    """Two services on one host may have one config, and differ by their environment."""
    for worker, topic in (("one|here", "order.*"), ("other|here", "product.*")) * 2:
        system.inbox.declare(wants(topic), worker=worker)
    age_declarations(system, 60, ["one|here"])
    system.client.hset(keys.DECLARED_BY, "one|here", b"%d %d\n%s" % record_of(system, "one|here", since=-120))
    system.client.hset(keys.DECLARED_BY, "other|here", b"%d %d\n%s" % record_of(system, "other|here", since=-120))
    system.inbox.declare(wants("product.*"), worker="other|here")
    assert topics(system) == {"product.*", "order.*"}


def test_services_that_differ_by_their_environment_have_places_of_their_own(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {place_of(system.config)}
    for stores in ("north", "south"):
        monkeypatch.setenv("STOREHOOKS_PLUGINS__SHOP__STORES", f'["{stores}"]')
        places.add(place_of(system.config))
    assert len(places) == 3
    here = place_of(system.config)
    monkeypatch.chdir(system.config_file.parent)
    assert place_of(load(Path(system.config_file.name), {})) == here, "however its path is written"


def test_what_only_an_absent_worker_wants_counts_for_as_long_as_its_declaration(system: System) -> None:
    """Its host reboots, or is cut off: no other worker took its place, and its events must not be settled unhandled."""
    system.inbox.declare(wants("product.*"), worker="absent|there")
    for seconds in (20, 860):
        age_declarations(system, seconds, ["absent|there"])
        system.inbox.declare(wants("order.*"), worker="one|here")
        assert topics(system) == {"product.*", "order.*"}
    age_declarations(system, 60, ["absent|there"])
    system.inbox.declare(wants("order.*"), worker="one|here")
    assert topics(system) == {"order.*"}


def test_a_handler_that_only_the_silent_worker_had_stays(system: System) -> None:
    system.inbox.declare([*wants("product.*"), *wants("customer.*", handler="shop.other")], worker="old|here")
    age_declarations(system, 60, ["old|here"])
    system.inbox.declare(wants("order.*"), worker="new|here")
    assert topics(system) == {"order.*", "customer.*"}


@pytest.mark.parametrize("seconds", [8, 30, 3600])
def test_the_first_worker_after_a_stop_of_all_keeps_what_the_others_want(system: System, seconds: int) -> None:
    """Two hosts have two configs, or are amid an upgrade. The second one starts a few seconds after the first."""
    system.inbox.declare(wants("customer.*"), worker="reloaded|there")
    for worker, topic in (("reloaded|there", "product.*"), ("one|here", "order.*")):
        system.inbox.declare(wants(topic), worker=worker)
    age_declarations(system, seconds)
    for _ in range(2):
        system.inbox.declare(wants("order.*"), worker="one again|here")
        assert topics(system) == {"product.*", "order.*"}
        age_declarations(system, 6)
    age_declarations(system, 15, ["reloaded|there"])
    system.inbox.declare(wants("order.*"), worker="reloaded again|there")
    assert topics(system) == {"order.*"}


def test_after_an_emptied_server_what_other_workers_want_stays_until_they_return(system: System) -> None:
    system.inbox.declare(wants("product.*"), worker="other")
    system.inbox.declare(wants("order.*"), worker="one")
    known = system.inbox.declarations()
    system.client.delete(keys.DECLARATIONS, keys.DECLARED_AT, keys.DECLARED_BY, keys.DECLARATIONS_VERSION)
    for _ in range(2):
        system.inbox.declare(wants("order.*"), worker="one", known=known)
        assert topics(system) == {"product.*", "order.*"}


@pytest.mark.parametrize(
    "value", ["", "yesterday", "yesterday 1\nshop.note@1#x", f"{'9' * 30} {'9' * 30}\nshop.note@1#x"]
)
def test_a_damaged_record_of_a_worker_is_no_obstacle(system: System, value: str) -> None:
    system.inbox.declare(wants("order.*"), worker="one")
    system.client.hset(keys.DECLARED_BY, "other", value)
    system.inbox.declare(wants("order.*"), worker="one")
    assert topics(system) == {"order.*"}
