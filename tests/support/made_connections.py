"""Connections of a process without a network: their bytes are given to them."""

from __future__ import annotations

import os
import socket
from unittest.mock import Mock

from receiver.server.held_bytes import BodyContent
from receiver.server.http_connection import RECEIVE_BYTES, HttpConnection
from receiver.server.open_connections import OpenConnections


def transport(connected: socket.socket | None = None, address: str = "192.0.2.1") -> Mock:
    """Without a socket, that of a sender from whom nothing waits in the kernel."""
    about = {"socket": Mock(fileno=lambda: connected.fileno() if connected else -1), "peername": (address, 50_000)}
    return Mock(is_closing=lambda: False, get_extra_info=about.__getitem__)


def arriving(connections: OpenConnections, data: bytes, address: str = "192.0.2.1") -> HttpConnection:
    connection = HttpConnection(connections)
    connection.connection_made(transport(address=address))
    receive(connection, data)
    return connection


def receive(connection: HttpConnection, data: bytes) -> None:
    for at in range(0, len(data), RECEIVE_BYTES):
        piece = data[at : at + RECEIVE_BYTES]
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))


def new_content(size: int) -> BodyContent:
    """Of a body that no other request has."""
    return BodyContent(size, hash(os.urandom(8)))
