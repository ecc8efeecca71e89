"""The token: fetched once for all processes, refreshed before it expires and once after a 401, never shown."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support.harness import eventually
from tests.support.programs import ROOT
from tests.support.raw_server import RawServer
from tests.workers.conftest import AUTH, SandboxRun
from workers.storeapi import Client, Credentials
from workers.storeapi.errors import AccessDenied, ApiError, TokenRefused
from workers.storeapi.transport.auth import ClientCredentials, Token, TokenSealer
from workers.storeapi.transport.http import HttpSession


def call_at_once(
    sandbox: SandboxRun, *, processes: int, threads: int, calls: int, config: Path | None = None
) -> list[dict[str, object]]:
    """Start several processes that call the store at the same moment; return the result of each."""
    go = sandbox.folder / f"go-{time.monotonic_ns()}"
    file = str(config or sandbox.config_file)
    command = [sys.executable, "-m", "tests.support.many_callers", file, str(threads), str(calls)]
    started = [
        subprocess.Popen([*command, str(go)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    eventually(lambda: len(list(go.parent.glob(f"{go.name}.ready.*"))) == processes, 60, what="all callers are ready")
    go.touch()
    return [json.loads(one.communicate(timeout=115)[0]) for one in started]


def test_four_processes_of_eight_threads_need_one_token_request(sandbox: SandboxRun, redis: Redis) -> None:
    found = call_at_once(sandbox, processes=4, threads=8, calls=2)
    assert found == [{"ok": 16, "errors": []}] * 4
    assert sandbox.status()["token_requests"] == 1


def test_a_revoked_token_is_refreshed_once_and_no_call_fails(sandbox: SandboxRun, redis: Redis) -> None:
    client = sandbox.client(redis)
    results: list[object] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                results.append(client.products.get(1).id)
            except ApiError as error:
                results.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(results) > 50)
    sandbox.do("revoke-tokens")
    before = len(results)
    eventually(lambda: len(results) > before + 100)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(results) == {1}
    assert sandbox.status()["token_requests"] == 2
    assert 401 in [status for *_, status in sandbox.log()]


def test_a_token_is_refreshed_before_it_expires(sandbox: SandboxRun, redis: Redis) -> None:
    sandbox.misbehave(token_life="2s", token_claims="2s")
    client = sandbox.client(redis)
    deadline = time.monotonic() + 10
    while sandbox.status()["token_requests"] < 2:
        assert client.products.get(1).id == 1
        assert time.monotonic() < deadline
    assert 401 not in [status for *_, status in sandbox.log()]


def test_a_token_that_expires_early_costs_one_refresh(sandbox: SandboxRun, redis: Redis) -> None:
    sandbox.misbehave(token_life="500ms", token_claims="1h")
    client = sandbox.client(redis)
    client.products.get(1)
    eventually(lambda: client.products.get(1) and sandbox.status()["token_requests"] == 2, 5)


def test_another_client_uses_the_shared_token(sandbox: SandboxRun, redis: Redis) -> None:
    for _ in range(3):
        sandbox.client(redis).products.get(1)
    assert sandbox.status()["token_requests"] == 1
    assert 0 < redis.pttl(next(iter(redis.scan_iter("sh:api:token:demo:*")))) <= 3_600_000


def stored_token(redis: Redis) -> tuple[str, dict[bytes, bytes]]:
    (name,) = redis.scan_iter("sh:api:token:demo:*")
    found: Any = redis.hgetall(name)
    return name.decode(), found


@pytest.mark.parametrize("more", ["", '[secrets]\nkey = "' + "ab" * 32 + '"\n'], ids=["no key", "a key"])
def test_the_shared_token_is_sealed_in_redis(make_sandbox: Callable[..., SandboxRun], redis: Redis, more: str) -> None:
    sandbox = make_sandbox(more=more)
    client = sandbox.client(redis)
    client.products.get(1)
    token = client._tokens.bearer(until=time.monotonic() + 1)
    assert len(token) > 10
    _, fields = stored_token(redis)
    assert token.encode() not in b" ".join(fields.values())
    again = sandbox.client(redis)
    assert again.products.get(1).id == 1
    assert again._tokens.bearer(until=time.monotonic() + 1) == token
    assert sandbox.status()["token_requests"] == 1


def test_other_credentials_or_another_redis_key_do_not_unseal_a_token() -> None:
    given = Credentials("https://a.example/t", "id", "secret")
    sealed = TokenSealer(given.sealing_key, "here").seal("the token")
    assert TokenSealer(given.sealing_key, "here").unseal(sealed) == "the token"
    assert TokenSealer(given.sealing_key, "there").unseal(sealed) == ""
    others = [replace(given, client_secret="x"), replace(given, seal_key="x"), replace(given, scope="x")]
    assert [TokenSealer(other.sealing_key, "here").unseal(sealed) for other in others] == [""] * 3
    assert len({one.fingerprint for one in (given, *others)}) == 4
    assert "secret" not in repr(replace(given, seal_key="secret", client_secret="secret"))


@pytest.mark.parametrize("debris", [b"tok-unsealed", b"", b"\xff" * 40], ids=["unsealed", "empty", "bytes"])
def test_a_token_that_cannot_be_unsealed_is_fetched_again(sandbox: SandboxRun, redis: Redis, debris: bytes) -> None:
    sandbox.client(redis).products.get(1)
    name, fields = stored_token(redis)
    redis.hset(name, "value", debris)
    assert sandbox.client(redis).products.get(1).id == 1
    assert sandbox.status()["token_requests"] == 2
    assert stored_token(redis)[1][b"value"] not in (debris, fields[b"value"])


@pytest.mark.parametrize("field", ["value", "fingerprint", "refresh", "expires"])
def test_an_incomplete_token_in_redis_is_fetched_again(sandbox: SandboxRun, redis: Redis, field: str) -> None:
    sandbox.client(redis).products.get(1)
    redis.hdel(stored_token(redis)[0], field)
    assert sandbox.client(redis).products.get(1).id == 1
    assert sandbox.status()["token_requests"] == 2
    assert set(stored_token(redis)[1]) == {b"value", b"fingerprint", b"refresh", b"expires"}


def test_new_credentials_do_not_use_the_token_of_the_old_ones(sandbox: SandboxRun, redis: Redis) -> None:
    sandbox.client(redis).products.get(1)
    url = f"http://127.0.0.1:{sandbox.port}"
    wrong = Credentials(f"{url}/oauth/token", "the app", "another secret")
    with pytest.raises(TokenRefused, match=r"401 \(invalid_client\); check client_id"):
        Client(url, auth=wrong, store="demo", redis=redis, allow_private=True).products.get(1)


@pytest.mark.parametrize("style", ["basic", "body", "json"])
def test_the_sandbox_accepts_every_style_of_credentials(sandbox: SandboxRun, style: Any) -> None:
    url = f"http://127.0.0.1:{sandbox.port}"
    auth = Credentials(f"{url}/oauth/token", "the app", "s&cret:+%", style)
    assert Client(url, auth=auth, allow_private=True).products.get(1).id == 1


def test_the_sandbox_answers_with_the_token_where_config_says(make_sandbox: Callable[..., SandboxRun]) -> None:
    auth = AUTH.replace(" }", ', style = "json", token_path = "data.accessToken" }')
    sandbox = make_sandbox(auth=auth)
    assert sandbox.client().products.get(1).id == 1
    assert sandbox.status()["token_requests"] == 1


def test_scope_and_extra_parameters_are_sent() -> None:
    credentials = Credentials("https://a.example/t", "id", "secret", "body", "read write", {"audience": "shop"})
    headers, content = credentials.request()
    assert content == (
        b"grant_type=client_credentials&scope=read+write&audience=shop&client_id=id&client_secret=secret"
    )
    assert "authorization" not in headers


def test_basic_credentials_are_encoded_as_rfc_6749_says() -> None:
    headers, content = Credentials("https://a.example/t", "the app", "s&cret:+%").request()
    assert headers["authorization"] == "Basic dGhlK2FwcDpzJTI2Y3JldCUzQSUyQiUyNQ=="
    assert content == b"grant_type=client_credentials"


def test_a_static_token_is_sent_unchanged(make_sandbox: Callable[..., SandboxRun]) -> None:
    sandbox = make_sandbox(auth='{ token = "given-to-us" }')
    assert sandbox.client().products.get(1).id == 1
    assert sandbox.status()["token_requests"] == 0


def test_the_error_for_a_refused_static_token_does_not_contain_it(sandbox: SandboxRun) -> None:
    client = Client(f"http://127.0.0.1:{sandbox.port}", token="tok-very-secret", allow_private=True, store="demo")
    with pytest.raises(AccessDenied) as caught:
        client.products.get(1)
    assert "401" in str(caught.value)
    shown = f"{caught.value!r} {caught.value} {vars(caught.value)} {client!r} {vars(client)['_tokens']!r}"
    assert "tok-very-secret" not in shown


def test_no_error_of_the_token_endpoint_shows_a_secret(sandbox: SandboxRun, redis: Redis) -> None:
    url = f"http://127.0.0.1:{sandbox.port}"
    auth = Credentials(f"{url}/oauth/token", "me", "hush-hush")
    with pytest.raises(TokenRefused) as caught:
        Client(url, auth=auth, store="demo", redis=redis, allow_private=True).products.get(1)
    assert "hush-hush" not in f"{caught.value!r} {caught.value} {auth!r}"
    assert not any(b"hush" in key for key in redis.scan_iter("*"))


def test_a_refusal_by_the_token_endpoint_is_shared(sandbox: SandboxRun, redis: Redis) -> None:
    """Wrong credentials in 16 threads do not cause 16 token requests."""
    url = f"http://127.0.0.1:{sandbox.port}"
    http = HttpSession(allow_private=True)
    refusals: list[TokenRefused] = []

    def ask() -> None:
        source = ClientCredentials(Credentials(f"{url}/oauth/token", "me", "x"), http, redis=redis, store="demo")
        try:
            source.bearer(until=time.monotonic() + 10)
        except TokenRefused as error:
            refusals.append(error)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 16
    assert sandbox.status()["token_requests"] <= 2


@pytest.mark.parametrize(("lifetime", "fresh"), [(3600, 3540), (100, 90), (2, 1.8)])
def test_a_token_is_refreshed_when_a_tenth_of_its_lifetime_is_left(lifetime: float, fresh: float) -> None:
    assert Token("x", lifetime).fresh_for == pytest.approx(fresh)


class ShortLivedSource:
    """A source of tokens whose endpoint can be made to fail, and whose token can be made old."""

    def __init__(self, server: RawServer, redis: Redis | None) -> None:
        self._server = server
        self._redis = redis
        credentials = Credentials(f"{server.url}/oauth/token", "me", "x")
        self._tokens = ClientCredentials(credentials, HttpSession(allow_private=True), redis=redis, store="demo")

    def bearer(self, refused: str = "") -> str:
        return self._tokens.bearer(refused=refused, until=time.monotonic() + 2)

    def answer(self, status: str, token: str = "") -> None:
        body = json.dumps({"access_token": token, "expires_in": 600} if token else {})
        self._server.answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    def age(self, *, expired: bool = False) -> None:
        """The time of its early refresh has come, or its end; and a failed one is no reason to wait any more."""
        self._tokens._fresh_until = self._tokens._paused_until = 0.0
        if self._redis is None:
            self._tokens._valid_until = 0.0 if expired else self._tokens._valid_until
        else:
            token, _, error = self._tokens._keys
            self._redis.delete(error)
            self._redis.hset(token, "expires" if expired else "refresh", 0)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("failure", ["503 Unavailable", "503 Busy\r\nretry-after: 9", "401 Unauthorized", "none"])
def test_a_valid_token_is_used_while_its_early_refresh_fails(redis: Redis, shared: bool, failure: str) -> None:
    server = RawServer()
    source = ShortLivedSource(server, redis if shared else None)
    source.answer("200 OK", "first")
    assert source.bearer() == "first"
    source.answer(failure)
    server.pause = 5.0 if failure == "none" else 0.0
    source.age()
    assert [source.bearer(), source.bearer()] == ["first", "first"]
    assert len(server.received) > 1, "it was to be refreshed"
    with pytest.raises(ApiError):
        source.bearer(refused="first")
    source.age(expired=True)
    with pytest.raises(ApiError):
        source.bearer()
    server.pause = 0.0
    source.answer("200 OK", "second")
    source.age()
    assert source.bearer() == "second"
    server.close()


def test_the_lock_of_a_killed_fetcher_expires(sandbox: SandboxRun, redis: Redis) -> None:
    """A process that is killed during its fetch must not block the others for good."""
    client = sandbox.client(redis)
    names = client._tokens._keys  # type: ignore[attr-defined]
    redis.set(names[1], "a killed process", px=300)
    assert client.products.get(1).id == 1
