"""The history of a config: opens its database, and finds out whether another host has it."""

from __future__ import annotations

from receiver.config import Config
from workers.history.past_events import HistoryDatabase
from workers.history.sqlite_history import SqliteHistory


def open_history(config: Config) -> HistoryDatabase | None:
    """The database of past events; None if the history is off. Connects to nothing yet."""
    url = config.history_url
    if url == "off":
        return None
    if url == "sqlite":
        return SqliteHistory(config.data_dir / "history")
    from workers.history.postgres_history import PostgresHistory

    return PostgresHistory(url)
