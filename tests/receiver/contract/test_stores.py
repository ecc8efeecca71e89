"""The search for the store that a delivery to the common URL names: what it finds, and what it costs."""

from __future__ import annotations

import time
from dataclasses import replace

import orjson
import pytest

from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import PRESETS
from receiver.contract.stores import MAX_CANDIDATES, Store, StoreIndex

MB = 1_000_000
SCAN_SECONDS = 0.01
"""Of CPU, for the costliest body of 1 MB. Half of it on a calm machine."""


def store(name: str, scheme: str, domain: str) -> Store:
    return Store(name=name, scheme=PRESETS[scheme], secrets=(Secret(b"secret"),), domain=domain)


INDEX = StoreIndex({one: store(one, "shopware", f"https://{one}.example") for one in "abcdef"})


def names(document: object) -> list[str]:
    return [one.store.name for one in INDEX.candidates({}, orjson.dumps(document)) if one.is_known]


def test_a_known_store_is_found_after_many_unknown_names() -> None:
    unknown = [{"url": f"https://{number}.example"} for number in range(900)]
    assert names({"data": unknown, "source": {"url": "https://e.example/"}}) == ["e"]


def test_equal_names_and_places_without_a_name_do_not_end_the_search() -> None:
    places = [{"url": "x"}, {"url": None}, ["url"]] * 200
    assert names({"data": places, "source": {"url": "https://F.example"}}) == ["f"]


def test_at_most_four_candidates_are_tried_and_unknown_ones_count() -> None:
    assert names([{"url": f"https://{one}.example"} for one in "abcdef"]) == list("abcd")
    for known in (0, 1, 3):
        document = [{"url": f"https://{one}.example"} for one in "uvwxyz"[known:] + "abc"[:known]]
        found = INDEX.candidates({}, orjson.dumps(document))
        assert (len(found), sum(one.is_known for one in found)) == (MAX_CANDIDATES, known)


@pytest.mark.parametrize("shops", [b'["x", 7]', b'["x",[ 7 ]]', b'[ "x", "https:\\/\\/7\\/" ]', b'"7"', b" 7 "])
def test_a_name_in_a_list_is_found(shops: bytes) -> None:
    scheme = replace(PRESETS["salla"], event=replace(PRESETS["salla"].event, store=("json:shops.1",)))
    index = StoreIndex({"seven": replace(store("seven", "salla", "7"), scheme=scheme)})
    assert index.find({}, b'{"shops" :\n%b}' % shops)


COSTLY = {
    "many names": b"".join(b'"url":"%d",' % number for number in range(75_000)),
    "one name": b'"url":"a",' * 100_000,
    "numbers": b"".join(b'"url":%d,' % number for number in range(75_000)),
    "keys without values": b'"url"' * 200_000,
    "keys with objects": b'"url":{' * 140_000,
    "keys after keys": b'"url":' * 160_000,
    "blanks": (b'"url"' + b" " * 64 + b":" + b" " * 64) * 7_500,
    "texts without an end": (b'"url":"' + b"x" * 1001) * 1_000,
    "half a key": b'"ur' * 330_000,
    "quotes": b'"' * MB,
    "short texts": b'"u",' * 250_000,
    "lists": b'"url":["a","b",' * 66_000,
    "one long list": b'"url":[' + b'"a",' * 250_000,
}


@pytest.mark.parametrize("kind", COSTLY)
def test_the_costliest_bodies_are_scanned_in_a_few_milliseconds(kind: str) -> None:
    took = []
    for _ in range(5):
        began = time.thread_time()
        INDEX.candidates({}, COSTLY[kind])
        took.append(time.thread_time() - began)
    print(f"{kind}: {min(took) * 1000:.1f} ms of CPU")
    assert min(took) < SCAN_SECONDS
