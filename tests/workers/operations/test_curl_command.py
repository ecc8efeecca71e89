"""The curl command of an event: made only if a receiver would accept it now, and it is known whether as a duplicate."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from receiver.contract.compose import compose
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.contract.intake import receive
from tests.support.harness import System, signed_store
from workers.operations.curl_command import curl_command


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    schemes = ("shopware", "nuvemshop", "shopify")
    return make_system(more="".join(signed_store(one, one) for one in schemes))


def received(system: System, name: str, ago: float) -> Event:
    store, then = system.config.known_stores[name], time.time() - ago
    made = compose(store, topic="order.created", delivery_id="msg_1", data={"id": 1}, now=then)
    return receive(made.headers, made.body, store=store, now=then).event


def test_a_timestamp_in_the_body_must_still_be_valid(shop: System) -> None:
    assert curl_command(shop.config, received(shop, "shopware", 10)).is_duplicate
    with pytest.raises(ConfigError, match=r"shopware cannot sign it again: signed 8640\d s ago, limit 300 s"):
        curl_command(shop.config, received(shop, "shopware", 86_400))


def test_it_says_whether_it_is_a_duplicate(shop: System) -> None:
    assert curl_command(shop.config, received(shop, "shopify", 86_400)).is_duplicate
    assert not curl_command(shop.config, received(shop, "nuvemshop", 86_400)).is_duplicate
