"""The choice of topic, id and resource, for payloads as known providers document them (shortened, in a .jsonl file)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.event_sources import choose_sources
from receiver.contract.signing.grammar import Sources
from receiver.contract.signing.signatures import read_source

PAYLOADS = [json.loads(line) for line in Path(__file__).with_name("provider_payloads.jsonl").read_text().splitlines()]


def chosen(*captures: Capture) -> Sources:
    return choose_sources(captures, used=set(), signs=lambda source: source.startswith("json:"))


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda one: one["name"])
def test_topic_id_and_resource_of_a_known_provider_are_found(payload: dict[str, Any]) -> None:
    """More than one value is right where a provider has several, and null where the grammar can say none."""
    sources = chosen(Capture(payload["headers"], orjson.dumps(payload["body"])))
    for what in ("topic", "id", "resource_id"):
        values = [read_source(source, payload["headers"], payload["body"]) for source in getattr(sources, what)]
        if payload[what]:
            assert str((values or [""])[0]) in payload[what], what


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("twitch-eventsub-message-retry", "0"),
        ("x-event-time", "2024-01-01T00:00:00Z"),
        ("x-event-version", "2024-01"),
        ("x-event-id", "4f9b3a4e-8f5c-4a0e-9a53-0d5f7f6f4a11"),
        ("x-event-type", "9b74c9897bac770ffc029102a200c5de"),
        ("x-eventsub", "something"),
    ],
)
def test_a_counter_a_time_a_version_or_an_id_is_no_topic(name: str, value: str) -> None:
    assert chosen(Capture({name: value}, b'{"amount":7}')).topic == ()


def test_a_time_is_no_id() -> None:
    assert chosen(Capture({"x-delivery-id": "1700000000"}, b'{"type":"order.created"}')).id == ()


def test_a_signed_source_is_preferred_to_an_equal_one() -> None:
    capture = Capture({"x-acme-topic": "order.created"}, b'{"event":"order.created","id":7}')
    assert chosen(capture).topic == ("json:event",)


def test_captures_of_different_kinds_give_the_sources_of_each() -> None:
    first = Capture({}, b'{"type":"order.created","order":{"id":7}}')
    second = Capture({}, b'{"type":"product.created","product":{"id":8}}')
    assert chosen(first, second).resource_id == ("json:order.id", "json:product.id")


@pytest.mark.parametrize(("topic", "ids"), [("order.created", ("header:x-webhook-id",)), ("order.paid", ())])
def test_a_webhook_id_names_a_delivery_if_it_differs_in_two_of_one_topic(topic: str, ids: tuple[str, ...]) -> None:
    """Other stores have a webhook for each topic, whose id is equal in all of its deliveries."""
    first = Capture({"x-webhook-id": "wh-1"}, b'{"type":"order.created","data":{"id":7}}')
    second = Capture({"x-webhook-id": "wh-2"}, b'{"type":"%b","data":{"id":8}}' % topic.encode())
    assert chosen(first).id == ()
    assert chosen(first, second).id == ids


def test_a_name_is_the_topic_if_it_says_that_something_happened_and_nothing_else_does() -> None:
    assert chosen(Capture({}, b'{"name":"channel_occupied","channel":"room-1"}')).topic == ("json:name",)
    assert chosen(Capture({}, b'{"name":"channel_occupied","event":"order.created"}')).topic == ("json:event",)
    assert chosen(Capture({}, b'{"name":"Blue shirt","id":7}')).topic == ()
