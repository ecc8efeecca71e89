"""`[network]`: a private CA and a proxy, for every outgoing call."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from receiver.config import load
from receiver.config.settings import NetworkSettings
from receiver.contract.errors import ConfigError
from receiver.inbox.alert_store import AlertMessage
from tests.support.harness import System
from tests.workers.runtime.test_forwarding import forward
from workers.operations.doctor.network_facts import probe_public_url
from workers.runtime.alerting.alert_sending import NotSent, send
from workers.storeapi.configured_client import client_for_store
from workers.storeapi.errors import Unreachable, UnsafeAddress
from workers.storeapi.transport import network as network_module
from workers.storeapi.transport.http import HttpSession
from workers.storeapi.transport.network import proxy_for

NAME = "shop.test"


class Alive(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"status": "alive", "stores_in": "redis", "data": {"id": 1}}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


class Proxy(threading.Thread):
    """An HTTP proxy that opens a tunnel for each CONNECT, always to one server, and notes what it was asked for."""

    def __init__(self, upstream: int) -> None:
        super().__init__(daemon=True)
        self.upstream = upstream
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:pass-word@127.0.0.1:{self.listener.getsockname()[1]}"
        self.asked: list[tuple[str, bool]] = []
        self.refuses = False

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        self.asked.append((head.split()[1].decode(), b"Basic dXNlcjpwYXNzLXdvcmQ=" in head))
        if self.refuses:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self.upstream))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
        _pass_on(client, server)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def private_ca(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ca")
    certificate, key = folder / "ca.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = [
        "-days",
        "2",
        "-subj",
        f"/CN={NAME}",
        "-addext",
        f"subjectAltName=IP:127.0.0.1,DNS:{NAME},DNS:alerts.{NAME}",
    ]
    subprocess.run([*made, *named, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def shop(private_ca: tuple[Path, Path]) -> Iterator[int]:
    """The port of an HTTPS server with a certificate of a private CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*private_ca)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Alive)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy(shop: int) -> Iterator[Proxy]:
    found = Proxy(shop)
    found.start()
    yield found
    found.listener.close()


def get(network: NetworkSettings, url: str, **how: Any) -> int:
    session = HttpSession(network=network, **how)
    return session.send("GET", url, headers={}, until=time.monotonic() + 10).status


def test_a_private_ca_is_trusted_by_every_outgoing_call(
    tmp_path: Path, private_ca: tuple[Path, Path], shop: int
) -> None:
    url = f"https://127.0.0.1:{shop}"
    text = f"""
    [receiver]
    public_url = "{url}"
    [alerts.targets.ops]
    url = "{url}/alerts"
    allow_private = true
    [stores.north]
    base_url = "{url}"
    auth = {{ token = "t" }}
    allow_private = true
    signing_secrets = ["whsec_dGVzdCBzZWNyZXQgb2Ygb25lIHN0b3Jl"]
    """
    file = tmp_path / "config.toml"
    file.write_text(text)
    config, message = load(file, {}), AlertMessage("1", "ops", "failing", "fired", (), 0, datetime.now(UTC))
    target = config.alerts.targets["ops"]
    assert "CERTIFICATE_VERIFY_FAILED" in probe_public_url(config, url, 5).fault
    with pytest.raises(NotSent, match="CERTIFICATE_VERIFY_FAILED"):
        send(config, target, message)
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        client_for_store(config, "north").orders.get(1)
    config = load(file, {"STOREHOOKS_NETWORK__CA_FILE": str(private_ca[0])})
    assert probe_public_url(config, url, 5).fault == ""
    send(config, target, message)
    assert client_for_store(config, "north").orders.get(1)["id"] == 1


def test_a_file_without_a_certificate_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name, why in (("empty.pem", "has no certificate in PEM form"), ("gone.pem", "cannot be read: No such file")):
        with pytest.raises(ConfigError, match=why):
            load(None, {"STOREHOOKS_NETWORK__CA_FILE": str(tmp_path / name)})


def test_a_file_that_has_gone_since_is_an_error_that_is_tried_again(
    tmp_path: Path, private_ca: tuple[Path, Path], shop: int
) -> None:
    copy = tmp_path / "ca.pem"
    copy.write_bytes(private_ca[0].read_bytes())
    network = NetworkSettings(ca_file=str(copy))
    assert get(network, f"https://127.0.0.1:{shop}", allow_private=True) == 200
    copy.unlink()
    with pytest.raises(Unreachable, match=r"ca_file .* cannot be used: No such file") as caught:
        get(network, f"https://127.0.0.1:{shop}", allow_private=True)
    assert not caught.value.sent


def test_names_that_only_the_proxy_knows_are_called_through_it(
    private_ca: tuple[Path, Path], shop: int, proxy: Proxy
) -> None:
    network = NetworkSettings(ca_file=str(private_ca[0]), proxy=SecretStr(proxy.url))
    assert get(network, f"https://{NAME}/x") == 200
    assert proxy.asked == [(f"{NAME}:443", True)]
    assert get(network, f"https://127.0.0.1:{shop}/x", allow_private=True) == 200
    assert len(proxy.asked) == 1, "a private address is called directly"
    assert "pass-word" not in repr(network)


def test_a_refusal_of_the_proxy_says_so_and_nothing_was_sent(private_ca: tuple[Path, Path], proxy: Proxy) -> None:
    network = NetworkSettings(ca_file=str(private_ca[0]), proxy=SecretStr(proxy.url))
    proxy.refuses = True
    with pytest.raises(Unreachable, match="403 Forbidden") as caught:
        get(network, f"https://{NAME}/x")
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("host", "direct"), [("127.0.0.1", True), ("10.1.2.3", True), ("[::1]", True), ("8.8.8.8", False)]
)
def test_only_public_addresses_are_called_through_the_proxy(host: str, direct: bool) -> None:
    network = NetworkSettings(proxy=SecretStr("http://proxy.example:3128"))
    assert proxy_for(network, f"https://{host}/x") == ("" if direct else "http://proxy.example:3128")
    assert proxy_for(NetworkSettings(), f"https://{host}/x") == ""


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up. Each of them has a public address, until a test changes that."""
    asked: list[str] = []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ADDRESSES.get(host, "8.8.8.8"), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(network_module, "_lookups", {})
    return asked


ADDRESSES: dict[str, str] = {"inside.test": "10.1.2.3"}


def test_a_name_is_looked_up_once_for_many_calls_and_again_after_a_while(
    lookups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkSettings(proxy=SecretStr("http://proxy.example:3128"))
    for _ in range(5):
        assert proxy_for(network, f"https://{NAME}/x") == "http://proxy.example:3128"
        assert proxy_for(network, "https://inside.test/x") == ""
    assert sorted(lookups) == ["inside.test", NAME]
    monkeypatch.setitem(ADDRESSES, NAME, "10.0.0.1")
    known_until = time.monotonic() + network_module.REMEMBERED_SECONDS
    monkeypatch.setattr(network_module.time, "monotonic", lambda: known_until)
    assert proxy_for(network, f"https://{NAME}/x") == "", "it has a private address by now"


def test_the_guard_looks_up_again_what_is_called_directly(lookups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A remembered lookup never lets a call through to a private address."""
    network = NetworkSettings(proxy=SecretStr("http://127.0.0.1:9"))
    with pytest.raises(UnsafeAddress, match=r"private address 10.1.2.3"):
        get(network, "https://inside.test/x")
    monkeypatch.setitem(ADDRESSES, "inside.test", "10.9.9.9")
    with pytest.raises(UnsafeAddress, match=r"private address 10.9.9.9"):
        get(network, "https://inside.test/x")
    assert lookups == ["inside.test"] * 3, "once for the proxy, and by the guard for each call"


def test_a_call_looks_the_name_up_before_it_takes_its_slot(
    private_ca: tuple[Path, Path], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = HttpSession(network=NetworkSettings(ca_file=str(private_ca[0]), proxy=SecretStr(proxy.url)))
    session.warm_up(f"https://{NAME}/x", until=time.monotonic() + 10)

    def refuse(host: str, *_: Any) -> list[str]:
        raise AssertionError(f"{host} is looked up again")

    monkeypatch.setattr(network_module, "resolve", refuse)
    assert session.send("GET", f"https://{NAME}/x", headers={}, until=time.monotonic() + 10).status == 200
    assert proxy.asked == [(f"{NAME}:443", True)]


def behind_proxy(private_ca: tuple[Path, Path], proxy: Proxy) -> str:
    return f'[network]\nca_file = "{private_ca[0]}"\nproxy = "{proxy.url}"\n'


def test_an_alert_and_a_call_of_a_store_go_through_the_proxy(
    tmp_path: Path, private_ca: tuple[Path, Path], proxy: Proxy
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f"""{behind_proxy(private_ca, proxy)}
    [alerts.targets.ops]
    url = "https://alerts.{NAME}/hook"
    [stores.north]
    base_url = "https://{NAME}"
    auth = {{ token = "t" }}
    signing_secrets = ["whsec_dGVzdCBzZWNyZXQgb2Ygb25lIHN0b3Jl"]
    """
    )
    config = load(file, {})
    assert client_for_store(config, "north").orders.get(1)["id"] == 1
    assert proxy.asked == [(f"{NAME}:443", True)]
    send(config, config.alerts.targets["ops"], AlertMessage("1", "ops", "failing", "fired", (), 0, datetime.now(UTC)))
    assert proxy.asked[1:] == [(f"alerts.{NAME}:443", True)]


@pytest.mark.full
def test_a_worker_forwards_an_event_through_the_proxy(
    make_system: Callable[..., System], private_ca: tuple[Path, Path], proxy: Proxy
) -> None:
    system = make_system(more=forward(f"https://{NAME}/hook") + behind_proxy(private_ca, proxy))
    system.start("worker")
    assert system.settled(system.accept()) == "settled"
    assert proxy.asked == [(f"{NAME}:443", True)]
