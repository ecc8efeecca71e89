"""Faults in the middle of a change: no secret is lost, nothing is deleted without agreement or done twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError
from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.keyring.host_files import KeyringFiles, KeyringUnwritable
from receiver.inbox.keyring.keyring import CHANGE_SECONDS, Keyring
from receiver.inbox.keyring.learned_secrets import LearnedSecret, orphaned
from receiver.inbox.keyring.receiver_versions import ReceiverVersions
from receiver.inbox.queries.runs import EventRuns, PastRun
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.subscription_checks import BUSY_MS, LOCK_MS, StoreLocked, SubscriptionChecks
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.sandbox_shop import Shop, changing_calls
from tests.workers.subscriptions.test_apply import MADE_BY_THE_STORE, wait_for_events
from tests.workers.subscriptions.test_repair import look, replace_check
from workers.operations.replay import Selection, matching_runs
from workers.storeapi.client import Client
from workers.storeapi.errors import (
    ApiError,
    InvalidRequest,
    ServerError,
    StatusError,
    TokenRefused,
    UnexpectedResponse,
    Unreachable,
    had_no_effect,
)
from workers.storeapi.groups import Webhooks
from workers.subscriptions.apply import apply_changes
from workers.subscriptions.change_notice import REPEAT_EVERY
from workers.subscriptions.managed_store import declared_handlers
from workers.subscriptions.probe import NoActiveSecret, ProbeFailed, probe
from workers.subscriptions.repair import SubscriptionCheck

TAKEN_FROM_US = MADE_BY_THE_STORE + '[stores.demo.catalogue.webhooks.rotate_secret]\noptional = ["secret"]\n'
Spoil = Callable[..., Any]


def configure(shop: Shop, more: str) -> None:
    shop.system.config_file.write_text(shop.system.config_file.read_text() + more)


def keyring_of(shop: Shop) -> Keyring:
    return Keyring(shop.system.client, shop.system.config.data_dir, KEY)


def is_announced(shop: Shop) -> bool:
    return bool(shop.system.client.hexists(keys.CHANGING_SECRETS, "demo"))


def rotate(shop: Shop) -> list[str]:
    """The errors of a rotation."""
    managed = shop.managed
    with SubscriptionChecks(shop.system.client).lock("demo") as hold:
        return [one.error for one in apply_changes(managed, managed.rotate_changes(), hold=hold)]


def done_and_then(error: BaseException, real: Spoil) -> Spoil:
    """The store makes the change, but its response is lost."""

    def spoiled(*given: Any, **named: Any) -> Any:
        real(*given, **named)
        raise error

    return spoiled


def refused_with(error: BaseException) -> Spoil:
    def spoiled(*_: Any, **__: Any) -> Any:
        raise error

    return spoiled


# A secret that may be in use


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        ServerError("a gateway in between gave up", status=504),
        UnexpectedResponse("no JSON"),
        KeyringUnwritable(Path("keyring-pending.json"), OSError(28, "No space left on device")),
    ],
    ids=["interrupted", "gateway", "unreadable", "disk full"],
)
def test_a_rotation_with_a_lost_response_leaves_its_notice_and_the_next_check_repairs_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    with monkeypatch.context() as patch:
        if isinstance(error, KeyringUnwritable):  # after it was tried
            patch.setattr(KeyringFiles, "require_writable", lambda _: None)
            patch.setattr(KeyringFiles, "add_pending", refused_with(error))
        else:
            patch.setattr(Webhooks, "rotate_secret", done_and_then(error, Webhooks.rotate_secret))
        if isinstance(error, StorehooksError):
            assert all(rotate(shop))
        else:
            with pytest.raises(type(error)):
                rotate(shop)
    assert is_announced(shop)
    assert shop.plan() == [("update", "customer.created")]
    assert look(shop).pending == ()
    assert not is_announced(shop)
    shop.emit()
    wait_for_events(shop, "customer.created", 1)


def test_a_killed_change_is_checked_before_its_notice_expires(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Genuine deliveries got 401 from the end of the notice until the check; see also test_killed_rotation.py."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    client, hour = shop.system.client, int(server_ms(shop.system.client)) + 3_600_000
    client.zadd(keys.CHECK, {"demo": hour})
    monkeypatch.setattr(Webhooks, "rotate_secret", refused_with(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        rotate(shop)
    due = client.zscore(keys.CHECK, "demo")
    assert due is not None
    assert int(due) <= int(server_ms(client)) + LOCK_MS
    longest_check = 60.0
    assert REPEAT_EVERY + (LOCK_MS + BUSY_MS) / 1000 + longest_check < CHANGE_SECONDS


def test_a_check_that_loses_a_secret_is_made_again_before_its_notice_expires(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    config = replace_check(shop.system.config, 3600.0)
    scheduled, handlers = SubscriptionCheck(lambda: config), declared_handlers(shop.system.client)
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "create", done_and_then(ServerError("504", status=504), Webhooks.create))
        again = scheduled._check(config, "demo", handlers)
    assert is_announced(shop)
    assert again is not None
    assert again <= CHANGE_SECONDS / 2
    assert scheduled._check(config, "demo", handlers) == 3600.0
    assert not is_announced(shop)


def test_a_keyring_that_cannot_be_written_is_named_before_the_store_makes_a_secret(shop: Shop) -> None:
    """The secret was lost: the store had made it, and the command ended with a traceback."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created", "order.paid")
    shop.apply()
    files = keyring_of(shop).files
    lock = files.pending_file.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()  # it cannot be opened as a file, not even by root
    try:
        calls = len(changing_calls(shop.log()))
        done = shop.cli("subscriptions", "rotate", "--store", "demo", "--yes")
        assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.output
        assert "cannot be written" in done.output
        assert "chown" in done.output
        assert len(changing_calls(shop.log())) == calls
        assert not is_announced(shop)
    finally:
        lock.rmdir()
    assert rotate(shop) == ["", ""]


def test_a_check_that_fails_is_the_result_that_is_shown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of an earlier check was shown as ok, while each later one failed."""
    shop.declare("customer.created")
    shop.apply()
    config = shop.system.config
    scheduled = SubscriptionCheck(lambda: config)
    unwritable = KeyringUnwritable(Path("/data/keyring-pending.lock"), PermissionError(13, "Permission denied"))
    for error, told in ((unwritable, str(unwritable)), (KeyError("a secret"), "the check failed: KeyError")):
        with monkeypatch.context() as patch:
            patch.setattr("workers.subscriptions.repair.check", refused_with(error))
            scheduled._check(config, "demo", declared_handlers(shop.system.client))
        found = SubscriptionChecks(shop.system.client).last_results(["demo"])["demo"]
        assert (found.unknown, found.existing) == (told, ("customer.created",))
        listed = shop.cli("subscriptions").output
        assert "unknown" in listed
        assert told[:40] in listed
        assert "could not be checked" in shop.cli("doctor").output
    scheduled._check(config, "demo", declared_handlers(shop.system.client))
    assert SubscriptionChecks(shop.system.client).last_results(["demo"])["demo"].unknown == ""


def test_a_creation_with_a_lost_response_leaves_its_notice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "create", done_and_then(ServerError("504", status=504), Webhooks.create))
        assert shop.apply().exit_code == 1
    assert is_announced(shop)
    assert look(shop).pending == ()
    shop.emit()
    wait_for_events(shop, "customer.created", 1)


def test_a_refused_rotation_withdraws_its_notice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    monkeypatch.setattr(Webhooks, "rotate_secret", refused_with(InvalidRequest("no", status=422)))
    assert rotate(shop) == ["no"]
    assert not is_announced(shop)


@pytest.mark.parametrize(
    "error", [ServerError("503", status=503), InvalidRequest("no", status=422)], ids=["fault", "refused"]
)
def test_the_notice_of_a_dead_process_stays_until_its_secrets_are_rotated(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: ApiError
) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    keyring_of(shop).announce_change("demo")
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "rotate_secret", refused_with(error))
        assert look(shop).pending != ()
    assert is_announced(shop)
    with monkeypatch.context() as patch:
        patch.setattr("workers.subscriptions.change_notice.RECEIVER_SECONDS", 0.2)
        patch.setattr(ReceiverVersions, "behind", lambda *_: ["hangs"])
        assert "has not read the keyring" in look(shop).pending[0]["why"]
    assert is_announced(shop)
    assert look(shop).pending == ()
    assert not is_announced(shop)


def test_a_notice_is_withdrawn_only_by_its_own_process(shop: Shop) -> None:
    keyring_of(shop).announce_change("demo", "mine")
    keyring_of(shop).announce_change("demo", "anothers")
    keyring_of(shop).withdraw_change("demo", "mine")
    assert is_announced(shop)
    keyring_of(shop).withdraw_change("demo", "anothers")
    assert not is_announced(shop)


def test_a_generated_secret_that_the_store_refuses_leaves_the_old_one_active(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(shop, TAKEN_FROM_US)
    shop.declare("customer.created")
    shop.apply()
    before = keyring_of(shop).secrets_of("demo")
    real = Client.call

    def refuses(self: Client, group: str, name: str, *given: Any, **named: Any) -> Any:
        if name == "rotate_secret":
            raise InvalidRequest("no", status=422)
        return real(self, group, name, *given, **named)

    monkeypatch.setattr(Client, "call", refuses)
    assert rotate(shop) == ["no"]
    assert keyring_of(shop).secrets_of("demo") == before
    monkeypatch.undo()
    assert rotate(shop) == [""]
    new, old = keyring_of(shop).secrets_of("demo")
    assert (new.not_after, old.fingerprint) == (None, before[0].fingerprint)
    assert old.not_after is not None


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (InvalidRequest("", status=422), True),
        (StatusError("", status=404), True),
        (ServerError("", status=502), False),
        (Unreachable("", sent=True), False),
        (Unreachable("", sent=False), True),
        (TokenRefused(""), True),
        (UnexpectedResponse(""), False),
    ],
)
def test_only_a_clear_error_means_that_a_call_had_no_effect(error: ApiError, refusal: bool) -> None:
    assert had_no_effect(error) is refusal


# Deletions without agreement


def test_apply_deletes_only_what_it_has_shown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("order.paid", "customer.created")
    shop.apply()
    hooks = shop.managed.client.webhooks
    shown = hooks.create(topic="product.created", url=shop.url)
    monkeypatch.setattr(
        "workers.cli.output.confirm", lambda *_, **__: hooks.create(topic="product.updated", url=shop.url)
    )
    assert shop.apply().exit_code == 0
    assert str(shown.id) not in shop.listed()
    assert shop.topics() == ["customer.created", "order.paid", "product.updated"]


@pytest.mark.parametrize("answer", [ServerError("503", status=503), None], ids=["fault", "empty"])
def test_a_store_that_briefly_lists_no_topics_loses_no_subscription(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, answer: ApiError | None
) -> None:
    shop.declare("order.*", "customer.created")
    shop.apply()
    before = shop.topics()
    monkeypatch.setattr(Webhooks, "list_topics", refused_with(answer) if answer else lambda _: [])
    assert shop.plan() == []
    assert shop.apply().exit_code == 0
    assert shop.topics() == before


# Alone


def test_a_check_that_loses_the_lock_stops(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("order.paid", "order.created", "customer.created")
    managed, errors = shop.managed, list[str]()
    create = managed.client.webhooks.create

    def slow(**fields: Any) -> Any:
        made = create(**fields)
        shop.system.client.delete(keys.CHECK_LOCK + "demo")  # its time is over, and another comes
        other.start()
        other.join()
        return made

    def repair() -> None:
        with SubscriptionChecks(shop.system.client).lock("demo") as hold:
            list(
                apply_changes(
                    shop.managed,
                    shop.managed.plan(declared_handlers(shop.system.client)).without_deletions,
                    hold=hold,
                )
            )

    other = threading.Thread(target=repair)
    monkeypatch.setattr(managed.client.webhooks, "create", slow)
    with SubscriptionChecks(shop.system.client).lock("demo") as hold:
        found = managed.plan(declared_handlers(shop.system.client), locked=True)
        errors = [one.error for one in apply_changes(managed, found.without_deletions, hold=hold)]
    assert "the lock on its subscriptions has expired" in errors[1]
    assert sorted(topic for topic, _ in shop.listed().values()) == ["customer.created", "order.created", "order.paid"]


def test_the_lock_is_renewed_while_changes_are_made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.inbox.subscription_checks.LOCK_MS", 400)
    with SubscriptionChecks(shop.system.client).lock("demo") as hold:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            hold()
            with pytest.raises(StoreLocked), SubscriptionChecks(shop.system.client).lock("demo"):
                pass
            time.sleep(0.05)


def test_one_change_may_take_longer_than_the_lock_lasts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three slow attempts and the waits in between, the lock expired, and two processes changed one store."""
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    monkeypatch.setattr("receiver.inbox.subscription_checks.LOCK_MS", 600)
    real, occupied = Webhooks.rotate_secret, list[bool]()

    def slow(self: Webhooks, *given: Any, **named: Any) -> Any:
        began = time.monotonic()
        while time.monotonic() < began + 0.4:
            occupied.append(bool(shop.system.client.exists(keys.CHECK_LOCK + "demo")))
            time.sleep(0.02)
        if time.monotonic() < first + 1.0:
            raise Unreachable("no answer", store="demo", sent=False)
        return real(self, *given, **named)

    monkeypatch.setattr(Webhooks, "rotate_secret", slow)
    first = time.monotonic()
    assert rotate(shop) == [""]
    assert time.monotonic() - first > 1.0, "it took longer than the lock lasts"
    assert all(occupied)


def test_a_call_is_not_retried_after_the_lock_is_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    shop.apply()
    tries = list[float]()

    def slow(*_: Any, **__: Any) -> Any:
        tries.append(time.monotonic())
        shop.system.client.set(keys.CHECK_LOCK + "demo", "another")
        raise Unreachable("no answer", store="demo", sent=False)

    monkeypatch.setattr(Webhooks, "rotate_secret", slow)
    (error,) = rotate(shop)
    assert "the lock on its subscriptions has expired" in error
    assert len(tries) == 1
    assert shop.system.client.get(keys.CHECK_LOCK + "demo") == b"another"


def test_a_slow_check_ends_no_secret_that_another_process_has_learned_since(shop: Shop) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("customer.created")
    managed = shop.managed
    with SubscriptionChecks(shop.system.client).lock("demo") as hold:
        old = managed.plan(declared_handlers(shop.system.client), locked=True)
        shop.system.client.delete(keys.CHECK_LOCK + "demo")
        shop.apply()
        nothing_is_missing = replace(old, changes=())
        with pytest.raises(StoreLocked):
            managed.end_orphaned_secrets(nothing_is_missing, hold=hold)
    assert [one.not_after for one in keyring_of(shop).secrets_of("demo")] == [None]


def test_rotate_asks_for_confirmation_before_it_takes_the_lock(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("customer.created")
    shop.apply()
    free = []
    monkeypatch.setattr(
        "workers.cli.output.confirm",
        lambda *_, **__: free.append(not shop.system.client.exists(keys.CHECK_LOCK + "demo")),
    )
    assert shop.cli("subscriptions", "rotate", "--store", "demo", "--yes").exit_code == 0
    assert free == [True]


# Deleted again and again


def delete(shop: Shop, topic: str) -> None:
    for number, (name, _) in shop.listed().items():
        if name == topic:
            shop.managed.client.webhooks.delete(number)


def test_a_repeatedly_deleted_subscription_is_created_with_pauses_and_a_daily_limit(shop: Shop) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("order.paid", "customer.created")
    look(shop)
    for _ in range(3):
        delete(shop, "order.paid")
        found = look(shop)
    assert "deleted at the store again; created in" in found.pending[0]["why"]
    assert SubscriptionChecks(shop.system.client).repair_count("demo") == 1
    assert "deleted at the store again" in found.trouble["order.paid"].note, "doctor shows it"
    assert "created in" in look(shop).pending[0]["why"], "the next check still has the reason"


def test_the_secrets_of_deleted_subscriptions_end_and_those_of_others_stay(shop: Shop) -> None:
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("order.paid", "customer.created")
    look(shop)
    first = {one.subscription: one.fingerprint for one in keyring_of(shop).secrets_of("demo")}
    delete(shop, "order.paid")
    look(shop)
    assert all(one.not_after is None for one in keyring_of(shop).secrets_of("demo")), "the list might have been wrong"
    look(shop)
    live = {one.subscription for one in keyring_of(shop).secrets_of("demo") if one.not_after is None}
    assert live == set(shop.listed())
    assert len(live & set(first)) == 1


def test_nothing_is_created_again_while_our_own_url_accepts_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.declare("customer.created")
    look(shop)
    shop.do("delete-subscriptions")
    with monkeypatch.context() as patch:
        patch.setattr("workers.subscriptions.repair.probe", refused_with(ProbeFailed("our URL answers 503")))
        for _ in range(2):
            assert look(shop).pending[0]["why"] == "our URL answers 503"
        assert shop.topics() == []
        patch.setattr("workers.subscriptions.repair.probe", refused_with(NoActiveSecret("no secret")))
        assert look(shop).pending == (), "a new subscription brings the secret that is missing"
    assert shop.topics() == ["customer.created"]
    assert [repair.action for repair in SubscriptionChecks(shop.system.client).repairs("demo")] == ["create"]


def test_a_secret_beyond_the_maximum_is_refused_before_it_displaces_the_oldest(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.subscriptions.store_secrets.MAX_LEARNED", 2)
    configure(shop, MADE_BY_THE_STORE)
    shop.declare("order.paid", "order.created", "customer.created")
    left = look(shop).pending
    assert ["2 secrets are active" in one["why"] for one in left] == [True]
    assert len(shop.topics()) == 2


def test_a_secret_that_may_be_shared_is_not_orphaned() -> None:
    def secret(mark: str, subscription: str) -> LearnedSecret:
        return LearnedSecret("demo", "whsec_eA==", mark, "created", 1.0, subscription)

    ring = [secret("a", "1"), secret("b", "2"), secret("c", "")]
    assert orphaned(ring, listed={"2"}, ours={"2"}) == ring[:1]
    assert orphaned(ring, listed={"2", "3"}, ours={"2", "3"}) == [], "subscription 3 has no secret of its own"


def test_changes_that_were_not_tried_stay_pending(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("order.paid", "order.created")
    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "create", refused_with(Unreachable("away", sent=False)))
        assert [one["action"] for one in look(shop).pending] == ["create", "create"]
    shop.apply()
    shop.managed.client.webhooks.create(topic="product.created", url=shop.url)
    shop.cli("subscriptions", "apply", "--yes", "--no-delete")
    delete(shop, "order.paid")
    shop.cli("subscriptions", "apply", "--yes", "--no-delete")
    left = SubscriptionChecks(shop.system.client).last_results(["demo"])["demo"].pending
    assert [(one["action"], one["topic"]) for one in left] == [("delete", "product.created")]


def test_a_check_of_a_removed_store_frees_its_slot(shop: Shop) -> None:
    check = SubscriptionCheck(lambda: shop.system.config)
    SubscriptionChecks(shop.system.client).remove("demo")
    check._busy.add("demo")
    check._check_and_reschedule(shop.system.config, "demo", declared_handlers(shop.system.client))
    assert check._busy == set()


# Subscriptions that were deleted, and those of other programs


def test_a_handler_removed_long_ago_does_not_return_after_a_stop_of_all_workers(shop: Shop) -> None:
    shop.declare("order.paid", name="old.note")
    shop.declare("product.created", name="crm.note")
    shop.declare("customer.created")
    ages = {b"old": 30 * 86400, b"crm": 180, b"sho": 120, b"@": 120}
    for name in shop.system.client.hkeys(keys.DECLARED_AT):
        shop.system.client.hset(keys.DECLARED_AT, name, int((time.time() - ages[name[:3]]) * 1000))
    shop.declare("customer.created")
    present = {one.handler for one in declared_handlers(shop.system.client).present}
    assert present == {"shop.note", "crm.note"}, "only handlers that were present when all workers stopped"


def test_a_replay_gives_no_probe_to_a_handler() -> None:
    event = EventRuns("e1", "north", "order.paid", {"shop.note": PastRun("done")})
    assert matching_runs(Selection(), event)
    for selection in (Selection(), Selection(handler="shop.note"), Selection(handler="shop.late")):
        assert matching_runs(selection, replace(event, topic=PROBE)) == []


def test_a_probe_succeeds_only_if_that_probe_is_stored(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("customer.created")
    shop.apply()
    monkeypatch.setattr("workers.subscriptions.probe.ARRIVAL_SECONDS", 0.2)
    probe(shop.managed.with_secrets(), shop.system.client)
    (earlier,) = [one for one in shop.system.ledger.events() if one.topic == PROBE]
    liar = httpx2.Response(200, json={"id": earlier.id})
    monkeypatch.setattr(httpx2, "post", lambda *_, **__: liar)
    with pytest.raises(ProbeFailed, match="it is not in this inbox"):
        probe(shop.managed.with_secrets(), shop.system.client)


# Removed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RedisError("away"), RuntimeError("nonsense")])
def test_an_interrupted_removal_leaves_the_store_managed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    shop.declare("order.paid")
    shop.apply()
    monkeypatch.setattr("workers.subscriptions.managed_store.ManagedStore.unsubscribe_changes", refused_with(error))
    assert shop.cli("stores", "remove", "demo", "--yes").exit_code != 0
    assert SubscriptionChecks(shop.system.client).removed() == set()


def test_a_removed_store_still_in_the_config_is_reported_and_apply_restores_it(shop: Shop) -> None:
    shop.declare("order.paid")
    shop.apply()
    checks = SubscriptionChecks(shop.system.client)
    checks.remove("demo")
    assert "removed: no repairs until" in shop.cli("subscriptions").output
    told = shop.cli("doctor").output
    assert "removed by `stores remove`, but still in the config" in told
    shop.apply()
    assert checks.removed() == {"demo"}, "an apply of all stores does not restore a removed one"
    assert "nothing to do" in shop.cli("subscriptions", "apply", "--yes", "--store", "demo").output
    assert checks.removed() == set()
