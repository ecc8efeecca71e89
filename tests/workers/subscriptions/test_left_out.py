"""A rotation that leaves out subscriptions ends none of their secrets, and what a killed one may have lost is replaced.

In each test the old secrets end at once: a delivery that is accepted afterwards was signed with one that is in use.
"""

from __future__ import annotations

from typing import Any

import pytest

from receiver.delivery.secret_cache import SecretCache
from receiver.inbox import keys
from receiver.inbox.keyring.keyring import Keyring
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.sandbox_shop import Shop, changing_calls
from tests.workers.subscriptions.test_apply import MADE_BY_THE_STORE, wait_for_events
from tests.workers.subscriptions.test_repair import look
from workers.storeapi.errors import InvalidRequest
from workers.storeapi.groups import Webhooks

ROTATE = ("subscriptions", "rotate", "--store", "demo", "--yes")
TAKEN_FROM_US = ""
both = pytest.mark.parametrize("makes", [MADE_BY_THE_STORE, TAKEN_FROM_US], ids=["own secrets", "one shared"])


def configure(shop: Shop, more: str = "") -> None:
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text.replace("[secrets]\n", '[secrets]\noverlap = "0s"\n') + more)


def move(shop: Shop, former: bool = False) -> None:
    """Set another public URL. The subscriptions stay at the one before, which leads here too."""
    old, text = f'"http://127.0.0.1:{shop.system.port}"', shop.system.config_file.read_text()
    text = text.replace(f"public_url = {old}", f'public_url = "http://localhost:{shop.system.port}"')
    if former:
        text = text.replace("public_url", f"former_urls = [{old}]\npublic_url", 1)
    shop.system.config_file.write_text(text)


def lose_secrets(shop: Shop) -> None:
    """As a process that was killed while it rotated them."""
    Keyring(shop.system.client, shop.system.config.data_dir, KEY).announce_change("demo")
    shop.do("rotate-secret")


def is_announced(shop: Shop) -> bool:
    return bool(shop.system.client.hexists(keys.CHANGING_SECRETS, "demo"))


def rotations(shop: Shop) -> int:
    return sum("rotate" in call for call in changing_calls(shop.log()))


def refuse_rotations(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    def refused(self: Webhooks, number: Any) -> Any:
        raise InvalidRequest(why, status=405)

    monkeypatch.setattr(Webhooks, "rotate_secret", refused)


def assert_accepted(shop: Shop, many: int = 1) -> None:
    """The store's next event is accepted from each of so many subscriptions."""
    before = shop.count_events("customer.created")
    shop.emit()
    wait_for_events(shop, "customer.created", before + many)
    assert shop.system.client.hget(keys.COUNTERS, "refused|demo") is None


# A rotation


@both
@pytest.mark.parametrize("former", [True, False], ids=["former", "held back"])
def test_a_rotation_ends_no_secret_of_a_subscription_at_another_url(shop: Shop, makes: str, former: bool) -> None:
    configure(shop, makes)
    shop.declare("customer.created")
    shop.apply()
    move(shop, former)
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.managed.store.url)
    done = shop.cli(*ROTATE)
    assert done.exit_code == (0 if former else 1), done.output
    assert_accepted(shop)
    assert ("1 subscription for http://127.0.0.1" in " ".join(done.output.split())) is not former


def test_a_rotation_that_leaves_out_all_says_why_and_how_to_include_them(shop: Shop) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    move(shop)
    done = shop.cli(*ROTATE)
    assert done.exit_code == 1
    assert "1 subscription for http://127.0.0.1" in " ".join(done.output.split())
    assert "former_urls" in done.output
    assert rotations(shop) == 0


def test_a_rotation_ends_no_secret_of_a_subscription_that_the_store_does_not_list(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    real = Webhooks.list
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "list", lambda *_: [one for one in real(*_) if one.topic == "order.paid"])
        assert shop.cli(*ROTATE).exit_code == 0
    assert_accepted(shop)


# The repair of one that was killed


@both
@pytest.mark.parametrize("by", ["check", "apply --no-delete"])
@pytest.mark.parametrize("former", [True, False], ids=["former", "current"])
@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "unwanted"])
def test_each_secret_that_may_be_lost_is_replaced(shop: Shop, makes: str, by: str, former: bool, wanted: bool) -> None:
    configure(shop, makes)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    if former:
        move(shop, former)
    if not wanted:
        shop.system.client.delete(keys.DECLARATIONS, keys.DECLARED_AT)
        shop.declare("order.paid")
    lose_secrets(shop)
    if by == "check":
        assert [one["action"] for one in look(shop).pending] == ([] if wanted else ["delete"])
    else:
        shop.cli("subscriptions", "apply", "--yes", "--no-delete")
    assert not is_announced(shop)
    assert_accepted(shop)


def test_a_subscription_whose_deletion_fails_has_no_lost_secret(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    shop.system.client.delete(keys.DECLARATIONS, keys.DECLARED_AT)
    shop.declare("order.paid")
    lose_secrets(shop)

    def refused(*_: Any) -> None:
        raise InvalidRequest("no", status=422)

    monkeypatch.setattr(Webhooks, "delete", refused)
    assert shop.apply().exit_code == 1
    assert_accepted(shop)


@both
def test_the_notice_stays_for_a_subscription_that_is_held_back(shop: Shop, makes: str) -> None:
    configure(shop, makes)
    shop.declare("customer.created")
    shop.apply()
    before = shop.system.config_file.read_text()
    move(shop)
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.managed.store.url)
    lose_secrets(shop)
    for _ in range(3):
        found = look(shop)
        assert is_announced(shop)
        assert "the secret of 1 of them may be lost" in found.held_back
    assert rotations(shop) == 1, "those that were replaced are not rotated again"
    assert "may be lost" in " ".join(shop.cli("doctor").output.split())
    shop.system.config_file.write_text(before)
    move(shop, former=True)
    assert look(shop).held_back == ""
    assert not is_announced(shop)
    assert_accepted(shop)


def test_a_secret_in_use_does_not_end_while_one_of_a_held_back_subscription_may_be_lost(shop: Shop) -> None:
    """The killed process had made a secret for it, which the store did not get. So it still uses the shared one."""
    configure(shop, '[stores.demo.catalogue.webhooks.rotate_secret]\noptional = ["secret"]\n')
    shop.declare("customer.created")
    shop.apply()
    managed = shop.managed
    (number,) = shop.listed()
    managed.secrets.load()
    managed.secrets.generate("rotated", number)
    managed.keyring.announce_change("demo")
    move(shop)
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.managed.store.url)
    look(shop)
    assert rotations(shop) == 1
    assert_accepted(shop)


def test_the_notice_is_withdrawn_once_the_subscription_is_gone(shop: Shop) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    (held_back,) = shop.listed()
    move(shop)
    lose_secrets(shop)
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.managed.store.url)
    look(shop)
    shop.managed.client.webhooks.delete(held_back)
    look(shop)
    assert is_announced(shop), "one is missing, so the store's list may be wrong"
    look(shop)
    assert not is_announced(shop)


def test_the_notice_is_withdrawn_once_no_subscription_is_left(shop: Shop) -> None:
    """It stayed for ever, and each new web process answered 503 instead of 401 for five minutes."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    (one,) = shop.listed()
    lose_secrets(shop)
    shop.managed.client.webhooks.delete(one)
    shop.declare()
    look(shop)
    assert not is_announced(shop)


def test_receivers_answer_401_again_although_the_store_refuses_each_rotation(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answered 503 for as long as the store refused: each check announced its own rotation again."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    lose_secrets(shop)
    refuse_rotations(monkeypatch, "no")
    waits = list[bool]()
    for _ in range(3):
        assert len(look(shop).pending) == 2
        receiver = SecretCache(shop.system.config, shop.system.client)
        receiver.refresh()
        waits.append(receiver.may_be_incomplete)
    assert waits == [True, False, False]
    assert is_announced(shop), "each check tries again"
    for one in shop.listed():  # as docs/subscriptions.md says
        shop.managed.client.webhooks.delete(one)
    for _ in range(2):
        look(shop)
    assert len(shop.listed()) == 2
    assert not is_announced(shop)
    assert_accepted(shop)


def test_the_lines_for_the_config_are_printed_whole(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stood in the table, with a replacement character for each line break."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    refuse_rotations(monkeypatch, 'no; set\n[stores.demo.catalogue.webhooks]\npath = "..."')
    lines = shop.cli(*ROTATE).output.splitlines()
    assert sum(line.endswith("FAILED: no; set") for line in lines) == 2
    first = lines.index("[stores.demo.catalogue.webhooks]")
    assert lines[first + 1] == 'path = "..."'
    assert lines.count("[stores.demo.catalogue.webhooks]") == 1


def test_a_rotation_that_the_store_refuses_does_not_make_the_next_check_rotate_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    lose_secrets(shop)
    real, refused = Webhooks.rotate_secret, next(iter(shop.listed()))

    def all_but_one(self: Webhooks, number: Any) -> Any:
        if str(number) == refused:
            raise InvalidRequest("no", status=422)
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "rotate_secret", all_but_one)
        for _ in range(3):
            assert [one["why"] for one in look(shop).pending] == ["no"]
            assert is_announced(shop)
    assert rotations(shop) == 1
    assert look(shop).pending == ()
    assert rotations(shop) == 2
    assert not is_announced(shop)
    assert_accepted(shop)
