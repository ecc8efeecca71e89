"""Rules that hold for every command: what changes things is confirmed, ids may be short, tables and JSON agree."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from redis import Redis

from receiver.config.values import Bounds
from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import Declaration, FailureQueries, Outcome, keys
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.bulk_actions import BulkActions
from receiver.inbox.queries.failures import FailureFilter
from receiver.spool import Refusal, open_refusals
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.command_in_process import run_in_process
from tests.support.harness import System
from tests.support.programs import run_to_end
from tests.workers.cli.test_commands import HELLO
from workers.cli import COMMANDS, storehooks
from workers.operations.given_ids import NEWEST, choose

CHANGES = {
    "api",
    "erase",
    "events replay",
    "events reread",
    "failures drop",
    "failures replay",
    "failures stop",
    "handlers pause",
    "handlers resume",
    "handlers retire",
    "handlers run",
    "hosts accept",
    "hosts forget",
    "import",
    "refused drop",
    "refused release",
    "send",
    "stores add",
    "stores pause",
    "stores remove",
    "stores resume",
    "subscriptions apply",
    "subscriptions rotate",
}
"""Commands that change what is stored, at a store or in the config: they ask on a terminal, and else need --yes."""
CHANGES_NOTHING = {
    "audit",
    "completion",
    "config show",
    "doctor",
    "events list",
    "events show",
    "failures actions",
    "failures groups",
    "alerts list",
    "alerts test",
    "events tail",
    "failures list",
    "failures show",
    "handlers certify",
    "handlers explain",
    "handlers list",
    "hosts list",
    "refused list",
    "refused show",
    "sandbox status",
    "scheme detect",
    "scheme list",
    "scheme show",
    "size",
    "stats",
    "stores list",
    "stores show",
    "subscriptions list",
    "subscriptions plan",
    "topics",
    "verify",
}
RUNS_OR_CREATES = {
    "dev",
    "export",
    "web",
    "worker",
    "console",
    "listen",
    "init",
    "new-plugin",
    "sandbox do",
    "sandbox misbehave",
}
"""They run until they are stopped, write new files and never over others, or steer the sandbox of this machine."""


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = storehooks.get_command(click.Context(storehooks), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", one) for below, one in command.commands.items())
        else:
            yield name, command


def test_every_command_is_known_to_change_things_or_not() -> None:
    assert {name for name, _ in commands()} == CHANGES | CHANGES_NOTHING | RUNS_OR_CREATES
    with_yes = {name for name, one in commands() if any("--yes" in parameter.opts for parameter in one.params)}
    assert with_yes == CHANGES


# Confirmation


def failed_event(system: System, **how: Any) -> str:
    event_id = system.accept("order.created", **how)
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    error = {"error": "KeyError: 'vat_id'", "at": "erp.py:58", "version": "1.4.2"}
    system.inbox.finish([Outcome(run, "failed", error)])
    return event_id


def refuse(system: System, number: int, store: str = "north") -> list[int]:
    refusals = open_refusals(system.config.data_dir)
    body = b'{"id": 7}'
    lines = [
        Refusal(time.time(), store, store, "signature-mismatch", len(body), "8bd246", "203.0.113.9", {}, body)
        for _ in range(number)
    ]
    refusals.add(lines, bounds=Bounds(3600, 1 << 24), now=time.time())
    ids = [one.id for one in refusals.newest(limit=number)]
    refusals.close()
    return ids


def stored(system: System) -> dict[str, bytes | None]:
    """All that a command could have changed: Redis, the refused deliveries, the config."""
    client: Redis = system.client
    names = [name for name in sorted(client.keys("*")) if not name.startswith(b"rq:")]  # a worker's record expires
    found = {name.decode(): client.dump(name) for name in names}
    files = {str(path): path.read_bytes() for path in system.folder.rglob("*.toml")}
    return {**found, **files, "refused": str([one.id for one in system.refusals().newest(limit=99)]).encode()}


@pytest.fixture
def busy(make_system: Callable[..., System]) -> System:
    """A system in which each command has something to change."""
    system = make_system(
        plugin=HELLO,
        more='[stores.far]\nbase_url = "https://far.example"\nsigning_secrets = ["whsec_c2VjcmV0c2VjcmV0"]\n'
        'url = "https://far.example/hook"\nauth = { token = "t" }\n',
    )
    system.declare_as_worker(Declaration("shop.greet", "1", ("order.*",), ("*",)))
    failed_event(system, data={"id": 7})
    refuse(system, 2)
    system.administration.pause(handler="shop.other")
    system.client.hset(keys.LANES, "shop.other", "default")
    system.administration.pause(store="south")
    entry = AuditTrail(system.client).begin("a person", "pause", {"store": "south"})
    BulkActions(system.client).start("replay", FailureFilter(), [], entry)
    return system


GIVEN = {
    "erase": ["--store", "north", "--customer", "no-such-customer"],
    "api": ["orders", "update_status", "1001", "--param", "status=paid", "--store", "far"],
    "events replay": ["last"],
    "events reread": ["last"],
    "failures drop": ["--group", "last", "--reason", "noise"],
    "failures replay": ["--event", "last"],
    "failures stop": ["last"],
    "handlers pause": ["shop.greet"],
    "handlers resume": ["shop.other"],
    "handlers retire": ["shop.greet"],
    "handlers run": ["shop.greet", "--event", "last", "--record"],
    "refused drop": ["last"],
    "refused release": ["last"],
    "send": ["order.created", "--store", "far"],
    "stores add": ["new", "--secret", "new"],
    "stores pause": ["north"],
    "stores remove": ["north"],
    "stores resume": ["south"],
}
TESTED_ELSEWHERE = {"hosts accept", "hosts forget", "import", "subscriptions apply", "subscriptions rotate"}
"""In test_hosts.py, test_replaced_data.py, test_transfer.py and test_apply.py: they need a lost host, a file, or a
store's API."""


def test_what_changes_things_needs_yes_without_a_terminal(busy: System) -> None:
    assert GIVEN.keys() | TESTED_ELSEWHERE == CHANGES
    before = stored(busy)
    for name, arguments in GIVEN.items():
        done = busy.run_cli(*name.split(), *arguments)
        assert (done.returncode, "confirm it with --yes" in done.stderr) == (2, True), (name, done.stderr, done.stdout)
        assert re.search(r"this would [a-z]", done.stderr), done.stderr
        assert stored(busy) == before, name


def test_it_says_that_it_would_subscribe_only_if_it_does(busy: System) -> None:
    with_api = ["--base-url", "https://new.example", "--token", "env:TOKEN"]
    for more, subscribes in (([], False), (with_api, True), ([*with_api, "--no-subscribe"], False)):
        said = busy.run_cli("stores", "add", "new", "--secret", "new", *more).stderr
        assert "this would write" in said
        assert ("and subscribe at the store" in said) is subscribes, more


@pytest.mark.parametrize(("module", "code"), [("click", -signal.SIGINT), ("getpass", 130)])
def test_ctrl_c_while_it_starts_prints_no_traceback(tmp_path: Path, module: str, code: int) -> None:
    """`click` is imported by the program, and `getpass` by one command."""
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = run_to_end("storehooks", "stores", "list", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "")


def typed_on_a_terminal(system: System, *arguments: str, answer: str) -> tuple[int, str]:
    """Run a command on a terminal, answer its question, and return its exit code and what it printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "workers.cli", *arguments, "--config", str(system.config_file)])
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, answer.encode())
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # the command has ended
        pass
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_on_a_terminal_it_asks_and_does_what_the_answer_says(busy: System) -> None:
    before = stored(busy)
    code, shown = typed_on_a_terminal(busy, "refused", "drop", "--all", answer="n\n")
    assert (code, "Delete 2 refused deliveries? They cannot be released then." in shown) == (1, True), shown
    assert stored(busy) == before
    code, shown = typed_on_a_terminal(busy, "handlers", "pause", "shop.greet", answer="y\n")
    assert (code, "Pause shop.greet? Its runs wait until it is resumed." in shown) == (0, True), shown
    assert "handler:shop.greet" in busy.administration.paused()


def test_what_has_no_effect_is_not_asked(busy: System) -> None:
    assert "is not paused" in busy.run_cli("handlers", "resume", "shop.greet").stdout
    assert "is not paused" in busy.run_cli("stores", "resume", "north").stdout
    assert busy.run_cli("stores", "pause", "south").returncode == 0
    assert busy.run_cli("refused", "release", "--dry-run").returncode == 1
    assert busy.run_cli("events", "replay", "last", "--dry-run").returncode == 0


# Ids


def test_an_id_may_be_short(busy: System) -> None:
    (event_id,) = (one.id for one in busy.ledger.events())
    (group,) = FailureQueries(busy.client).groups().entries
    for which in ("last", event_id[:4], event_id[:12]):
        for command in (["events", "show"], ["handlers", "explain"], ["events", "replay", "--dry-run"]):
            assert busy.run_cli(*command, which).returncode == 0, (command, which)
    assert "shop.greet" in busy.run_cli("handlers", "run", "shop.greet", "--event", event_id[:4]).stdout
    for which in ("last", group.id[:4]):
        assert group.id in busy.run_cli("failures", "show", which).stdout
        assert event_id in busy.run_cli("failures", "list", "--group", which).stdout
    done = busy.run_cli("failures", "drop", "--event", event_id[:5], "--reason", "noise", "--yes")
    assert "1 run dropped" in done.stdout
    newest = max(one.id for one in busy.refusals().newest(limit=9))
    assert f"delivery  {newest}" in busy.run_cli("refused", "show", "last").stdout


def test_an_ambiguous_or_unknown_id_is_a_sentence_with_the_candidates() -> None:
    ids = [f"abcd{number:022d}" for number in range(6)]
    with pytest.raises(ConfigError, match="6 events begin with 'abcd': ") as raised:
        choose("abcd", ids, kind="events", missing="no event")
    assert f"{ids[0]}, {ids[1]}, {ids[2]}, {ids[3]} and 2 more; give more of the id" in str(raised.value)
    assert choose(ids[3][:-1] + "3", ids, kind="events", missing="no event") == ids[3]
    for which in ("abc", "zzzz", "last"):
        with pytest.raises(NotFound, match="no event"):
            choose(which, ids if which != "last" else [], kind="events", missing="no event")
    with pytest.raises(NotFound, match="no event; a shortened id has at least 4 characters"):
        choose("abc", ids, kind="events", missing="no event")
    with pytest.raises(NotFound, match=r"no event$"):
        choose("zzz", ids, kind="events", missing="no event")
    older = [f"{number:08d}" for number in range(NEWEST)]
    assert choose("abcd", [*older[1:], "abcd1"], kind="events", missing="no event") == "abcd1"
    with pytest.raises(NotFound, match="no event"):
        choose("abcd", [*older, "abcd1"], kind="events", missing="no event")


# Tables and JSON


LISTS = (
    "audit",
    "config",
    "events",
    "failures",
    "failures list",
    "refused",
    "handlers",
    "stores",
    "subscriptions",
    "topics",
    "scheme",
    "api --list",
    "hosts",
)


def headings(table: str) -> list[str]:
    return re.split(r"  +", table.splitlines()[0].strip())


def test_the_table_and_the_json_have_the_same_fields(busy: System) -> None:
    busy.client.hset(
        keys.SPOOLS, "host-2", json.dumps({"state": "stopped", "count": 3, "oldest": 1.0, "at": time.time()})
    )
    busy.client.hset(keys.EVENT_NAMES + "north", mapping={"n:order.created": 1, "l:order.created": 1})
    for command in LISTS:
        table = busy.run_cli(*command.split()).stdout
        rows = json.loads(busy.run_cli(*command.split(), "--json").stdout)
        assert rows, command
        assert headings(table) == [name.replace("_", " ").upper() for name in rows[0]], command
    counted = json.loads(busy.run_cli("stats", "--json").stdout)["stores"]["north"]
    shown = headings(busy.run_cli("stats").stdout.partition("\n\n")[2])
    assert {name.lower() for name in shown} - {"store"} == set(counted)


def test_counts_say_of_which_time_they_are(busy: System) -> None:
    assert "since the data in Redis began" in busy.run_cli("stats").stdout
    assert "since the data in Redis began" in busy.run_cli("stores").stdout
    assert "stored on this host" in busy.run_cli("refused").stdout


# Hints


def hints(text: str) -> list[str]:
    return [line.strip().partition("      ")[0] for line in text.splitlines() if line.startswith("  storehooks ")]


def test_the_commands_after_a_list_can_be_typed(busy: System) -> None:
    """They name the config that was given, and a store of it where there are several."""
    found = [hint for command in LISTS for hint in hints(busy.run_cli(*command.split()).stdout)]
    assert len(found) > 10
    for hint in found:
        name, *words = shlex.split(hint)
        assert (name, words[-2:]) == ("storehooks", ["--config", str(busy.config_file)])
        first = " ".join(words[:2]) if " ".join(words[:2]) in CHANGES | CHANGES_NOTHING else words[0]
        assert first in CHANGES | CHANGES_NOTHING | COMMANDS.keys(), hint
        if "api" in first or first == "send":
            assert words[words.index("--store") + 1] == "far", hint


def test_hints_are_for_the_stores_of_the_config(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    assert "storehooks send order.created --store north" in system.run_cli("events").stdout
    text = system.config_file.read_text()
    one = text[: text.index("[stores.south]")]
    system.config_file.write_text(one)
    assert "storehooks send order.created --config" in system.run_cli("events").stdout
    system.config_file.write_text(one[: one.index("[stores.north]")])
    assert "storehooks send" not in system.run_cli("events").stdout
    assert "storehooks send" not in system.run_cli("handlers").stdout


# refused drop


def test_dropped_refusals_are_gone_for_doctor_too(system: System) -> None:
    refuse(system, 3)
    ghosts = refuse(system, 2, store="ghost")

    def reported() -> list[str]:
        findings = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
        return [one["text"] for one in findings if re.search(r"\d refused", one["text"])]

    assert reported()
    assert "give ids, or --store NAME, or --all" in system.run_cli("refused", "drop", "--yes").stderr
    assert "no refused delivery '99'" in system.run_cli("refused", "drop", "99", "--yes").stderr
    assert system.run_cli("refused", "drop", str(ghosts[0]), "--yes").stdout == "1 refused delivery deleted\n"
    assert system.run_cli("refused", "drop", "--store", "ghost", "--yes").stdout == "1 refused delivery deleted\n"
    assert {one.store for one in system.refusals().newest()} == {"north"}
    assert system.run_cli("refused", "drop", "--all", "--yes").stdout == "3 refused deliveries deleted\n"
    assert system.refusals().count() == system.refusals().count_with_body() == 0
    assert reported() == []


def test_the_audit_trail_counts_what_was_selected_and_no_other_stores(busy: System) -> None:
    """`refused release --store` was recorded with the count of all stores."""
    refuse(busy, 3, "far")
    for arguments in (["--store", "far"], ["--store", "north"], ["last"], []):
        busy.run_cli("refused", "release", *arguments, "--yes")
    entries = json.loads(busy.run_cli("audit", "--json").stdout)
    assert [one["count"] for one in entries if one["action"] == "release"] == [5, 1, 2, 3]


def test_the_audit_trail_counts_the_unreadable_events_of_one_store(busy: System) -> None:
    for store, number in (("north", 1), ("south", 2)):
        for at in range(number):
            delivery = busy.delivery(store=store, delivery_id=f"msg_{store}_{at}")
            busy.inbox.accept([replace(delivery, unreadable="no topic")])
    assert "read 1 event again" in busy.run_cli("events", "reread", "--store", "north").stderr
    busy.run_cli("events", "reread", "--store", "north", "--yes")
    entries = json.loads(busy.run_cli("audit", "--json").stdout)
    assert [one["count"] for one in entries if one["action"] == "reread"] == [1]


def test_a_resumed_store_says_what_waits(busy: System) -> None:
    """It counts events that are not routed yet, and called them runs."""
    busy.accept(store="south", delivery_id="msg_held")
    assert not busy.inbox.claim({"": 1}, capacity=1).runs, "a claim finds that the store is paused, and holds it"
    assert "south is resumed; 1 event or run waits" in busy.run_cli("stores", "resume", "south", "--yes").stdout


def test_a_search_that_finds_nothing_does_not_propose_to_send_an_event(busy: System) -> None:
    shown = busy.run_cli("events", "--error", "no such text").stdout
    assert "no events found" in shown
    assert "storehooks send" not in shown
    assert "storehooks events" in shown


def test_help_says_the_forms_of_a_time_and_which_error_is_searched() -> None:
    texts = " ".join(run_in_process("events", "list", "--help").output.split())
    assert "TIME is 2026-11-15 or 2026-11-15T03:00, your local time, or how long ago: 90m, 7d." in texts
    assert "whose last error contains" in texts


def test_a_failure_group_is_shown_as_json(busy: System) -> None:
    (group,) = json.loads(busy.run_cli("failures", "--json").stdout)
    shown = json.loads(busy.run_cli("failures", "show", "last", "--json").stdout)
    assert shown == {**group, "traceback": ""}
