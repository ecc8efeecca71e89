"""Where a store signs a part of a delivery, a captured one is accepted in other forms, but not without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from receiver.contract.compose import Request, compose
from receiver.delivery import signed_contents
from receiver.delivery.signed_contents import MAX_BYTES, OWN_BYTES, PERIOD_SECONDS, SignedContents, repeatable_bytes
from tests.support.harness import System, eventually, signed_store

LARGE = "x" * 900_000
CHANGED = "2026-11-18T08:00:00Z"


def request(system: System, store: str, delivery_id: str, **data: object) -> Request:
    return compose(
        system.config.known_stores[store],
        topic="order.created",
        delivery_id=delivery_id,
        data={"id": 7, "created_at": CHANGED, "updated_at": CHANGED, **data},
        now=time.time(),
    )


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
    accepted = [200] * (MAX_BYTES // 903_000)
    assert answers == (accepted + [503] * (80 - len(accepted)) if store == "bodies" else [200] * 80)
    assert system.post(request(system, store, "other", note="another"), store).status_code == 200
    if store == "bodies":
        refused = system.post(request(system, store, "last", note=LARGE), store)
        assert "sent too often" in refused.text
        assert refused.headers["Retry-After"]
        eventually(lambda: "the same signed content was sent too often" in system.log("web"))


def test_stores_that_share_a_secret_take_no_more_of_one_content(make_system: Callable[..., System]) -> None:
    """What is signed of a captured delivery is valid for each of them: 16 stores took 16 times as much."""
    more = signed_store("one", "shopify") + signed_store("other", "shopify").replace("secret of other", "secret of one")
    system = make_system(more=more)
    system.start("web")
    stores, most = ("one", "other"), MAX_BYTES // 903_000
    answers = [system.post(request(system, stores[n % 2], f"d{n}", note=LARGE), stores[n % 2]) for n in range(most + 2)]
    assert [one.status_code for one in answers] == [200] * most + [503] * 2


@pytest.mark.parametrize("scheme", ["ecwid", "mercadopago"])
def test_a_captured_signature_that_covers_no_body_does_not_fill_redis_with_others(
    make_system: Callable[..., System], scheme: str
) -> None:
    """Each body is another event there. 10 MB/s filled 1 GB in 90 s, and stopped the handling for all stores."""
    system = make_system(more=signed_store("fields", scheme))
    system.start("web")
    captured = request(system, "fields", "d1")

    def send(number: int) -> int:
        body = orjson.dumps({**orjson.loads(captured.body), "pad": f"{number}{LARGE}"})
        return system.post(captured._replace(body=body), "fields").status_code

    answers = [send(number) for number in range(80)]
    assert answers.count(200) == MAX_BYTES // 902_000
    assert set(answers[MAX_BYTES // 902_000 :]) == {503}
    assert system.post(request(system, "fields", "d2"), "fields").status_code == 200, "another signature"


def test_a_captured_delivery_does_not_make_the_store_s_equal_ones_wait(make_system: Callable[..., System]) -> None:
    """Some stores send the same body with each update of a product. 224 of 224 got 503 after someone else's flood."""
    system = make_system(more=signed_store("thin", "shopify"))
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[receiver]", '[receiver]\ntrusted_proxies = ["127.0.0.1"]'))
    system.start("web")

    def send(address: str, number: int) -> int:
        made = request(system, "thin", f"{address}-{number}", note=LARGE)
        return system.post(made._replace(headers={**made.headers, "x-forwarded-for": address}), "thin").status_code

    assert [send("198.51.100.1", number) for number in range(80)][-1] == 503
    own = OWN_BYTES // 903_000
    assert [send("192.0.2.7", number) for number in range(own + 1)] == [200] * own + [503]
    networks = [f"2001:db8:7:{number:x}::1" for number in range(own + 1)]
    assert [send(address, 1) for address in networks] == [200] * own + [503], "who has a /56 is one sender"


def test_a_content_is_taken_again_in_the_next_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now, contents = [1000.0], SignedContents()
    monkeypatch.setattr(signed_contents, "monotonic", lambda: now[0])
    for _ in range(2):
        assert [contents.add("secret", b"body", "one", 1 << 20) for _ in range(65)] == [False] * 64 + [True]
        assert not contents.add("secret", b"other", "one", 1 << 20)
        assert not contents.add("another", b"body", "one", 1 << 20)
        now[0] += PERIOD_SECONDS


def test_each_sender_may_send_its_own_part() -> None:
    contents, own = SignedContents(), OWN_BYTES >> 20
    assert contents.add("secret", b"body", "attacker", MAX_BYTES + 1)
    assert [contents.add("secret", b"body", "store", 1 << 20) for _ in range(own + 1)] == [False] * own + [True]


def test_one_whose_address_is_not_known_counts_once() -> None:
    contents = SignedContents()
    assert [contents.add("secret", b"body", "", 1 << 20) for _ in range(65)] == [False] * 64 + [True]


def test_what_an_event_takes_counts_and_one_that_its_id_names_alone_does_not(system: System) -> None:
    """Headers are not signed: of a body of 47 bytes, 40 GB would have been accepted."""
    named = system.delivery(data={"text": ""})
    assert repeatable_bytes(named) == 0
    small = replace(named, first_id="the id of the first body")
    padded = replace(small, event=replace(small.event, headers={f"x-{number}": "p" * 8000 for number in range(7)}))
    assert repeatable_bytes(small) >= 1024 + len(small.event.body)
    assert repeatable_bytes(padded) >= 56_000
    assert repeatable_bytes(replace(padded, rest=(small, named))) == repeatable_bytes(padded) + repeatable_bytes(small)
    assert repeatable_bytes(replace(named, event=replace(named.event, delivery_id=""))) > 1024


def test_a_content_that_is_sent_on_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_contents, "KNOWN_CONTENTS", 3)
    contents = SignedContents()
    contents.add("secret", b"captured", "one", MAX_BYTES + 1)
    for number in range(9):
        contents.add("secret", str(number).encode(), "one", 1)
        assert contents.add("secret", b"captured", "one", 1)
    for number in range(3):
        contents.add("secret", str(number).encode(), "one", 1)
    assert not contents.add("secret", b"captured", "one", 1), "only the last ones are known"
