"""The history of a config: opens its database."""

from __future__ import annotations

from receiver.config import Config
from receiver.contract.errors import ConfigError
from workers.history.past_events import HistoryDatabase
from workers.history.sqlite_history import SqliteHistory


def open_history(config: Config) -> HistoryDatabase | None:
    """The database of past events; None if the history is off. Connects to nothing yet."""
    url = config.history_url
    if url == "off":
        return None
    if url == "sqlite":
        return SqliteHistory(config.data_dir / "history")
    try:
        from workers.history.postgres_history import PostgresHistory
    except ImportError as error:
        raise ConfigError(
            f"{config.place('history', 'url')}: history.url is a PostgreSQL server, which needs psycopg: "
            f"pip install 'storehooks[postgres]' ({error})"
        ) from None
    return PostgresHistory(url)
