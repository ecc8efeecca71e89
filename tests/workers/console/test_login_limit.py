"""Wrong passwords delay the sender that sends them, also behind a proxy, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.console_logins import BUCKETS, FREE_ATTEMPTS, ConsoleLogins
from tests.support.console import Browser, RunningConsole, running_console

pytestmark = pytest.mark.full  # it starts many processes

PROXY, NO_PROXY = "127.0.0.1", "127.0.0.2"
OUTSIDER, OPERATOR = "203.0.113.66", "192.0.2.7"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    trusted = f'trusted_proxies = ["{PROXY}"]'
    with running_console(tmp_path_factory.mktemp("console"), receiver=trusted) as found:
        yield found


@pytest.fixture(autouse=True)
def no_attempts(console: RunningConsole) -> None:
    client = console.system.client
    if names := [*client.keys(f"{keys.LOGIN}*"), *client.keys(f"{keys.WAIT}*")]:
        client.delete(*names)


def delay(*browsers: Browser) -> None:
    """Wrong passwords, from one browser after another, until one has to wait."""
    for browser in browsers:
        browser.get("/login")
    for _ in range(200):
        for browser in browsers:
            if browser.post("/login", password="wrong").status_code == 429:
                return
    pytest.fail("no attempt has to wait")


def wrong_attempts(console: RunningConsole) -> list[int]:
    """How many each sender has made."""
    client = console.system.client
    return [int(client.get(name) or 0) for name in client.keys(f"{keys.LOGIN}*")]


def test_an_outsider_behind_the_proxy_does_not_delay_the_operator_behind_it(console: RunningConsole) -> None:
    delay(console.browser(forwarded_for=OUTSIDER))
    assert console.browser(forwarded_for=OPERATOR).log_in()
    (attempts,) = wrong_attempts(console)
    assert attempts > FREE_ATTEMPTS, "the operator's login forgets only the operator's"


def test_what_the_outsider_claims_before_the_proxy_appends_its_address_changes_nothing(console: RunningConsole) -> None:
    delay(*(console.browser(forwarded_for=f"198.51.100.{number}, {OUTSIDER}") for number in range(20)))
    (attempts,) = wrong_attempts(console)
    assert attempts > FREE_ATTEMPTS
    assert console.browser(forwarded_for=OPERATOR).log_in()


def test_a_client_that_is_no_trusted_proxy_cannot_choose_its_sender(console: RunningConsole) -> None:
    delay(*(console.browser(address=NO_PROXY, forwarded_for=f"198.51.100.{number}") for number in range(20)))
    (attempts,) = wrong_attempts(console)
    assert attempts > FREE_ATTEMPTS
    assert console.browser(forwarded_for="198.51.100.1").log_in(), "the claimed sender is not delayed"


def test_a_login_at_the_port_itself_is_of_this_host_and_of_no_sender_behind_the_proxy(console: RunningConsole) -> None:
    delay(console.browser(forwarded_for=OUTSIDER))
    assert console.browser().log_in()
    delay(console.browser())
    assert console.browser(forwarded_for=OPERATOR).log_in()


def test_an_ipv6_sender_is_its_network(console: RunningConsole) -> None:
    delay(*(console.browser(forwarded_for=f"2001:db8:1:{number:x}::7") for number in range(20)))
    (attempts,) = wrong_attempts(console)
    assert attempts > FREE_ATTEMPTS
    assert console.browser(forwarded_for="2001:db8:2::7").log_in()


def test_the_audit_trail_names_the_sender_behind_the_proxy(console: RunningConsole) -> None:
    operator = console.browser(forwarded_for=OPERATOR).log_in()
    operator.get("/stores")
    operator.press("/stores/north/pause", reason="a test")
    assert f"console operator {OPERATOR}" in operator.text("/audit")


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_senders_of_all_counters_do_not_delay_this_host(redis: Redis, address: str) -> None:
    logins = ConsoleLogins(redis)
    for number in range(10 * BUCKETS):
        logins.wait_ms(f"198.18.{number // 256}.{number % 256}")
    assert len(redis.keys(f"{keys.LOGIN}*")) == BUCKETS
    assert [logins.wait_ms(address) for _ in range(FREE_ATTEMPTS)] == [0] * FREE_ATTEMPTS
    assert len(redis.keys(f"{keys.LOGIN}*")) == BUCKETS + 1
    logins.forget_failures(address)
    assert len(redis.keys(f"{keys.LOGIN}*")) == BUCKETS
