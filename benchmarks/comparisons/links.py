"""Links: what TLS to the Redis server costs, and waiting for a replica.

One server with one replica serves all three; it writes each delivery to disk first, as `ack = "replica"` requires.
"""

from __future__ import annotations

import shutil
import subprocess

from redis import Redis

from benchmarks.comparison import Comparison
from benchmarks.processes import OUR_PYTHON, Process, Server
from benchmarks.receivers import Receiver, write_config
from workers.testing.local_system import free_port, wait_until

CERTIFICATE = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench")


class Links(Comparison):
    name = "links"
    description = (
        "requests/s, one server with a replica, appendfsync always: over TCP, over TLS, waiting for the replica"
    )
    systems = ("TCP", "TLS", "replica")

    def start(self) -> None:
        program, openssl = shutil.which("redis-server"), shutil.which("openssl")
        if not program or not openssl:  # the embedded server has no TLS
            raise RuntimeError("redis-server or openssl is not installed")
        certificate, key = self.folder / "cert.pem", self.folder / "key.pem"
        names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
        subprocess.run([openssl, *CERTIFICATE, *map(str, names)], check=True, capture_output=True)
        plain, tls = free_port(), free_port()
        secured = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
        durable = ("--appendonly", "yes", "--appendfsync", "always")
        self._run_server(program, plain, "--tls-port", tls, "--tls-auth-clients", "no", *secured, *durable)
        self._run_server(program, free_port(), "--replicaof", "127.0.0.1", plain)
        self._client = Redis(port=plain)
        wait_until(lambda: self._client.info("replication")["connected_slaves"] == 1, within=20, what="a replica")
        links = {
            "TCP": f'url = "redis://127.0.0.1:{plain}"',
            "TLS": f'url = "rediss://127.0.0.1:{tls}"\nca_file = "{certificate}"',
            "replica": f'url = "redis://127.0.0.1:{plain}"\nack = "replica"',
        }
        self._receivers = {name: self._receiver(name, link) for name, link in links.items()}
        for web in self._receivers.values():
            self.stop_later(web)
            web.run(seconds=0.5)

    def turn(self, system: str) -> dict[str, float]:
        found = self._receivers[system].run(seconds=self.timing.seconds)
        self._client.flushdb()
        return {name: value for name, value in found.items() if name != "redis us"}

    def _run_server(self, program: str, port: int, *options: object) -> None:
        folder = self.folder / f"server-{port}"
        folder.mkdir()
        command = [program, "--port", str(port), "--dir", str(folder), "--save", "", *map(str, options)]
        self.stop_later(Process(command, folder=self.folder, name=f"server-{port}"))

    def _receiver(self, name: str, link: str) -> Receiver:
        def command(server: Server, port: int) -> list[str]:
            file = write_config(self.folder, server, port=port, name=name)
            file.write_text(file.read_text().replace(f'url = "{server.url}"', link, 1))
            return [str(OUR_PYTHON), "-m", "receiver.server.web", "--config", str(file)]

        return Receiver(name, self.folder, command)
