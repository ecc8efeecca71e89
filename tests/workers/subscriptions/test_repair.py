"""The check keeps subscriptions alive by itself, deletes nothing in a hurry, and accounts for every gap."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from receiver.config import Config
from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks, Trouble
from tests.support.harness import eventually
from tests.support.sandbox_shop import Shop, changing_calls, plugin, running_shop, wait_for_check
from workers.plugins.router import wanted_by
from workers.subscriptions import repair
from workers.subscriptions.managed_store import declared_handlers
from workers.subscriptions.plan import Change, Plan
from workers.subscriptions.probe import ProbeFailed, probe
from workers.subscriptions.repair import DAY, Choice, SubscriptionCheck, check, choose, trouble_after

OTHERS = "https://mailer.example.net/in"
NOW = 1_700_000_000.0
ENABLE = Change("enable", "order.paid", "order.paid", "disabled", 1)
DELETE = Change("delete", "order.paid", "order.paid", "no handler since 12 Nov", 2)

# Deciding


def chosen(*changes: Change, trouble: Trouble | None = None, gone: float | None = None, repairs: int = 3) -> Choice:
    return choose(
        Plan("demo", changes),
        trouble={"order.paid": trouble} if trouble else {},
        gone=lambda _: gone,
        now=NOW,
        max_repairs_per_day=repairs,
        prune_after=7 * DAY,
    )


def test_the_check_creates_and_updates_at_once() -> None:
    changes = (Change("create", "a.made", "a.made", ""), Change("update", "b.made", "b.made", "", 1))
    assert chosen(*changes) == Choice(changes, ())


@pytest.mark.parametrize(
    ("gone", "deleted", "why"),
    [(None, False, "only by"), (6.9 * DAY, False, "deleted in 2 h"), (7.1 * DAY, True, "")],
)
def test_a_subscription_is_deleted_when_its_handler_has_been_gone_for_prune_after(
    gone: float | None, deleted: bool, why: str
) -> None:
    found = chosen(DELETE, gone=gone)
    assert found.make == ((DELETE,) if deleted else ())
    assert all(why in told for _, told in found.postponed)


@pytest.mark.parametrize(
    ("trouble", "enabled"),
    [
        (None, True),
        (Trouble(1, NOW - 30, NOW + 30), False),
        (Trouble(1, NOW - 90, NOW - 30), True),
        (Trouble(3, NOW - 9000, NOW - 1), False),
        (Trouble(3, NOW - DAY - 1, NOW - 1), True),
    ],
)
def test_a_disabled_subscription_is_enabled_with_pauses_and_a_daily_limit(
    trouble: Trouble | None, enabled: bool
) -> None:
    assert bool(chosen(ENABLE, trouble=trouble).make) is enabled
    assert chosen(ENABLE, repairs=0).make == ()


@given(some.lists(some.floats(1, 5 * 3600), min_size=1, max_size=60), some.integers(1, 12))
def test_repairs_keep_their_pauses_and_daily_limit_however_often_a_store_disables(
    pauses: list[float], cap: int
) -> None:
    now, trouble, repairs = NOW, {}, list[float]()
    for pause in pauses:
        now += pause
        plan = Plan("demo", (ENABLE,))
        found = choose(plan, trouble=trouble, gone=lambda _: None, now=now, max_repairs_per_day=cap, prune_after=0)
        repaired = [change.theirs for change in found.make]
        repairs += [now] * len(repaired)
        trouble = trouble_after(trouble, repaired, now)
    for first in repairs:
        assert sum(1 for at in repairs if first <= at < first + DAY) <= 2 * cap, (
            "any 24 hours may contain parts of two days"
        )
    assert all(later - earlier >= 60 for earlier, later in pairwise(repairs))


# The probe


def look(shop: Shop) -> CheckResult:
    """Check the store once, as a housekeeper does."""
    checks = SubscriptionChecks(shop.system.client)
    with checks.lock("demo") as hold:
        checked = check(
            shop.system.config, "demo", shop.system.client, declared_handlers(shop.system.client), hold=hold
        )
        checks.store_result(checked)
    return checked


def test_a_probe_is_stored_and_goes_to_no_handler(shop: Shop) -> None:
    shop.declare("*")
    shop.apply()
    assert probe(shop.managed.with_secrets(), shop.system.client) < 5
    (event,) = [one for one in shop.system.ledger.events() if one.topic == PROBE]
    assert wanted_by(declared_handlers(shop.system.client).present, topic=PROBE, store="demo") == {}
    assert wanted_by(declared_handlers(shop.system.client).present, topic="order.paid", store="demo")
    assert shop.system.ledger.event_names("demo") == [], "a probe is not listed among the names that the store sends"
    claim = shop.system.inbox.claim({"": 5}, capacity=5)
    shop.system.inbox.route([(claim.runs[0], [])], claim.version)
    record = shop.system.ledger.event(event.id)
    assert record is not None
    assert (record.summary.status, record.reason) == ("settled", "probe")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda url: url.replace("/webhooks/demo", "/webhooks/other"), "with (401|503)"),
        (lambda url: url.replace("/webhooks/demo", "/healthz"), "with 405"),
        (lambda url: "http://127.0.0.1:1/webhooks/demo", "does not respond to our probe"),
    ],
)
def test_a_failed_probe_says_what_happened(shop: Shop, spoil: Callable[[str], str], why: str) -> None:
    shop.declare("order.paid")
    shop.apply()
    with pytest.raises(ProbeFailed, match=why):
        probe(shop.managed.with_secrets(), shop.system.client, url=spoil(shop.url))


def test_a_store_without_a_secret_cannot_be_probed(shop: Shop) -> None:
    with pytest.raises(ProbeFailed, match="no active secret"):
        probe(replace(shop.managed.with_secrets(), secrets=()), shop.system.client)


# The look


def test_a_check_creates_wanted_subscriptions_and_reports_them(shop: Shop) -> None:
    shop.declare("order.paid", "customer.created")
    assert look(shop).existing == ("customer.created", "order.paid")
    assert shop.topics() == ["customer.created", "order.paid"]
    assert SubscriptionChecks(shop.system.client).repairs("demo") == [], "a new subscription is not a repair"
    before = len(shop.log())
    assert look(shop).pending == ()
    assert changing_calls(shop.log()[before:]) == []
    assert len(shop.log()) - before == 2, "a check without changes costs two calls"


def test_a_worker_without_one_plugin_makes_the_check_delete_nothing(shop: Shop) -> None:
    shop.declare("order.paid", name="shop.note")
    shop.declare("customer.created", name="crm.note")
    look(shop)
    client = shop.system.client
    for name in client.hkeys(keys.DECLARED_AT):  # the worker that had crm.note was replaced by one without, an hour ago
        if name.startswith(b"crm"):
            client.hset(keys.DECLARED_AT, name, int((time.time() - 3600) * 1000))
    checked = look(shop)
    assert [(one["action"], one["topic"]) for one in checked.pending] == [("delete", "customer.created")]
    assert "deleted in 6 d" in checked.pending[0]["why"]
    assert shop.topics() == ["customer.created", "order.paid"]
    for name in client.hkeys(keys.DECLARED_AT):
        if name.startswith(b"crm"):
            client.hset(keys.DECLARED_AT, name, int((time.time() - 8 * DAY) * 1000))
    assert look(shop).pending == ()
    assert shop.topics() == ["order.paid"], "its handler was absent for prune_after"


def test_a_topic_that_a_handler_gives_up_is_without_a_handler_from_then_on(shop: Shop) -> None:
    """It counted as given up 15 minutes before: a `prune_after` of 10 minutes deleted its subscription at once."""
    shop.declare("order.paid", "customer.created")
    look(shop)
    shop.declare("order.paid")
    since = declared_handlers(shop.system.client).gone("customer.created", "demo")
    assert since is not None
    assert abs(since.timestamp() - time.time()) < 60
    assert "deleted in 6 d" in look(shop).pending[0]["why"]


def test_until_a_worker_has_declared_handlers_nothing_is_deleted(shop: Shop) -> None:
    shop.managed.client.webhooks.create(topic="order.paid", url=shop.url)
    assert look(shop).pending == ()
    assert shop.topics() == ["order.paid"]


def test_a_disabled_subscription_is_probed_and_enabled_and_its_gap_recorded(shop: Shop) -> None:
    shop.declare("customer.created")
    look(shop)
    shop.emit()
    eventually(lambda: shop.count_events("customer.created") == 1, what="the first")
    last = SubscriptionChecks(shop.system.client).last_deliveries("demo")["customer.created"]
    shop.do("disable-subscriptions")
    shop.emit()
    look(shop)
    (repair,) = SubscriptionChecks(shop.system.client).repairs("demo")
    assert (repair.topic, repair.action, repair.last_delivery) == ("customer.created", "enable", last)
    assert repair.gap is not None
    assert 0 < repair.gap < 60
    assert repair.probe_ms is not None
    assert SubscriptionChecks(shop.system.client).repair_count("demo") == 1
    shop.emit()
    eventually(lambda: shop.count_events("customer.created") == 2, what="events flow again")
    assert re.search(r"^demo +ok +1 +1 ", shop.cli("subscriptions").output, re.MULTILINE)
    shop.do("disable-subscriptions")
    again = look(shop)
    assert "disabled again; enabled in" in again.pending[0]["why"], "the second repair waits"
    assert "disabled again" in shop.cli("subscriptions", "list").output


def test_a_deleted_subscription_is_created_again_and_counted_as_a_repair(shop: Shop) -> None:
    shop.declare("customer.created")
    look(shop)
    shop.do("delete-subscriptions")
    look(shop)
    assert shop.topics() == ["customer.created"]
    assert [repair.action for repair in SubscriptionChecks(shop.system.client).repairs("demo")] == ["create"]
    shop.emit()
    eventually(lambda: shop.count_events("customer.created") == 1, what="events flow again")


def test_nothing_is_enabled_while_our_own_url_accepts_nothing(shop: Shop) -> None:
    shop.declare("customer.created")
    look(shop)
    shop.do("disable-subscriptions")
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text.replace("[stores.demo]\n", "[stores.demo]\nmax_stored = 1\n"))
    try:
        (web,) = [process for process in shop.system.processes if "receiver.server.web" in process.command]
        web.send(signal.SIGHUP)
        shop.system.client.hset(keys.COUNTERS, "open|demo", 5)
        eventually(lambda: _answers_503(shop), what="the store is full")
        checked = look(shop)
        assert "answers our own signed event with 503" in checked.pending[0]["why"]
        assert shop.topics() == []
        assert SubscriptionChecks(shop.system.client).repairs("demo") == []
    finally:
        shop.system.config_file.write_text(text)
        web.send(signal.SIGHUP)
        shop.system.client.delete(keys.COUNTERS)
        eventually(lambda: not _answers_503(shop), what="and takes events again")


def _answers_503(shop: Shop) -> bool:
    try:
        probe(shop.managed.with_secrets(), shop.system.client)
    except ProbeFailed as error:
        return "503" in str(error)
    return False


def test_a_foreign_subscription_is_never_changed(shop: Shop) -> None:
    hooks = shop.managed.client.webhooks
    theirs = [
        hooks.create(topic="order.paid", url=OTHERS),
        hooks.create(topic="customer.created", url=OTHERS, enabled=False),
        hooks.create(topic="order.paid", url=shop.url.replace("/demo", "/south")),
    ]
    before = {one.id: hooks.get(one.id).to_json() for one in theirs}
    shop.declare("order.*")
    look(shop)
    shop.apply()
    hooks.update(next(i for i, (topic, _) in shop.listed().items() if topic == "order.created"), enabled=False)
    look(shop)
    assert shop.cli("subscriptions", "rotate", "--yes", "--store", "demo").exit_code == 0
    shop.system.client.delete(keys.DECLARATIONS, keys.DECLARED_AT)
    shop.declare("product.created")
    assert shop.apply().exit_code == 0
    look(shop)
    assert shop.topics() == ["product.created"]
    assert {one.id: hooks.get(one.id).to_json() for one in theirs} == before


def test_a_failed_check_keeps_the_last_known_subscriptions(shop: Shop) -> None:
    shop.declare("customer.created")
    look(shop)
    shop.misbehave(redirect=1)
    checked = look(shop)
    assert "a redirect to elsewhere.invalid" in checked.unknown
    assert checked.existing == ("customer.created",)
    assert "unknown" in shop.cli("subscriptions").output


# Whose turn it is


def test_each_store_is_assigned_to_one_caller_and_first_checks_are_spread(shop: Shop) -> None:
    checks, names = SubscriptionChecks(shop.system.client), [f"s{number}" for number in range(10)]
    assert checks.due(names, every=100, most=5) == ["s0"]
    assert checks.due(names, every=100, most=5) == [], "it is assigned already"
    places = [score - shop.system.client.zscore(keys.CHECK, "s1") for _, score in zset(shop)[1:9]]
    assert places == sorted(places)
    assert places[-1] == pytest.approx(80_000, abs=5_000)
    checks.check_again_in("s0", 0)
    assert checks.due(names, every=100, most=5) == ["s0"]
    client = shop.system.client
    client.zadd(keys.CHECK, {"s3": (time.time() - DAY - 60) * 1000, "s4": (time.time() - 60) * 1000})
    assert checks.due(["s1", "s2"], every=100, most=5) == []
    there = {name for name, _ in zset(shop)}
    assert b"s3" not in there, "a store without a check for a day is removed from the schedule"
    assert b"s4" in there, "a store that only this caller does not know stays scheduled"


def test_callers_with_different_stores_do_not_change_each_others_schedule(shop: Shop) -> None:
    checks, taken = SubscriptionChecks(shop.system.client), list[str]()
    for _ in range(5):
        for names in (["a", "b"], ["b"], ["c"]):
            due = checks.due(names, every=4.0, most=1)
            assert set(due) <= set(names)
            taken += due
            for store in due:
                checks.check_again_in(store, 300)
    assert sorted(taken) in (["a", "b", "c"], ["a", "c"]), "each store once: another caller's list resets no schedule"
    eventually(lambda: taken.extend(checks.due(["a", "b"], every=4.0, most=1)) or "b" in taken, what="b has its turn")


def zset(shop: Shop) -> list[tuple[bytes, float]]:
    return list(shop.system.client.zrange(keys.CHECK, 0, -1, withscores=True))


def test_the_record_of_a_store_can_be_deleted(shop: Shop) -> None:
    shop.declare("customer.created")
    look(shop)
    SubscriptionChecks(shop.system.client).forget("demo")
    assert SubscriptionChecks(shop.system.client).last_results(["demo"]) == {}


@pytest.mark.timed
def test_a_housekeeper_stops_in_time_while_a_store_does_not_respond(shop: Shop) -> None:
    shop.misbehave(slow=1, slow_by="4s")
    config = replace_check(shop.system.config, 1.0)
    background = SubscriptionCheck(lambda: config)
    background.start()
    eventually(lambda: shop.system.client.exists(keys.CHECK_LOCK + "demo"), what="it looks at the store")
    began = time.monotonic()
    background.stop(within=0.5)
    assert time.monotonic() - began < 3.5
    shop.misbehave(slow=0)


def test_a_check_changes_nothing_once_the_config_was_reloaded(shop: Shop) -> None:
    """It would subscribe the URL of the old config."""
    shop.declare("customer.created")
    shop.misbehave(slow=1, slow_by="1s")
    current = [replace_check(shop.system.config, 60.0)]
    background = SubscriptionCheck(lambda: current[0])
    assert background.round() == 1
    current[0] = replace_check(shop.system.config, 60.0)
    shop.misbehave(slow=0)
    eventually(lambda: background.round() == 0, what="the check ends")
    assert shop.topics() == []
    assert SubscriptionChecks(shop.system.client).last_results(["demo"]) == {}


@pytest.mark.parametrize("changed", ["while it runs", "before its start"])
def test_a_store_is_checked_at_once_when_its_callback_url_has_changed(shop: Shop, changed: str) -> None:
    shop.declare("customer.created")
    current = [replace_check(shop.system.config, 3600.0)]
    checks = SubscriptionChecks(shop.system.client)
    background = SubscriptionCheck(lambda: current[0])
    background.round()
    eventually(lambda: background.round() == 0, what="the first check ends")
    first = checks.last_results(["demo"])["demo"]
    current[0] = replace_check(shop.system.config, 3600.0)
    assert background.round() == 0, "the URL is the same"
    text = shop.system.config_file.read_text()
    shop.system.config_file.write_text(text.replace('public_url = "http://127.0.0.1', 'public_url = "http://localhost'))
    current[0] = replace_check(shop.system.config, 3600.0)
    if changed == "before its start":
        background = SubscriptionCheck(lambda: current[0])
    assert background.round() == 1
    eventually(lambda: background.round() == 0, what="the second check ends")
    second = checks.last_results(["demo"])["demo"]
    assert (first.held_back, "1 subscription for http://127.0.0.1" in second.held_back) == ("", True)


def test_a_check_whose_thread_cannot_be_started_is_made_when_it_is_due_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store counted as one that is being checked: once eight did, no store was checked any more."""
    monkeypatch.setattr(repair, "STORES_AT_ONCE", 1)
    config = replace_check(shop.system.config, 3600.0)
    checks, background = SubscriptionChecks(shop.system.client), SubscriptionCheck(lambda: config)
    start, failed = threading.Thread.start, []

    def at_the_limit(thread: threading.Thread) -> None:
        if not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", at_the_limit)
    with pytest.raises(RuntimeError):
        background.round()
    checks.check_again_in("demo", 0)
    assert background.round() == 1
    eventually(lambda: background.round() == 0, what="the check ends")
    assert list(checks.last_results(["demo"])) == ["demo"]


def replace_check(config: Config, seconds: float) -> Config:
    return config.model_copy(update={"subscriptions": config.subscriptions.model_copy(update={"check": seconds})})


# With a real worker and a real housekeeper


@pytest.mark.timed
def test_a_topic_added_by_a_new_plugin_is_subscribed_within_one_check(tmp_path: Path) -> None:
    every = 2.0
    with running_shop(tmp_path, "web", "worker", "housekeeper", check="2s", plugin=plugin("order.paid")) as shop:
        eventually(lambda: shop.topics() == ["order.paid"], 20, what="the first look")
        shop.system.plugin.write_text(plugin("order.paid", "customer.created"))
        (worker,) = [process for process in shop.system.processes if "workers.runtime.worker" in process.command]
        worker.send(signal.SIGHUP)
        eventually(lambda: "customer.created" in declared(shop), 20, what="the worker has it")
        began = time.time()
        eventually(lambda: shop.topics() == ["customer.created", "order.paid"], 20, what="it is subscribed")
        took = time.time() - began
        print(f"\na new topic was subscribed {took:.1f} s after its worker had it; a check each {every:g} s")
        assert took < every + 3, "one check, and the time it takes to wait for the receivers"
        wait_for_check(shop, began)
        shop.emit()
        eventually(lambda: shop.count_events("customer.created") == 1, what="and it comes")


def declared(shop: Shop) -> set[str]:
    return {topic for one in declared_handlers(shop.system.client).present for topic in one.topics}
