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
SCAN_SECONDS = 0.0015, 0.0045
"""Of CPU, for the costliest body of 50 kB and of 1 MB. A third of it on a calm machine."""


def store(name: str, scheme: str, domain: str) -> Store:
    return Store(name=name, scheme=PRESETS[scheme], secrets=(Secret(b"secret"),), domain=domain)


INDEX = StoreIndex({one: store(one, "shopware", f"https://{one}.example") for one in "abcdef"})


def names(document: object) -> list[str]:
    return [one.store.name for one in INDEX.candidates({}, orjson.dumps(document)) if one.is_known]


@pytest.mark.parametrize("count", [3, 128, 256, 5_000])
def test_a_known_store_is_found_before_many_unknown_names_and_after_them(count: int) -> None:
    data, source = [{"url": f"https://{number}.example"} for number in range(count)], {"url": "https://e.example/"}
    assert names({"data": data, "source": source}) == names({"source": source, "data": data}) == ["e"]


@pytest.mark.parametrize(
    "other", [b'55\\" wide', b"\\ud800", b"\\x", b"\xff", b"line\nbreak", b"b\\\\", b"x" * 5_000, b"", b"[1]"]
)
def test_texts_that_are_no_names_do_not_hide_the_name(other: bytes) -> None:
    body = b'{"url":"%b","data":{"url":"%b"},"source":{"url":"https:\\/\\/E.example\\/"},"url":"%b"}' % (
        other,
        other,
        other,
    )
    assert [one.store.name for one in INDEX.candidates({}, body) if one.is_known] == ["e"]


@pytest.mark.parametrize("other", [rb"55\" wide", *(b"x" * size for size in (500, 509, 510, 511, 512, 520, 5_000))])
def test_a_name_with_escapes_is_found_after_one_text_with_quotes_or_a_long_one(other: bytes) -> None:
    index = StoreIndex({"u": store("u", "shopware", "https://münchen.example")})
    assert index.find({}, rb'{"url":"%b","source":{"url":"https:\/\/m\u00fcnchen.example"}}' % other)


def test_a_body_with_zero_bytes_has_no_names() -> None:
    """Names are searched in a text that separates places by zero bytes: a body must not add some."""
    assert not INDEX.find({}, b'{"url":1,"x":"\0:"a.example"}')


@pytest.mark.parametrize("others", [0, 20, 900])
def test_a_name_in_a_form_is_found_at_its_begin_and_its_end(others: int) -> None:
    index = StoreIndex({"sms": store("sms", "twilio", "AC17")})
    fields = ["Text=" + "x" * 5_000, *(f"Field{number}=%41" for number in range(others))]
    for form in (["AccountSid=%41C17", *fields], [*fields, "AccountSid=AC17"]):
        assert index.find({}, "&".join(form).encode())


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
    "quotes after many keys": b'"url":1,' * 150 + b'"' * (MB - 2_000),
    "50 kB of names": b"".join(b'"url":"%d.example",' % number for number in range(2_500)),
    "50 kB of malformed names": b"".join(b'"url":"%d.\\example",' % number for number in range(2_500)),
    "50 kB of lists": b"".join(b'"url":["%d","b","c","d"],' % number for number in range(2_000)),
    "50 kB of a form": b"&".join(
        b"a%d=%%c3%%bc%%c3%%bc%%c3%%bc%%c3%%bc%%c3%%bc%%c3%%bc%%c3%%bc" % n for n in range(900)
    ),
}
SOURCES = StoreIndex(
    {
        "list": replace(
            store("list", "salla", "a"),
            scheme=replace(PRESETS["salla"], event=replace(PRESETS["salla"].event, store=("json:url.1",))),
        ),
        "sms": store("sms", "twilio", "AC17"),
    }
)


@pytest.mark.timed
@pytest.mark.parametrize("kind", COSTLY)
@pytest.mark.parametrize("index", [INDEX, SOURCES], ids=["two keys", "a list and a form"])
def test_the_costliest_bodies_are_scanned_in_a_short_time(kind: str, index: StoreIndex) -> None:
    took = []
    for _ in range(9):
        began = time.thread_time()
        index.candidates({}, COSTLY[kind])
        took.append(time.thread_time() - began)
    print(f"{kind}: {min(took) * 1000:.2f} ms of CPU")
    assert min(took) < SCAN_SECONDS[len(COSTLY[kind]) > MB // 10]
