"""Which events a search for a payload field finds, however the store writes its documents."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.contract.event import follow
from storehooks import Event
from storehooks.testing import make_event
from workers.history.event_filter import EventFilter, where_of
from workers.history.payload_search import body_may_match
from workers.plugins.conditions import meets

NAME = {"name": "Zoë/1"}


def event_with(body: bytes) -> Event:
    return replace(make_event("customer.updated", {}), body=body, data_path="")


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(NAME, ensure_ascii=False).encode(),
        json.dumps(NAME).encode(),
        b'{"name": "Zo\\u00eb\\/1"}',
        json.dumps(NAME, ensure_ascii=False).encode("utf-16"),
        json.dumps(NAME, ensure_ascii=False).encode("utf-16-le"),
        b"name=Zo%C3%AB%2F1&id=4",
        b' {"name": "\\u005ao\xc3\xab/1"}',
    ],
    ids=["utf-8", "escaped", "escaped slash", "utf-16", "utf-16 without a mark", "form", "escaped letter"],
)
def test_a_text_is_found_however_it_is_written(body: bytes) -> None:
    wanted = EventFilter(where=[where_of("name=Zoë/1")])
    assert wanted.is_met_by(event_with(body))
    assert not EventFilter(where=[where_of("name=Zoë/2")]).is_met_by(event_with(body))


@pytest.mark.parametrize("condition", ["total=5", "total>4", "total!=6", "total", "paid=true"])
def test_conditions_that_are_no_texts_read_the_document(condition: str) -> None:
    assert EventFilter(where=[where_of(condition)]).is_met_by(event_with(b'{"total": 5.0, "paid": true}'))


@pytest.mark.parametrize("condition", ["name=Bob", "total=1", "total", "total>0", "person.name=Ann"])
def test_a_document_without_the_text_or_the_name_is_not_read(condition: str) -> None:
    event = event_with(json.dumps({"name": "Ann", "age": 31}).encode())
    assert not EventFilter(where=[where_of(condition)]).is_met_by(event)
    assert "payload" not in vars(event)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.sampled_from(["", "a", "1", "0.50", "é", '"', "a.b"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(document=DOCUMENTS, escaped=st.booleans(), data=st.data())
def test_no_document_that_meets_a_condition_is_left_out(document: object, escaped: bool, data: st.DataObject) -> None:
    body = json.dumps(document, ensure_ascii=escaped).encode()
    path = ".".join(data.draw(st.lists(st.sampled_from(["a", "b", "0", "1", "é"]), min_size=1, max_size=3)))
    condition = data.draw(
        st.sampled_from([None, "*", "> 0", "!= a", "a", "é", True, Decimal(1), Decimal("0.5"), ["a", None]])
    )
    if meets(follow(json.loads(body), path), condition):
        assert body_may_match(body, [(path, condition)])
