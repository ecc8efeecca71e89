"""Receivers stay warned for as long as a secret may change, however slow the store is, and no longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.exceptions import RedisError

from receiver.delivery.secret_cache import SecretCache
from receiver.inbox import keys
from receiver.inbox.keyring.keyring import Keyring
from tests.faults.test_subscription_faults import configure, is_announced, keyring_of, refused_with, rotate
from tests.support.harness import eventually
from tests.support.sandbox_shop import Shop, reset, running_shop
from tests.workers.subscriptions.test_apply import MADE_BY_THE_STORE
from workers.storeapi.groups import Webhooks
from workers.subscriptions import change_notice
from workers.subscriptions.change_notice import ChangeNotice

WINDOW = 1.2
"""Seconds. A process that has no processor for two thirds of it is late."""


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("shop")) as shop:
        configure(shop, MADE_BY_THE_STORE)
        yield shop


@pytest.fixture
def shop(open_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop whose receivers trust a notice for a short time."""
    monkeypatch.setattr("receiver.inbox.keyring.keyring.CHANGE_SECONDS", WINDOW)
    monkeypatch.setattr(change_notice, "REPEAT_EVERY", WINDOW / 3)
    return reset(open_shop)


@contextmanager
def running_receiver(shop: Shop) -> Iterator[SecretCache]:
    """The secret cache of a web process, refreshed more often."""
    cache, over = SecretCache(shop.system.config, shop.system.client), threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            cache.refresh()

    cache.refresh()
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield cache
    over.set()
    thread.join()
    shop.system.client.hdel(keys.RECEIVERS, cache._name)


def mark(shop: Shop) -> str:
    found = shop.system.client.hget(keys.CHANGING_SECRETS, "demo")
    return found.decode() if isinstance(found, bytes) else ""


def test_a_notice_is_repeated_while_a_slow_store_changes_its_secret(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.declare("customer.created", "order.paid")
    shop.apply()
    real, sure = Webhooks.rotate_secret, list[bool]()

    def slow(self: Webhooks, *given: Any, **named: Any) -> Any:
        answer, until = real(self, *given, **named), time.monotonic() + 2 * WINDOW
        while time.monotonic() < until:  # the new secret is in use, and its answer is on its way
            sure.append(not cache.may_be_incomplete)
            time.sleep(0.02)
        return answer

    monkeypatch.setattr(Webhooks, "rotate_secret", slow)
    with running_receiver(shop) as cache:
        eventually(lambda: not cache.may_be_incomplete)
        assert rotate(shop) == ["", ""]
        assert len(sure) > 40
        assert not any(sure), f"sure at {sure.index(True)} of {len(sure)} moments"
        assert not is_announced(shop)
        eventually(lambda: not cache.may_be_incomplete, 10, what="the cache is complete again")


def test_an_abandoned_notice_is_not_repeated_and_expires_at_receivers(shop: Shop) -> None:
    notice = ChangeNotice(keyring_of(shop), "demo")
    with running_receiver(shop) as cache:
        notice.announce()
        first = mark(shop)
        eventually(lambda: mark(shop) != first, what="it is repeated")
        notice.stop_repeating()
        last = mark(shop)
        eventually(lambda: not cache.may_be_incomplete, 10)
        assert mark(shop) == last, "it stays for the next check"


def test_the_notice_of_a_hanging_process_expires(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_notice, "GIVE_UP_AFTER", 2 * WINDOW)
    notice = ChangeNotice(keyring_of(shop), "demo")
    with running_receiver(shop) as cache:
        notice.announce()
        eventually(lambda: cache.may_be_incomplete)
        eventually(lambda: not cache.may_be_incomplete, 10)
        assert notice._repeats > 2
        notice.extend()
        eventually(lambda: cache.may_be_incomplete, what="it is repeated again")
    notice.withdraw()


def test_a_repeated_notice_does_not_replace_that_of_another_process(shop: Shop) -> None:
    notice = ChangeNotice(keyring_of(shop), "demo")
    notice.announce()
    keyring_of(shop).announce_change("demo", "another.1")
    sent = notice._repeats
    eventually(lambda: notice._repeats >= sent + 2, what="it was repeated")
    assert mark(shop) == "another.1"
    keyring_of(shop).withdraw_change("demo", "another")
    eventually(lambda: is_announced(shop), what="the first change is still announced")
    notice.withdraw()
    assert not is_announced(shop)


def test_a_notice_whose_reply_was_lost_is_repeated_and_withdrawn(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    notice, real = ChangeNotice(keyring_of(shop), "demo"), Keyring.announce_change
    notice.announce()

    def lost(self: Keyring, *given: Any, **named: Any) -> int:
        real(self, *given, **named)
        raise RedisError("the server did it, and its answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "announce_change", lost)
        first = mark(shop)
        eventually(lambda: mark(shop) != first)
        second = mark(shop)
        eventually(lambda: mark(shop) != second, what="it tries again")
    notice.withdraw()
    assert not is_announced(shop)


def test_an_interrupted_process_leaves_its_last_notice_and_stops_repeating_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.declare("customer.created")
    shop.apply()
    before = threading.active_count()
    monkeypatch.setattr(Webhooks, "rotate_secret", refused_with(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        rotate(shop)
    assert is_announced(shop)
    assert threading.active_count() == before
