"""The client with a third-party token server: oidc-provider, from the npm registry; alone, and with odd endpoints."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from tests.support.harness import Process, eventually, free_port
from tests.support.odd_token_server import TokenAnswer
from tests.support.raw_server import RawServer
from tests.workers.storeapi.test_odd_tokens import (
    GIVES_A_TOKEN,
    REFUSED,
    TEMPORARY,
    Around,
    check_gives_a_token,
    check_is_refused,
)
from workers.storeapi import Client, Credentials
from workers.storeapi.errors import TokenRefused, TokenUnreachable
from workers.storeapi.transport.auth import ClientCredentials
from workers.storeapi.transport.http import HttpSession

PACKAGE = "oidc-provider@8.8.1"
SECRET = "s&cret:+% ~"

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node is missing"),
]


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> Path:
    """The server's code, downloaded once into pytest's cache."""
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir(PACKAGE.replace("@", "-")))
    if not (folder / "node_modules" / "oidc-provider").exists():
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            pytest.skip(f"node is here, but {PACKAGE} cannot be downloaded: {done.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def server(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    script = str(Path(__file__).parent / "oauth_server.mjs")
    log = tmp_path_factory.mktemp("oauth") / "server.log"
    process = Process(["node", script, str(modules), str(port)], log=log)
    eventually(lambda: "ready" in process.output(), 20, what="the token server is ready")
    yield f"http://127.0.0.1:{port}"
    process.stop()


def source(server: str, redis: Redis | None = None, **how: Any) -> ClientCredentials:
    credentials = Credentials(**{"url": f"{server}/token", "client_id": "the app", "client_secret": SECRET, **how})
    return ClientCredentials(credentials, HttpSession(allow_private=True), redis=redis, store="demo")


def introspect(server: str, token: str) -> dict[str, Any]:
    """The server's own description of a token."""
    form = {"token": token, "client_id": "body app", "client_secret": SECRET}
    return dict(httpx2.post(f"{server}/token/introspection", data=form).raise_for_status().json())


@pytest.mark.parametrize(("style", "client_id"), [("basic", "the app"), ("body", "body app")])
def test_a_token_fetched_in_either_style_is_valid(server: str, redis: Redis, style: Any, client_id: str) -> None:
    token = source(server, redis, style=style, client_id=client_id, scope="read write").bearer(until=_soon())
    description = introspect(server, token)
    assert (description["active"], description["client_id"]) == (True, client_id)
    assert set(description["scope"].split()) == {"read", "write"}


def test_the_token_is_shared_and_sent_to_the_store(server: str, redis: Redis) -> None:
    body = b'{"data":[],"meta":{"total":0}}'
    store = RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    auth = Credentials(f"{server}/token", "the app", SECRET)
    for _ in range(2):
        assert list(Client(store.url, auth=auth, store="demo", redis=redis, allow_private=True).products.list()) == []
    sent = {
        line for head in store.received for line in head.split(b"\r\n") if line.lower().startswith(b"authorization")
    }
    (line,) = sent
    assert introspect(server, line.split(b" ")[2].decode())["active"]
    store.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"client_secret": "wrong"}, r"401 \(invalid_client: client authentication failed\); check client_id"),
        ({"client_id": "unknown app"}, r"401 \(invalid_client: client authentication failed\); check client_id"),
        ({"style": "json"}, r'the server may read forms only: set style = "body" there'),
        ({"extra": {"grant_type": "password"}}, r"400 \(unsupported_grant_type: unsupported grant_type requested\)"),
    ],
)
def test_the_error_shows_the_token_servers_words_and_a_fix(server: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenRefused, match=message) as caught:
        source(server, **how).bearer(until=_soon())
    assert SECRET not in str(caught.value)


@pytest.fixture(scope="module")
def around(server: str) -> Iterator[Around]:
    """The odd endpoints, each around this token server."""

    def ask(authorization: str, form: dict[str, str]) -> TokenAnswer:
        headers = {"authorization": authorization} if authorization else {}
        found = httpx2.post(f"{server}/token", data=form, headers=headers)
        return TokenAnswer(found.status_code, found.content, {"content-type": found.headers["content-type"]})

    made = Around(ask)
    yield made
    made.server.close()


@pytest.mark.parametrize("name", GIVES_A_TOKEN)
def test_an_odd_endpoint_around_it_gives_a_right_token(around: Around, server: str, redis: Redis, name: str) -> None:
    assert introspect(server, check_gives_a_token(around, redis, name))["active"]


@pytest.mark.parametrize("name", [*REFUSED, *TEMPORARY])
def test_an_odd_endpoint_around_it_gives_an_error_that_names_the_cause(around: Around, redis: Redis, name: str) -> None:
    check_is_refused(around, redis, name, TokenRefused if name in REFUSED else TokenUnreachable)


def _soon() -> float:
    return time.monotonic() + 10
