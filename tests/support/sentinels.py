"""A primary, a replica and three sentinels, all real, on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import connect
from receiver.inbox.redis import embedded_server
from tests.support.harness import Process, Server, eventually, free_port

NAME = "shop"
MAX_LAG_BYTES = 10_000
"""How far behind a replica that is in sync may be."""
SYNC_AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""Without it the primary waits five seconds for more replicas before the first synchronisation."""


class Sentinels:
    """Starts all of them. A primary that is killed and started again becomes a replica."""

    def __init__(self, folder: Path, *settings: str) -> None:
        """With these settings of both servers."""
        self.folder = folder
        self._settings = settings
        self.ports = [free_port() for _ in range(3)]
        first, second = free_port(), free_port()
        self.primary = self._server("first", first)
        self.replica = self._server("second", second, "--replicaof", f"127.0.0.1 {first}")
        self._sentinels: list[Process] = []
        self._first = first

    def start(self) -> Sentinels:
        self.primary.start()
        self.replica.start()
        eventually(lambda: self.primary.client.info("replication")["connected_slaves"] == 1)
        for port in self.ports:
            self._start_sentinel(port)
        eventually(lambda: all(self._sees_all(port) for port in self.ports), 20, what="the sentinels know each other")
        eventually(self.in_sync, 20, what="the replica is in sync")
        return self

    def in_sync(self) -> bool:
        """Whether the replica has finished its first synchronisation and follows. Before that it is empty."""
        ours, theirs = (one.client.info("replication") for one in (self.replica, self.primary))
        behind = theirs["master_repl_offset"] - ours["slave_repl_offset"]
        return ours["master_link_status"] == "up" and behind < MAX_LAG_BYTES

    def fail_over(self) -> None:
        """Have the last sentinel promote the replica of a healthy primary. Clients ask the other sentinels first."""
        client: Redis = connect(f"redis://127.0.0.1:{self.ports[-1]}", timeout=2.0)
        client.sentinel_failover(NAME)
        client.close()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def close(self) -> None:
        for process in self._sentinels:
            process.stop()
        for server in (self.replica, self.primary):
            server.stop()
            server.client.close()

    def _server(self, name: str, port: int, *more: str) -> Server:
        folder = self.folder / name
        folder.mkdir(parents=True)
        return Server(folder, extra=("--port", str(port), "--bind", "127.0.0.1", *SYNC_AT_ONCE, *self._settings, *more))

    def _start_sentinel(self, port: int) -> None:
        file = self.folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self._first} 2\n"
            f"sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 5000\n"
        )
        command = [str(embedded_server.binary()), str(file), "--sentinel"]
        self._sentinels.append(Process(command, log=self.folder / f"sentinel-{port}.log"))

    def _sees_all(self, port: int) -> bool:
        client: Redis = connect(f"redis://127.0.0.1:{port}", timeout=2.0)
        try:
            state = client.sentinel_master(NAME)
            return state["num-other-sentinels"] == 2 and state["num-slaves"] == 1
        except RedisError:
            return False
        finally:
            client.close()


def leads(server: Server) -> bool:
    """Whether it considers itself the primary. A server that is demoted closes its connections."""
    return _replication(server).get("role") == "master"


def follows(server: Server) -> bool:
    """Whether it is a replica that has synchronised."""
    state = _replication(server)
    return state.get("role") == "slave" and state["master_link_status"] == "up"


def _replication(server: Server) -> dict[str, Any]:
    try:
        return dict(server.client.info("replication"))
    except RedisError:
        return {}
