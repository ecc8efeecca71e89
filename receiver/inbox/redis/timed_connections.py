"""Connections whose lookup of the server's name ends with the timeout for connecting: that of redis-py has no limit.

A worker that waited for a name server did not respond, and was killed by the service manager.
"""

from __future__ import annotations

import socket

from redis.connection import Connection, SSLConnection
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from receiver.process.name_lookup import look_up


class TimedConnection(Connection):
    def _connect(self) -> socket.socket:
        name, failure = self.host, OSError(f"{self.host} has no address")
        for address in self._look_up():
            self.host = address
            try:
                connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
            except OSError as error:
                failure = error
            else:
                return connected
            finally:
                self.host = name  # TLS checks the certificate for it
        raise failure

    def _look_up(self) -> list[str]:
        try:
            return look_up(self.host, self.port, self.socket_connect_timeout)
        except TimeoutError:  # redis-py would say that the server did not answer
            raise OSError(f"the name {self.host} was not looked up in {self.socket_connect_timeout:g} s") from None


class TimedTlsConnection(SSLConnection, TimedConnection):
    pass


class TimedPrimaryConnection(SentinelManagedConnection, TimedConnection):
    """To the primary that the sentinels name."""


class TimedPrimaryTlsConnection(SentinelManagedSSLConnection, TimedConnection):
    pass
