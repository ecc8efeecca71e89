"""Captured requests of providers, made with their own libraries: each is verified and read as the provider says."""

from __future__ import annotations

from typing import Any

import pytest

from receiver.config import load
from receiver.contract.diagnosis.explain import explain
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import receive
from receiver.contract.signing.presets import PRESETS
from receiver.contract.stores import Store
from tests.support.captures import CAPTURES, Capture, Message

SUPPORTED = [capture for capture in CAPTURES if not capture.unsupported]
BASES = {"hex-body", "base64-body"}
each_capture = pytest.mark.parametrize("capture", SUPPORTED, ids=lambda capture: capture.provider)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    path = tmp_path_factory.mktemp("captures") / "config.toml"
    path.write_text("\n".join(capture.toml() for capture in SUPPORTED))
    return load(path, {}).known_stores


def events(store: Store, message: Message, now: float) -> list[Event]:
    first = receive(message.headers, message.body, store=store, now=now)
    deliveries = [first, *first.rest]
    assert [one.theirs for one in deliveries] == [expected["theirs"] for expected in message.events]
    return [one.event for one in deliveries]


def read_record(event: Event, path: str) -> Any:
    value: Any = event.record
    for name in path.split("."):
        value = getattr(value, name)
    return value


def test_every_preset_of_a_provider_has_captures() -> None:
    assert {capture.preset for capture in CAPTURES if capture.preset} == set(PRESETS) - BASES


def test_there_are_two_messages_of_forty_providers_made_with_libraries() -> None:
    assert all(len(capture.messages) == 2 for capture in CAPTURES)
    assert sum(capture.library for capture in CAPTURES) >= 40


@each_capture
def test_topic_id_resource_and_record_are_those_of_the_provider(capture: Capture, stores: dict[str, Store]) -> None:
    for message in capture.messages:
        found = events(stores[capture.name], message, capture.signed_at)
        assert [(one.topic, one.delivery_id, one.resource_id) for one in found] == [
            (expected["topic"], expected["id"], expected["resource_id"]) for expected in message.events
        ]
        for event, expected in zip(found, message.events, strict=True):
            for path, value in expected.get("record", {}).items():
                assert str(read_record(event, path)) == value


@each_capture
def test_a_changed_message_is_refused_unless_the_provider_signs_no_body(
    capture: Capture, stores: dict[str, Store]
) -> None:
    message, store = capture.messages[0], stores[capture.name]
    changed = Message(message.sent, message.query, message.body[:-1] + b" " + message.body[-1:], [])
    if capture.unsigned_body:
        return  # tested below
    with pytest.raises(DeliveryRefused):
        receive(changed.headers, changed.body, store=store, now=capture.signed_at)


@each_capture
def test_the_signature_of_one_message_is_not_valid_for_another(capture: Capture, stores: dict[str, Store]) -> None:
    first, second = capture.messages
    if capture.unsigned_body:
        return  # tested below
    with pytest.raises(DeliveryRefused):
        receive({**second.headers, **first.headers}, second.body, store=stores[capture.name], now=capture.signed_at)


@pytest.mark.parametrize(
    ("provider", "signed", "unsigned", "said"),
    [
        ("mercadopago", "?data.id", b"payment.created", "the body is not signed:"),
        ("ecwid", b"80aece08", b"PAID", "the body is not signed, except eventCreated, eventId:"),
        ("adyen", b"1990", b"2023-11-14", "the body is not signed, except pspReference, originalReference,"),
    ],
)
def test_only_what_the_provider_signs_cannot_be_changed(
    provider: str, signed: str | bytes, unsigned: bytes, said: str, stores: dict[str, Store]
) -> None:
    (capture,) = [capture for capture in CAPTURES if capture.provider == provider]
    message, store = capture.messages[0], stores[provider]
    headers = {**message.headers, signed: "1"} if isinstance(signed, str) else message.headers
    body = message.body.replace(signed, b"1") if isinstance(signed, bytes) else message.body
    with pytest.raises(DeliveryRefused):
        receive(headers, body, store=store, now=capture.signed_at)
    receive(message.headers, message.body.replace(unsigned, b"x"), store=store, now=capture.signed_at)
    explained = explain(store, message.headers, message.body, capture.signed_at)
    assert explained.valid
    assert any(said in caveat for caveat in explained.caveats)
