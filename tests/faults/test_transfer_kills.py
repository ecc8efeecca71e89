"""Export and import, killed and repeated: a server with the other database has equal stats and equal search."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.inbox import Inbox, Outcome, keys
from receiver.inbox.history_moves import KEPT_SECONDS
from tests.receiver.inbox.test_inbox import route
from tests.support.harness import Server, System, eventually
from tests.support.postgres import needs_postgres, postgres_server
from workers.history.configured_history import open_history
from workers.runtime.history_mover import Mover

MANY, FAILED, OPEN, HANDLED = 6_000, 20, 30, 40
PLUGIN = """
from pathlib import Path
from workers import Router

router = Router("erp")

def note(event):
    with open({effects!r}, "a") as file:
        file.write(event.id + "\\n")

@router.on("order.created")
def book(event, ctx):
    ctx.once("book", note, event)
    return event.data["id"]
"""
SEARCHES = (
    ("--resource", "7"),
    ("--delivery", "msg_handled_3"),
    ("--handler", "erp.book", "--result", "11"),
    ("--where", "id=12"),
    ("--status", "failed"),
    ("--store", "south"),
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), needs_postgres]


def test_everything_is_moved_to_the_other_database_although_both_commands_are_killed(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    effects, path = tmp_path / "effects", tmp_path / "moved.ndjson.gz"
    with ExitStack() as stack:
        url = stack.enter_context(postgres_server()).new_database()
        plugin, history = PLUGIN.format(effects=str(effects)), '[history]\nurl = "{}"\nafter = "0s"\n'.format
        old = make_system(plugin=plugin, more=history("sqlite"))
        new = make_system(plugin=plugin, more=history(url), url=own_redis.url)
        sent = fill(old)
        began = time.monotonic()
        killed = kill_often(old, "export", path, lambda: path.stat().st_size if path.exists() else 0)
        exported, began = time.monotonic() - began, time.monotonic()
        killed_imports = kill_often(new, "import", path, lambda: int(new.client.zcard(keys.INDEX)), "--yes")
        imported = time.monotonic() - began
        assert min(killed, killed_imports) >= 2
        assert figures(new) == figures(old)
        assert new.identity_holds()
        again = new.run_cli("import", str(path), "--yes")
        assert "events: 0 new" in again.stdout, again.stderr
        move_all(old)
        move_all(new)
        assert figures(new) == figures(old)
        for search in SEARCHES:
            assert found(new, *search) == found(old, *search) != [], search
        answers = [new.inbox.accept([one])[0] for one in sent]
        assert {one.status for one in answers} == {"duplicate"}
        replay_there(new, effects, [one.id for one in answers])
    with capsys.disabled():
        print(f"\n{MANY:,} events: exported in {exported:.0f} s with {killed} kills, ", end="")
        print(f"imported in {imported:.0f} s with {killed_imports} kills")


def fill(old: System) -> list[object]:
    """Events that a worker has handled, some failures, some open ones, and many that no handler wanted."""
    old.start("worker", "housekeeper")
    sent = [old.delivery(delivery_id=f"msg_handled_{n}", data={"id": n}) for n in range(HANDLED)]
    for one in (*sent, sent[0]):
        old.inbox.accept([one])
    eventually(lambda: old.ledger.counters().total["settled"] == HANDLED, 60, what="the worker has handled them")
    history = open_history(old.config, old.client)
    eventually(lambda: history.sizes().events == HANDLED, 60, what="they are in the history")
    old.close()
    old.client.set(keys.DECLARED_SINCE, 1)
    inbox = Inbox(old.client)
    version = inbox.declarations().version
    sample = old.delivery(topic="product.updated", store="south")
    for at in range(0, MANY, 100):
        part = [replace(sample.event, id=f"{n:026}", delivery_id=f"{n}") for n in range(at, at + 100)]
        inbox.accept([replace(sample, event=event, first_id="") for event in part])
        inbox.route([(run, ()) for run in inbox.claim({"": 100}, capacity=100).runs], version)
    for n in range(FAILED):
        inbox.accept([old.delivery(topic="order.paid", data={"id": 1000 + n})])
        (run,) = inbox.claim({"": 1}, capacity=1).runs
        (mine,) = route(inbox, run, ("erp.pay", "default", True))
        inbox.finish([Outcome(mine, "failed", {"error": "ValueError: no", "version": "1"})])
    for n in range(OPEN):
        inbox.accept([old.delivery(topic="order.paid", data={"id": 2000 + n})])
    counted = old.ledger.counters().total
    assert (counted["settled"], counted["failed"], counted["open"]) == (MANY + HANDLED, FAILED, OPEN)
    return list(sent)


def kill_often(system: System, command: str, path: Path, size: Callable[[], int], *more: str) -> int:
    """Run a command, and kill it each time it has made some progress; at last let it end. Returns how many kills."""
    kills = 0
    while True:
        process, before = system.start_cli(command, str(path), *more), size()
        eventually(lambda: not process.alive or size() > before, 120, what=f"{command} goes on")  # noqa: B023
        if not process.alive or kills == 3:
            eventually(lambda: not process.alive, 300, what=f"{command} ends")  # noqa: B023
            assert process.wait() == 0, system.log(command)
            return kills
        process.kill()
        kills += 1
        if command == "export" and "wrote " in system.log(command):
            return kills  # it had ended before the kill, and would be refused now


def move_all(system: System) -> None:
    """Move all settled events to the history, without the pauses of a busy machine. For ten minutes none is moved that
    an import was writing when it was killed: they are over."""
    for key in system.client.scan_iter(f"{keys.KEPT}*", count=10_000):
        assert 0 < system.client.pttl(key) <= KEPT_SECONDS * 1000
        system.client.unlink(key)
    database = open_history(system.config, system.client)
    assert database
    database.check()
    mover = Mover(system.client, database)
    while mover.move(age=0, known_for=system.config.receiver.dedupe_retention, many=2000).examined:
        pass
    assert system.client.zcard(keys.DONE) == 0
    database.close()


def figures(system: System) -> dict[str, object]:
    """`stats`, without what belongs to hosts."""
    shown = json.loads(system.run_cli("stats", "--json").stdout)
    return {name: shown[name] for name in ("accepted", "duplicates", "settled", "open", "failed", "stores")}


def found(system: System, *search: str) -> list[tuple[str, str]]:
    done = system.run_cli("events", "list", *search, "--limit", "100", "--json")
    assert done.returncode == 0, done.stderr
    return [(one["id"], one["status"]) for one in json.loads(done.stdout)]


def replay_there(new: System, effects: Path, ids: list[str]) -> None:
    """Effects are not repeated, and the open events are handled."""
    before = effects.read_text()
    new.start("worker", "housekeeper")
    done = new.run_cli("events", "replay", *ids, "--handler", "erp.book", "--yes")
    assert done.returncode == 0, done.stderr
    eventually(lambda: new.ledger.counters().total["open"] == 0, 120, what="nothing is open")
    assert len(before.split()) == HANDLED
    assert effects.read_text() == before
