"""Where a store signs only the body, one captured delivery is accepted under other ids, but not without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from receiver.contract.compose import Request, compose
from receiver.contract.intake import Delivery
from receiver.delivery import accepted_contents
from receiver.delivery.accepted_contents import MAX_BYTES, PERIOD_SECONDS, AcceptedContents
from tests.support.harness import System, eventually, signed_store

LARGE = "x" * 900_000


def request(system: System, store: str, delivery_id: str, **data: object) -> Request:
    return compose(
        system.config.known_stores[store],
        topic="order.created",
        delivery_id=delivery_id,
        data={"id": 7, "created_at": "2026-11-18T08:00:00Z", **data},
        now=time.time(),
    )


def unsigned_id(system: System, text: str) -> Delivery:
    return replace(system.delivery(data={"text": text}), first_id="the id of the first body")


@pytest.mark.parametrize("store", ["bodies", "ids"])
def test_a_captured_delivery_under_ids_that_are_not_signed_does_not_fill_redis(
    make_system: Callable[..., System], store: str
) -> None:
    """At 10 MB/s it filled 85 % of maxmemory, and then no event of any store was handled."""
    more = signed_store("bodies", "shopify") + signed_store("ids", "standard-webhooks").replace(
        "the secret of ids", "c2VjcmV0IG9mIGEgc3RvcmUgd2l0aCBpZHM="
    )
    system = make_system(more=more)
    system.start("web")
    answers = [system.post(request(system, store, f"d{n}", note=LARGE), store).status_code for n in range(80)]
    accepted = [200] * (1 + MAX_BYTES // 903_000)
    assert answers == (accepted + [503] * (80 - len(accepted)) if store == "bodies" else [200] * 80)
    assert system.post(request(system, store, "other", note="another"), store).status_code == 200
    if store == "bodies":
        refused = system.post(request(system, store, "last", note=LARGE), store)
        assert "accepted too often" in refused.text
        assert refused.headers["Retry-After"]
        eventually(lambda: "the same body was accepted too often" in system.log("web"))


def test_a_content_is_accepted_again_in_the_next_period(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    now, contents = [1000.0], AcceptedContents()
    monkeypatch.setattr(accepted_contents, "monotonic", lambda: now[0])
    one = unsigned_id(system, LARGE)
    for _ in range(2):
        for _ in range(1 + MAX_BYTES // 902_000):
            assert not contents.is_exceeded(one)
            contents.add(one)
        assert contents.is_exceeded(one)
        now[0] += PERIOD_SECONDS


def test_headers_and_small_bodies_count_with_what_they_take(system: System) -> None:
    """Headers are not signed: of a body of 47 bytes, 40 GB would have been accepted."""
    one, contents = unsigned_id(system, ""), AcceptedContents()
    padded = replace(one, event=replace(one.event, headers={f"x-{number}": "p" * 8000 for number in range(7)}))
    for given, most in ((padded, MAX_BYTES // 56_000), (unsigned_id(system, "other"), MAX_BYTES // 1024)):
        for _ in range(most):
            contents.add(given)
        assert contents.is_exceeded(given)


def test_batches_that_begin_with_the_same_item_are_different(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_contents, "MAX_BYTES", 1)
    contents, (first, *rest) = AcceptedContents(), [unsigned_id(system, text) for text in "abc"]
    contents.add(replace(first, rest=(rest[0],)))
    assert [contents.is_exceeded(replace(first, rest=(one,))) for one in rest] == [True, False]


def test_a_body_that_is_sent_on_is_not_forgotten(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_contents, "KNOWN_CONTENTS", 3)
    monkeypatch.setattr(accepted_contents, "MAX_BYTES", 1)
    contents, (captured, *others) = AcceptedContents(), [unsigned_id(system, str(number)) for number in range(9)]
    contents.add(captured)
    for other in others:
        contents.add(other)
        assert contents.is_exceeded(captured)
    assert [contents.is_exceeded(one) for one in others] == [*[False] * 6, True, True]
