"""PostgreSQL connection: opens one, limits the time of a call, and notices that the server has ended it."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from workers.history.past_events import HistoryError

CONNECT_SECONDS = 5
GRACE_SECONDS = 2.0


def connect(url: str) -> Connection[Any]:
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its message may quote the password
        raise HistoryError(
            "[history] url cannot be parsed; write special characters of user and password as %XX, such as %40 for @"
        ) from None
    return psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        application_name="storehooks",
        options="-c lock_timeout=5s -c jit=off",
    )


def was_ended(db: Connection[Any]) -> bool:
    """Whether the server has sent something unasked: it stops, or ends the connection."""
    waiting = select.poll()
    waiting.register(db.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


@contextmanager
def time_limit(db: Connection[Any], seconds: float | None) -> Iterator[None]:
    """The server ends a statement after this time; None is no limit. The connection is ended if the server has not
    answered a while after that, or does not answer at the start: it hangs or is cut off."""
    with _cut_after(db, CONNECT_SECONDS):
        db.execute(f"SET statement_timeout = {max(1, int(seconds * 1000)) if seconds else 0}".encode())
    with _cut_after(db, seconds + GRACE_SECONDS) if seconds is not None else nullcontext():
        yield


@contextmanager
def _cut_after(db: Connection[Any], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, _cut, (db,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(db: Connection[Any]) -> None:
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(db.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
