"""The limits of connections in deploy/, by address and by IPv6 network.

They are tried in a network namespace, where all addresses are local and the kernel's rules are the test's own. This
file is run as a program there, and prints how many connections each network had.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.front_proxies import DEPLOY, PrivateCa, start_proxy
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
def test_the_addresses_of_one_network_share_a_limit_at_the_proxy(proxy: str, tmp_path: Path) -> None:
    """Ten addresses of one network had 2,000 connections, and other senders waited for 4 s."""
    assert in_a_namespace(proxy, str(tmp_path)) == {NETWORK: LIMIT, OTHER: 5}


def test_the_kernel_limits_connections_that_have_sent_nothing() -> None:
    """nginx does not count unfinished heads: 1,500 of one address took its places, and a third of others were reset."""
    assert in_a_namespace("nft") == {"127.0.0.1": LIMIT, "127.0.0.2": 5, NETWORK: LIMIT, OTHER: 5}


def in_a_namespace(*words: str) -> dict[str, int]:
    """What this file prints as a program with these words."""
    if subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("needs the right to make a network namespace")
    for program in ("ip", words[0]):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    command = SET_UP + " ".join([sys.executable, "-m", "tests.deploy.test_connection_limits", *words])
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", command], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


# In the namespace


def behind_proxy(proxy: str, folder: Path) -> dict[str, int]:
    """How many requests of each network reach a server behind the proxy, which answers none."""
    ca = PrivateCa(folder)
    context = ssl.create_default_context(cafile=ca.ca)
    context.check_hostname = False
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        port = server.getsockname()[1] + 1
        running = start_proxy(proxy, folder, ca, port=port, web=f"127.0.0.1:{port - 1}", ipv6=True)
        stack.callback(running.stop)
        counts = {}
        for network, many in ((NETWORK, LIMIT + 50), (OTHER, 5)):
            for sender in senders(network, many, stack):
                with suppress(ConnectionError, ssl.SSLError):  # the limit
                    sender.connect(("::1", port))
                    secure = stack.enter_context(context.wrap_socket(sender))
                    secure.sendall(b"GET / HTTP/1.1\r\nHost: hooks.example.com\r\n\r\n")
            counts[network] = arrivals(server, stack)
        return counts


def by_the_kernel() -> dict[str, int]:
    """How many connections each network has, of those that send nothing."""
    subprocess.run(["nft", "-f", DEPLOY / "nftables/storehooks.nft"], check=True)
    counts = {}
    with ExitStack() as stack:
        for listens, networks in (("127.0.0.1", ("127.0.0.1", "127.0.0.2")), ("::1", (NETWORK, OTHER))):
            family = socket.AF_INET6 if ":" in listens else socket.AF_INET
            stack.enter_context(socket.create_server((listens, 443), family=family, backlog=1000))
            for network, many in zip(networks, (LIMIT + 50, 5), strict=True):
                counts[network] = 0
                for sender in senders(network, many, stack):
                    with suppress(ConnectionError):  # the limit
                        sender.connect((listens, 443))
                        counts[network] += 1
    return counts


def senders(network: str, many: int, stack: ExitStack) -> Iterator[socket.socket]:
    """Sockets of an IPv4 address, or each of another address of an IPv6 network."""
    for number in range(1, many + 1):
        if ":" not in network:
            sender = stack.enter_context(socket.socket())
            sender.bind((network, 0))
        else:
            sender = stack.enter_context(socket.socket(socket.AF_INET6))
            sender.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
            sender.bind((f"{network}::{number:x}", 0))
        yield sender


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
    name, *folder = sys.argv[1:]
    print(json.dumps(behind_proxy(name, Path(*folder)) if folder else by_the_kernel()))
