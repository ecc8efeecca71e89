"""A log collector that hangs: stderr is a full pipe that is not read. Deliveries are answered all the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.harness import Server, System, eventually
from tests.support.programs import Process


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A named pipe, and its reading end."""
    path = tmp_path / "stderr"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, reader
    os.close(reader)


def fill(path: Path) -> None:
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"\n")
    except BlockingIOError:
        pass
    finally:
        os.close(writer)


def read_all(reader: int) -> bytes:
    found = b""
    try:
        while True:
            found += os.read(reader, 1 << 16)
    except BlockingIOError:
        return found


def test_deliveries_are_answered_while_the_log_is_not_read(
    make_system: Callable[..., System], own_redis: Server, pipe: tuple[Path, int]
) -> None:
    path, reader = pipe
    system = make_system(url=own_redis.url)
    command = [sys.executable, "-m", "receiver.server.web", "--config", str(system.config_file)]
    web = Process(command, log=path)
    system.processes.append(web)
    eventually(system.web_answers, what="web answers")
    read_all(reader)
    fill(path)
    own_redis.kill()  # each delivery and each try of the drain is a reason for a line
    ids = [system.deliver() for _ in range(20)]
    assert len(set(ids)) == 20
    own_redis.start()
    said = read_all(reader)

    def counted() -> list[dict[str, object]]:
        nonlocal said
        said += read_all(reader)
        system.post(system.request(store="south"), "north")  # refused, which is logged
        lines = [json.loads(line) for line in said.splitlines() if line]
        return [line for line in lines if line["event"] == "log lines were left out: stderr was not read"]

    line, *_ = eventually(counted, what="what is missing is counted")
    assert isinstance(line["count"], int)
    assert line["count"] >= 1
    eventually(lambda: len(list(system.ledger.events())) == 20, what="all are in the inbox")
    assert web.stop() == 0
