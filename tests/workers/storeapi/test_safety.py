"""Safety: where the token is sent, which links are followed, how much is read, and which addresses are connected to."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.support.raw_server import RawServer
from tests.workers.conftest import SandboxRun
from tests.workers.storeapi.test_paging import paging
from workers.storeapi import ApiError, Client, Credentials
from workers.storeapi.catalogue import bundled_catalogue
from workers.storeapi.errors import (
    Blocked,
    ForeignOrigin,
    ResponseTooLarge,
    TokenRefused,
    UnexpectedResponse,
    Unreachable,
    UnsafeAddress,
)
from workers.storeapi.transport.guard import may_connect

TOKEN = "tok-of-the-store"
BAD_PORTS = [f"https://shop.example:{port}" for port in ("+443", " 443", "٤٤٣", "99999", "-1", "4 43", "http")]
BAD_PORTS += ["https://[::1", "https://shop.example:443:443"]


OUTSIDE = [
    "/admin",
    "/apis",
    "/api/../admin",
    "../../../../../admin",
    "/api/v3/../../admin",
    "/api/%2e%2e/admin",
    "/api/.%2E/admin",
    "/api/%252e%252e/admin",
    "/api/..%2fadmin",
    "/api/..%5cadmin",
    "/api/..\\admin",
    "/api\\..\\admin",
    "/api/..;/admin",
    "/api/..;a=b/admin",
    "/api/./../admin",
    "/api//../../admin",
    "/api/a/../../admin",
]
"""Paths that some server reads as a path outside of /api."""


@pytest.fixture
def other_host() -> Iterator[RawServer]:
    """Another host, to which nothing must be sent."""
    server = RawServer()
    yield server
    server.close()


def test_a_redirect_to_another_host_is_refused_and_nothing_is_sent_there(
    sandbox: SandboxRun, other_host: RawServer
) -> None:
    sandbox.misbehave(redirect=1, elsewhere=other_host.url)
    with pytest.raises(ForeignOrigin, match=r"answered 302, a redirect to 127\.0\.0\.1; redirects are not followed"):
        sandbox.client().products.get(1)
    assert other_host.connections == 0


def test_a_next_link_to_another_host_is_refused_and_nothing_is_sent_there(
    sandbox: SandboxRun, other_host: RawServer, tmp_path: Path
) -> None:
    sandbox.misbehave(foreign_link=1, elsewhere=other_host.url)
    text = sandbox.config_file.read_text() + paging("link", size=10)
    (tmp_path / "link.toml").write_text(text)
    client = SandboxRun.client_from(tmp_path / "link.toml")
    with pytest.raises(
        ForeignOrigin, match=r"the link to the next page leads to 127\.0\.0\.1; the token is sent only to the store"
    ):
        list(client.products.list())
    assert other_host.connections == 0


def follow_link(link: str, base: str = "/api") -> tuple[ApiError, list[str]]:
    """List the records of a store whose pages all have this next link. Returns the error, and the paths requested."""
    server = RawServer()
    body = orjson.dumps({"data": [{"id": 1}], "links": {"next": link.replace("ORIGIN", server.url)}})
    server.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    bundled = bundled_catalogue()
    linked = replace(
        bundled,
        operations={"products.list": replace(bundled.operations["products.list"], paging="link")},
        paging=replace(bundled.paging, next_link="links.next"),
    )
    with pytest.raises(ApiError) as caught:
        list(Client(server.url + base, token=TOKEN, allow_private=True, catalogue=linked).products.list())
    server.close()
    return caught.value, [one.split(b" ")[1].decode() for one in server.received]


@pytest.mark.parametrize("before", ["", "ORIGIN"])
@pytest.mark.parametrize("link", OUTSIDE)
def test_a_next_link_cannot_leave_the_path_of_the_base_url(link: str, before: str) -> None:
    error, paths = follow_link(before + link)
    assert isinstance(error, ForeignOrigin)
    assert "the token is sent only to the store" in str(error)
    assert len(paths) == 1


@pytest.mark.parametrize("link", ["?page=2", "/api/v3?page=2", "ORIGIN/api/a..b/c.d?x=../..", "/api//v3", "/api/a%2Fb"])
def test_a_next_link_below_the_base_url_is_followed(link: str) -> None:
    error, paths = follow_link(link)
    assert isinstance(error, UnexpectedResponse), "the same page twice"
    assert len(paths) == 2
    assert paths[1].startswith("/api/")


@pytest.mark.parametrize("link", [*BAD_PORTS, "//[shop.example/x", "https://shop.example\\@evil.example/api/x"])
def test_a_next_link_that_is_no_url_of_the_store_is_an_api_error(link: str) -> None:
    error, paths = follow_link(link)
    assert isinstance(error, ForeignOrigin)
    assert "the link to the next page" in str(error)
    assert len(paths) == 1


@pytest.mark.parametrize("path", [path for path in OUTSIDE if "." in path])
def test_a_request_cannot_leave_the_path_of_the_base_url(path: str, other_host: RawServer) -> None:
    client = Client(f"{other_host.url}/api", token=TOKEN, allow_private=True, timeout=1)
    for given in (path, path.removeprefix("/api"), f"{other_host.url}{path}"):
        with pytest.raises(ForeignOrigin, match="the token is sent only to the store"):
            client.request("GET", given)
    assert other_host.connections == 0


@pytest.mark.parametrize("location", ["https://[::1", "https://a:+443/", "//[", "/elsewhere"])
def test_a_redirect_to_no_valid_url_is_an_api_error(location: str) -> None:
    server = RawServer(b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % location.encode())
    with pytest.raises(ApiError, match=r"redirects are not followed|Invalid URL in location header"):
        Client(server.url, token=TOKEN, allow_private=True, timeout=1).products.get(1)
    server.close()


def test_reading_a_response_of_two_gigabytes_stops_at_the_limit(sandbox: SandboxRun) -> None:
    sandbox.misbehave(endless=1)
    client = Client(f"http://127.0.0.1:{sandbox.port}", token=TOKEN, allow_private=True, max_response=8 << 20)
    tracemalloc.start()
    with pytest.raises(ResponseTooLarge, match="larger than the limit of 8,388,608 bytes"):
        client.products.get(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_a_content_length_of_two_gigabytes_is_refused_without_reading() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: 2147483648\r\n\r\n{")
    with pytest.raises(ResponseTooLarge, match="the response has 2,147,483,648 bytes"):
        Client(server.url, token=TOKEN, allow_private=True).products.get(1)
    server.close()


def test_a_host_name_that_resolves_to_a_private_address_is_refused_before_connecting(other_host: RawServer) -> None:
    """The host name looks public; only its address shows that it is not."""
    client = Client(f"https://localhost:{other_host.port}", token=TOKEN, timeout=5)
    with pytest.raises(UnsafeAddress) as caught:
        client.products.get(1)
    assert re.search(
        r"localhost resolves to the private address (127\.0\.0\.1|::1), and nothing was sent", str(caught.value)
    )
    assert "allow_private = [" in str(caught.value)
    assert other_host.connections == 0


def test_the_token_endpoints_address_is_checked_too(other_host: RawServer) -> None:
    auth = Credentials(f"https://localhost:{other_host.port}/token", "id", "secret")
    with pytest.raises(TokenRefused, match="the token endpoint: localhost resolves to the private address"):
        Client("https://shop.example", auth=auth, timeout=5).products.get(1)
    assert other_host.connections == 0


def test_the_token_endpoints_redirect_is_not_followed(other_host: RawServer) -> None:
    answer = f"HTTP/1.1 307 x\r\nlocation: {other_host.url}/token\r\ncontent-length: 0\r\n\r\n".encode()
    endpoint = RawServer(answer)
    auth = Credentials(f"{endpoint.url}/token", "id", "secret")
    with pytest.raises(TokenRefused, match=r"a redirect to 127\.0\.0\.1; the credentials were not sent there"):
        Client(endpoint.url, auth=auth, allow_private=True, timeout=5).products.get(1)
    assert other_host.connections == 0
    endpoint.close()


def test_only_allowed_private_networks_are_reached(sandbox: SandboxRun) -> None:
    url = f"http://127.0.0.1:{sandbox.port}"
    auth = Credentials(f"{url}/oauth/token", "the app", "s&cret:+%")
    assert Client(url, auth=auth, allow_private=("127.0.0.0/8",)).products.get(1).id == 1
    with pytest.raises(UnsafeAddress):
        Client(url, token=TOKEN, allow_private=("10.0.0.0/8",)).products.get(1)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:db8::1",
        # the rest of the IANA registries of special-purpose addresses
        "0.1.2.3",
        "127.255.255.254",
        "100.127.255.255",
        "192.0.0.1",
        "192.0.0.9",
        "192.0.0.170",
        "192.0.0.255",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "239.255.255.255",
        "::10.0.0.1",
        "::8.8.8.8",
        "::ffff:192.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::c000:1",
        "64:ff9b:1::1",
        "64:ff9b:1::808:808",
        "100::1",
        "100:0:0:1::1",
        "2001::1",
        "2001:0:808:808::1",
        "2001:2::1",
        "2001:10::1",
        "2001:1ff:ffff::1",
        "2002:c0a8:101::1",
        "2002:c000:1::1",
        "3fff::1",
        "3fff:fff:ffff::1",
        "4000::1",
        "5f00::1",
        "fec0::1",
        "feff:ffff::1",
        "fd00::1",
        "fe80::1%1",
        "ff0e::1",
    ],
)
def test_private_addresses_are_refused_in_every_notation(address: str) -> None:
    assert not may_connect(address, False)
    assert may_connect(address, True)


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "8.8.8.8",
        "192.0.1.1",
        "192.88.100.1",
        "198.20.0.1",
        "223.255.255.254",
        "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert may_connect(address, False)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_other_spellings_of_loopback_are_refused(host: str, other_host: RawServer) -> None:
    with pytest.raises((Blocked, Unreachable)):
        Client(f"https://{host}:{other_host.port}", token=TOKEN, timeout=3).products.get(1)
    assert other_host.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://shop.example",
        "ftp://shop.example",
        "shop.example",
        "https://user:pw@shop.example",
        "https://",
        *BAD_PORTS,
    ],
)
def test_a_base_url_that_would_leak_the_token_is_refused(url: str) -> None:
    with pytest.raises(UnsafeAddress):
        Client(url, token=TOKEN)


def test_a_request_to_another_origin_is_refused(other_host: RawServer, sandbox: SandboxRun) -> None:
    client = sandbox.client()
    for path in (f"{other_host.url}/x", "https://evil.example/x"):
        with pytest.raises(ForeignOrigin, match="the token is sent only to the store"):
            client.request("GET", path)
    assert other_host.connections == 0


def test_request_sends_any_other_request_to_the_store(sandbox: SandboxRun) -> None:
    reply = sandbox.client().request("GET", "/api/v3/app/products", query={"per_page": 3})
    assert (reply.status, reply.total, [one["id"] for one in reply.data]) == (200, 40, [1, 2, 3])


@pytest.mark.parametrize(
    ("value", "segment"),
    [("../../admin", "..%2F..%2Fadmin"), ("..", "%2E%2E"), ("1?x=2", "1%3Fx%3D2"), ("1#a", "1%23a"), ("a b", "a%20b")],
)
def test_a_path_parameter_stays_one_segment(value: str, segment: str) -> None:
    server = RawServer(b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"data":{"id":1}')
    with pytest.raises(ApiError):  # one byte is missing, so the response is invalid; this test checks the request
        Client(server.url, token=TOKEN, allow_private=True, timeout=1).products.get(value)
    assert server.received[0].split(b"\r\n")[0].decode() == f"GET /api/v3/app/products/{segment} HTTP/1.1"
    server.close()


def test_the_documented_request_is_sent_as_in_the_document() -> None:
    body = b'{"data":[{"id":1,"name":"Mug","price":"19.90"}],"meta":{"total":1}}'
    server = RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    (product,) = Client(server.url, token=TOKEN, allow_private=True).products.list()
    assert (product.id, product.name, str(product.price)) == (1, "Mug", "19.90")
    head = server.received[0].decode().lower()
    assert head.startswith("get /api/v3/app/products?")
    assert f"authorization: bearer {TOKEN}\r\n" in head
    assert "accept: application/json\r\n" in head
    assert head.endswith("\r\n\r\n")
    server.close()


def test_proxies_in_the_environment_are_ignored(
    sandbox: SandboxRun, other_host: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, other_host.url)
    assert sandbox.client().products.get(1).id == 1
    assert other_host.connections == 0


def test_a_response_that_is_not_json_is_an_api_error(other_host: RawServer) -> None:
    body = b"<html>hello</html>"
    server = RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    with pytest.raises(ApiError, match="a body that is not JSON"):
        Client(server.url, token=TOKEN, allow_private=True).products.get(1)
    server.close()


def test_the_stores_text_in_an_error_is_one_bounded_line() -> None:
    body = b'{"error": {"message": "bad\\u001b[31m\\nline two' + b"x" * 5000 + b'"}}'
    head = b"HTTP/1.1 422 x\r\nx-request-id: a\x1bb\r\ncontent-length: %d\r\n\r\n" % len(body)
    server = RawServer(head.replace(b"\x1b", b"") + body)
    with pytest.raises(ApiError) as caught:
        Client(server.url, token=TOKEN, allow_private=True).orders.get(1)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    server.close()
