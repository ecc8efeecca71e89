"""A system of its own with a history in SQLite, in which a person is erased."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.harness import System, own_server
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryDatabase


@contextmanager
def system_with_history(folder: Path, after: str = "1h") -> Iterator[tuple[System, HistoryDatabase]]:
    (folder / "shop").mkdir()
    (folder / "server").mkdir()
    with own_server(folder / "server") as server:
        system = System(folder / "shop", server.url, more=f'[history]\nurl = "sqlite"\nafter = "{after}"\n')
        history = open_history(system.config, system.client)
        assert history
        history.check()
        yield system, history
        system.close()
