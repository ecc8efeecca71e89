"""A process that moves settled events to the history until it is killed or nothing is left to move.

Arguments: the URL of the Redis server; the URL of the history, as `[history] url` has it, or its directory; how long it
waits after each slice, so that there is time for kills.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from redis.exceptions import RedisError

from receiver.inbox import connect
from workers.history.past_events import HistoryDatabase, HistoryError
from workers.history.sqlite_history import SqliteHistory
from workers.runtime.history_mover import Mover

KNOWN_FOR = 3600.0
SLICE = 50
"""Small, so that there are many moments at which it can be killed."""


def history_at(place: str) -> HistoryDatabase:
    if "://" not in place:
        return SqliteHistory(Path(place))
    from workers.history.postgres_history import PostgresHistory

    return PostgresHistory(place)


def main(redis: str, place: str, pause: str) -> None:
    client, history = connect(redis, timeout=5.0), history_at(place)
    mover = None
    while True:
        try:
            if mover is None:
                history.check()
                mover = Mover(client, history)
            if not mover.move(age=0, known_for=KNOWN_FOR, many=SLICE).examined:
                return
            time.sleep(float(pause))
        except (RedisError, HistoryError) as error:
            print(type(error).__name__, error, flush=True)
            history.close()
            mover = None
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
