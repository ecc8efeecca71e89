"""Every preset over HTTP, the common URL, and which deliveries are duplicates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx2
import pytest

from receiver.contract.compose import Request, compose
from receiver.contract.signing.signatures import PRESETS, sign
from receiver.inbox.accept_batch import MAX_EVENT_NAMES
from tests.support.deliveries import WHOLE_BODY
from tests.support.harness import System, eventually, own_server

SECRET = "c2VjcmV0IG9mIGEgc3RvcmUgb2YgYW55IHByZXNldA=="
SECRETS = {"utf8": SECRET, "base64": SECRET, "hex": SECRET.encode().hex()}
WINDOW = 1.0
STORES = "".join(
    f'[stores.{name}]\nscheme = "{name}"\ndomain = "{name}.example"\n'
    f'signing_secrets = ["{SECRETS[scheme.secret_encoding]}"]\n'
    for name, scheme in PRESETS.items()
)
PLUGIN = """
from workers import Router
router = Router("erp")
@router.on("order.*")
def export(event, ctx): return "ok"
@router.on("product.stock", stores="shopify")
def stock(event, ctx): return "ok"
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A receiver with one store for each preset. Its deduplication window is a second instead of a minute."""
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=STORES, plugin=PLUGIN)
        text = system.config_file.read_text()
        window = f"threads = 4\ndedupe_window_unidentified = {WINDOW}"
        system.config_file.write_text(text.replace("threads = 4", window))
        system.start("web", "worker", "housekeeper")
        yield system
        system.close()


def delivery(web: System, store: str, *, topic: str = "order.created", number: str = "d1", **data: object) -> Request:
    known = web.config.known_stores[store]
    return compose(known, topic=topic, delivery_id=number, data=data or {"id": 7, "total": "42.00"}, now=time.time())


def post(web: System, request: Request, path: str) -> httpx2.Response:
    return web.http.post(f"/webhooks{path}", headers=request.headers, content=request.body)


def accepted(web: System, store: str) -> int:
    return web.ledger.counters().stores.get(store, {}).get("accepted", 0)


@pytest.mark.parametrize("preset", WHOLE_BODY)
def test_a_delivery_under_each_preset_is_accepted_and_a_changed_one_refused(web: System, preset: str) -> None:
    request = delivery(web, preset, number=f"first-{preset}")
    answer = post(web, request, f"/{preset}")
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
    record = eventually(lambda: web.ledger.event(answer.json()["id"]), what="on a slow machine it is spooled first")
    assert (record.summary.topic, record.summary.resource_id) == ("order.created", "7")
    changed = Request(request.headers, request.body.replace(b"42.00", b"43.00"))
    assert post(web, changed, f"/{preset}").status_code == 401


@pytest.mark.parametrize("preset", [name for name, scheme in WHOLE_BODY.items() if scheme.event.store])
def test_the_common_url_finds_the_store_and_verifies_its_signature(web: System, preset: str) -> None:
    before = accepted(web, preset)
    request = delivery(web, preset, number=f"shared-{preset}", id=8, total="1.00")
    known = web.config.known_stores[preset]
    assert post(web, request, "").status_code == 200
    assert accepted(web, preset) == before + 1
    elsewhere = replace(known, domain="unknown.example")
    unknown_store = compose(elsewhere, topic="order.created", delivery_id="x", data={"id": 1}, now=time.time())
    unknown = post(web, unknown_store, "")
    wrong = post(web, Request(request.headers, request.body + b" "), "")
    assert unknown.status_code == wrong.status_code == 401
    assert unknown.content == wrong.content
    assert {name for name in unknown.headers if name != "date"} == {name for name in wrong.headers if name != "date"}


def test_the_common_url_finds_a_store_that_is_named_after_many_others(web: System) -> None:
    """The keys of its name occur anywhere in a large delivery, and before the right place."""
    media = [{"id": number, "url": f"https://cdn.example/{number}.jpg", "title": "x" * 500} for number in range(900)]
    document = {"data": {"event": "order.placed", "payload": {"order": {"id": 1, "media": media}}}}
    document |= {"timestamp": str(int(time.time())), "source": {"eventId": "many", "url": "https://shopware.example"}}
    known, body = web.config.known_stores["shopware"], json.dumps(document).encode()
    signed = sign(known.scheme, secret=known.secrets[0], headers={}, body=body, now=time.time())
    answer = post(web, Request(signed.headers, signed.body), "")
    assert (answer.status_code, answer.json().get("status")) == (200, "accepted")


@pytest.mark.parametrize("preset", ["shopware", "stripe"])
def test_send_signs_by_the_preset(web: System, preset: str) -> None:
    done = web.run_cli("send", "order.created", "--store", preset)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 accepted" in done.stdout
    assert "erp.export   done" in done.stdout
    tampered = web.run_cli("send", "order.created", "--store", preset, "--tamper", "body")
    assert (tampered.returncode, "401 Unauthorized" in tampered.stdout) == (1, True)
    assert f"storehooks verify --refused last --store {preset}" in tampered.stdout


def test_an_unsigned_time_cannot_be_tampered_with(web: System) -> None:
    done = web.run_cli("send", "order.created", "--store", "github", "--tamper", "time")
    assert (done.returncode, "signs no time" in done.stderr) == (2, True)


# Duplicates


def test_equal_thin_bodies_without_an_id_are_separate_events(web: System) -> None:
    before = accepted(web, "nuvemshop")
    request = delivery(web, "nuvemshop", topic="product.updated", id=99)
    assert post(web, request, "/nuvemshop").json()["status"] == "accepted"
    first = time.monotonic()
    assert post(web, request, "/nuvemshop").json()["status"] == "accepted"
    eventually(lambda: time.monotonic() > first + 2 * WINDOW)  # after the window
    assert post(web, request, "/nuvemshop").json()["status"] == "accepted"
    assert accepted(web, "nuvemshop") == before + 3


def test_a_full_body_without_an_id_is_a_duplicate_only_within_the_window(web: System) -> None:
    request = delivery(web, "salla", id=99, total="5.00")
    answers = [post(web, request, "/salla").json()["status"] for _ in range(2)]
    answered = time.monotonic()  # after the mark was set, however slow the answers were
    eventually(lambda: time.monotonic() > answered + 1.1 * WINDOW)
    answers.append(post(web, request, "/salla").json()["status"])
    assert answers == ["accepted", "duplicate", "accepted"]


def test_the_same_body_with_a_new_id_is_a_new_event_and_the_same_delivery_a_duplicate(web: System) -> None:
    before = accepted(web, "shopify")
    first = delivery(web, "shopify", number="one", id=5)
    second = Request({**first.headers, "x-shopify-webhook-id": "two"}, first.body)
    answers = [post(web, request, "/shopify").json()["status"] for request in (first, second, first, second)]
    assert answers == ["accepted", "accepted", "duplicate", "duplicate"]
    assert accepted(web, "shopify") == before + 2


def test_one_id_with_two_bodies_is_counted_and_shown(web: System) -> None:
    bodies = [delivery(web, "github", number="again", id=number, total="1.00") for number in (1, 2, 3)]
    answers = [post(web, request, "/github").json() for request in (*bodies, *bodies)]
    assert [one["status"] for one in answers] == ["accepted"] * 3 + ["duplicate"] * 3
    assert [one["id"] for one in answers[:3]] == [one["id"] for one in answers[3:]]
    assert web.ledger.counters().stores["github"]["conflicts"] == 2
    shown = web.run_cli("topics", "--store", "github").stdout
    assert "github: 2 deliveries reused a delivery id with another body" in shown
    assert "They are separate events." in shown
    assert "github: 2 deliveries reused a delivery id" in web.run_cli("stats").stdout


def test_with_a_signed_id_a_second_body_is_a_duplicate_unless_it_names_another_resource(web: System) -> None:
    known, now = web.config.known_stores["paddle"], time.time()
    answers = [
        post(web, compose(known, topic="order.created", delivery_id="evt_1", data=data, now=now), "/paddle").json()
        for data in ({"id": 1, "total": "1.00"}, {"id": 1, "total": "2.00"}, {"id": 2, "total": "1.00"})
    ]
    assert [one["status"] for one in answers] == ["accepted", "duplicate", "accepted"]
    counts = web.ledger.counters().stores["paddle"]
    assert (counts["altered"], counts["conflicts"]) == (1, 1)


# Topics


def test_topics_show_the_stores_name_our_name_and_the_handlers(web: System) -> None:
    post(web, delivery(web, "woocommerce", topic="order.paid", number="paid"), "/woocommerce")
    rows = json.loads(web.run_cli("topics", "--store", "woocommerce", "--json").stdout)
    (row,) = [one for one in rows if one["theirs"] == "order.paid"]
    assert row.pop("last_at").startswith("20")
    assert row == {
        "store": "woocommerce",
        "theirs": "order.paid",
        "topic": "order.paid",
        "mapped_by": "rule",
        "seen": 1,
        "handlers": ["erp.export"],
    }
    post(web, delivery(web, "shopify", topic="product.updated", number="stock", id=1), "/shopify")
    shown = eventually(lambda: (out := web.run_cli("topics").stdout) and "products/update" in out and out)
    assert "product.updated  preset" in " ".join(shown.split("\n"))
    assert "erp.stock handles product.stock, which no store has sent; did you mean product." in shown
    of_one = web.run_cli("topics", "--store", "shopify").stdout
    assert [line for line in of_one.splitlines() if "no store" in line] == [
        line for line in shown.splitlines() if "no store" in line
    ], "what another store has sent was sent"


def test_the_number_of_topic_names_of_a_store_is_bounded(make_system: Callable[..., System]) -> None:
    system = make_system()
    deliveries = [system.delivery(f"thing.{number}ed") for number in range(MAX_EVENT_NAMES + 50)]
    system.inbox.accept(deliveries)
    system.inbox.accept([system.delivery("thing.0ed")])
    names = {name.theirs: name.seen for name in system.ledger.event_names("north")}
    assert len(names) == MAX_EVENT_NAMES + 1
    assert (names[""], names["thing.0ed"]) == (50, 2)
    assert sum(names.values()) == MAX_EVENT_NAMES + 51
    assert "(other names)" in system.run_cli("topics").stdout


def test_topics_are_empty_before_the_first_delivery(system: System) -> None:
    assert "no events received yet" in system.run_cli("topics").stdout
    assert json.loads(system.run_cli("topics", "--json").stdout) == []
