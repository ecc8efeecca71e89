"""Addresses of one IPv6 network, where connections are limited: in a network namespace, where all of them are local.

The test runs this file as a program in the namespace. It starts the proxy of deploy/ in front of a server that answers
nothing, and counts the requests that reach it.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.front_proxies import PrivateCa, start_proxy
from tests.support.programs import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]
NETWORK, OTHER = "fd00:25:1:2", "fd00:25:1:3"
LIMIT = 200
"""Connections of one sender, in the files of deploy/."""
SET_UP = "ip link set lo up && ip -6 route add local fd00:25:1::/48 dev lo && exec "
IPV6_FREEBIND = 78
"""Of Linux: an address without an interface may be used."""
LAST_ARRIVES_WITHIN = 3.0


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
def test_the_addresses_of_one_network_share_a_limit(proxy: str, tmp_path: Path) -> None:
    """Ten addresses of one network had 2,000 connections, and other senders waited for 4 s."""
    if not shutil.which("ip") or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("needs ip, and the right to make a network namespace")
    words = [sys.executable, "-m", "tests.deploy.test_ipv6_senders", proxy, str(tmp_path)]
    command = ["unshare", "--net", "sh", "-c", SET_UP + " ".join(words)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {NETWORK: LIMIT, OTHER: 5}


def count_arrivals(proxy: str, folder: Path) -> dict[str, int]:
    """How many requests of each network reach the server behind the proxy. Each has another address."""
    ca = PrivateCa(folder)
    context = ssl.create_default_context(cafile=ca.ca)
    context.check_hostname = False
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        port = server.getsockname()[1] + 1
        running = start_proxy(proxy, folder, ca, port=port, web=f"127.0.0.1:{port - 1}", ipv6=True)
        stack.callback(running.stop)
        counts = {}
        for network, senders in ((NETWORK, LIMIT + 50), (OTHER, 5)):
            for number in range(1, senders + 1):
                plain = stack.enter_context(socket.socket(socket.AF_INET6))
                plain.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
                plain.bind((f"{network}::{number:x}", 0))
                with suppress(ConnectionError, ssl.SSLError):  # the limit
                    plain.connect(("::1", port))
                    secure = stack.enter_context(context.wrap_socket(plain))
                    secure.sendall(b"GET / HTTP/1.1\r\nHost: hooks.example.com\r\n\r\n")
            counts[network] = arrivals(server, stack)
        return counts


def arrivals(server: socket.socket, stack: ExitStack) -> int:
    """The new connections with a request. They stay open."""
    server.settimeout(LAST_ARRIVES_WITHIN)
    count = 0
    with suppress(TimeoutError):
        while True:
            connection = stack.enter_context(server.accept()[0])
            count += connection.recv(1000).startswith(b"GET / ")
    return count


if __name__ == "__main__":
    print(json.dumps(count_arrivals(sys.argv[1], Path(sys.argv[2]))))
