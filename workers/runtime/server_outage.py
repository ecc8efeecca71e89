"""Server outage: logs once that the Redis server does not answer or refuses what it is asked, and when that is over."""

from __future__ import annotations

import structlog
from redis.exceptions import RedisError, ResponseError

from receiver import logs

QUIET_SECONDS = 10.0
"""Two heartbeats: a server that refuses one of our calls may take all the others, such as claims."""


class ServerOutage:
    def __init__(self, logger: structlog.stdlib.BoundLogger) -> None:
        # A server with a `timeout` closes idle connections. The next call fails, and its retry opens another one.
        self._unreachable = logs.OutageLog(
            logger, begins="the Redis server does not answer", ends="the Redis server answers again", at_failure=2
        )
        self._refusing = logs.OutageLog(
            logger, begins="the Redis server refuses a command", ends="the Redis server no longer refuses commands"
        )

    def failed(self, error: RedisError) -> None:
        """Call it for each failed call. The text of a refusal is the server's own and says what to do."""
        if isinstance(error, ResponseError):
            self._refusing.failed(why=str(error)[:300])
        else:
            self._unreachable.failed(why=type(error).__name__)

    def worked(self) -> None:
        self._unreachable.worked()
        self._refusing.worked(quiet=QUIET_SECONDS)
