"""A store whose "delivery id" is equal in every delivery: no order is lost, and the operator sees the wrong id."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.contract.event import REDACTED, body_digest, other_event_id
from receiver.spool import open_events
from tests.support.harness import System, eventually, own_server

SECRET = "the secret of a store that signs its own id"
STORES = f"""
[stores.alone]
scheme = "by-id"
signing_secrets = ["{SECRET}"]
[schemes.by-id]
headers = ["X-Shop-Signature"]
signed = "{{header:x-shop-id}}.{{timestamp}}.{{body}}"
timestamp = "header:x-shop-time"
tolerance = 300
dedupe = "id"
[schemes.by-id.event]
id = ["header:x-shop-id"]
topic = ["json:type"]
occurred = ["json:created_at"]

[stores.together]
scheme = "by-id-and-body"
signing_secrets = ["{SECRET}"]
[schemes.by-id-and-body]
headers = ["X-Shop-Signature"]
signed = "{{header:x-shop-id}}.{{timestamp}}.{{body}}"
timestamp = "header:x-shop-time"
tolerance = 300
[schemes.by-id-and-body.event]
id = ["header:x-shop-id"]
topic = ["json:type"]

[stores.partly]
scheme = "without-body"
signing_secrets = ["{SECRET}"]
[schemes.without-body]
headers = ["X-Shop-Signature"]
signed = "{{header:x-shop-id}}.{{timestamp}}"
allow_unsigned_body = true
timestamp = "header:x-shop-time"
tolerance = 300
dedupe = "id"
[schemes.without-body.event]
id = ["header:x-shop-id"]
topic = ["json:type"]
"""


@pytest.fixture
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=STORES)
        system.start("web")
        yield system
        system.close()


def post(web: System, store: str, **data: object) -> str:
    """The answer to a delivery that the store signs with its shop id, which is the same in every delivery."""
    body = json.dumps({"type": "order.updated", **data}).encode()
    stamp = str(int(time.time()))
    signed = b"shop-17." + stamp.encode() + (b"" if store == "partly" else b"." + body)
    headers = {
        "x-shop-id": "shop-17",
        "x-shop-time": stamp,
        "x-shop-signature": hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest(),
    }
    answer = web.http.post(f"/webhooks/{store}", headers=headers, content=body)
    assert answer.status_code == 200
    return str(answer.json()["status"])


def counts(web: System, store: str) -> tuple[int, int, int]:
    found = web.ledger.counters().stores[store]
    return found["accepted"], found["conflicts"], found["altered"]


def shown(web: System, *command: str) -> str:
    return " ".join(web.run_cli(*command).stdout.split())


@pytest.mark.parametrize("store", ["alone", "together"])
def test_five_orders_under_one_id_are_five_events_and_the_id_is_reported(web: System, store: str) -> None:
    assert [post(web, store, data={"id": number}) for number in range(5)] == ["accepted"] * 5
    assert [post(web, store, data={"id": number}) for number in range(5)] == ["duplicate"] * 5
    assert counts(web, store) == (5, 4, 0)
    doctor = shown(web, "doctor")
    assert f"WARN {store} 4 of 5 events have the delivery id of an earlier one and another body" in doctor
    assert "check that header:x-shop-id differs in each delivery, and correct id in [schemes.by-id" in doctor
    sentence = f"{store}: 4 deliveries reused a delivery id with another body. They are separate events."
    assert sentence in shown(web, "topics", "--store", store)
    assert sentence in shown(web, "stats")


def test_another_time_topic_or_resource_under_one_signed_id_is_another_event(web: System) -> None:
    first = {"created_at": "2026-11-16T09:00:00Z", "data": {"id": 1}}
    assert post(web, "alone", **first) == "accepted"
    assert post(web, "alone", **{**first, "created_at": "2026-11-16T09:00:01Z"}) == "accepted"
    assert post(web, "alone", **{**first, "data": {"id": 2}}) == "accepted"
    assert post(web, "alone", **{**first, "type": "order.paid"}) == "accepted"
    assert counts(web, "alone") == (4, 3, 0)


def test_an_id_counts_alone_where_the_body_is_not_signed(web: System) -> None:
    """Otherwise one captured delivery could be sent again with any number of forged bodies."""
    assert [post(web, "partly", data={"id": number}) for number in range(3)] == ["accepted", *["duplicate"] * 2]
    assert counts(web, "partly") == (1, 0, 0)


def test_a_signed_id_with_equal_time_topic_and_resource_is_a_duplicate_and_counted(web: System) -> None:
    """A store that changes a field at each try, such as the number of the try."""
    first = {"created_at": "2026-11-16T09:00:00Z", "data": {"id": 1}}
    assert [post(web, "alone", **first, attempt=number) for number in range(3)] == ["accepted", *["duplicate"] * 2]
    assert counts(web, "alone") == (1, 0, 2)
    doctor = web.run_cli("doctor")
    found = " ".join(doctor.stdout.split())
    assert doctor.returncode == 1
    assert "FAIL alone 2 deliveries had the delivery id, topic, resource and time of an earlier one" in found
    assert "check that header:x-shop-id differs in each delivery" in found
    assert 'set dedupe = "id+body", in [schemes.by-id' in found
    sentence = "alone: 2 deliveries had the delivery id, topic, resource and time of an earlier one, but another body."
    assert sentence in shown(web, "topics", "--store", "alone")
    assert 'They are duplicates, because dedupe = "id".' in shown(web, "stats")


def test_the_spool_leaves_it_to_the_inbox_whether_another_body_is_another_event(web: System) -> None:
    """With both in the spool, each was an event."""
    first = {"created_at": "2026-11-16T09:00:00Z", "data": {"id": 1}}
    web.client.config_set("maxmemory", 1)
    answers = [post(web, "alone", **first, attempt=1), post(web, "alone", **first, attempt=2)]
    answers += [post(web, "alone", **first, attempt=2), post(web, "alone", **{**first, "data": {"id": 2}})]
    assert answers == ["accepted", "accepted", "duplicate", "accepted"]
    assert "alone" not in web.ledger.counters().stores
    web.client.config_set("maxmemory", 0)
    eventually(
        lambda: "alone" in web.ledger.counters().stores and counts(web, "alone") == (2, 1, 1),
        what="two events, and one delivery that repeats the first",
    )


def test_another_body_has_the_same_id_in_redis_and_in_the_spool(system: System, tmp_path: Path) -> None:
    first, second = (system.delivery(delivery_id="d1", data={"id": number}) for number in (1, 2))
    expected = [first.event.id, other_event_id(second.event)]
    assert [one.id for one in system.inbox.accept([first, second])] == expected
    spool = open_events(tmp_path)
    assert [one.id for one in spool.add([first, second])] == expected


def test_a_third_stored_body_of_one_signed_body_is_a_duplicate_in_the_spool(system: System, tmp_path: Path) -> None:
    """As after two changes of `[redact]`. It was accepted under an id made from that of the second."""
    first = system.delivery(delivery_id="d1", data={"id": 1})
    headers, body = {**first.event.headers, REDACTED: body_digest(first.event.body)}, first.event.body
    stored = [replace(first, event=replace(first.event, headers=headers, body=body + b" " * more)) for more in range(3)]
    assert [one.status for one in open_events(tmp_path).add(stored)] == ["accepted", "accepted", "duplicate"]
