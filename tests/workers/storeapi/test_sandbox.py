"""The sandbox store: it sends webhooks signed in any scheme, with retries, and misbehaves on request."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from receiver.contract.errors import ConfigError, DeliveryRefused
from receiver.contract.intake import receive
from receiver.contract.record_map import FIELDS
from receiver.contract.records import Order
from receiver.contract.signing.signatures import STANDARD_WEBHOOKS, Scheme, Secret
from receiver.contract.stores import Store
from tests.docs.test_architecture import loaded_by
from tests.support.deliveries import WHOLE_BODY
from tests.support.front_proxies import PrivateCa
from tests.support.harness import SECRET, System, eventually
from tests.workers.conftest import SandboxRun
from workers.storeapi.catalogue import bundled_catalogue
from workers.storeapi.samples import sample
from workers.storeapi.sandbox import customers, orders, products, webhooks
from workers.storeapi.sandbox.misbehaviour import FAULTS, Misbehaviour
from workers.storeapi.sandbox.process import make_shop as shop_of
from workers.storeapi.sandbox.server import create_app
from workers.storeapi.sandbox.shop import TOPICS, SandboxCall, Shop
from workers.storeapi.sandbox.shopper import Shopper, add_initial_records
from workers.storeapi.sandbox.state import SandboxState
from workers.storeapi.sandbox.tokens import AppRegistration, TokenIssuer
from workers.storeapi.sandbox.webhook_sender import DueDelivery, WebhookSender
from workers.testing import make_event

from receiver.contract.event import UNREADABLE  # isort: skip


PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def note(event, ctx):
    return str(event.record.total)
"""

StartSender = Callable[..., WebhookSender]
SCHEMES = [pytest.param(scheme, id=name) for name, scheme in WHOLE_BODY.items()]


class Subscriber:
    """A webhook endpoint on a real socket, which records the deliveries and answers with `status`."""

    def __init__(self, ca: PrivateCa | None = None) -> None:
        import http.server
        import threading

        subscriber = self
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.status = 200

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                subscriber.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(subscriber.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"{'https' if ca else 'http'}://127.0.0.1:{self._server.server_address[1]}/hook"
        if ca:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(ca.certificate, ca.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    one = Subscriber()
    yield one
    one.close()


def secret_for(scheme: Scheme) -> str:
    return Shop(SandboxState(":memory:"), bundled_catalogue(), Store("x", scheme, ()), Misbehaviour(1)).fresh_secret()


def make_shop(url: str, scheme: Scheme = STANDARD_WEBHOOKS, **misbehave: float | str) -> Shop:
    text = secret_for(scheme)
    store = Store("demo", scheme, (Secret(scheme.key_of(text)),), url=url, domain="demo.example")
    shop = Shop(SandboxState(":memory:"), bundled_catalogue(), store, Misbehaviour(7, misbehave), secret=text)
    add_initial_records(shop)
    shop.subscribe()
    return shop


def create_orders(shop: Shop, count: int = 1) -> list[int]:
    made = []
    for _ in range(count):
        call = SandboxCall(body={"lines": [{"product_id": 1}]})
        with shop.state.transaction():
            made.append(orders.create(shop, call)["id"])
    return made


@pytest.fixture
def start_sender() -> Iterator[StartSender]:
    """Starts webhook senders that stop at the end of the test."""
    started: list[WebhookSender] = []

    def start(shop: Shop, retries: tuple[float, ...] = (0.01, 0.01), disable_after: int = 2) -> WebhookSender:
        started.append(WebhookSender(shop, retries=retries, disable_after=disable_after))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def all_sent(shop: Shop) -> bool:
    return not shop.state.execute("SELECT 1 FROM webhook_outbox WHERE state = 'waiting'")


def events_of(shop: Shop, subscriber: Subscriber) -> list[Any]:
    """The events that the receiver's intake verifies and reads from the deliveries."""
    return [receive(headers, body, store=shop.store, now=time.time()).event for headers, body in subscriber.received]


# Webhooks


@pytest.mark.full  # as openssl makes the certificate
def test_a_subscriber_with_a_certificate_of_a_private_ca_is_reached(tmp_path: Path) -> None:
    ca = PrivateCa(tmp_path)
    subscriber = Subscriber(ca)
    shop = make_shop(subscriber.url)
    sender = WebhookSender(shop, retries=(), disable_after=9, ca_file=str(ca.ca))
    sender.start()
    create_orders(shop)
    eventually(lambda: subscriber.received)
    sender.stop()
    subscriber.close()


def test_a_retried_delivery_has_the_same_body() -> None:
    """The receiver detects a duplicate by id and body; another body would be another event."""
    shop = make_shop("https://hooks.example/webhooks/demo")
    sender = WebhookSender(shop, retries=(), disable_after=1)
    subscription = next(iter(shop.state.all_of("webhook")))
    long_ago = time.time() - 3600
    due = DueDelivery(1, subscription["id"], subscription["topic"], {"id": 1001}, "msg_1", "", 0, long_ago)
    event = receive(*sender.request(subscription, due), store=shop.store, now=time.time()).event
    assert event.occurred_at is not None
    assert event.occurred_at.timestamp() == int(long_ago)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_delivery_verifies_in_every_scheme(scheme: Scheme) -> None:
    shop = make_shop("https://hooks.example/webhooks/demo", scheme)
    sender = WebhookSender(shop, retries=(), disable_after=1)
    subscription = next(
        one for one in shop.state.all_of("webhook") if one["topic"] == shop.store_topic("order.created")
    )
    data = {"id": 1001, "status": "new", "total": "42.00"}
    due = DueDelivery(1, subscription["id"], subscription["topic"], data, "msg_1", "", 0, time.time())
    request = sender.request(subscription, due)
    event = receive(request.headers, request.body, store=shop.store, now=time.time()).event
    assert event.topic == "order.created"
    assert isinstance(event.record, Order)
    assert event.record.id == 1001
    assert not scheme.record.paths("order", "total") or event.record.total == Decimal("42.00")
    forged = replace(shop.store, secrets=(Secret(b"another secret"),))
    with pytest.raises(DeliveryRefused):
        receive(request.headers, request.body, store=forged, now=time.time())


def test_every_change_is_delivered_once_and_in_order(subscriber: Subscriber, start_sender: StartSender) -> None:
    shop = make_shop(subscriber.url)
    start_sender(shop)
    ids = create_orders(shop, 5)
    eventually(lambda: all_sent(shop))
    assert [(event.topic, event.data["id"]) for event in events_of(shop, subscriber)] == [
        ("order.created", i) for i in ids
    ]
    assert len({event.delivery_id for event in events_of(shop, subscriber)}) == 5


def test_a_change_that_is_rolled_back_sends_no_webhook(subscriber: Subscriber) -> None:
    shop = make_shop(subscriber.url)

    def create_and_fail() -> None:
        with shop.state.transaction():
            create_orders(shop)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        create_and_fail()
    assert all_sent(shop)
    assert shop.state.count("order") == 0


def test_a_delivery_is_retried_with_its_id_until_it_is_answered(
    subscriber: Subscriber, start_sender: StartSender
) -> None:
    shop = make_shop(subscriber.url)
    subscriber.status = 503
    start_sender(shop, retries=(0.01,) * 3 + (0.2,) * 50)
    create_orders(shop)
    eventually(lambda: len(subscriber.received) >= 4)
    subscriber.status = 200
    eventually(lambda: all_sent(shop))
    assert shop.state.execute("SELECT state FROM webhook_outbox") == [("done",)]
    assert len({event.delivery_id for event in events_of(shop, subscriber)}) == 1


def disabled_topics(shop: Shop) -> list[str]:
    return [one["topic"] for one in shop.state.all_of("webhook") if not one["enabled"]]


def test_a_subscription_is_disabled_after_repeated_failures(subscriber: Subscriber, start_sender: StartSender) -> None:
    shop = make_shop(subscriber.url)
    subscriber.status = 500
    start_sender(shop, disable_after=2)
    create_orders(shop, 2)
    eventually(lambda: disabled_topics(shop) == ["order.created"])
    create_orders(shop)
    assert all_sent(shop), "a disabled subscription gets no webhook"


def test_the_delivery_log_shows_state_response_and_attempts(subscriber: Subscriber, start_sender: StartSender) -> None:
    shop = make_shop(subscriber.url)
    start_sender(shop)
    create_orders(shop)
    eventually(lambda: all_sent(shop))
    subscription = next(one for one in shop.state.all_of("webhook") if one["topic"] == "order.created")
    call = SandboxCall({"id": subscription["id"]})
    (delivery,) = webhooks.list_deliveries(shop, call)
    assert (delivery["state"], delivery["answered"], delivery["attempts"]) == ("done", "200", 1)


# Misbehaviour


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_happens_with_its_probability_and_repeats_with_the_seed(name: str) -> None:
    def happened(seed: int, chance: float) -> list[int]:
        bad = Misbehaviour(seed, {name: chance})
        return [n for n in range(2000) if bad.happens(name, n)]

    assert happened(1, 0.1) == happened(1, 0.1)
    assert happened(1, 0.1) != happened(2, 0.1)
    assert 140 < len(happened(1, 0.1)) < 260
    assert (len(happened(1, 0)), len(happened(1, 1))) == (0, 2000)


def test_a_fault_does_not_depend_on_the_other_faults() -> None:
    alone, together = Misbehaviour(3, {"lose": 0.2}), Misbehaviour(3, {"lose": 0.2, "duplicate": 0.5, "late": 0.5})
    lost = [n for n in range(500) if not alone.plan(n)]
    assert lost == [n for n in range(500) if not together.plan(n)]
    assert lost


def test_a_duplicate_is_delivered_twice_with_one_id(subscriber: Subscriber, start_sender: StartSender) -> None:
    shop = make_shop(subscriber.url, duplicate=1)
    start_sender(shop)
    create_orders(shop)
    eventually(lambda: all_sent(shop))
    first, second = events_of(shop, subscriber)
    assert (first.delivery_id, first.data) == (second.delivery_id, second.data)


def test_a_lost_delivery_is_never_sent_though_the_change_is_stored(subscriber: Subscriber) -> None:
    shop = make_shop(subscriber.url, lose=1)
    create_orders(shop, 3)
    assert all_sent(shop)
    assert (shop.state.counter("events"), shop.state.count("order")) == (3, 3)


def test_reordered_deliveries_overtake_each_other(subscriber: Subscriber, start_sender: StartSender) -> None:
    shop = make_shop(subscriber.url, reorder=1, reorder_by="300ms")
    start_sender(shop)
    ids = create_orders(shop, 10)
    eventually(lambda: all_sent(shop))
    received = [event.data["id"] for event in events_of(shop, subscriber)]
    assert sorted(received) == ids
    assert received != ids


def test_a_late_delivery_is_scheduled_hours_later(subscriber: Subscriber) -> None:
    shop = make_shop(subscriber.url, late=1, late_by="3h")
    create_orders(shop)
    ((due,),) = shop.state.execute("SELECT due FROM webhook_outbox")
    assert due - time.time() == pytest.approx(3 * 3600, abs=5)


def test_unknown_topics_huge_and_malformed_payloads_have_valid_signatures(
    subscriber: Subscriber, start_sender: StartSender
) -> None:
    for name in ("unknown_topic", "huge", "malformed"):
        shop = make_shop(subscriber.url, huge_size="300KB", **{name: 1.0})
        start_sender(shop)
        create_orders(shop)
        eventually(lambda shop=shop: all_sent(shop))  # type: ignore[misc]
        (event,) = events_of(shop, subscriber)
        subscriber.received.clear()
        if name == "unknown_topic":
            assert event.topic == "warehouse.flooded"
        elif name == "huge":
            assert len(event.body) > 300_000
        else:
            assert event.topic == UNREADABLE


@pytest.mark.parametrize(("name", "gone"), [("rotate", False), ("disable", True), ("delete", True)])
def test_a_subscription_changes_without_notice(
    subscriber: Subscriber, start_sender: StartSender, name: str, gone: bool
) -> None:
    shop = make_shop(subscriber.url, **{name: 1.0})
    start_sender(shop)
    create_orders(shop)
    eventually(lambda: all_sent(shop))
    eventually(lambda: shop.state.all_of("webhook") != [] and _changed(shop, name))
    create_orders(shop)
    eventually(lambda: all_sent(shop))
    assert len(subscriber.received) == (1 if gone else 2)
    if not gone:
        with pytest.raises(DeliveryRefused):
            events_of(shop, subscriber)


def _changed(shop: Shop, name: str) -> bool:
    found = next((one for one in shop.state.all_of("webhook") if one["topic"] == "order.created"), None)
    if name == "delete":
        return found is None
    assert found is not None
    return found["enabled"] is False if name == "disable" else found["secret"] != shop.first_secret


def test_the_shopper_repeats_its_events_with_the_same_seed() -> None:
    def seen(seed: int) -> list[Any]:
        shop = make_shop("http://127.0.0.1:9/")
        shop.misbehaviour.seed = seed
        shopper = Shopper(shop, interval=0, max_events=30)
        shopper.run()
        return shop.state.execute("SELECT topic, data FROM webhook_outbox ORDER BY id")

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert len(seen(1)) == 30
    assert {topic for topic, _ in seen(1)} == {"order.created", "order.paid", "product.updated", "customer.created"}


def names_in(data: Mapping[str, Any]) -> dict[str, set[str]]:
    """The names of an event's fields, and those of an order's first line and of its buyer."""
    names = {"record": set(data)}
    if "lines" in data:
        names |= {"line": set(data["lines"][0]), "buyer": set(data["customer"])}
    return names


def sent_by(shop: Shop) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for topic, data in shop.state.execute("SELECT topic, data FROM webhook_outbox ORDER BY id"):
        found.setdefault(topic, []).append(orjson.loads(data))
    return found


def change_everything(shop: Shop) -> None:
    """Make an event of every topic by the API, each record with no more than the fields that the API requires."""
    lines = {"lines": [{"product_id": 1}], "customer_id": 1}
    for statuses in (("paid", "shipped", "delivered", "refunded"), ("cancelled",)):
        at = {"id": orders.create(shop, SandboxCall(body=lines))["id"]}
        orders.add_comment(shop, SandboxCall(at, {"text": "call first"}))
        for status in statuses:
            orders.update_status(shop, SandboxCall(at, {"status": status}))
        copy = orders.duplicate(shop, SandboxCall(at))
        orders.delete(shop, SandboxCall(at))
        del copy["duplicate_of"]
        assert names_in(copy) == names_in(sample("order.created"))
    imported = {"products": [{"name": "Lamp", "price": "2.00"}], "customers": [{"name": "Ada"}]}
    for group, body in ((products, {"name": "Mug", "price": "1.00"}), (customers, {"name": "Grace"})):
        at = {"id": group.create(shop, SandboxCall(body=body))["id"]}  # type: ignore[attr-defined]
        group.update(shop, SandboxCall(at, {"name": "Cup"}))  # type: ignore[attr-defined]
        group.delete(shop, SandboxCall(at))  # type: ignore[attr-defined]
        group.bulk_import(shop, SandboxCall(body=imported))  # type: ignore[attr-defined]


def test_the_sandbox_and_the_samples_send_the_same_fields() -> None:
    """Else a handler passes its tests with the samples, and fails in `storehooks dev`."""
    shop = make_shop("http://127.0.0.1:9/")
    Shopper(shop, interval=0, max_events=30).run()
    for product in shop.state.all_of("product"):
        products.delete(shop, SandboxCall({"id": product["id"]}))
    Shopper(shop, interval=0, max_events=30).run()  # of a product that it adds itself
    change_everything(other := make_shop("http://127.0.0.1:9/"))
    assert set(sent_by(other)) == set(TOPICS)
    for topic, data in [*sent_by(shop).items(), *sent_by(other).items()]:
        for one in data:
            one.pop("duplicate_of", None)
            assert names_in(one) == names_in(sample(topic)), topic


@pytest.mark.parametrize("topic", TOPICS)
def test_the_sandbox_and_the_samples_have_every_field_of_a_record(topic: str) -> None:
    """docs/topics.md lists these fields."""
    shop = make_shop("http://127.0.0.1:9/")
    change_everything(shop)
    for event in (make_event(topic), make_event(topic, sent_by(shop)[topic][0], exact=True)):
        record = event.record
        parts = {topic.partition(".")[0]: record}
        if isinstance(record, Order):
            parts |= {"line": record.lines[0], "buyer": record.customer}
        assert all(getattr(part, name) is not None for kind, part in parts.items() for name in FIELDS[kind])


def test_the_ids_of_lines_differ_and_the_currency_is_that_of_the_products() -> None:
    shop = make_shop("http://127.0.0.1:9/")
    body = {"name": "Mug", "price": "1.00", "currency": "USD"}
    lines = [{"product_id": products.create(shop, SandboxCall(body=body))["id"]}] * 2
    made = orders.create(shop, SandboxCall(body={"lines": lines}))
    copy = orders.duplicate(shop, SandboxCall({"id": made["id"]}))
    assert (made["currency"], copy["currency"]) == ("USD", "USD")
    assert len({line["id"] for order in (made, copy) for line in order["lines"]}) == 4


def test_a_burst_makes_many_events_at_once() -> None:
    shop = make_shop("http://127.0.0.1:9/", burst=1, burst_size=25)
    shopper = Shopper(shop, interval=60)
    shopper.start()
    eventually(lambda: shop.state.counter("events") >= 25, 5)
    shopper.stop()


def test_config_sets_the_faults(tmp_path: Path, server_url: str) -> None:
    run = SandboxRun(tmp_path, server_url, sandbox="seed = 99\nmisbehave = { lose = 0.5, late_by = '2h' }")
    shop = shop_of(run.config, "demo", SandboxState(":memory:"))
    assert (shop.misbehaviour.seed, shop.misbehaviour.values["lose"], shop.misbehaviour.seconds("late_by")) == (
        99,
        0.5,
        7200,
    )
    run.http.close()


def test_an_unknown_or_wrong_fault_is_refused_with_a_suggestion() -> None:
    for values, message in (
        ({"duplicates": 0.1}, "did you mean duplicate?"),
        ({"late": 2}, "write a number from 0 to 1"),
        ({"late_by": "soon"}, "not a duration"),
    ):
        with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
            Misbehaviour(1, values)  # type: ignore[arg-type]


# As a process


def test_the_sandbox_never_loads_the_client() -> None:
    loaded = loaded_by("import workers.storeapi.sandbox.process")
    ours = {name.removeprefix("workers.storeapi.") for name in loaded if name.startswith("workers.storeapi.")}
    assert ours & {"client", "configured_client", "transport", "pages", "groups", "bulk_import"} == set()
    assert "sandbox.server" in ours


@pytest.mark.parametrize("scheme", ["standard-webhooks", "shopify", "stripe"])
def test_a_change_in_the_sandbox_reaches_a_handler(make_system: Callable[..., System], scheme: str) -> None:
    """End to end: an order through the API, a signed webhook in the store's shape, the receiver, a handler."""
    system = make_system(plugin=PLUGIN)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[stores.north]", f'[stores.north]\nscheme = "{scheme}"', 1))
    system.start("web", "worker", "housekeeper")
    store = f'scheme = "{scheme}"\nurl = "http://127.0.0.1:{system.port}/webhooks/north"'
    run = SandboxRun(system.folder / "sandbox", system.config.redis.url, "--no-shopper", store=store).start()
    try:
        client = run.client()
        order = client.orders.create(lines=[{"product_id": 1, "quantity": 2}])
        eventually(system.ledger.events)  # a store's webhooks may overtake each other
        client.orders.update_status(order.id, status="paid")
        events = eventually(lambda: len(found := system.ledger.events()) == 2 and found)
        assert [event.topic for event in events] == ["order.paid", "order.created"]
        assert system.settled(events[0].id) == "settled"
        assert system.run_of(events[0].id, "shop.note").result == str(order.total)
    finally:
        run.stop()


def test_a_restart_preserves_the_state_and_the_receivers_subscriptions(make_sandbox: Callable[..., SandboxRun]) -> None:
    sandbox = make_sandbox("--no-shopper")
    made = sandbox.client().products.create(name="Kept", price="1.00")
    assert sandbox.process is not None
    sandbox.process.kill()
    sandbox.start()
    client = sandbox.client()
    assert client.products.get(made.id).name == "Kept"
    found = list(client.webhooks.list())
    assert [one.topic for one in found] == list(TOPICS)
    assert {one.url for one in found} == {"http://127.0.0.1:8000/webhooks/demo"}
    assert SECRET not in str([one.to_json() for one in found])


@pytest.mark.parametrize(("caller", "status"), [("127.0.0.1", 200), ("::1", 200), ("203.0.113.9", 403)])
def test_the_controls_answer_on_the_sandbox_s_own_host_only(caller: str, status: int) -> None:
    """They need no token, and show every record."""
    shop = make_shop("http://127.0.0.1:1/hook")
    app = create_app(shop, TokenIssuer(shop, AppRegistration()), "/oauth/token", lambda _: None)
    client = app.test_client()
    for path in ("/sandbox", "/sandbox/log", "/sandbox/records"):
        assert client.get(path, environ_base={"REMOTE_ADDR": caller}).status_code == status
    done = client.post("/sandbox/do/revoke-tokens", environ_base={"REMOTE_ADDR": caller})
    assert done.status_code == status
    assert client.get("/api/v3/app/orders", environ_base={"REMOTE_ADDR": caller}).status_code == 401, "the API itself"


@pytest.mark.parametrize(
    ("scheme", "token", "value", "accepted"),
    [
        ("Bearer", "abc", "Bearer abc", True),
        ("Bearer", "a token of words", "Bearer a token of words", True),
        ("Bearer", "abc", "abc", False),
        ("Bearer", "abc", "Bearer words abc", False),
        ("", "abc", "abc", True),
        ("", "abc", "Bearer abc", False),
        ("Basic", "user:pass", "Basic dXNlcjpwYXNz", True),
        ("Basic", "user:pass", "Basic user:pass", False),
        ("Bearer", "", "Bearer ", False),
    ],
)
def test_a_configured_token_is_accepted_whole_and_after_its_scheme(
    scheme: str, token: str, value: str, accepted: bool
) -> None:
    shop = make_shop("http://127.0.0.1:1/hook")
    assert TokenIssuer(shop, AppRegistration(token=token, scheme=scheme)).accepts(value) is accepted
