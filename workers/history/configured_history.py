"""The history of a config: opens its database."""

from __future__ import annotations

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.inbox import keys
from receiver.inbox.history_place import other_host
from workers.history.call_limit import HistoryLimit
from workers.history.past_events import HistoryDatabase
from workers.history.sqlite_history import OtherHost, SqliteHistory


def open_history(config: Config, client: Redis, *, limit: HistoryLimit | None = None) -> HistoryDatabase | None:
    """The database of past events; None if the history is off. Connects to nothing yet.

    `limit` is for one that hangs, or files that another process has locked.
    """
    url = config.history_url
    if url == "off":
        return None
    if url == "sqlite":
        others = () if config.redis.embedded else (_other_host(config, client),)
        return SqliteHistory(config.data_dir / "history", *others, limit=limit)
    try:
        from workers.history.postgres_history import PostgresHistory
    except ImportError as error:
        raise ConfigError(
            f"{config.place('history', 'url')}: history.url is a PostgreSQL server, which needs psycopg: "
            f"pip install 'storehooks[postgres]' ({error})"
        ) from None
    return PostgresHistory(url, limit=limit)


def _other_host(config: Config, client: Redis) -> OtherHost:
    """Several hosts may use one server, but only one of them has the files."""
    host = keys.host_of(config.data_dir)
    return lambda place, claim: other_host(client, place, host, claim=claim)
