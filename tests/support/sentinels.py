"""A primary, a replica and three sentinels, all real, on loopback."""

from __future__ import annotations

from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import connect
from receiver.inbox.redis import embedded_server
from tests.support.harness import Process, Server, eventually, free_port

NAME = "shop"
A_MOMENT = 10_000
"""Bytes that a replica in step may be behind."""
AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""Else the primary waits five seconds for more replicas before it sends them anything."""


class Sentinels:
    """Starts them all; the primary may be killed and comes back as a replica."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(3)]
        first, second = free_port(), free_port()
        self.primary = self._server("first", first)
        self.replica = self._server("second", second, "--replicaof", f"127.0.0.1 {first}")
        self._watchers: list[Process] = []
        self._first = first

    def start(self) -> Sentinels:
        self.primary.start()
        self.replica.start()
        eventually(lambda: self.primary.client.info("replication")["connected_slaves"] == 1)
        for port in self.ports:
            self._watch(port)
        eventually(lambda: all(self._sees_all(port) for port in self.ports), 20, what="the sentinels know each other")
        eventually(self.in_step, 20, what="the replica has all that the primary has")
        return self

    def in_step(self) -> bool:
        """Whether the replica has had its first synchronisation and follows: before that it has nothing at all."""
        ours, theirs = (one.client.info("replication") for one in (self.replica, self.primary))
        behind = theirs["master_repl_offset"] - ours["slave_repl_offset"]
        return ours["master_link_status"] == "up" and behind < A_MOMENT

    def fail_over(self) -> None:
        """Have the sentinels promote the replica, though nothing is wrong with the primary. The one that does it is the
        last that anybody asks."""
        client: Redis = connect(f"redis://127.0.0.1:{self.ports[-1]}", timeout=2.0)
        client.sentinel_failover(NAME)
        client.close()

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def close(self) -> None:
        for process in self._watchers:
            process.stop()
        for server in (self.replica, self.primary):
            server.stop()
            server.client.close()

    def _server(self, name: str, port: int, *more: str) -> Server:
        folder = self.folder / name
        folder.mkdir(parents=True)
        return Server(folder, extra=("--port", str(port), "--bind", "127.0.0.1", *AT_ONCE, *more))

    def _watch(self, port: int) -> None:
        file = self.folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self._first} 2\n"
            f"sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 5000\n"
        )
        command = [str(embedded_server.binary()), str(file), "--sentinel"]
        self._watchers.append(Process(command, log=self.folder / f"sentinel-{port}.log"))

    def _sees_all(self, port: int) -> bool:
        client: Redis = connect(f"redis://127.0.0.1:{port}", timeout=2.0)
        try:
            state = client.sentinel_master(NAME)
            return state["num-other-sentinels"] == 2 and state["num-slaves"] == 1
        except RedisError:
            return False
        finally:
            client.close()
