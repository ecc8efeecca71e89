"""Ids that contain the separator of the signed parts: the same signed bytes cut elsewhere are never a second event."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import Delivery, read_document, receive
from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.signatures import PRESETS, may_be_cut
from tests.support.deliveries import BODY, NOW, Sent, send

STANDARD = PRESETS["standard-webhooks"]
OTHER = b'{"type":"order.created","data":{"id":8}}'
CUSTOM = Scheme(
    "acme",
    headers=("x-sig",),
    signed="{header:x-id}|{timestamp}|{body}",
    timestamp="header:x-time",
    dedupe="id",
    event=Sources(id=("header:x-id",)),
)
AT_THE_END = replace(CUSTOM, signed="{timestamp}|{body}|{header:x-id}")
WITHOUT_TIME = replace(CUSTOM, signed="{header:x-id}|{body}", timestamp="")
JOINED = replace(CUSTOM, signed="{header:x-id}{timestamp}{body}")
WITH_TOPIC = Scheme(
    "topical",
    headers=("x-sig",),
    signed="{header:x-id}.{header:x-topic}.{body}",
    dedupe="id",
    event=Sources(id=("header:x-id",), topic=("header:x-topic",)),
)
TOPIC_FIRST = replace(WITH_TOPIC, signed="{header:x-topic}.{header:x-id}.{body}")


def accept(sent: Sent, *, now: float = NOW) -> Delivery:
    return receive(sent.headers, sent.body, store=sent.store, now=now)


def cut(sent: Sent, body: bytes, **changed: str) -> Sent:
    """The same signed bytes under the same signature, cut elsewhere."""
    headers = sent.headers | {name.replace("_", "-"): value for name, value in changed.items()}
    return replace(sent, headers=headers, body=body)


def reason(sent: Sent, *, now: float = NOW) -> str:
    with pytest.raises(DeliveryRefused) as caught:
        accept(sent, now=now)
    return caught.value.reason


def event_id(scheme: Scheme, body: bytes = BODY, **headers: str) -> str:
    return accept(send(scheme, body, **headers)).event.id


@pytest.mark.parametrize("preset", ["standard-webhooks", "svix"])
def test_an_id_with_the_separator_counts_with_its_body(preset: str) -> None:
    scheme, header = PRESETS[preset], PRESETS[preset].event.id[0].removeprefix("header:").replace("-", "_")
    with_dot, without = {header: "order.1"}, {header: "order-1"}
    assert event_id(scheme, **with_dot) == event_id(scheme, **with_dot)
    assert event_id(scheme, **with_dot) != event_id(scheme, OTHER, **with_dot)
    assert event_id(scheme, **without) == event_id(scheme, OTHER, **without)


def test_the_separator_is_read_from_the_template() -> None:
    assert event_id(CUSTOM, x_id="a.b") == event_id(CUSTOM, OTHER, x_id="a.b")
    assert event_id(CUSTOM, x_id="a|b") != event_id(CUSTOM, OTHER, x_id="a|b")
    assert event_id(AT_THE_END, x_id="a|b") != event_id(AT_THE_END, OTHER, x_id="a|b")
    assert event_id(JOINED, x_id="a") != event_id(JOINED, OTHER, x_id="a"), "without a separator any id can be cut"
    by_body = PRESETS["stripe"]
    other = b'{"id":"a.b","type":"order.paid"}'
    assert event_id(by_body, b'{"id":"a.b","type":"order.created"}') == event_id(by_body, other)


def test_a_timestamp_inside_the_body_cannot_start_another_delivery() -> None:
    """A customer may write the text of a note; the delivery's id would swallow what is before it."""
    body = b'{"type":"order.created","data":{"note":"a.1700000100.b"}}'
    sent = send(STANDARD, body, webhook_id="msg_1")
    accept(sent)
    head, tail = 'msg_1.1700000000.{"type":"order.created","data":{"note":"a', b'b"}}'
    again = cut(sent, tail, webhook_id=head, webhook_timestamp="1700000100")
    assert reason(again) == "ambiguous"
    assert reason(again, now=NOW + 350) == "ambiguous", "also when the real timestamp is too old"


@pytest.mark.parametrize(
    ("unit", "time"), [("s", b"1700000100"), ("ms", b"1700000100000"), ("rfc3339", b"2023-11-14T22:15:00Z")]
)
def test_a_body_may_be_cut_after_a_timestamp_in_the_unit_of_its_scheme(unit: Any, time: bytes) -> None:
    scheme = replace(CUSTOM, timestamp_unit=unit)
    assert may_be_cut(scheme, {"x-id": "1"}, time + b"|{}", is_form=False)
    assert not may_be_cut(scheme, {"x-id": "1"}, time[:5] + b"|{}", is_form=False)


def test_a_timestamp_inside_the_id_cannot_start_another_delivery() -> None:
    sent = send(STANDARD, webhook_id="order.1700000100")
    accept(sent)
    shifted = cut(sent, b"1700000000." + BODY, webhook_id="order", webhook_timestamp="1700000100")
    assert reason(shifted) == "ambiguous"


@pytest.mark.parametrize(("rest", "scheme"), [("7", STANDARD), ("a b", STANDARD), ("7", CUSTOM)])
def test_a_timestamp_in_the_middle_of_the_id_cannot_start_another_delivery(rest: str, scheme: Scheme) -> None:
    """The body then begins with the rest of the id, before the real timestamp."""
    sep, name = (".", "webhook_id") if scheme is STANDARD else ("|", "x_id")
    time_name = "webhook_timestamp" if scheme is STANDARD else "x_time"
    sent = send(scheme, **{name: f"evt{sep}1700000100{sep}{rest}"})
    accept(sent)
    shifted = f"{rest}{sep}1700000000{sep}".encode() + BODY
    assert reason(cut(sent, shifted, **{name: "evt", time_name: "1700000100"})) == "ambiguous"


def test_a_timestamp_in_an_id_after_the_body_cannot_end_another_delivery() -> None:
    sent = send(replace(CUSTOM, signed="{body}|{timestamp}|{header:x-id}"), x_id="evt|1700000100|7")
    accept(sent)
    shifted = BODY + b"|1700000000|evt"
    assert reason(cut(sent, shifted, x_id="7", x_time="1700000100")) == "ambiguous"


def test_without_a_tolerance_the_timestamp_cannot_take_a_part_of_the_id() -> None:
    timeless = replace(STANDARD, tolerance=0)
    sent = send(timeless, webhook_id="order.paid")
    accept(sent)
    shifted = cut(sent, BODY, webhook_id="order", webhook_timestamp="paid.1700000000")
    assert reason(shifted) == "malformed-timestamp"
    form = "Tue, 14 Nov 2023 22:13:20 GMT"
    odd = send(replace(timeless, signed=f"{{header:webhook-id}}.{form}.{{body}}", timestamp=""), webhook_id="msg_1")
    odd.headers["webhook-timestamp"] = form
    assert accept(replace(odd, scheme=timeless)).event.topic == "order.created", "a form without the separator"


def test_without_a_timestamp_a_part_of_an_id_cannot_take_the_place_of_another() -> None:
    sent = send(WITHOUT_TIME, x_id="order|7")
    accept(sent)
    assert reason(cut(sent, b"7|" + BODY, x_id="order")) == "ambiguous"


@pytest.mark.parametrize("dedupe", ["id", "id+body"])
@pytest.mark.parametrize(
    ("scheme", "cut_id", "cut_topic"), [(WITH_TOPIC, "1.order", "paid"), (TOPIC_FIRST, "paid.1", "order")]
)
def test_an_id_next_to_another_signed_header_is_the_same_event_at_every_cut(
    scheme: Scheme, cut_id: str, cut_topic: str, dedupe: Literal["id", "id+body"]
) -> None:
    sent = send(replace(scheme, dedupe=dedupe), x_id="1", x_topic="order.paid")
    first, again = accept(sent), accept(cut(sent, BODY, x_id=cut_id, x_topic=cut_topic))
    assert (again.event.id, again.first_id) == (first.event.id, first.first_id)


def test_an_id_next_to_another_signed_header_counts_with_that_header() -> None:
    def first_id(**headers: str) -> str:
        return accept(send(replace(WITH_TOPIC, dedupe="id+body"), **headers)).first_id

    paid = {"x_id": "1", "x_topic": "order.paid"}
    assert event_id(WITH_TOPIC, **paid) == event_id(WITH_TOPIC, OTHER, **paid), "the body counts as the scheme says"
    assert event_id(WITH_TOPIC, **paid) != event_id(WITH_TOPIC, x_id="2", x_topic="order.paid")
    assert event_id(WITH_TOPIC, **paid) != event_id(WITH_TOPIC, x_id="1", x_topic="order.created")
    assert first_id(**paid) != first_id(x_id="2", x_topic="order.paid")
    by_body = replace(WITH_TOPIC, event=replace(WITH_TOPIC.event, id=("json:data.id", "header:x-id")))
    assert event_id(by_body, x_id="1", x_topic="a") == event_id(by_body, x_id="2", x_topic="a"), "an id in the body"


DOTTED = b'{"type":"order.created","data":{"id":7,"prices":["1.99","2.99","3.99"]}}'


@pytest.mark.parametrize(
    ("signed", "absorbs"),
    [
        ("{header:x-id}.{header:x-topic}.{body}", "x-topic"),
        ("{header:x-id}.{header:x-topic}.{body}", "x-id"),
        ("{header:x-topic}.{header:x-id}.{body}", "x-topic"),
        ("{header:x-topic}.{header:x-id}.{body}", "x-id"),
        ("{header:x-topic}.{body}", "x-topic"),
    ],
)
@pytest.mark.parametrize("ids", ["header:x-id", "json:data.id"])
def test_a_signed_header_cannot_take_a_part_of_the_body(signed: str, absorbs: str, ids: str) -> None:
    """Each cut would be one more event that cannot be read, from one captured delivery."""
    event = Sources(id=(ids,), topic=("header:x-topic",))
    sent = send(replace(WITH_TOPIC, signed=signed, dedupe="id+body", event=event), DOTTED, x_id="77", x_topic="paid")
    accept(sent)
    headers = [part[1] for part in sent.scheme.template[:-1] if isinstance(part, tuple)]
    pieces = [sent.headers[name] for name in headers] + DOTTED.decode().split(".")
    for size in range(2, 5):
        left, changed = list(pieces), {}
        for name in headers:
            taken = size if name == absorbs else 1
            changed[name], left = ".".join(left[:taken]), left[taken:]
        assert reason(cut(sent, ".".join(left).encode(), **changed)) == "ambiguous", changed


@pytest.mark.parametrize(
    ("signed", "body"),
    [
        ("{header:x-id}.{header:x-topic}.{body}", b"paid." + BODY),
        ("{header:x-topic}.{body}", b"paid." + BODY),
        ("{body}.{header:x-topic}", BODY + b".order"),
    ],
)
def test_a_body_cannot_take_a_part_of_a_signed_header(signed: str, body: bytes) -> None:
    event = Sources(id=("header:x-id",), topic=("header:x-topic",))
    scheme = replace(WITH_TOPIC, signed=signed, dedupe="id+body", event=event)
    sent = send(scheme, BODY, x_id="m1", x_topic="order.paid")
    accept(sent)
    topic = "order" if body.endswith(BODY) else "paid"
    assert reason(cut(sent, body, x_topic=topic)) == "ambiguous"


def test_a_body_that_no_header_is_next_to_may_have_the_separator() -> None:
    """It is no part of another delivery, so it is stored as unreadable."""
    assert accept(send(STANDARD, b"Hello. This is no JSON", webhook_id="m1")).unreadable


def test_a_signed_header_after_the_body_cannot_take_a_part_of_it() -> None:
    sent = send(replace(WITH_TOPIC, signed="{body}.{header:x-topic}", dedupe="id+body"), DOTTED, x_topic="paid")
    accept(sent)
    head, _, tail = DOTTED.decode().rpartition(".")
    assert reason(cut(sent, head.encode(), x_topic=f"{tail}.paid")) == "ambiguous"


def test_without_a_tolerance_the_timestamp_cannot_take_a_part_of_the_body() -> None:
    timed = replace(CUSTOM, signed="{timestamp}.{body}", tolerance=0, dedupe="id+body")
    sent = send(timed, DOTTED)
    accept(sent)
    head, _, tail = DOTTED.decode().partition(".")
    assert reason(cut(sent, tail.encode(), x_time=f"{sent.headers['x-time']}.{head}")) == "malformed-timestamp"


def test_an_unreadable_delivery_is_accepted_where_no_part_has_the_separator() -> None:
    assert accept(send(WITH_TOPIC, b"ab", x_id="1", x_topic="paid")).unreadable
    unsigned = replace(WITH_TOPIC, signed="{header:x-id}.{header:x-topic}", allow_unsigned_body=True)
    assert accept(send(unsigned, b"", x_id="1", x_topic="order.paid")).unreadable, "no signed header can take of it"


@pytest.mark.parametrize("written", ["{timestamp}", "{header:x-time}"])
def test_a_redelivery_that_is_signed_anew_is_a_duplicate(written: str) -> None:
    scheme = replace(WITH_TOPIC, signed=f"{{header:x-id}}.{written}.{{body}}", timestamp="header:x-time")
    later = send(scheme, x_id="1", now=NOW + 60)
    assert accept(send(scheme, x_id="1")).event.id == accept(later, now=NOW + 60).event.id
    timeless = replace(scheme, tolerance=0)
    shifted = cut(send(timeless, x_id="order.paid"), BODY, x_id="order", x_time="paid.1700000000")
    assert reason(shifted) == "malformed-timestamp"


@pytest.mark.parametrize("text", ["01700000000", "001700000000"])
def test_a_timestamp_has_one_form(text: str) -> None:
    """Otherwise an id that ends in 0 could be cut before it, where nothing separates the two."""
    zeros = text[: text.index("1")]
    sent = send(JOINED, x_id=f"msg_{zeros}")
    accept(sent)
    assert reason(cut(sent, BODY, x_id="msg_", x_time=text)) == "malformed-timestamp"


@pytest.mark.parametrize("body", [b"", b"42", b"type: order", b"\xff\x00", b"1.5"])
def test_an_unreadable_delivery_is_still_accepted_where_its_id_has_no_separator(body: bytes) -> None:
    assert accept(send(STANDARD, body, webhook_id="msg_1")).unreadable


@given(
    st.dictionaries(st.text(), st.text(st.sampled_from('.1{}[]":,\\ a')) | st.floats(allow_nan=False), max_size=4),
    st.booleans(),
)
def test_no_part_of_a_json_body_is_a_json_body(document: dict[str, object], as_list: bool) -> None:
    """Why readable deliveries with such ids are accepted: only the real cut of a delivery is readable."""
    body = json.dumps([document] if as_list else document).encode()
    for at in range(1, len(body)):
        assert read_document(body[at:])[1] or body[at - 1 : at] != b"."
        assert read_document(body[:at])[1]
    assert read_document(b"1700000000." + body)[1]
