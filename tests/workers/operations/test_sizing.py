"""What a number of events needs, from measured constants; and that Redis still takes what the constants say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.config import Config, load
from receiver.inbox.history_moves import MARK_BYTES, HistoryMoves
from receiver.inbox.queries.event_pages import WholeEvent
from tests.support.harness import Server, System
from tests.support.past_events import past_event
from workers.operations.sizing import EVENT_BYTES, RUN_BYTES, PlannedLoad, needs_of

LOAD = PlannedLoad(8_640_000, 800, 1, 0.02, 5.0)
"""100 events a second."""
STORE = '[stores.north]\nsigning_secrets = ["c2VjcmV0IG9mIG5vcnRo"]\n'


def config_with(folder: Path, url: str) -> Config:
    (folder / "config.toml").write_text(f'[history]\nurl = "{url}"\n{STORE}')
    return load(folder / "config.toml", {})


def test_the_history_takes_the_memory_of_settled_events(tmp_path: Path) -> None:
    without, with_it = (needs_of(config_with(tmp_path, url), LOAD) for url in ("off", "sqlite"))
    assert without.memory > 100 * 10**9
    assert with_it.memory == pytest.approx(100 * 3600 * 2050 + 100 * 10 * 86400 * MARK_BYTES)
    assert without.history_disk == 0
    assert with_it.history_disk == pytest.approx(100 * 86400 * (90 * 1026 + 7 * 160))
    assert needs_of(config_with(tmp_path, "postgresql://h/d"), LOAD).history_disk > with_it.history_disk


def test_processes_follow_the_peak_and_the_handlers(tmp_path: Path) -> None:
    config = config_with(tmp_path, "off")
    assert needs_of(config, LOAD).web == 1
    busy = needs_of(config, PlannedLoad(864_000_000, 800, 3, 0.1, 1.0))
    assert (busy.web, busy.workers, busy.child_processes) == (7, 10, 4286)
    assert busy.moves_in_time
    assert not needs_of(config_with(tmp_path, "sqlite"), PlannedLoad(864_000_000, 800, 3, 0.1, 1.0)).moves_in_time


def test_the_command_prints_it(make_system: Callable[..., System]) -> None:
    system = make_system(more='[history]\nurl = "sqlite"\n')
    done = system.run_cli("size", "--events-per-day", "1000000", "--body", "2k", "--handlers", "3")
    assert done.returncode == 0, done.stderr
    for word in ("memory", "maxmemory", "history", "in sqlite", "web process", "child process"):
        assert word in done.stdout
    found = json.loads(system.run_cli("size", "--events-per-day", "1e6", "--body", "2048", "--json").stdout)
    assert found["history"] == "sqlite"
    assert system.run_cli("size", "--events-per-day", "1000", "--body", "large").returncode == 2


def whole(number: int) -> WholeEvent:
    one = past_event(number)
    content = b'{"content-type":"application/json"}\n' + b"x" * 800
    return WholeEvent(one.id, one.accepted_at, one.settled_at, one.fields, content, {})


@pytest.mark.full
def test_a_moved_event_takes_at_most_200_bytes_of_redis(own_redis: Server) -> None:
    """Measured by the memory of the whole server, while events come and go, as they do."""
    moves, number, settled = HistoryMoves(own_redis.client), 20_000, 0.0

    def used() -> float:
        return float(own_redis.client.info("memory")["used_memory"])

    def move_all() -> None:
        page = moves.settled(age=-1)
        assert moves.replace_by_marks(page.events, known_for=1e6) == page.examined

    moves.restore([whole(0)])
    move_all()  # the scripts are loaded
    before = used()
    for start in range(1, number, 500):
        empty = used()
        moves.restore(whole(at) for at in range(start, start + 500))
        settled += (used() - empty) / number
        move_all()
    mark = (used() - before) / number
    print(f"\nbytes of Redis: {settled:.0f} of a settled event, {mark:.0f} of a moved one")
    assert mark <= 200
    assert mark == pytest.approx(MARK_BYTES, abs=25)
    assert settled <= EVENT_BYTES + RUN_BYTES + 800
