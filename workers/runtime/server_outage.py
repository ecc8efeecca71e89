"""Server outage: logs once that the Redis server does not answer or refuses what it is asked, and when that is over.

A process that starts meanwhile waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError, ResponseError

from receiver import logs
from receiver.config.settings import RedisSettings
from receiver.contract.errors import ServerUnreachable
from receiver.inbox import connect_to
from receiver.inbox.redis.connecting import check
from receiver.inbox.redis.server_faults import reason_of
from workers.processes import SignOfLife

TRY_EVERY = 0.5
QUIET_SECONDS = 10.0
"""Two heartbeats: a server that refuses one of our calls may take all the others, such as claims."""


def wait_for_server(
    redis: RedisSettings,
    logger: structlog.stdlib.BoundLogger,
    *,
    works: bool = True,
    show_life: Callable[[], None] = SignOfLife.show,
) -> None:
    """Return when the server can be used. Raises ServerUnusable if it cannot be used before something is corrected.

    Without `works` the rights that only workers need may be missing.
    `show_life` is called meanwhile: a process that waits is not hung.
    """
    outage = logs.OutageLog(
        logger, begins="the Redis server cannot be used yet; waiting for it", ends="the Redis server can be used"
    )
    with connect_to(redis, timeout=2.0) as client:
        while True:
            try:
                check(client, ack=redis.ack, works=works)
                return outage.worked()
            except ServerUnreachable as error:
                outage.failed(why=error.logged)
                show_life()
                time.sleep(TRY_EVERY)


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
        """Call it for each failed call."""
        outage = self._refusing if isinstance(error, ResponseError) else self._unreachable
        outage.failed(why=reason_of(error))

    def worked(self) -> None:
        self._unreachable.worked()
        self._refusing.worked(quiet=QUIET_SECONDS)
