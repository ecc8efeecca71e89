"""Odd token endpoints: each gives a right token, or an error whose sentence names the cause and the fix."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from redis import Redis

from tests.support import odd_token_server as odd
from tests.support.odd_token_server import BODY_CLIENT_ID, CLIENT_ID, SECRET, OddTokenServer, OwnTokens, answer
from workers.storeapi import Credentials
from workers.storeapi.errors import ApiError, TokenRefused, TokenUnreachable
from workers.storeapi.transport.auth import ClientCredentials
from workers.storeapi.transport.http import HttpSession

BODY = {"style": "body", "client_id": BODY_CLIENT_ID}
NESTED = {"token_path": "data.access_token"}
HTML = odd.TokenAnswer(200, b"<!doctype html><title>Log in</title>", {"content-type": "text/html"})


class OddEndpoint(NamedTuple):
    does: odd.Odd
    expected: str = ""
    """Words of the error; empty where a token is expected."""
    auth: Mapping[str, Any] = MappingProxyType({})
    lifetime: float = 120.0
    requests: int = 1


GIVES_A_TOKEN = {
    "plain": OddEndpoint(odd.good),
    "form-only": OddEndpoint(odd.only_form, auth=BODY),
    "json-only": OddEndpoint(odd.only_json, auth={"style": "json", "client_id": BODY_CLIENT_ID}),
    "nested-configured": OddEndpoint(odd.nested("data"), auth=NESTED),
    "in-a-list": OddEndpoint(
        lambda ask, request: answer([{"access_token": odd.good(ask, request).token}]),
        auth={"token_path": "0.access_token"},
        lifetime=3600,
    ),
    "expires-text": OddEndpoint(odd.with_fields(expires_in="120")),
    "expires-word": OddEndpoint(odd.with_fields(expires_in="soon"), lifetime=3600),
    "expires-missing": OddEndpoint(odd.with_fields(expires_in=None), lifetime=3600),
    "expires-zero": OddEndpoint(odd.with_fields(expires_in=0), lifetime=3600),
    "expires-negative": OddEndpoint(odd.with_fields(expires_in=-5), lifetime=3600),
    "expires-true": OddEndpoint(odd.with_fields(expires_in=True), lifetime=3600),
    "expires-object": OddEndpoint(odd.with_fields(expires_in={"seconds": 120}), lifetime=3600),
    "expires-nan": OddEndpoint(odd.raw_expires_in("NaN"), lifetime=3600),
    "expires-tiny": OddEndpoint(odd.raw_expires_in("1e-9"), lifetime=3600),
    "expires-moment": OddEndpoint(odd.with_fields(expires_in=1_793_000_000), lifetime=86_400),
    "expires-1e300": OddEndpoint(odd.raw_expires_in("1e300"), lifetime=86_400),
    "expires-1e400": OddEndpoint(odd.raw_expires_in("1e400"), lifetime=86_400),
    "expires-400-digits": OddEndpoint(odd.raw_expires_in("9" * 400), lifetime=86_400),
    "type-lower-case": OddEndpoint(odd.with_fields(token_type="bearer")),
    "type-missing": OddEndpoint(odd.with_fields(token_type=None)),
    "type-configured": OddEndpoint(odd.with_fields(token_type="token"), auth={"scheme": "Token"}),
    "status-201": OddEndpoint(lambda ask, request: odd.replace(odd.good(ask, request), status=201)),
    "zipped": OddEndpoint(odd.zipped),
    "byte-order-mark": OddEndpoint(odd.as_text),
    "429-once": OddEndpoint(odd.first(answer({}, 429, retry_after="1")), requests=2),
    "503-once": OddEndpoint(odd.first(answer({}, 503, retry_after="1")), requests=2),
    "500-once": OddEndpoint(odd.first(answer({}, 500)), requests=2),
    "lost-once": OddEndpoint(odd.first(None), requests=2),
}

REFUSED = {
    "redirect-away": OddEndpoint(
        odd.instead(answer({}, 302, location="https://login.example/sign-in")),
        "answered 302, a redirect to login.example; the credentials were not sent there. Set url in stores.demo.auth",
    ),
    "redirect-here": OddEndpoint(
        odd.instead(answer({}, 307, location="/oauth2/token")),
        "answered 307, a redirect to another path; the credentials were not sent there. Set url in stores.demo.auth",
    ),
    "wrong-secret": OddEndpoint(
        odd.good,
        "answered 401 (invalid_client: client authentication failed); check client_id and client_secret in "
        'stores.demo.auth; if they are right, the server may not accept HTTP Basic: set style = "body" there',
        {"client_secret": "wrong"},
    ),
    "wrong-secret-in-form": OddEndpoint(
        odd.good,
        "answered 401 (invalid_client: client authentication failed); check client_id and client_secret in "
        'stores.demo.auth; if they are right, the server may accept HTTP Basic only: set style = "basic" there',
        {**BODY, "client_secret": "wrong"},
    ),
    "form-only-basic": OddEndpoint(
        odd.only_form,
        "answered 400 (invalid_request: The request is missing the client_id parameter.); check client_id and "
        "client_secret in stores.demo.auth; if they are right, the server may not accept HTTP Basic: set style = ",
    ),
    "undecoded-basic": OddEndpoint(odd.undecoded_basic, 'the server may not accept HTTP Basic: set style = "body"'),
    "json-only-form": OddEndpoint(
        odd.only_json,
        'answered 415 (Unsupported Media Type); it does not read forms: set style = "json" in stores.demo.auth',
        BODY,
    ),
    "wrong-scope": OddEndpoint(
        odd.instead(odd.error(400, "invalid_scope", "requested scope is not allowed")),
        "answered 400 (invalid_scope: requested scope is not allowed); check scope in stores.demo.auth",
    ),
    "wrong-grant": OddEndpoint(
        odd.good,
        "answered 400 (unsupported_grant_type: unsupported grant_type requested); this client may not use the grant "
        "client_credentials",
        {"extra": {"grant_type": "password"}},
    ),
    "unauthorized-client": OddEndpoint(
        odd.instead(odd.error(400, "unauthorized_client")),
        "answered 400 (unauthorized_client); this client may not use the grant client_credentials",
    ),
    "error-with-200": OddEndpoint(
        odd.instead(odd.error(200, "invalid_client", "bad secret")), "answered 200 (invalid_client: bad secret)"
    ),
    "error-object": OddEndpoint(
        odd.instead(answer({"error": {"code": 7, "message": "the app is blocked"}}, 403)),
        "answered 403 (the app is blocked); check client_id and client_secret",
    ),
    "error-list": OddEndpoint(
        odd.instead(answer({"errors": [{"detail": "app expired"}]}, 401)), "answered 401 (app expired)"
    ),
    "error-text": OddEndpoint(
        odd.instead(odd.TokenAnswer(400, b"Unknown client", {"content-type": "text/plain"})),
        "answered 400 (Unknown client)",
    ),
    "wrong-url": OddEndpoint(
        odd.instead(odd.replace(HTML, status=404)),
        "answered 404 (Log in); check url in stores.demo.auth: this is no",
    ),
    "login-page": OddEndpoint(
        odd.instead(HTML), "answered 200 with text/html instead of JSON; check url in stores.demo.auth"
    ),
    "as-form": OddEndpoint(odd.as_form, "answered 200 with application/x-www-form-urlencoded instead of JSON"),
    "empty": OddEndpoint(odd.instead(odd.TokenAnswer(200, b"", {})), "answered 200 with an empty body"),
    "cut": OddEndpoint(
        odd.instead(odd.TokenAnswer(200, b'{"access_token": "ab', {"content-type": "application/json"})),
        "answered 200 with application/json that cannot be parsed",
    ),
    "nested": OddEndpoint(
        odd.nested("data", "oauth"),
        'answered without access_token; set token_path = "data.oauth.access_token" in stores.demo.auth',
    ),
    "camel-case": OddEndpoint(
        odd.renamed("accessToken"), 'answered without access_token; set token_path = "accessToken" in stores.demo.auth'
    ),
    "no-token": OddEndpoint(
        odd.with_fields(access_token=None), "answered without access_token; its fields are expires_in, token_type"
    ),
    "only-a-list": OddEndpoint(odd.instead(answer([1, 2])), "answered without access_token; it sent a list"),
    "wrong-path": OddEndpoint(
        odd.good,
        'answered without data.access_token; set token_path = "access_token" in stores.demo.auth',
        NESTED,
    ),
    "token-number": OddEndpoint(odd.with_fields(access_token=17), "the access_token is not text"),
    "token-line-feed": OddEndpoint(
        odd.with_fields(access_token="abc\r\nx: y"), "the access_token has characters that no header can hold"
    ),
    "token-umlaut": OddEndpoint(odd.with_fields(access_token="größe"), "characters that no header can hold"),
    "token-huge": OddEndpoint(odd.with_fields(access_token="x" * 100_000), "the access_token has 100,000 characters"),
    "type-mac": OddEndpoint(
        odd.with_fields(token_type="mac"),
        'the token has token_type "mac", not Bearer; if the store accepts it with another word before it, set scheme '
        "in stores.demo.auth",
    ),
    "type-dpop": OddEndpoint(odd.with_fields(token_type="DPoP"), 'token_type "DPoP"'),
    "type-number": OddEndpoint(odd.with_fields(token_type=1), 'token_type "1"'),
    "too-large": OddEndpoint(
        odd.instead(odd.TokenAnswer(200, b" " * 3_000_000)), "the response has 3,000,000 bytes; the limit is 2,000,000"
    ),
}

TEMPORARY = {
    "503-always": OddEndpoint(odd.instead(answer({"message": "upgrade"}, 503)), "answered 503 (upgrade)", requests=4),
    "429-long": OddEndpoint(odd.instead(answer({}, 429, retry_after="900")), "answered 429, and asks to wait 900 s"),
    "503-for-years": OddEndpoint(odd.instead(answer({}, 503, retry_after="9999999")), "asks to wait 9,999,999 s"),
    "lost-always": OddEndpoint(odd.instead(None), "the token endpoint does not answer", requests=4),  # type: ignore[arg-type]
}
ENDPOINTS = {**GIVES_A_TOKEN, **REFUSED, **TEMPORARY, "echo": OddEndpoint(odd.echo_secret)}


class Around:
    """The odd endpoints around a well-behaved token endpoint."""

    def __init__(self, ask: odd.Ask) -> None:
        self.server = OddTokenServer(ask, {name: one.does for name, one in ENDPOINTS.items()})

    def source(self, name: str, redis: Redis | None) -> ClientCredentials:
        given = {"client_id": CLIENT_ID, "client_secret": SECRET, **ENDPOINTS[name].auth}
        http = HttpSession(allow_private=True, max_response=2_000_000)
        return ClientCredentials(Credentials(f"{self.server.url}/{name}", **given), http, redis=redis, store="demo")

    def bearer(self, name: str, redis: Redis | None) -> str:
        return self.source(name, redis).bearer(until=time.monotonic() + 10)


@pytest.fixture(scope="module")
def tokens() -> OwnTokens:
    return OwnTokens()


@pytest.fixture(scope="module")
def around(tokens: OwnTokens) -> Iterator[Around]:
    made = Around(tokens.ask)
    yield made
    made.server.close()


def check_gives_a_token(around: Around, redis: Redis, name: str) -> str:
    """Fetch a token from an odd endpoint, and again from the shared one; return it."""
    expected = ENDPOINTS[name]
    before = around.server.requests[name]
    token = around.bearer(name, redis)
    assert around.bearer(name, redis) == token, "another process gets the same token"
    assert around.server.requests[name] - before == expected.requests
    (key,) = redis.keys("*")
    assert expected.lifetime - 10 < redis.pttl(key) / 1000 <= expected.lifetime
    return token


def check_is_refused(around: Around, redis: Redis, name: str, kind: type[ApiError] = TokenRefused) -> ApiError:
    expected = ENDPOINTS[name]
    with pytest.raises(kind) as caught:
        around.bearer(name, redis)
    assert expected.expected in str(caught.value)
    assert "secret:" not in str(caught.value)
    assert all(redis.pttl(key) > 0 for key in redis.keys("*")), "no key without an end"
    assert not redis.keys("*token_lock*"), "the next process need not wait"
    return caught.value


@pytest.mark.parametrize("name", GIVES_A_TOKEN)
def test_an_odd_token_endpoint_gives_a_right_token(around: Around, tokens: OwnTokens, redis: Redis, name: str) -> None:
    assert check_gives_a_token(around, redis, name) in tokens.issued


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_of_an_odd_token_endpoint_names_the_cause(around: Around, redis: Redis, name: str) -> None:
    first = check_is_refused(around, redis, name)
    with pytest.raises(TokenRefused) as caught:
        around.bearer(name, redis)
    assert str(caught.value) == str(first), "another process has the same error"


@pytest.mark.parametrize("name", TEMPORARY)
def test_a_fault_of_the_token_endpoint_is_not_taken_for_wrong_credentials(
    around: Around, redis: Redis, name: str
) -> None:
    expected = ENDPOINTS[name]
    error = check_is_refused(around, redis, name, TokenUnreachable)
    assert "stores.demo.auth" not in str(error)
    assert around.server.requests[name] == expected.requests


def test_every_process_waits_as_long_as_retry_after_says(around: Around, redis: Redis) -> None:
    """Also a process without Redis does not ask again before that."""
    asked = around.server.requests["429-long"]
    for _ in range(3):
        with pytest.raises(TokenUnreachable, match="asks to wait 900 s") as caught:
            around.bearer("429-long", redis)
        assert caught.value.retry_after is not None
        assert 890 < caught.value.retry_after <= 900
    alone = around.source("429-long", None)
    errors = []
    for _ in range(3):
        with pytest.raises(TokenUnreachable, match="asks to wait 900 s") as caught:
            alone.bearer(until=time.monotonic() + 10)
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3, "an error that is raised again would keep the frames of each call"
    assert around.server.requests["429-long"] == asked + 2


def test_a_retry_after_of_years_is_bounded(around: Around, redis: Redis) -> None:
    with pytest.raises(TokenUnreachable):
        around.bearer("503-for-years", redis)
    with pytest.raises(TokenUnreachable) as caught:
        around.bearer("503-for-years", redis)
    assert caught.value.retry_after is not None
    assert 3500 < caught.value.retry_after <= 3600


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_no_error_shows_a_secret_that_the_token_endpoint_repeats(around: Around, redis: Redis, shared: bool) -> None:
    with pytest.raises(TokenRefused, match=r"answered 401 \(invalid_client: no client has the secret \*\*\*") as caught:
        around.bearer("echo", redis if shared else None)
    text = str(caught.value)
    assert len(text) < 700
    assert text.isprintable()
    assert not any(part in text for part in (SECRET, "s%26cret", "dGhlK2FwcDpzJTI2"))


def test_at_least_thirty_odd_endpoints_are_tested() -> None:
    assert len(ENDPOINTS) >= 60
