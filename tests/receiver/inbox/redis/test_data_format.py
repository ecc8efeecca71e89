"""Data of another format is refused with a sentence, and a running receiver stores nothing among it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from receiver.inbox import keys
from receiver.inbox.redis.data_format import FORMAT, format_fault
from tests.receiver.spool.test_spool import spooled
from tests.support.harness import Server, System, eventually

NEWER = str(FORMAT + 1)


def test_the_first_process_writes_the_format_and_commands_only_read_it(system: System) -> None:
    assert system.run_cli("stats").returncode == 0
    assert system.client.get(keys.FORMAT) is None
    system.start("web")
    assert system.client.get(keys.FORMAT) == str(FORMAT).encode()
    assert system.run_cli("stats").returncode == 0


@pytest.mark.parametrize("name", ["web", "worker"])
def test_no_process_starts_on_data_of_a_newer_version(system: System, name: str) -> None:
    system.client.set(keys.FORMAT, NEWER)
    refused = system.refuse_to_start(name)
    assert refused.returncode == 2
    assert f"has format {NEWER}, written by a newer version of storehooks" in refused.stderr
    assert f"this version reads format {FORMAT}; upgrade storehooks on this host" in refused.stderr


@pytest.mark.parametrize(
    "command",
    [["stats"], ["events"], ["topics"], ["failures"], ["stores"], ["events", "replay", "--topic", "*", "--yes"]],
    ids=" ".join,
)
def test_every_command_that_opens_the_inbox_refuses_it(system: System, command: list[str]) -> None:
    system.client.set(keys.FORMAT, NEWER)
    refused = system.run_cli(*command)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"has format {NEWER}" in refused.stderr


def test_the_doctor_says_so(system: System) -> None:
    system.client.set(keys.FORMAT, NEWER)
    report = json.loads(system.run_cli("doctor", "--json").stdout)
    (found,) = [one for one in report["findings"] if one["check"] == "server"]
    assert f"has format {NEWER}" in found["text"]
    assert found["fix"].startswith("upgrade storehooks on this host")


def test_data_from_before_formats_had_numbers_is_refused(system: System) -> None:
    """Its index was in milliseconds: its events would count as older than every retention."""
    system.client.zadd(keys.INDEX, {system.accept(): 1_700_000_000_000})
    refused = system.refuse_to_start("web")
    assert (refused.returncode, "has format 0" in refused.stderr) == (2, True)
    assert "empty that database" in refused.stderr
    assert system.client.get(keys.FORMAT) is None


@pytest.mark.parametrize("damage", ["list", "text"])
def test_a_format_that_is_no_number_is_refused(system: System, damage: str) -> None:
    if damage == "list":
        system.client.rpush(keys.FORMAT, "1")
    else:
        system.client.set(keys.FORMAT, "x")
    fault = format_fault(system.client, write=True)
    assert fault is not None
    assert f"has an unknown format, because the key {keys.FORMAT} is not a number" in str(fault.error)
    refused = system.refuse_to_start("web")
    assert (refused.returncode, "has an unknown format" in refused.stderr) == (2, True)


def test_data_of_this_version_is_accepted_even_if_its_number_is_lost(system: System) -> None:
    system.accept()
    assert format_fault(system.client, write=True) is None
    assert system.client.get(keys.FORMAT) == str(FORMAT).encode()


def test_a_receiver_spools_while_the_server_has_data_of_a_newer_version(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """It starts without Redis, which then comes back as another version left it; in the end it is replaced."""
    own_redis.client.set(keys.FORMAT, NEWER)
    own_redis.client.config_set("appendonly", "yes")
    own_redis.client.save()
    own_redis.kill()
    system = make_system(url=own_redis.url)
    system.start("web")
    ids = [system.deliver()]
    own_redis.start()
    assert own_redis.client.get(keys.FORMAT) == NEWER.encode()
    eventually(lambda: f"has format {NEWER}" in system.log("web"), what="the log says why nothing is drained")
    ids.append(system.deliver())
    assert system.http.get("/readyz").json()["stores_in"] == "spool"
    assert (spooled(system), own_redis.client.exists(keys.INDEX)) == (2, 0)
    own_redis.client.delete(keys.FORMAT)
    eventually(lambda: spooled(system) == 0)
    assert {one.id for one in system.ledger.events()} == set(ids)
    assert own_redis.client.get(keys.FORMAT) == str(FORMAT).encode()


@pytest.mark.parametrize("value", [NEWER, "x"])
def test_a_running_worker_and_housekeeper_leave_data_of_a_newer_version_alone(
    make_system: Callable[..., System], value: str
) -> None:
    """They worked on it as if it were their own."""
    plugin = "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    pass\n"
    system = make_system(plugin=plugin)
    quicker = {"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.3, "workers.runtime.server_outage.QUIET_SECONDS": 1.0}
    system.start("worker", "housekeeper", quicker=quicker)
    assert system.settled(system.accept()) == "settled"
    system.client.set(keys.FORMAT, value)
    for name in ("worker", "housekeeper"):
        eventually(lambda name=name: f"has format {value}" in system.log(name), what=f"the {name} says so")
    system.client.delete(keys.LEADER)
    event_id = system.accept()
    before = {key: system.client.dump(key) for key in system.client.keys("sh:*")}
    declared = system.log("worker").count("\n")
    with pytest.raises(AssertionError):
        eventually(lambda: system.status(event_id) != "open", within=1.5)
    assert {key: system.client.dump(key) for key in system.client.keys("sh:*")} == before
    assert system.log("worker").count("\n") == declared, "it says so once"
    system.client.set(keys.FORMAT, FORMAT)
    assert system.settled(event_id) == "settled"
    for name in ("worker", "housekeeper"):
        eventually(lambda name=name: "no longer refuses" in system.log(name), 20, what=f"the {name} says that it works")


def test_a_version_that_reads_two_formats_works_on_both_and_does_not_raise_the_number(
    make_system: Callable[..., System],
) -> None:
    """So it can run beside the version before it, and an upgrade can be undone."""
    plugin = "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    pass\n"
    system = make_system(plugin=plugin)
    system.client.set(keys.FORMAT, FORMAT)
    next_version = {"receiver.inbox.redis.data_format.FORMAT": FORMAT + 1}
    system.start("web", "worker", "housekeeper", quicker=next_version)
    assert system.settled(system.deliver()) == "settled"
    assert system.client.get(keys.FORMAT) == str(FORMAT).encode()
    system.client.set(keys.FORMAT, NEWER)
    assert system.settled(system.deliver()) == "settled"
    assert "has format" in system.refuse_to_start("worker").stderr, "the older one"
