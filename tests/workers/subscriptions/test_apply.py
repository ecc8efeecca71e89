"""Subscriptions against the sandbox over HTTP: plan, apply, rotation and learned secrets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver.contract.compose import compose
from receiver.contract.errors import ConfigError
from receiver.inbox import keys
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret
from receiver.inbox.subscription_checks import SubscriptionChecks
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.harness import SECRET, eventually
from tests.support.sandbox_shop import Shop, changing_calls, running_shop
from workers.cli.capture_file import write
from workers.cli.subscriptions import for_each_store
from workers.cli.subscriptions_display import scheduled_check
from workers.storeapi.errors import InvalidRequest
from workers.storeapi.groups import Webhooks
from workers.subscriptions.apply import apply_changes
from workers.subscriptions.managed_store import declared_handlers
from workers.subscriptions.repair import check

OTHERS = "https://mailer.example.net/in"
MADE_BY_THE_STORE = '[stores.demo.catalogue.webhooks.create]\noptional = ["enabled"]\n'
WITH_A_SECRET = f'signing_secrets = ["{SECRET}"]'


def test_one_apply_makes_all_subscriptions_and_the_next_plan_is_empty(shop: Shop) -> None:
    shop.declare("order.*", "customer.created")
    before = shop.cli("subscriptions", "plan", "--store", "demo", "--json")
    assert before.exit_code == 1
    actions = {(one["action"], one["topic"], one["reason"]) for one in json.loads(before.stdout)["changes"]}
    assert ("create", "order.paid", "for shop.note") in actions
    assert len(actions) == 9
    done = shop.apply()
    assert done.exit_code == 0, done.output
    assert len(shop.topics()) == 9
    after = shop.cli("subscriptions", "plan")
    assert after.exit_code == 0, after.output
    assert "9 wanted, 9 exist, nothing to do" in after.output
    again = shop.apply()
    assert (again.exit_code, "nothing to do" in again.output) == (0, True)


def test_the_plan_is_shown_as_text(shop: Shop) -> None:
    shop.declare("order.paid", "product.stocked")
    shop.managed.client.webhooks.create(topic="order.created", url=OTHERS)
    shop.managed.client.webhooks.create(topic="customer.created", url=shop.url)
    told = shop.cli("subscriptions", "plan").output
    assert "wanted: topics of 1 handler and [stores.*] subscribe" in told
    assert "demo   1 wanted, 1 exist" in told
    assert '+ create  order.paid        "order.paid"        for shop.note' in told
    assert '- delete  customer.created  "customer.created"  no handler wants it' in told
    assert "1 of mailer.example.net is not ours and stays" in told
    assert "product.stocked, for shop.note: the store offers no such topic" in told
    assert "2 changes at 1 store." in told
    assert "The scheduled check is off: [subscriptions] check." in told
    assert "storehooks subscriptions apply --config" in told


def test_the_plan_shows_when_the_check_deletes(shop: Shop) -> None:
    checked = shop.system.config.subscriptions.model_copy(update={"check": 300.0, "prune_after": 3 * 86400.0})
    told = scheduled_check(shop.system.config.model_copy(update={"subscriptions": checked}))
    assert told.endswith("makes + and ~ by itself, and - when the topic lost its last handler 3 d ago.")


def test_apply_asks_for_confirmation_and_needs_yes_without_a_terminal(shop: Shop) -> None:
    shop.declare("order.paid")
    done = shop.cli("subscriptions", "apply")
    assert "--yes" in str(done.exception)
    assert shop.listed() == {}


@pytest.mark.parametrize(("typed", "code", "there"), [("n\n", 1, []), ("y\n", 0, ["order.paid"])])
def test_on_a_terminal_apply_follows_the_answer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, there: list[str]
) -> None:
    monkeypatch.setattr("workers.cli.output.is_terminal", lambda _: True)
    shop.declare("order.paid")
    done = shop.cli("subscriptions", "apply", typed=typed)
    assert done.exit_code == code, done.output
    assert "Make 1 change at 1 store?" in done.output
    assert shop.topics() == there


def test_many_stores_show_a_progress_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workers.cli.output.is_terminal", lambda _: True)
    assert for_each_store("checking", list("abcdef"), str.upper) == list("ABCDEF")
    assert "checking" in capsys.readouterr().err


def test_apply_deletes_unwanted_subscriptions_and_never_those_of_others(shop: Shop) -> None:
    hooks = shop.managed.client.webhooks
    theirs = hooks.create(topic="order.paid", url=OTHERS)
    near = hooks.create(topic="order.paid", url=shop.url + "-test")
    shop.declare("order.*")
    shop.apply()
    shop.system.client.delete(keys.DECLARATIONS, keys.DECLARED_AT)
    shop.declare("order.paid")
    gentle = shop.cli("subscriptions", "apply", "--yes", "--no-delete")
    assert "nothing to do" in gentle.output
    assert shop.apply().exit_code == 0
    assert shop.topics() == ["order.paid"]
    assert {str(theirs.id), str(near.id)} <= set(shop.listed())


def test_a_former_url_is_updated_and_a_disabled_subscription_enabled(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    former = text.replace("[workers]", "[workers]", 1).replace(
        "[receiver]\n", '[receiver]\nformer_urls = ["https://old.example.com"]\n'
    )
    shop.system.config_file.write_text(former)
    hooks = shop.managed.client.webhooks
    hooks.create(topic="order.paid", url="https://old.example.com/webhooks/demo")
    hooks.create(topic="order.created", url=shop.url, enabled=False)
    shop.declare("order.paid", "order.created")
    assert shop.plan() == [("enable", "order.created"), ("update", "order.paid")]
    assert shop.apply().exit_code == 0
    assert shop.topics() == ["order.created", "order.paid"]


@pytest.mark.parametrize("by", ["apply", "check"])
def test_after_another_public_url_nothing_is_subscribed_twice(shop: Shop, by: str) -> None:
    text, old = shop.system.config_file.read_text(), f'public_url = "http://127.0.0.1:{shop.system.port}"'
    new = f'public_url = "http://localhost:{shop.system.port}"'
    shop.declare("order.*")
    shop.apply()
    shop.system.config_file.write_text(text.replace(old, new))
    assert "checked before its URL changed" in shop.cli("subscriptions").output
    assert "subscriptions were checked before its URL changed" in shop.cli("doctor").output
    if by == "check":
        checks, config = SubscriptionChecks(shop.system.client), shop.system.config
        with checks.lock("demo") as hold:
            handlers = declared_handlers(shop.system.client)
            checks.store_result(check(config, "demo", shop.system.client, handlers, hold=hold))
    else:
        held_back = shop.apply()
        assert held_back.exit_code == 1
        assert "8 wanted, 0 exist, 8 held back\n" in held_back.output
    assert len(shop.listed()) == 8
    fix = f'set [receiver] former_urls = ["http://127.0.0.1:{shop.system.port}"] if these were yours'
    for command in (("subscriptions", "plan"), ("subscriptions",), ("stores", "show", "demo"), ("doctor",)):
        told = " ".join(shop.cli(*command).output.split())
        assert fix in told, (command, told)
        assert "nothing to do" not in told, (command, told)
    planned = shop.cli("subscriptions", "plan")
    assert (planned.exit_code, "\n8 subscriptions held back at 1 store." in planned.output) == (1, True)
    assert "8 subscriptions for http://127.0.0.1:" in " ".join(planned.output.split())

    former = f'former_urls = ["http://127.0.0.1:{shop.system.port}"]\n{new}'
    shop.system.config_file.write_text(text.replace(old, former))
    assert shop.apply().exit_code == 0
    assert len(shop.listed()) == 8
    assert {one.url for one in shop.managed.client.webhooks.list()} == {shop.url.replace("127.0.0.1", "localhost")}


def test_the_config_adds_and_removes_topics(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text + '[store_defaults]\nsubscribe = ["product.*", "-product.deleted"]\n')
    shop.declare("order.paid")
    shop.apply()
    assert shop.topics() == ["order.paid", "product.created", "product.updated"]


def test_a_failed_change_does_not_stop_the_others_and_the_next_apply_makes_the_rest(shop: Shop) -> None:
    shop.declare("order.*")
    shop.misbehave(fault=0.3)
    results = [shop.apply() for _ in range(4)]
    shop.misbehave(fault=0)
    assert any(result.exit_code == 1 for result in results), "with this many faults a change fails"
    assert all(isinstance(result.exception, SystemExit | None) for result in results)
    assert shop.apply().exit_code == 0
    assert len(shop.topics()) == 8
    assert len(shop.listed()) == 8, "there are no duplicates"


def test_a_store_that_lists_no_topics_is_subscribed_by_known_names(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    wrong = '[stores.demo.catalogue.webhooks.list_topics]\npath = "/api/v3/app/nowhere"\n'
    shop.system.config_file.write_text(text + wrong)
    shop.declare("order.paid", "customer.*")
    told = shop.cli("subscriptions", "plan").output
    assert "does not list its topics" in told
    assert '"order.paid"' in told
    assert shop.apply().exit_code == 0
    assert shop.topics() == ["order.paid"]


def test_a_store_with_another_api_path_is_unknown_and_the_plan_shows_the_config_lines(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text + '[stores.demo.catalogue.webhooks.list]\npath = "/api/v3/app/hooks"\n')
    done = shop.cli("subscriptions", "plan")
    assert done.exit_code == 1
    assert "demo   unknown: " in done.output
    assert "[stores.demo.catalogue.webhooks.list]" in done.output
    assert "1 store unknown" in done.output


def test_removing_a_store_deletes_only_our_subscriptions(shop: Shop) -> None:
    other = shop.managed.client.webhooks.create(topic="order.paid", url=OTHERS)
    shop.declare("order.*")
    shop.apply()
    done = list(apply_changes(shop.managed, shop.managed.unsubscribe_changes()))
    assert (len(done), [one for one in done if one.error]) == (8, [])
    assert list(shop.listed()) == [str(other.id)]


# Secrets


def keyring_of(shop: Shop) -> Keyring:
    return Keyring(shop.system.client, shop.system.config.data_dir, KEY)


def test_every_receiver_knows_a_generated_secret_before_the_store_does(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, behind = Webhooks.create, []

    def watched(self: Webhooks, **fields: Any) -> Any:
        behind.append(keyring_of(shop).receivers.behind(keyring_of(shop).version()))
        return create(self, **fields)

    monkeypatch.setattr(Webhooks, "create", watched)
    shop.declare("customer.created")
    assert shop.apply().exit_code == 0
    (one,) = keyring_of(shop).secrets_of("demo")
    assert one.origin.startswith("made for the store")
    assert behind == [[]], "at the time of the call no receiver was behind"
    shop.emit(3)
    wait_for_events(shop, "customer.created", 3)


def wait_for_events(shop: Shop, topic: str, many: int) -> None:
    eventually(
        lambda: shop.count_events(topic) == many, 15, what=f"{many} of {topic}; there are {shop.count_events(topic)}"
    )


def test_secrets_generated_by_the_store_are_learned_and_verify_deliveries(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text + MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.created")
    assert shop.apply().exit_code == 0
    learned = keyring_of(shop).secrets_of("demo")
    assert {one.subscription for one in learned} == set(shop.listed())
    assert len({one.fingerprint for one in learned}) == 2
    shop.emit(3)
    wait_for_events(shop, "customer.created", 3)
    assert shop.system.client.hget(keys.COUNTERS, "refused|demo") is None


def test_a_rotation_learns_new_secrets_and_ends_the_old_ones(shop: Shop) -> None:
    shop.declare("customer.created")
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text + MADE_BY_THE_STORE)
    shop.apply()
    (old,) = keyring_of(shop).secrets_of("demo")
    done = shop.cli("subscriptions", "rotate", "--store", "demo", "--yes")
    assert done.exit_code == 0, done.output
    new, before = keyring_of(shop).secrets_of("demo")
    assert before.fingerprint == old.fingerprint
    assert before.not_after is not None
    assert new.not_after is None
    assert new.fingerprint in done.output
    assert new.text not in done.output
    shop.emit(2)
    wait_for_events(shop, "customer.created", 2)
    assert shop.system.client.exists(keys.CHANGING_SECRETS) == 0


def test_a_rotation_ends_the_secret_shared_by_all_subscriptions(shop: Shop) -> None:
    shop.declare("customer.created", "order.paid")
    shop.apply()
    (shared,) = keyring_of(shop).secrets_of("demo")
    assert shop.cli("subscriptions", "rotate", "--store", "demo", "--yes").exit_code == 0
    ends = {one.fingerprint: one.not_after for one in keyring_of(shop).secrets_of("demo")}
    assert len(ends) == 3
    assert [mark for mark, end in ends.items() if end is not None] == [shared.fingerprint]


@pytest.mark.parametrize("ends", ["deleted", "rotated"])
def test_a_secret_that_another_subscription_uses_does_not_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A store may use one secret for all of its subscriptions, and return it with each."""
    hooks, known = shop.managed.client.webhooks, shop.system.config.known_stores["demo"]
    first = hooks.create(topic="order.paid", url=shop.url, secret=SECRET)
    hooks.create(topic="customer.created", url=shop.url, secret=SECRET)
    keyring = keyring_of(shop)
    version = keyring.store([learned_secret(known, SECRET, origin="created", subscription=str(first.id))])
    assert keyring.receivers.wait_for(version) == []
    if ends == "deleted":
        shop.declare("customer.created")
        assert shop.apply().exit_code == 0
    else:
        real = Webhooks.rotate_secret

        def only_the_first(self: Webhooks, number: Any) -> Any:
            if str(number) != str(first.id):
                raise InvalidRequest("no", status=422)
            return real(self, number)

        monkeypatch.setattr(Webhooks, "rotate_secret", only_the_first)
        done = shop.cli("subscriptions", "rotate", "--store", "demo", "--yes")
        assert (done.output.count("done, secret"), done.output.count("FAILED")) == (1, 1)
    assert {one.text: one.not_after for one in keyring.secrets_of("demo")}[SECRET] is None
    shop.emit()
    wait_for_events(shop, "customer.created", 1)


def test_deleting_a_subscription_ends_only_its_own_secret(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text + MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    managed = shop.managed
    gone = next(change for change in managed.unsubscribe_changes() if change.topic == "order.paid")
    assert [done.error for done in apply_changes(managed, [gone])] == [""]
    assert [one.subscription for one in keyring_of(shop).secrets_of("demo") if one.not_after is not None] == [
        str(gone.id)
    ]


def test_a_secret_change_of_a_dead_process_is_repeated_by_the_next(shop: Shop) -> None:
    shop.declare("customer.created")
    shop.apply()
    keyring_of(shop).announce_change("demo")  # and then it was killed
    shop.do("rotate-secret")
    assert shop.plan() == [("update", "customer.created")]
    assert shop.apply().exit_code == 0
    assert shop.plan() == []
    shop.emit(2)
    wait_for_events(shop, "customer.created", 2)


@pytest.fixture
def new_shop(tmp_path: Path) -> Iterator[Shop]:
    """One whose receiver has learned no secret before."""
    with running_shop(tmp_path, "web") as shop:
        yield shop


def test_apply_replaces_secrets_that_are_not_known_here(new_shop: Shop) -> None:
    """doctor said to apply, apply said that there is nothing to do, and every delivery was refused."""
    new_shop.declare("customer.created")
    new_shop.managed.client.webhooks.create(topic="customer.created", url=new_shop.url, secret=SECRET)  # by hand
    assert new_shop.plan() == [("update", "customer.created")]
    assert new_shop.apply().exit_code == 0
    assert new_shop.plan() == []
    new_shop.emit(2)
    wait_for_events(new_shop, "customer.created", 2)
    new_shop.system.client.delete(f"{keys.SECRETS}demo")
    assert new_shop.plan() == [], "the host has a copy"


def test_the_check_does_not_replace_secrets_that_are_not_known_here(new_shop: Shop) -> None:
    """Another installation with this URL may know them, and would refuse every delivery from then on."""
    new_shop.declare("customer.created")
    new_shop.managed.client.webhooks.create(topic="customer.created", url=new_shop.url, secret=SECRET)
    handlers = declared_handlers(new_shop.system.client)
    assert new_shop.managed.plan(handlers, by_itself=True).changes == ()
    assert check(new_shop.system.config, "demo", new_shop.system.client, handlers, hold=lambda: None).missing == 0
    assert new_shop.plan() == [("update", "customer.created")]


def test_replacing_lost_secrets_goes_on_after_it_failed_in_part(
    new_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_shop.declare("customer.created", "order.paid")
    hooks = new_shop.managed.client.webhooks
    (first, _) = [
        hooks.create(topic=one, url=new_shop.url, secret=SECRET) for one in ("order.paid", "customer.created")
    ]
    real = Webhooks.rotate_secret

    def only_the_first(self: Webhooks, number: Any) -> Any:
        if str(number) != str(first.id):
            raise InvalidRequest("no", status=422)
        return real(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Webhooks, "rotate_secret", only_the_first)
        assert new_shop.apply().exit_code == 1
    assert new_shop.plan() != []
    assert new_shop.apply().exit_code == 0
    assert new_shop.plan() == []
    new_shop.emit(2)
    wait_for_events(new_shop, "customer.created", 2)


def test_apply_changes_nothing_while_another_process_holds_the_lock(shop: Shop) -> None:
    shop.declare("customer.created")
    with SubscriptionChecks(shop.system.client).lock("demo"):
        shop.system.client.pexpire(keys.CHECK_LOCK + "demo", 150_000)
        done = shop.apply()
    assert done.exit_code == 1
    assert "another process is changing its subscriptions" in done.output
    (seconds,) = re.findall(r"if it was killed, in (\d+) s", " ".join(done.output.split()))
    assert 60 < int(seconds) <= 150, "as long as the lock is held; it was said to be a minute"
    assert shop.listed() == {}


def test_no_secret_changes_while_a_receiver_does_not_read_the_keyring(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.subscriptions.change_notice.RECEIVER_SECONDS", 0.5)
    shop.declare("customer.created")
    keyring_of(shop).receivers.confirm("hangs", 0)
    done = shop.apply()
    shop.system.client.hdel(keys.RECEIVERS, "hangs")
    assert done.exit_code == 1
    assert "hangs has not read the keyring" in done.output
    assert shop.listed() == {}
    assert shop.system.client.exists(keys.CHANGING_SECRETS) == 0


@pytest.mark.parametrize("makes", [MADE_BY_THE_STORE, ""], ids=["made by the store", "taken from us"])
def test_without_a_key_no_subscription_that_returns_a_secret_is_created(shop: Shop, makes: str) -> None:
    text = shop.system.config_file.read_text()
    without = text.replace(f'key = "{KEY}"', "").replace("[stores.demo]\n", f"[stores.demo]\n{WITH_A_SECRET}\n")
    shop.system.config_file.write_text(without + makes)
    shop.declare("customer.created")
    done = shop.apply()
    if makes:
        assert done.exit_code == 1
        assert "set [secrets] key" in done.output
        assert changing_calls(shop.log()) == [], "nothing was created"
    else:
        assert done.exit_code == 0, "the config has a secret, and the API accepts it"
        assert shop.system.client.exists(keys.SECRETS + "demo") == 0


def test_without_a_key_changes_without_a_secret_are_made(shop: Shop) -> None:
    text = shop.system.config_file.read_text()
    without = text.replace(f'key = "{KEY}"', "").replace("[stores.demo]\n", f"[stores.demo]\n{WITH_A_SECRET}\n")
    shop.system.config_file.write_text(without + MADE_BY_THE_STORE)
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.url, enabled=False)
    shop.declare("customer.created", "order.paid")
    done = shop.apply()
    assert done.exit_code == 1
    assert "set [secrets] key" in done.output
    assert shop.topics() == ["order.paid"]


def test_a_store_without_an_api_is_shown_as_manual(shop: Shop) -> None:
    assert "manual: no base_url or auth" in shop.cli("subscriptions").output
    refused = shop.cli("subscriptions", "plan", "--store", "north")
    assert isinstance(refused.exception, ConfigError)
    assert "no base_url or no auth" in str(refused.exception)


def test_send_and_verify_use_learned_secrets(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.cli.send.FOLLOW_SECONDS", 0.0)
    shop.declare("customer.created")
    shop.apply()
    (learned,) = keyring_of(shop).secrets_of("demo")
    sent = shop.cli("send", "customer.created", "--store", "demo")
    assert sent.exit_code == 0, sent.output
    assert f"secret {learned.fingerprint}" in sent.output
    signed_by = shop.managed.with_secrets()
    request = compose(signed_by, topic="customer.created", delivery_id="m1", data={"id": 1}, now=time.time())
    (tmp_path / "request.txt").write_bytes(write(request.headers, request.body))
    told = shop.cli("verify", "--store", "demo", "--request", str(tmp_path / "request.txt"))
    assert told.exit_code == 0, told.output
    assert "keyring, made for the store" in told.output
    assert learned.text not in told.output
