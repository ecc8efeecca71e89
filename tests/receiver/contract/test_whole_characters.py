"""Halves of surrogate pairs become the replacement character, whatever stands beside them; all else stays."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.contract.whole_characters import with_whole_characters

PARTS = [r"\ud83d", r"\uDE00", r"\ud83d\ude00", r"\\\\", r"\\\\ud83d", r"\u0041", r"\n", "ud83d", "x"]


@given(st.lists(st.sampled_from(PARTS)))
def test_each_half_is_replaced_and_nothing_else(parts: list[str]) -> None:
    body = ('{"a":"' + "".join(parts) + '"}').encode()
    text = json.loads(body)["a"]
    whole = "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    assert orjson.loads(with_whole_characters(body))["a"] == whole


@pytest.mark.parametrize("body", [b'{"a":"x"}', rb'{"a":"\ud83d\ude00"}', rb'{"a":"\\ud83d"}'])
def test_a_body_without_halves_is_the_same_object(body: bytes) -> None:
    assert with_whole_characters(body) is body
