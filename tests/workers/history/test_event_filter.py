"""Which events a search for a payload field finds, however the store writes its documents."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from storehooks import Event
from storehooks.testing import make_event
from workers.history.event_filter import EventFilter, where_of

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


def test_a_document_without_the_text_is_not_read() -> None:
    event = event_with(json.dumps({"name": "Ann"}).encode())
    assert not EventFilter(where=[where_of("name=Bob")]).is_met_by(event)
    assert "payload" not in vars(event)
