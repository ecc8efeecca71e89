"""Batches: one delivery with a list of events becomes several events, each with its own bytes and id."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace

import orjson
import pytest

from receiver.contract.compose import compose
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import (
    LOOP_BYTES,
    LOOP_COMMAS,
    LOOP_ITEMS,
    LOOP_VALUES,
    MAX_ITEMS,
    Delivery,
    LongWork,
    NoEvents,
    read_again,
    read_delivery,
    receive,
)
from receiver.contract.signing.grammar import Scheme, SchemeError, Sources
from receiver.contract.signing.sources import item_slices
from receiver.contract.stored_headers import ITEM
from receiver.contract.stores import Store
from tests.support.deliveries import KEY, NOW, send

LIST = Scheme(
    "list",
    headers=("X-Signature",),
    batch="body",
    event=Sources(topic=("json:type",), id=("json:id",), resource_id=("json:order.id",), data=("json:order",)),
)
NESTED = replace(LIST, name="nested", batch="json:payload.events")
BY_HEADER = replace(LIST, name="by-header", event=replace(LIST.event, id=("header:x-delivery",)))


def batch_of(*items: object) -> bytes:
    return orjson.dumps(items)


def item(number: int, topic: str = "order.paid") -> dict[str, object]:
    return {"id": f"evt_{number}", "type": topic, "order": {"id": number, "total": "7.00"}}


def received(scheme: Scheme, body: bytes, *, now: float = NOW, **headers: str) -> list[Delivery]:
    sent = send(scheme, body, **headers)
    first = receive(sent.headers, body, store=sent.store, now=now)
    return [first, *first.rest]


def ids_of(deliveries: list[Delivery]) -> list[str]:
    return [one.event.id for one in deliveries]


def test_each_item_is_an_event_of_its_own() -> None:
    first, second = received(LIST, batch_of(item(1), item(2, "order.refunded")))
    assert (first.event.topic, second.event.topic) == ("order.paid", "order.refunded")
    assert (first.event.delivery_id, second.event.delivery_id) == ("evt_1", "evt_2")
    assert (first.event.resource_id, second.event.resource_id) == ("1", "2")
    assert second.event.data == {"id": 2, "total": "7.00"}
    assert first.event.id != second.event.id
    assert not first.unreadable
    assert not second.unreadable


@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        (batch_of(*[1] * LOOP_ITEMS), False),
        (batch_of(*[1] * (LOOP_ITEMS + 1)), True),
        (batch_of(*[1] * (MAX_ITEMS + 1)), False),
        (b'["%b"]' % (b"x" * (LOOP_BYTES - 4)), False),
        (b'["%b"]' % (b"x" * (LOOP_BYTES - 3)), True),
    ],
    ids=["items", "more-items", "too-many-items", "bytes", "more-bytes"],
)
def test_a_long_batch_is_not_read_in_an_event_loop(body: bytes, is_long: bool) -> None:
    def read(in_loop: bool) -> Delivery:
        return read_delivery({}, body, store=send(LIST, body).store, now=NOW, source="webhook", in_loop=in_loop)

    assert read(False)
    if is_long:
        with pytest.raises(LongWork):
            read(True)
    else:
        assert read(True)


@pytest.mark.parametrize("content", [[item(n) for n in range(MAX_ITEMS + 1)], {"events": [item(1)]}, [[item(1)]]])
def test_a_batch_that_cannot_be_read_is_redacted_at_every_depth(content: object) -> None:
    """A batch of 1,001 events was stored with all that [redact] names."""
    body = orjson.dumps(content)
    store = replace(send(LIST, body).store, redact=("total",))
    (read,) = [read_delivery({}, body, store=store, now=NOW, source="webhook")]
    assert read.unreadable
    assert b"7.00" in body
    assert b"7.00" not in read.event.body
    assert read.event.redacted == ("total",)


@pytest.mark.parametrize("scheme", [LIST, replace(LIST, batch="")])
@pytest.mark.parametrize("is_long", [False, True])
def test_what_takes_long_to_redact_is_not_read_in_an_event_loop(scheme: Scheme, is_long: bool) -> None:
    """An object of 100,000 fields held up all other senders for half a second. Where no path leads, none is counted."""
    fields = b",".join(b'"%d":[%b]' % (at, b"0,0,0") for at in range(LOOP_VALUES if is_long else LOOP_VALUES - 10))
    body = b'{"order":{"id":1,%b}}' % fields
    body = b"[%b]" % body if scheme.batch else body
    store = replace(send(scheme, body).store, redact=("email",), scheme=scheme)
    with pytest.raises(LongWork) if is_long else nullcontext():
        assert read_delivery({}, body, store=store, now=NOW, source="webhook", in_loop=True)
    assert read_delivery({}, body, store=store, now=NOW, source="webhook")


@pytest.mark.parametrize("commas", [LOOP_COMMAS, LOOP_COMMAS + 1])
def test_a_body_of_very_many_values_that_is_redacted_is_not_read_in_an_event_loop(commas: int) -> None:
    body = b'{"type":"a.b","order":{"lines":[%b]}}' % b",".join([b"0"] * commas)
    store = replace(send(LIST, body).store, redact=("email",), scheme=replace(LIST, batch=""))
    with pytest.raises(LongWork) if commas > LOOP_COMMAS else nullcontext():
        assert read_delivery({}, body, store=store, now=NOW, source="webhook", in_loop=True)


@pytest.mark.parametrize(("number", "is_long"), [(b"1.5", False), (b"9e18", False), (b"18446744073709551616", True)])
def test_only_integers_beyond_64_bits_are_read_twice_and_not_in_an_event_loop(number: bytes, is_long: bool) -> None:
    """Three ids of 1.5 in a body of 930 kB had it read three times more, in 150 ms."""
    body = b'{"type":"a.b","id":%b,"order":{"id":%b},"pad":"%b"}' % (number, number, b"x" * LOOP_BYTES)
    store = replace(send(LIST, body).store, scheme=replace(LIST, batch=""))
    read = read_delivery({}, body, store=store, now=NOW, source="webhook")
    assert read.event.delivery_id == read.event.resource_id == str(orjson.loads(number) if not is_long else int(number))
    if is_long:
        with pytest.raises(LongWork):
            read_delivery({}, body, store=store, now=NOW, source="webhook", in_loop=True)
    else:
        assert read_delivery({}, body, store=store, now=NOW, source="webhook", in_loop=True).event.delivery_id


def test_a_list_inside_the_document_is_found_by_its_path() -> None:
    body = orjson.dumps({"n": 2, "payload": {"a": [1], "events": [item(1), item(2)], "z": {}}})
    assert [one.event.delivery_id for one in received(NESTED, body)] == ["evt_1", "evt_2"]


def test_the_body_of_an_item_is_what_the_store_wrote() -> None:
    written = ['{ "id":"a", "type" : "x.y",\n"n": 1.50}', '{"type":"x.y","id":"\\u00e9é\\"]}","n":1e2}']
    body = f"\ufeff \r\n[\t{written[0]} ,{written[1]}\n]\n".encode()
    assert [one.event.body.decode() for one in received(LIST, body)] == written
    assert received(LIST, body)[1].event.delivery_id == 'éé"]}'


def test_half_a_surrogate_pair_in_an_item_is_read_and_spoils_no_other() -> None:
    written = [r'{"id":"a","type":"x.y","n":"\ud83d"}', r'{"id":"b","type":"x.y","n":"\ud83d\ude00"}']
    found = received(LIST, f"[{written[0]}, {written[1]}]".encode())
    assert [one.event.body.decode() for one in found] == written
    assert [one.event.payload["n"] for one in found] == ["\N{REPLACEMENT CHARACTER}", "\N{GRINNING FACE}"]
    assert [one.unreadable for one in found] == ["", ""]


def test_the_last_of_two_equal_keys_counts_as_in_every_other_document() -> None:
    body = b'{"payload":{"events":[1,2,3]},"payload":{"events":[{"id":"a","type":"x.y"}]}}'
    assert [one.event.body for one in received(NESTED, body)] == [b'{"id":"a","type":"x.y"}']


def test_slices_are_the_items_for_any_document() -> None:
    random_one = random.Random(7)
    texts = ["", "é", "中", "\U0001f600", '"', "\\", "]", "}", ",", "[{", "\n", "a b"]

    def value(depth: int) -> object:
        kind = random_one.randrange(7 if depth else 5)
        if kind == 5:
            return [value(depth - 1) for _ in range(random_one.randrange(4))]
        if kind == 6:
            return {random_one.choice(texts): value(depth - 1) for _ in range(random_one.randrange(4))}
        return [None, True, 10**19, -1.5e-7, "".join(random_one.choices(texts, k=3))][kind]

    for _ in range(300):
        items = [value(3) for _ in range(random_one.randrange(5))]
        document = {"a": value(2), "payload": {"b": value(2), "events": items, "c": value(2)}, "d": value(1)}
        option = random_one.choice([0, orjson.OPT_INDENT_2])
        for path, body in ((("payload", "events"), orjson.dumps(document, option=option)), ((), orjson.dumps(items))):
            slices = item_slices(body, path)
            assert slices is not None
            assert [orjson.loads(one) for one in slices] == orjson.loads(orjson.dumps(items))
            assert all(one in body for one in slices)


@pytest.mark.parametrize(
    "body", [b'{"events":5}', b'{"events":"a"}', b'{"events":{"0":1}}', b"[1]", b"{}", b'{"events":null}']
)
def test_a_path_that_leads_to_no_list_has_no_items(body: bytes) -> None:
    assert item_slices(body, ("events",)) is None


def test_an_item_that_cannot_be_read_is_unreadable_alone() -> None:
    items = received(LIST, batch_of(item(1), 7, {"id": "evt_3"}, ["x"], item(5)))
    assert [one.unreadable for one in items] == [
        "",
        "the item is not an object",
        "no topic at json:type",
        "the item is not an object",
        "",
    ]
    assert [one.event.body for one in items[1:4]] == [b"7", b'{"id":"evt_3"}', b'["x"]']
    assert len(set(ids_of(items))) == 5


@pytest.mark.parametrize(
    ("scheme", "body", "problem"),
    [
        (LIST, b'{"id":"a"}', "no list of events at body"),
        (NESTED, b'{"payload":{"events":{}}}', "no list of events at json:payload.events"),
        (NESTED, b"[]", "no list of events at json:payload.events"),
        (LIST, b"[{]", "the body is not JSON"),
        (LIST, batch_of(*range(MAX_ITEMS + 1)), "the delivery has more than 1,000 events"),
    ],
)
def test_a_delivery_without_a_readable_list_is_one_unreadable_event(scheme: Scheme, body: bytes, problem: str) -> None:
    (one,) = received(scheme, body)
    assert one.unreadable.startswith(problem)
    assert one.event.body == body


def test_the_largest_batch_has_a_thousand_events() -> None:
    assert len(set(ids_of(received(LIST, batch_of(*map(item, range(MAX_ITEMS))))))) == MAX_ITEMS == 1000


def test_an_empty_list_has_no_events() -> None:
    with pytest.raises(NoEvents):
        received(LIST, b"[ ]")
    with pytest.raises(NoEvents):
        received(NESTED, b'{"payload":{"events":[]}}')


def test_a_redelivered_batch_has_the_same_ids() -> None:
    body = batch_of(item(1), item(2))
    assert ids_of(received(LIST, body)) == ids_of(received(LIST, body, now=NOW + 1000))


def test_an_item_has_the_same_id_in_another_batch_and_at_another_place() -> None:
    one, two = received(LIST, batch_of(item(1), item(2)))
    two_again, three = received(LIST, batch_of(item(2), item(3)))
    assert two.event.id == two_again.event.id
    assert two.first_id == two_again.first_id
    assert len({one.event.id, two.event.id, three.event.id}) == 3


def test_items_without_an_id_are_told_apart_by_their_place_in_the_delivery() -> None:
    body = batch_of(*[{"type": "order.paid", "order": {"total": 1}}] * 3)
    first, again = (received(BY_HEADER, body, x_delivery="d1") for _ in range(2))
    other = received(BY_HEADER, body, x_delivery="d2")
    assert ids_of(first) == ids_of(again)
    assert len({*ids_of(first), *ids_of(other)}) == 6
    assert len({one.first_id for one in (*first, *other)}) == 6, "no item is another body under one id"
    assert [one.event.delivery_id for one in first] == ["d1"] * 3


def test_an_id_in_a_header_never_makes_items_duplicates_of_one_another() -> None:
    """With `dedupe = "id"` it would lose all items but the first."""
    signed = replace(BY_HEADER, dedupe="id", signed="{header:x-delivery}.{body}")
    body = batch_of(item(1), item(2), item(3))
    first, again = (received(signed, body, x_delivery="d1") for _ in range(2))
    assert len(set(ids_of(first))) == 3
    assert ids_of(first) == ids_of(again)


def test_without_any_id_place_and_body_of_the_delivery_are_compared_for_a_short_time() -> None:
    same = {"type": "order.paid", "order": {"total": 1}}
    first, again = (received(LIST, batch_of(same, same)) for _ in range(2))
    other = received(LIST, batch_of(same, same, same))
    assert [one.content_hash for one in first] == [one.content_hash for one in again]
    assert len({one.content_hash for one in (*first, *other)}) == 5
    assert all(one.content_hash for one in first)
    assert not set(ids_of(first)) & set(ids_of(again))
    (thin,) = received(LIST, batch_of({"type": "order.paid", "order": {"id": 7}}))
    assert not thin.content_hash, "a thin item is equal after every change"


def test_the_id_alone_counts_only_if_the_scheme_says_so() -> None:
    changed = {**item(1), "order": {"id": 1, "total": "8.00"}}
    (before,), (after,) = received(LIST, batch_of(item(1))), received(LIST, batch_of(changed))
    assert before.event.id != after.event.id
    assert before.first_id == after.first_id != ""
    alone = replace(LIST, dedupe="id")
    assert ids_of(received(alone, batch_of(item(1)))) == ids_of(received(alone, batch_of(changed)))


def test_an_item_stores_the_headers_that_the_scheme_reads_and_its_place() -> None:
    """Each item has a copy, so that other headers would multiply the size of a delivery."""
    _, second = received(BY_HEADER, batch_of(item(1), item(2)), x_delivery="d1", x_padding="long", storehooks_item="9")
    assert second.event.headers.keys() == {"x-signature", "x-delivery", ITEM}
    assert second.event.headers[ITEM] == "2"


def test_an_item_that_was_unreadable_is_read_again_as_an_item() -> None:
    unnamed = replace(BY_HEADER, event=replace(BY_HEADER.event, topic=("json:kind",)))
    before = received(unnamed, batch_of(item(1), [item(2)], item(3)), x_delivery="d1")
    after = received(BY_HEADER, batch_of(item(1), [item(2)], item(3)), x_delivery="d1")
    for old, new in zip(before, after, strict=True):
        assert old.unreadable
        again = read_again(old.event, store_of(BY_HEADER))
        assert (again.event.id, again.event.topic, again.unreadable) == (new.event.id, new.event.topic, new.unreadable)
        assert not again.rest
        assert again.event.headers == old.event.headers


def store_of(scheme: Scheme, **more: str) -> Store:
    return Store("north", scheme, (KEY,), **more)


def test_a_batch_with_an_item_of_another_store_is_refused() -> None:
    scheme = replace(LIST, event=replace(LIST.event, store=("json:shop",)))
    body = batch_of({**item(1), "shop": "ours"}, {**item(2), "shop": "theirs"})
    sent = send(scheme, body)
    with pytest.raises(DeliveryRefused, match="names another store"):
        receive(sent.headers, body, store=store_of(scheme, domain="ours"), now=NOW)
    ours = batch_of({**item(1), "shop": "ours"}, item(2))
    sent = send(scheme, ours)
    assert len(receive(sent.headers, ours, store=store_of(scheme, domain="ours"), now=NOW).rest) == 1


TIMED = replace(NESTED, name="timed", timestamp="json:sent.at", signed="{json:sent.at}.{json:shop}.{body}")


@pytest.mark.parametrize("scheme", [LIST, NESTED, BY_HEADER, TIMED])
def test_a_composed_delivery_is_a_batch_of_one(scheme: Scheme) -> None:
    made = compose(store_of(scheme), topic="order.paid", delivery_id="evt_1", data={"id": 7}, now=NOW)
    one = receive(made.headers, made.body, store=store_of(scheme), now=NOW)
    assert not one.rest
    assert not one.unreadable
    event: Event = one.event
    assert (event.topic, event.delivery_id, event.resource_id, event.data) == ("order.paid", "evt_1", "7", {"id": 7})
    assert event.headers[ITEM] == "1"


@pytest.mark.parametrize("batch", ["json:", "events", "header:x", "form:events"])
def test_a_batch_is_the_body_or_a_list_in_it(batch: str) -> None:
    with pytest.raises(SchemeError, match='batch is "body"'):
        replace(LIST, batch=batch)
