"""`storehooks audit`: every command that changes something is recorded before it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from receiver.inbox import Declaration, Outcome, keys
from receiver.inbox.audit_trail import MAX_ENTRIES, AuditTrail, in_words
from receiver.inbox.console_logins import ConsoleLogins
from tests.support.harness import System
from tests.support.programs import ROOT

GREET = "shop.greet"
RECORDED = {
    "handlers pause shop.greet --yes": ("pause", {"handler": GREET}),
    "handlers resume shop.greet --yes": ("resume", {"handler": GREET}),
    "handlers retire shop.greet --yes": ("retire", {"handler": GREET}),
    "stores pause north --yes": ("pause", {"store": "north"}),
    "stores resume north --yes": ("resume", {"store": "north"}),
    "failures replay --group {group} --yes": ("replay", {"group": "{group}"}),
    "failures drop --event {event} --reason typo --yes": ("drop", {"event": "{event}", "reason": "typo"}),
    "events replay {event} --yes": ("replay", {"events": ["{event}"]}),
    "events replay --store north --run-status failed --yes": ("replay", {"store": "north", "run_status": "failed"}),
    "events reread --store north --yes": ("reread", {"store": "north"}),
    "refused release --store north --yes": ("release", {"store": "north"}),
    "stores add west --secret new --no-subscribe --yes": ("add store", {"store": "west"}),
    "send order.created --store north --id msg_1": (
        "send",
        {"store": "north", "topic": "order.created", "delivery": "msg_1"},
    ),
}


@pytest.fixture
def failed(make_system: Callable[..., System]) -> tuple[System, dict[str, str]]:
    """A system with one failed run."""
    system = make_system()
    system.inbox.declare([Declaration(GREET, "1", ("*",), ("*",), "default", {"plugin": "shop"})])
    system.accept()
    (event,) = system.inbox.claim({"": 1}, capacity=1).runs
    system.inbox.route([(event, [(GREET, "default", False)])], system.inbox.declarations().version)
    (run,) = system.inbox.claim({GREET: 1}, capacity=1).runs
    system.inbox.finish([Outcome(run, "failed", {"error": "E", "version": "1"})])
    (group,) = system.client.zrange(keys.GROUPS, 0, 0)
    return system, {"event": run.stored.id, "group": group.decode()}


@pytest.mark.parametrize("command", RECORDED)
def test_a_command_that_changes_something_is_recorded(failed: tuple[System, dict[str, str]], command: str) -> None:
    system, names = failed
    if "handlers resume" in command:
        system.administration.pause(handler=GREET)
    if "stores resume" in command:
        system.administration.pause(store="north")
    action, selection = RECORDED[command]
    system.run_cli(*command.format(**names).split())
    (entry,) = json.loads(system.run_cli("audit", "--json").stdout)
    assert entry["action"] == action
    expected = {k: v.format(**names) if isinstance(v, str) else [v[0].format(**names)] for k, v in selection.items()}
    assert entry["selection"] == expected
    assert re.fullmatch(r"command \S+@\S+", entry["who"])


def test_the_table_shows_words_and_no_list_of_python(failed: tuple[System, dict[str, str]]) -> None:
    assert in_words({"events": ["a", "b"], "again": True, "store": "north"}) == "events a b, again, store north"
    system, names = failed
    system.run_cli("events", "replay", names["event"], "--yes")
    assert "['" not in system.run_cli("audit").stdout


def test_commands_that_only_look_are_not_recorded(failed: tuple[System, dict[str, str]]) -> None:
    system, names = failed
    for command in ("events", "events replay {event} --dry-run", "failures", "stats", "refused release --dry-run"):
        system.run_cli(*command.format(**names).split())
    assert "nothing was changed yet" in system.run_cli("audit").stdout


def test_whatever_is_confirmed_is_recorded() -> None:
    """`send`, `stores add`, `api` and `handlers run` were forgotten. Each command that changes something confirms it:
    test_command_rules.py."""
    confirms, records = r"\boutput\.confirm\(", r"^\s+record(_if_reachable)?\(|\.begin\("
    counts = {
        path.name: (len(re.findall(confirms, text)), len(re.findall(records, text, flags=re.MULTILINE)))
        for path in (ROOT / "workers/cli").glob("*.py")
        if "output.confirm(" in (text := path.read_text())
    }
    assert len(counts) > 10
    assert {name: both for name, both in counts.items() if both[0] > both[1]} == {}


def test_at_maxmemory_people_can_still_act(redis: Redis) -> None:
    before = redis.config_get("maxmemory")["maxmemory"]
    AuditTrail(redis).begin("a", "loads the functions", {})
    try:
        redis.config_set("maxmemory", 1)
        AuditTrail(redis).begin("a", "pause", {"handler": "b"})
        cookie = ConsoleLogins(redis).open("operator", "p")
        assert ConsoleLogins(redis).role_of(cookie, {"operator": "p"}) == "operator"
        assert ConsoleLogins(redis).wait_ms("192.0.2.1") == 0
        assert ConsoleLogins(redis).spend_link(ConsoleLogins(redis).new_link())
    finally:
        redis.config_set("maxmemory", before)


def test_the_trail_is_bounded_and_skips_what_is_damaged(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.inbox.audit_trail.MAX_ENTRIES", 5)
    trail = AuditTrail(redis)
    for number in range(8):
        trail.begin("a", f"action {number}", {"empty": "", "none": None, "kept": number})
    redis.zadd(keys.AUDIT, {"not json": 1e15, '{"who": 1}': 1e15 + 1})
    assert [one.action for one in trail.newest()] == [f"action {number}" for number in (7, 6, 5, 4, 3)]
    assert trail.newest()[0].selection == {"kept": 7}
    assert MAX_ENTRIES == 20_000


def test_the_audit_of_a_new_system_is_empty(system: System, tmp_path: Path) -> None:
    assert json.loads(system.run_cli("audit", "--json").stdout) == []
