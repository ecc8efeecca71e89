"""Form bodies next to signed headers: genuine ones are accepted, the same signed bytes cut elsewhere never are."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.signatures import PRESETS
from tests.support.deliveries import NOW, Sent, send

STANDARD = PRESETS["standard-webhooks"]
BODY = b"type=order.created&id=7&note=a.b"
WITH_ID = Scheme("by-id", headers=("x-sig",), signed="{header:x-id}.{body}", event=Sources(id=("header:x-id",)))
AT_THE_END = replace(WITH_ID, signed="{body}.{header:x-id}")


def reason(sent: Sent) -> str:
    """Why a delivery is refused; empty if it is accepted."""
    try:
        receive(sent.headers, sent.body, store=sent.store, now=NOW)
    except DeliveryRefused as error:
        return error.reason
    return ""


def cut(sent: Sent, body: bytes, **headers: str) -> Sent:
    """The same signed bytes under the same signature, cut elsewhere."""
    return replace(
        sent, body=body, headers=sent.headers | {key.replace("_", "-"): text for key, text in headers.items()}
    )


@pytest.mark.parametrize("text", ["msg_1", "order.7", "order.created.1700000100"])
def test_a_genuine_form_is_accepted_under_an_id_with_the_separator(text: str) -> None:
    assert reason(send(STANDARD, BODY, webhook_id=text)) == ""
    assert reason(send(WITH_ID, BODY, x_id=text)) == ""
    with_topic = replace(WITH_ID, event=Sources(topic=("header:x-id",), id=("form:id",)), dedupe="id")
    delivery = send(with_topic, BODY, x_id="order.created")
    assert receive(delivery.headers, delivery.body, store=delivery.store, now=NOW).event.topic == "order.created"


def test_the_id_of_a_form_counts_with_its_body() -> None:
    """A form cannot show that it is whole, so an update is never a duplicate by its id alone."""
    first, other = (send(STANDARD, body, webhook_id="msg_1") for body in (BODY, BODY + b"c"))
    ids = [receive(one.headers, one.body, store=one.store, now=NOW).event.id for one in (first, other, first)]
    assert ids[0] == ids[2] != ids[1]


def test_a_form_that_was_cut_is_refused() -> None:
    sent = send(WITH_ID, b"a=1&data.id=2&type=order.created", x_id="msg")
    assert reason(sent) == ""
    assert reason(cut(sent, b"id=2&type=order.created", x_id="msg.a=1&data")) == "ambiguous"
    sent = send(WITH_ID, BODY, x_id="msg.x")
    assert reason(cut(sent, b"x." + BODY, x_id="msg")) == "ambiguous"
    sent = send(STANDARD, b"a=1&n.1700000100.type=order.created", webhook_id="msg")
    assert reason(sent) == ""
    assert reason(cut(send(WITH_ID, b"a=1", x_id="x.c=d"), b"c=d.a=1", x_id="x")) == "ambiguous"
    head = "msg.1700000000.a=1&n"
    shifted = cut(sent, b"type=order.created", webhook_id=head, webhook_timestamp="1700000100")
    assert reason(shifted) == "ambiguous"


def test_a_form_before_a_signed_header_has_no_separator_at_its_end() -> None:
    assert reason(send(AT_THE_END, b"type=order.created&id=7", x_id="msg")) == ""
    assert reason(send(AT_THE_END, b"id=7&type=order.created", x_id="msg")) == "ambiguous"
    assert reason(send(AT_THE_END, b"type=order.created&id=7", x_id="msg.1")) == "ambiguous"


texts = st.text(st.sampled_from(list("a.1=&|")), max_size=4) | st.sampled_from(["x.1700000100.y", "1700000100", "."])
forms = st.lists(st.tuples(texts.filter(bool), texts), min_size=1, max_size=3).map(
    lambda pairs: urlencode(pairs).encode()
)
ids = st.text(st.sampled_from(list("a.1&|")), min_size=1, max_size=5) | st.just("b.1700000100.c")


@settings(deadline=None, max_examples=300)
@given(forms, ids, st.sampled_from([".", "&", "|", "a", "::"]), st.booleans(), st.booleans())
def test_no_other_cut_of_an_accepted_form_is_accepted(
    body: bytes, own_id: str, separator: str, timed: bool, first: bool
) -> None:
    parts = ["{header:x-id}", *(["{timestamp}"] if timed else []), "{body}"]
    signed = separator.join(parts if first else reversed(parts))
    time = "header:x-time" if timed else ""
    scheme = replace(WITH_ID, signed=signed, timestamp=time, event=Sources(topic=("const:a.b",), id=("header:x-id",)))
    sent = send(scheme, body, x_id=own_id)
    if reason(sent):
        return
    text = str(int(NOW))
    middle = [text] if timed else []
    ends = [own_id, *middle, body.decode()] if first else [body.decode(), *middle, own_id]
    content = separator.join(ends)
    pattern = (f"{re.escape(separator)}([0-9]{{10}})" if timed else "()") + re.escape(separator)
    for at in range(len(content)):
        found = re.compile(pattern).match(content, at)
        if not found:
            continue
        left, right = content[:at], content[found.end() :]
        new_id, new_body = (left, right) if first else (right, left)
        if (new_id, new_body) != (own_id, body.decode()):
            assert reason(cut(sent, new_body.encode(), x_id=new_id, **({"x_time": found[1]} if timed else {})))
