"""The proxy in front of the receivers: nginx, or a stand-in of a few lines where it is not installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.drill.client import read_answer
from tests.support.harness import Process, eventually, port_is_free
from workers.testing.local_system import free_port

NGINX = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors.log;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{http}
}}
"""
RECEIVERS = """
    upstream receivers {{
        {servers}
        keepalive 32;
    }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 1m;
        location / {{
            proxy_pass http://receivers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            # A delivery may be sent to another receiver: the one that has its id already answers "duplicate".
            proxy_next_upstream error timeout invalid_header http_502 http_503 non_idempotent;
            proxy_connect_timeout 1s;
            proxy_read_timeout 4s;
        }}
    }}
"""


class Front:
    """Listens on one port and sends each request to one of the receivers; to the other one if that does not answer."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.port = free_port()
        self._folder = folder
        folder.mkdir()
        if shutil.which("nginx"):
            self.name, command = "nginx", self._nginx(ports)
        else:
            self.name = "a stand-in for nginx"
            command = [sys.executable, "-m", "tests.drill.front", str(self.port), *map(str, ports)]
        self.process = Process(command, log=folder / "front.log")
        eventually(lambda: not port_is_free(self.port), 20, what=f"{self.name} listens; {self.process.output()}")

    def _nginx(self, ports: Sequence[int]) -> list[str]:
        servers = "\n        ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
        return nginx_command(self._folder, RECEIVERS.format(servers=servers, port=self.port))

    def close(self) -> None:
        self.process.stop()


def nginx_command(folder: Path, http: str) -> list[str]:
    """The command that runs nginx with this content of `http`, and all of its files in the folder."""
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, http=http, user=user))
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


# The stand-in


async def answer_from(ports: Sequence[int], request: bytes) -> bytes:
    """The answer of the first receiver that gives one. A delivery may be sent twice."""
    for port in ports:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 1)
        except (OSError, TimeoutError):
            continue
        try:
            writer.write(request)
            status, _, body = await asyncio.wait_for(read_answer(reader), 4)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            continue
        finally:
            writer.close()
        return f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    return b"HTTP/1.1 502 -\r\ncontent-length: 0\r\n\r\n"


async def serve(port: int, upstreams: list[int]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").lower().splitlines()
                length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                upstreams.append(upstreams.pop(0))
                writer.write(await answer_from(list(upstreams), head + await reader.readexactly(length)))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, family=socket.AF_INET, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    own, *others = map(int, sys.argv[1:])
    asyncio.run(serve(own, others))
