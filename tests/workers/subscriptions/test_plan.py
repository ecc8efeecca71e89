"""The plan: wanted and existing subscriptions, and the changes between them, with examples and properties."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from receiver.config import load
from receiver.contract.signing.presets import PRESETS, STANDARD_WEBHOOKS
from receiver.contract.stores import Store
from receiver.inbox import Declaration
from tests.support.harness import SECRET
from workers.subscriptions.callback_urls import CallbackUrls, callback_urls
from workers.subscriptions.plan import (
    ORDER,
    Existing,
    Offer,
    Plan,
    Wanted,
    WantedName,
    make_plan,
    wanted_topics,
)

URL = "https://hooks.example.com/webhooks/north"
FORMER = "https://old.example.com/webhooks/north"
NORTH = Store("north", STANDARD_WEBHOOKS, (), url=URL)
SHOPIFY = Store("north", PRESETS["shopify"], (), url=URL)
OFFER = Offer(("order.created", "order.paid", "order.deleted", "product.updated"))


def handler(*topics: str, name: str = "shop.note", stores: tuple[str, ...] = ("*",)) -> Declaration:
    return Declaration(name, "1", topics, stores)


def names(found: Wanted) -> list[str]:
    return [name.theirs for name in found.names]


# Wanted


def test_topics_of_handlers_are_translated_to_the_stores_names() -> None:
    offer = Offer(("orders/create", "orders/paid", "products/update"))
    found = wanted_topics(SHOPIFY, [handler("order.created"), handler("product.*", name="shop.stock")], offer)
    assert [(one.theirs, one.topic, one.why) for one in found.names] == [
        ("orders/create", "order.created", "for shop.note"),
        ("products/update", "product.updated", "for shop.stock"),
    ]


def test_two_handlers_of_one_topic_are_both_named() -> None:
    found = wanted_topics(
        NORTH, [handler("order.paid"), handler("order.paid", name="erp.push"), handler("order.*")], OFFER
    )
    assert [one.why for one in found.names if one.topic == "order.paid"] == ["for shop.note, erp.push"]


def test_a_handler_for_other_stores_wants_no_subscription() -> None:
    assert names(
        wanted_topics(NORTH, [handler("*", stores=("south",)), handler("order.paid", stores=("n*",))], OFFER)
    ) == ["order.paid"]


@pytest.mark.parametrize(
    ("subscribe", "expected"),
    [
        ((), ["order.paid"]),
        (("order.*",), ["order.created", "order.deleted", "order.paid"]),
        (("order.*", "-order.deleted"), ["order.created", "order.paid"]),
        (("-order.*",), []),
        (("-*", "product.updated"), ["product.updated"]),
        (("-order.deleted", "order.*"), ["order.created", "order.deleted", "order.paid"]),
    ],
)
def test_subscribe_adds_and_removes_topics_and_the_last_entry_wins(
    subscribe: tuple[str, ...], expected: list[str]
) -> None:
    assert names(wanted_topics(NORTH, [handler("order.paid")], OFFER, subscribe=subscribe)) == expected


def test_a_topic_that_the_store_does_not_offer_is_reported_and_not_subscribed() -> None:
    found = wanted_topics(NORTH, [handler("product.stock", "order.paid")], OFFER)
    assert names(found) == ["order.paid"]
    assert [(one.pattern, one.why) for one in found.unoffered] == [("product.stock", "for shop.note")]


def test_if_the_store_lists_no_topics_names_come_from_the_map_and_from_deliveries() -> None:
    found = wanted_topics(
        SHOPIFY, [handler("order.created", "thing.*")], Offer(("things/move",), "seen", "it will not say")
    )
    assert names(found) == ["orders/create", "things/move"]
    assert found.note == "it will not say"


def test_a_literal_topic_without_a_known_name_is_its_own_name() -> None:
    assert names(wanted_topics(NORTH, [handler("order.paid", "order.*")], Offer((), "seen", "why"))) == ["order.paid"]


# The plan, by example


def there(theirs: str, number: int = 1, url: str = URL, enabled: bool = True) -> Existing:
    ownership = CallbackUrls(URL, former=(FORMER,)).ownership(url)
    return Existing(number, theirs, url, enabled, ownership, theirs)


def want(*topics: str, known: bool = True) -> Wanted:
    return Wanted("north", tuple(WantedName(one, one, "for shop.note") for one in topics), URL, known=known)


def told(found: Plan) -> list[tuple[str, str, str]]:
    return [(change.action, change.theirs, change.reason) for change in found.changes]


def test_each_difference_is_a_change_with_its_reason() -> None:
    found = make_plan(
        want("a.made", "b.made", "c.made", "d.made"),
        [
            there("b.made", 1, enabled=False),
            there("c.made", 2, url=FORMER),
            there("d.made", 3),
            there("e.made", 4),
            there("a.made", 5, url="https://mailer.example.net/in"),
            there("a.made", 6, url="https://[::1"),
        ],
        gone=lambda topic: datetime(2026, 11, 12, tzinfo=UTC) if topic == "e.made" else None,
    )
    assert told(found) == [
        ("create", "a.made", "for shop.note"),
        ("enable", "b.made", "disabled at the store"),
        ("update", "c.made", "old.example.com (former url) -> ours"),
        ("delete", "e.made", "no handler since 12 Nov"),
    ]
    assert found.foreign == {"mailer.example.net": 1, "?": 1}
    assert [change.action for change in found.without_deletions] == ["create", "enable", "update"]


def test_a_duplicate_is_deleted_and_the_working_subscription_stays() -> None:
    found = make_plan(
        want("a.made"), [there("a.made", 1, enabled=False), there("a.made", 2), there("a.made", 3, url=FORMER)]
    )
    assert [(change.action, change.id) for change in found.changes] == [("delete", 1), ("delete", 3)]


def test_a_subscription_to_every_topic_stays_and_needs_no_other() -> None:
    assert make_plan(want("a.made", "b.made"), [there("*")]).changes == ()


def test_until_a_worker_has_declared_handlers_nothing_is_unwanted() -> None:
    assert make_plan(want(known=False), [there("a.made")]).changes == ()


@pytest.mark.parametrize(
    ("url", "ownership"),
    [
        (URL, "current"),
        ("https://HOOKS.example.com:443/webhooks/north/", "current"),
        ("https://hooks.example.com/webhooks", "current"),
        ("https://hooks.example.com/webhooks/south", "foreign"),
        ("http://hooks.example.com/webhooks/north", "foreign"),
        ("https://hooks.example.com.evil.example/webhooks/north", "foreign"),
        ("https://old.example.com/webhooks/north", "former"),
        ("https://old.example.com/webhooks", "former"),
        ("https://old.example.com/other", "foreign"),
        ("https://hooks.example.com:notaport/webhooks/north", "foreign"),
        ("", "foreign"),
    ],
)
def test_a_callback_is_ours_only_if_it_is_exactly_ours(tmp_path: Path, url: str, ownership: str) -> None:
    (tmp_path / "config.toml").write_text(
        '[receiver]\npublic_url = "https://hooks.example.com/"\nformer_urls = ["https://old.example.com"]\n'
        f'[stores.north]\nsigning_secrets = ["{SECRET}"]\n'
    )
    assert callback_urls(load(tmp_path / "config.toml", {}), "north").ownership(url) == ownership


EARLIER = "https://tunnel.example.com/webhooks/north"


def of_an_earlier_check(theirs: str, url: str = EARLIER) -> Existing:
    return Existing(9, theirs, url, True, CallbackUrls(URL, earlier=(EARLIER,)).ownership(url), theirs)


def test_nothing_is_created_beside_a_subscription_with_the_url_of_an_earlier_check() -> None:
    found = make_plan(want("a.made", "b.made"), [of_an_earlier_check("a.made")])
    assert told(found) == [("create", "b.made", "for shop.note")]
    assert (found.foreign, found.existing) == ({}, ())
    why, fix = found.held_back.splitlines()
    assert why.startswith(f"1 subscription for {EARLIER}, our URL at an earlier check; ")
    assert fix.startswith('set [receiver] former_urls = ["https://tunnel.example.com"] if these were yours, or ')
    assert make_plan(want("a.made", "b.made"), [of_an_earlier_check("*")]).changes == ()
    assert make_plan(want("a.made"), [of_an_earlier_check("b.made"), there("a.made")]).changes == ()


def test_former_urls_cannot_name_an_earlier_url_of_the_stores_own() -> None:
    own = Existing(9, "a.made", "https://gate.example.com/in", True, "earlier", "a.made")
    assert make_plan(want("a.made"), [own]).held_back.splitlines()[1] == "delete them at the store"


# The plan, whatever there is

topic = some.sampled_from(["a.made", "b.made", "c.made", "d.made", "*"])
callback = some.sampled_from([URL, URL + "/", FORMER, "https://mailer.example.net/in", "", "nonsense"])
subscriptions = some.lists(some.tuples(topic, callback, some.booleans()), max_size=12).map(
    lambda rows: [there(theirs, number, url, on) for number, (theirs, url, on) in enumerate(rows)]
)
wishes = some.builds(
    lambda topics, known: want(*sorted(topics - {"*"}), known=known), some.sets(topic, max_size=4), some.booleans()
)


def carried_out(changes: Iterable[object], actual: list[Existing]) -> list[Existing]:
    """The subscriptions at the store after these changes."""
    found = {one.id: one for one in actual}
    for at, change in enumerate(changes):
        if change.action == "delete":  # type: ignore[attr-defined]
            del found[change.id]  # type: ignore[attr-defined]
        elif change.action == "create":  # type: ignore[attr-defined]
            found[1000 + at] = there(change.theirs, 1000 + at)  # type: ignore[attr-defined]
        else:
            changed = {"enabled": True, "url": URL, "ownership": "current"}
            found[change.id] = replace(found[change.id], **changed)  # type: ignore[attr-defined]
    return list(found.values())


@given(wishes, subscriptions)
def test_after_one_apply_the_plan_is_empty(wish: Wanted, actual: list[Existing]) -> None:
    after = carried_out(make_plan(wish, actual).changes, actual)
    assert make_plan(wish, after).changes == ()
    alive = {one.theirs for one in after if one.ownership == "current" and one.enabled}
    assert "*" in alive or {name.theirs for name in wish.names} <= alive


@given(wishes, subscriptions)
def test_subscriptions_of_others_are_in_no_change(wish: Wanted, actual: list[Existing]) -> None:
    foreign = {one.id for one in actual if one.ownership == "foreign"}
    found = make_plan(wish, actual)
    assert not foreign & {change.id for change in found.changes}
    assert sum(found.foreign.values()) == len(foreign)
    assert [one for one in carried_out(found.changes, actual) if one.id in foreign] == [
        one for one in actual if one.id in foreign
    ]


@given(wishes, subscriptions)
def test_changes_without_deletions_still_make_everything_that_is_wanted(wish: Wanted, actual: list[Existing]) -> None:
    gentle = make_plan(wish, actual).without_deletions
    assert all(change.action != "delete" for change in gentle)
    after = carried_out(gentle, actual)
    assert {change.action for change in make_plan(wish, after).changes} <= {"delete"}
    assert {one.id for one in actual} <= {one.id for one in after}


@given(wishes, subscriptions)
def test_a_plan_does_not_depend_on_the_order_of_the_list(wish: Wanted, actual: list[Existing]) -> None:
    found, turned = make_plan(wish, actual), make_plan(wish, list(reversed(actual)))
    assert [(one.action, one.theirs) for one in found.changes] == [(one.action, one.theirs) for one in turned.changes]
    assert [ORDER.index(one.action) for one in found.changes] == sorted(
        ORDER.index(one.action) for one in found.changes
    )


@given(wishes, subscriptions)
def test_no_subscription_is_changed_twice(wish: Wanted, actual: list[Existing]) -> None:
    touched = [change.id for change in make_plan(wish, actual).changes if change.id != ""]
    assert len(touched) == len(set(touched))
