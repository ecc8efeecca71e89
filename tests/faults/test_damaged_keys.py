"""Damaged keys: one key of another type, or with a field that is no number, ends no command and is named by doctor."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
from redis import Redis

from receiver.inbox import Declaration, Outcome, keys
from receiver.inbox.queries.damage import PartialReader
from receiver.inbox.rq_records import register_worker
from tests.support.harness import System, own_server
from workers.cli import main
from workers.operations.doctor import local_facts
from workers.operations.doctor.findings import Finding
from workers.operations.doctor.worker_checks import check_keys

GREET = "shop.greet"
WORKER = "host-1-1"
PLUGIN = "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    pass\n"
ROWS = re.findall(r"^    (\S[^\n]*?) +(hash|zset|set|string|list)  ", keys.PAGE, re.M)
"""The names and the type of each row in the page of all keys."""
OF_RQ = {
    f"rq:worker:{WORKER}": "hash",
    "rq:workers": "set",
    "rq:workers:storehooks": "set",
    "rq:queue:storehooks": "list",
    "rq:queues": "set",
    "rq:job:wake-default": "hash",
}
OF_ONE_EVENT = (
    *("e:", "b:", "d:", "same:", "spool_counted:", "replay:", "o:", "st:", "plugin_fault:", "sub:lock:", "queued:"),
    *("kept:", "session:", "link:", "login:", "wait:"),
    *("runs:", "runs_counted:", "bulk:"),
)
"""Keys of one event, delivery, order key, process, login or bulk action, which doctor does not search for."""
Run = Callable[[str], tuple[object, str, str]]
COMMANDS = (
    "stats",
    "topics",
    "events",
    "events show {event}",
    "failures",
    "failures actions",
    "failures show {group}",
    "handlers",
    "handlers explain {event}",
    "hosts",
    "stores",
    "stores show north",
    "subscriptions",
)


EVERY_COMMAND = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)])


def commands_for(name: str, every: bool) -> Sequence[str]:
    """Three of the commands, others for the next name; or all of them."""
    first = [one for one, _ in names()].index(name)
    return COMMANDS if every else [COMMANDS[(first + step) % len(COMMANDS)] for step in (0, 4, 8)]


@dataclass
class Filled:
    """A system that has some of everything, and the names that fill the places of the keys."""

    system: System
    places: dict[str, str]

    def key(self, name: str) -> str:
        return name if name.startswith("rq:") else keys.PREFIX + name.format(**self.places)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, plugin=PLUGIN)
        (system.folder / "data").mkdir(mode=0o700)
        yield Filled(system, fill(system))
        system.close()


def fill(system: System) -> dict[str, str]:
    inbox = system.inbox
    inbox.declare([Declaration(GREET, "1", ("*",), ("*",), "default", {"plugin": "shop"})])
    for _ in range(5):
        system.accept()
    events = inbox.claim({"": 9}, capacity=9).runs
    inbox.route([(one, [(GREET, "default", False)]) for one in events], inbox.declarations().version)
    done, failed, retried, *_ = inbox.claim({GREET: 4}, capacity=4).runs
    problem = {"error": "E", "version": "1"}
    inbox.finish([Outcome(done, "done"), Outcome(failed, "failed", problem), Outcome(retried, "retry", problem, 600)])
    inbox.publish_spool("other:/data", 3, 1.0)
    fields = {"queues": "storehooks", "last_heartbeat": "2026-11-15T01:41:26.000000Z"}
    register_worker(system.client, WORKER, ["default"], fields)
    system.client.persist(f"rq:worker:{WORKER}")
    system.administration.pause(store="south")
    system.client.hset(keys.LIMITS, GREET, "erp")
    (group,) = system.client.zrange(keys.GROUPS, 0, 0)
    return {
        "id": failed.stored.id, "event": failed.stored.id, "store": "north", "lane": GREET, "handler": GREET,
        "group": group.decode(), "limit": "erp", "plugin": "shop", "worker": WORKER, "name": "all", "token": "t",
        "subject": "s", "m": "m", "span": "1", "day": "2026-11-16", "kind": "order", "mark": "m",
        "key": "north:order:1",
        "action": "a1f3",
    }  # fmt: skip


def names() -> list[tuple[str, str]]:
    return [(name, kind) for row, kind in ROWS for name in row.split(", ")] + list(OF_RQ.items())


@contextmanager
def damaged(filled: Filled, key: str, damage: Callable[[Redis], object]) -> Iterator[None]:
    """The key is damaged meanwhile."""
    client = filled.system.client
    before = client.dump(key)
    damage(client)
    try:
        yield
    finally:
        client.delete(key)
        if before:
            client.restore(key, 0, before)


def change_type(key: str, kind: str, client: Redis) -> None:
    client.delete(key)
    client.rpush(key, "damaged") if kind == "string" else client.set(key, "damaged")


@pytest.fixture
def run(filled: Filled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, as its script does. Returns its exit code, and its output."""
    monkeypatch.setattr(local_facts, "HOUSEKEEPER_SECONDS", 0.0)

    def run(command: str) -> tuple[object, str, str]:
        words = command.format(**filled.places).split()
        monkeypatch.setattr(sys, "argv", ["storehooks", *words, "--config", str(filled.system.config_file)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err, (command, said.err)
        assert "the Redis server" not in said.err, (command, said.err)
        assert ended.value.code in (0, 1, 2), command
        return ended.value.code, said.out, said.err

    return run


def findings(filled: Filled) -> list[Finding]:
    """What doctor finds about the keys, without the time it takes to try stores and plugins."""
    client = local_facts.client_for(filled.system.config)
    assert local_facts.server_facts(client).fault is None
    inbox = local_facts.inbox_facts(PartialReader(client), filled.system.config)
    client.close()
    return list(check_keys(SimpleNamespace(inbox=inbox)))  # type: ignore[arg-type]


@EVERY_COMMAND
@pytest.mark.parametrize(("name", "kind"), [one for one in names() if one[0] != "format"])
def test_a_key_of_another_type_ends_no_command_and_is_named(
    filled: Filled, run: Run, name: str, kind: str, every: bool
) -> None:
    """Commands ended with the server's error, and doctor said that the server does not answer."""
    key = filled.key(name)
    with damaged(filled, key, partial(change_type, key, kind)):
        for command in commands_for(name, every):
            code, _, err = run(f"{command} --json" if " " not in command else command)
            expected = f"{key} is damaged" in err or f"the record of event {filled.places['id']} is damaged" in err
            assert bool(code) == expected, (command, code, err)
        found = findings(filled)
    if name.startswith(OF_ONE_EVENT):
        return
    (finding,) = found
    actual = "list" if kind == "string" else "string"
    assert finding.text == f"the key {key} is damaged: it is a {actual} and should be a {kind}"
    assert f"redis-cli RENAME {key} damaged:{key}" in finding.fix
    assert "without it" in finding.more[0]


@pytest.mark.parametrize("name", ["n", "t:{store}"])
def test_a_number_that_is_none_is_left_out_and_named(filled: Filled, run: Run, name: str) -> None:
    """`stats`, `topics` and `doctor` ended with a traceback."""
    key, field = filled.key(name), "accepted|north" if name == "n" else "l:order.created"
    with damaged(filled, key, lambda client: client.hset(key, field, "many")):
        code, out, err = run("stats" if name == "n" else "topics")
        (finding,) = findings(filled)
    assert code == 1
    assert f"the field {field} of the key {key} is damaged" in err
    assert "north" in out, "the rest is shown"
    assert finding.text == f"the key {key} is damaged: its field {field} is not a number"
    assert f"redis-cli HSET {key} '{field}' NUMBER" in finding.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "damaged") for name, kind in names() if kind == "hash"),
        *((name, "9" * 30) for name in ("n", "t:{store}", "declared_at", "g:{group}", "busy")),
        ("sub:{store}", "{"),
        ("sub:{store}", "[]"),
        ("keyring_version", "x"),
    ],
)
@EVERY_COMMAND
def test_values_that_cannot_be_read_end_no_command(
    filled: Filled, run: Run, name: str, value: str, every: bool
) -> None:
    key = filled.key(name)

    def damage(client: Redis) -> None:
        if name in ("sub:{store}", "keyring_version"):
            client.set(key, value)
        else:
            client.hset(key, mapping=dict.fromkeys(client.hkeys(key) or ["north"], value))

    with damaged(filled, key, damage):
        for command in commands_for(name, every):
            run(command)
        findings(filled)


def test_doctor_names_all_damaged_keys_and_runs_its_other_checks(filled: Filled, run: Run) -> None:
    kinds = dict(names())
    key_of = {name: filled.key(name) for name in ("leader", "ix", "lanes", "leased", "rq:workers:storehooks", "n")}
    with ExitStack() as stack:
        for name, key in key_of.items():
            stack.enter_context(damaged(filled, key, partial(change_type, key, kinds[name])))
        code, out, _ = run("doctor --json")
    assert code == 1
    found = json.loads(out)["findings"]
    texts = [one["text"] for one in found if one["check"] == "keys"]
    assert [text.split()[2] for text in texts] == sorted(key_of.values())
    assert {"server", "memory", "disk", "handlers", "workers", "housekeeper", "north"} <= {
        one["check"] for one in found
    }


def test_a_command_that_changes_something_is_refused_while_a_key_that_it_reads_is_damaged(
    filled: Filled, run: Run
) -> None:
    key = filled.key("gr:{group}")
    with damaged(filled, key, partial(change_type, key, "zset")):
        code, _, err = run("failures drop --group {group} --reason x --yes")
    assert (code, "a key is damaged: WRONGTYPE" in err) == (2, True), err
