"""`[forward.NAME]`: what is sent to the other program, and what its answer means."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from receiver import config as config_room
from receiver.contract.errors import ConfigError, PluginError
from receiver.contract.event import Event
from tests.support.forward_target import Received, Target
from tests.support.harness import OTHER_SECRET, SECRET
from tests.support.raw_server import RawServer
from workers.plugins import discovery
from workers.plugins.exceptions import Busy, Fail, Retry
from workers.plugins.router import Handler
from workers.testing import make_context, make_event

STORE = f'[stores.north]\nsigning_secrets = ["{OTHER_SECRET}"]\n'
PRIVATE = "allow_private = true"


def handlers(folder: Path, *lines: str, more: str = "") -> dict[str, Handler]:
    path = folder / "config.toml"
    text = "\n".join(lines)
    path.write_text(f'{STORE}[workers]\ninstalled = false\n{more}\n[forward.erp]\ntopics = "order.*"\n{text}\n')
    return {one.name: one for plugin in discovery.load(config_room.load(path, {})) for one in plugin.handlers}


def send(folder: Path, url: str, *lines: str, event: Event | None = None) -> str:
    event = event or make_event("order.created", store="north")
    handler = handlers(folder, f'url = "{url}"', PRIVATE, *lines)["forward.erp"]
    return str(handler.function(event, make_context(event)))


def only(target: Target) -> Received:
    (received,) = target.received
    return received


def test_a_forward_is_a_handler_with_its_options_and_its_line_in_the_config(tmp_path: Path) -> None:
    options = ['url = "https://erp.example/hook"', 'stores = ["north"]', 'limit = "erp"', "retries = [1, 2]"]
    found = handlers(tmp_path, *options, more="[limits.erp]\nconcurrency = 2")
    handler = found["forward.erp"]
    assert (handler.topics, handler.stores, handler.limit) == (("order.*",), ("north",), "erp")
    assert (handler.retries, handler.timeout) == ((1.0, 2.0), 15.0)
    assert (handler.file, handler.line) == (str(tmp_path / "config.toml"), 7)


def test_with_a_secret_the_event_is_signed_anew_and_nothing_of_the_store_is_sent(
    tmp_path: Path, target: Target
) -> None:
    stored = {"content-type": "application/json", "webhook-id": "theirs", "webhook-signature": "v1,x", "x-shop": "n"}
    event = replace(make_event("order.created", store="north"), headers=stored, body=b'{ "id":1,  "name":"\xc3\xa9"}')
    assert send(tmp_path, f"{target.url}/hook", f'secret = "{SECRET}"', event=event) == "answered 200"
    received = only(target)
    Webhook(SECRET).verify(received.body, received.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER_SECRET).verify(received.body, received.headers)
    assert (received.path, received.body) == ("/hook", event.body)
    sent = received.headers
    assert sent["webhook-id"] == sent["storehooks-event"] == event.id
    assert (sent["storehooks-store"], sent["storehooks-topic"]) == ("north", "order.created")
    assert sent["content-type"] == "application/json"
    assert "x-shop" not in sent


def test_without_a_secret_the_stored_headers_and_query_are_sent_as_they_came(tmp_path: Path, target: Target) -> None:
    stored = {
        "content-type": "application/x-www-form-urlencoded",
        "x-shop-signature": "abc=",
        "x-name": "Caf\xe9",
        "user-agent": "Shop/1",
        "?hmac": "1+2",
        "host": "hooks.example",
        "content-length": "999",
        "transfer-encoding": "chunked",
        "connection": "x-shop-signature",
        "storehooks-store": "forged",
        "authorization": "(sealed) abc",
        "cookie": "(not stored: it may be a credential)",
    }
    event = replace(make_event("order.created", store="north"), headers=stored, body=b"id=1&total=2")
    send(tmp_path, f"{target.url}/hook?a=b", event=event)
    received = only(target)
    sent = received.headers
    assert received.path == "/hook?a=b&hmac=1%2B2"
    assert received.body == b"id=1&total=2"
    assert {name: sent[name] for name in ("x-shop-signature", "user-agent", "content-type", "x-name")} == {
        name: stored[name] for name in ("x-shop-signature", "user-agent", "content-type", "x-name")
    }
    assert sent["host"] == target.url.removeprefix("http://")
    assert sent["content-length"] == "12"
    assert sent["storehooks-store"] == "north"
    assert not {"transfer-encoding", "authorization", "cookie", "webhook-signature"} & sent.keys()


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_done(tmp_path: Path, target: Target, status: int) -> None:
    target.answer = (status, {}, b"")
    assert send(tmp_path, target.url) == f"answered {status}"


@pytest.mark.parametrize("status", [408, 425, 500, 501, 502, 503, 504, 599])
def test_a_passing_fault_is_retried(tmp_path: Path, target: Target, status: int) -> None:
    target.answer = (status, {}, b"try\n again")
    with pytest.raises(Retry, match=f"127.0.0.1 answered {status}: try again") as raised:
        send(tmp_path, f"{target.url}/token-in-path")
    assert raised.value.after is None
    assert "token-in-path" not in str(raised.value)


@pytest.mark.parametrize("status", [304, 400, 401, 403, 404, 409, 410, 413, 422, 451])
def test_any_other_answer_fails_at_once(tmp_path: Path, target: Target, status: int) -> None:
    target.answer = (status, {"retry-after": "1"}, b"")
    with pytest.raises(Fail, match=f"answered {status}$"):
        send(tmp_path, target.url)


def test_a_redirect_fails_and_is_not_followed(tmp_path: Path, target: Target) -> None:
    target.answer = (307, {"location": f"{target.url}/elsewhere"}, b"")
    with pytest.raises(
        Fail, match=r"answered 307, a redirect to 127.0.0.1; redirects are not followed: set the new url"
    ):
        send(tmp_path, target.url)
    assert only(target).path == "/"


@pytest.mark.parametrize(
    ("status", "header", "after"),
    [(429, None, None), (429, "7", 7.0), (503, "7", 7.0), (503, "0", 1.0), (408, "9999999", 3600.0)],
)
def test_retry_after_holds_the_whole_forward_and_counts_no_attempt(
    tmp_path: Path, target: Target, status: int, header: str | None, after: float | None
) -> None:
    target.answer = (status, {"retry-after": header} if header else {}, b"")
    with pytest.raises(Busy) as raised:
        send(tmp_path, target.url)
    assert raised.value.after == after


@pytest.mark.parametrize("body", ["content-length: 100000\r\n\r\n", "connection: close\r\n\r\n"])
def test_retry_after_counts_however_long_the_answer_is(tmp_path: Path, body: str) -> None:
    server = RawServer(f"HTTP/1.1 503 Busy\r\nretry-after: 7\r\n{body}{'x' * 100_000}".encode())
    with pytest.raises(Busy, match="answered 503") as raised:
        send(tmp_path, server.url)
    assert raised.value.after == 7
    server.close()


def test_retry_after_may_be_a_date(tmp_path: Path, target: Target) -> None:
    target.answer = (503, {"retry-after": formatdate(time.time() + 100, usegmt=True)}, b"")
    with pytest.raises(Busy) as raised:
        send(tmp_path, target.url)
    assert 95 < (raised.value.after or 0) <= 100


def test_no_answer_is_retried(tmp_path: Path, target: Target) -> None:
    target.shutdown()
    target.server_close()
    with pytest.raises(Retry, match=r"no answer from 127.0.0.1: no response: "):
        send(tmp_path, target.url)


@pytest.mark.timed
def test_an_answer_that_drips_ends_before_the_timeout_of_the_run(tmp_path: Path) -> None:
    took: list[float] = []
    while not took or (min(took) >= 1 and len(took) < 3):  # again, because other programs delay it too
        server = RawServer(b"HTTP/1.1 200 OK\r\n" + b"x" * 1000, pause=0.05)
        began = time.monotonic()
        with pytest.raises(Retry, match=r"no answer from 127.0.0.1: timed out"):
            send(tmp_path, server.url, 'timeout = "1s"')
        took.append(time.monotonic() - began)
        server.close()
    assert min(took) < 1


@pytest.mark.parametrize(("status", "ends"), [(200, None), (500, Retry), (404, Fail)])
def test_the_status_counts_however_long_the_answer_is(
    tmp_path: Path, target: Target, status: int, ends: type[Exception] | None
) -> None:
    target.answer = (status, {}, b"x" * 1_000_000)
    if ends is None:
        assert send(tmp_path, target.url) == "answered 200"
    else:
        with pytest.raises(ends, match=f"answered {status}"):
            send(tmp_path, target.url)


def test_a_name_that_resolves_to_a_private_address_fails_and_nothing_is_sent(tmp_path: Path, target: Target) -> None:
    event = make_event("order.created", store="north")
    port = target.server_address[1]
    handler = handlers(tmp_path, f'url = "http://localhost:{port}"', 'allow_private = ["10.0.0.0/8"]')["forward.erp"]
    with pytest.raises(Fail, match="localhost resolves to the private address") as raised:
        handler.function(event, make_context(event))
    assert "store" not in str(raised.value)
    assert target.received == []


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['url = "http://erp.example/hook"'], r"toml:8: forward.erp.url is not https; use https, or set allow_private"),
        (['url = "https://10.0.0.1/hook"'], r"toml:8: forward.erp.url is a private address; .* allow_private = true"),
        (['url = "https://[::1]/hook"'], "is a private address"),
        (['url = "https://a:b@erp.example/"'], "forward.erp.url has a user or a password"),
        (['url = "http://127.0.0.1:8000/webhooks/north"', PRIVATE], "forward.erp.url is this receiver"),
        (['url = "https://e.example"', 'secret = "whsec_%"'], r"toml:9: forward.erp.secret cannot be used: "),
        (['url = "https://e.example"', 'limit = "none"'], r"toml:6: forward.erp has limit='none', and"),
        (['url = "https://e.example"', '[forward."1 x"]\nurl="https://e.example"\ntopics="*"'], "has a name that is"),
        (['url = "https://e.example"', '[forward.b]\nurl="https://e.example"\ntopics="Order!"'], "asks for the topic"),
    ],
)  # fmt: skip
def test_a_forward_that_cannot_work_is_refused_with_its_line_and_the_fix(
    tmp_path: Path, lines: list[str], says: str
) -> None:
    with pytest.raises(PluginError, match=says) as raised:
        handlers(tmp_path, *lines)
    assert "whsec" not in str(raised.value) or "random bytes" in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "forward.erp.url"),
        (['url = ""'], "forward.erp.url"),
        (['url = "erp.example"'], "not a URL"),
        (['url = "https://e.example"', "sercet = 1"], "did you mean secret"),
        (['url = "https://e.example"', 'timeout = "0s"'], "forward.erp.timeout"),
    ],
)
def test_a_wrong_key_is_an_error_of_the_config(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        handlers(tmp_path, *lines)


def test_a_plugin_that_is_called_forward_is_refused_beside_a_forward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from storehooks import Router\nrouter = Router('forward')\n")
    path = tmp_path / "config.toml"
    path.write_text(
        f'{STORE}[workers]\ninstalled = false\nplugins = ["mine.py"]\n'
        '[forward.erp]\nurl = "https://e.example"\ntopics = "*"\n'
    )
    with pytest.raises(PluginError, match=r"two plugins are called forward: mine.py, and \[forward\] of .*config.toml"):
        discovery.load(config_room.load(path, {}))
    assert discovery.load_one(config_room.load(path, {}), str(tmp_path / "mine.py")).name == "forward"
