"""when=: its forms, which events meet it, and what is refused at validation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from receiver.contract.event import Event
from workers.plugins.conditions import describe, faults_of, unmet_condition

DATA = {"total": "150.00", "count": 3, "status": "paid", "test": False, "note": None, "customer": {"email": "a@b.c"}}


def event(data: Any = None) -> Event:
    return Event("e", "north", "order.paid", datetime.now(UTC), orjson.dumps(DATA if data is None else data))


@pytest.mark.parametrize(
    "when",
    [
        {"total": "> 100"},
        {"total": ">= 150"},
        {"total": 150},
        {"count": "< 4"},
        {"count": "<=3"},
        {"count": [1, 2, 3]},
        {"status": "paid"},
        {"status": ["open", "paid"]},
        {"status": "!= open"},
        {"test": False},
        {"note": None},
        {"missing": None},
        {"missing": ["paid", None]},
        {"status": ["paid", None]},
        {"customer.email": "*"},
        {"total": "> 100", "status": "paid"},
        lambda one: one.data["count"] == 3,
    ],
)
def test_these_conditions_are_met(when: Any) -> None:
    assert not list(faults_of(when))
    assert unmet_condition(when, event()) is None


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ({"total": "> 150"}, "total > 150 was false"),
        ({"status": ["open", "new"]}, "status in open, new was false"),
        ({"status": "Paid"}, "status = Paid was false"),
        ({"status": "> 1"}, "status > 1 was false"),
        ({"status": "!= paid"}, "status != paid was false"),
        ({"count": "!= 3"}, "count != 3 was false"),
        ({"test": True}, "test = True was false"),
        ({"test": 0}, "test = 0 was false"),
        ({"note": "*"}, "note is there was false"),
        ({"missing": "!= 1"}, "missing != 1 was false"),
        ({"missing": ["paid", 1]}, "missing in paid, 1 was false"),
        ({"customer.email": None}, "customer.email is not there was false"),
        ({"status": "paid", "total": "< 1"}, "total < 1 was false"),
        (lambda one: False, "the condition was false"),
    ],
)
def test_these_conditions_are_not_met_and_the_first_such_is_named(when: Any, says: str) -> None:
    assert not list(faults_of(when))
    assert unmet_condition(when, event()) == says


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ({"total": "> a lot"}, 'after > comes a number, as in "> 100"'),
        ({"total": ["> 1", 2]}, "a comparison stands alone"),
        ({"total": {"gt": 1}}, "it may be"),
        ({"a..b": 1}, "a path into event.data looks like"),
        ({}, "empty when="),
        ("total > 100", "write a function of the event, or paths and conditions"),
        (lambda: True, "must be `def the condition(event)`"),
    ],
)
def test_these_are_refused_with_the_fix(when: Any, says: str) -> None:
    (told,) = faults_of(when)
    assert says in told


def test_data_that_is_not_an_object_meets_no_path() -> None:
    assert unmet_condition({"total": "> 1"}, event([1, 2])) == "total > 1 was false"
    assert unmet_condition({"0": 1}, event([1, 2])) is None


def test_conditions_can_be_described() -> None:
    assert describe({"total": "> 100", "status": ["paid"]}) == "total > 100 and status in paid"
    assert describe(None) is None
