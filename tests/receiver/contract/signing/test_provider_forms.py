"""The forms in which providers sign: places of the signature, algorithms, contents and bodies of each kind."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from receiver.config import load
from receiver.contract.compose import Request, compose
from receiver.contract.diagnosis.detect import to_toml
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.errors import ConfigError, DeliveryRefused
from receiver.contract.event import Event, form_fields, is_form
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Scheme, Secret, Sources
from receiver.contract.signing.signatures import sign, verify
from receiver.contract.signing.sources import query_fields, with_query
from receiver.contract.stored_headers import is_credential
from receiver.contract.stores import Store
from tests.support.deliveries import NOW, URL

SCHEMES = {
    "recharge": Scheme("recharge", headers=("X-Sig",), algorithm="sha256", signed="{secret}{body}"),
    "suffix": Scheme("suffix", headers=("X-Sig",), algorithm="sha256", signed="{body}{secret}"),
    "sha1": Scheme("sha1", headers=("X-Sig",), algorithm="hmac-sha1", encoding="base64"),
    "url-safe": Scheme("url-safe", headers=("X-Sig",), encoding="base64url"),
    "two headers": Scheme(
        "two", headers=("X-Primary", "X-Secondary"), signed="{body}{timestamp}", timestamp="header:x-t"
    ),
    "positional": Scheme(
        "positional", headers=("X-Sig",), list_sep=",", sig_index=1, signed="{timestamp}.{body}", timestamp="sig:0"
    ),
    "mailgun": Scheme(
        "mailgun",
        headers=(),
        signature=("json:signature.signature",),
        signed="{timestamp}{json:signature.token}",
        timestamp="json:signature.timestamp",
        allow_unsigned_body=True,
        dedupe="id",
        event=Sources(topic=("json:event-data.event",), id=("json:signature.token",)),
    ),
    "adyen": Scheme(
        "adyen",
        headers=(),
        signature=("json:items.0.item.additionalData.hmacSignature",),
        encoding="base64",
        secret_encoding="hex",
        signed="{json:items.0.item.pspReference}:{json:items.0.item.originalReference?}:{json:items.0.item.eventCode}",
        allow_unsigned_body=True,
        dedupe="id",
        event=Sources(
            topic=("json:items.0.item.eventCode",),
            id=("json:items.0.item.pspReference",),
            resource_id=("json:items.0.item.pspReference",),
            data=("json:items.0.item",),
        ),
    ),
    "twilio": Scheme(
        "twilio",
        headers=("X-Twilio-Signature",),
        algorithm="hmac-sha1",
        encoding="base64",
        signed="{url}{form_sorted}",
        event=Sources(topic=("const:message.received",), id=("form:MessageSid",), resource_id=(), data=("form",)),
    ),
    "form field": Scheme(
        "form-field",
        headers=(),
        signature=("form:sig",),
        signed="{form:event_id}|{form:topic}|{form:at}",
        timestamp="form:at",
        allow_unsigned_body=True,
        event=Sources(topic=("form:topic",), id=("form:event_id",), resource_id=("form:order.id",), data=("form",)),
    ),
    "query": Scheme(
        "query",
        headers=("x-signature",),
        list_sep=",",
        pair_sep="=",
        sig_keys=("v1",),
        signed="id:{query:data.id};request-id:{header:x-request-id};ts:{timestamp};",
        timestamp="sig:ts",
        allow_unsigned_body=True,
        event=Sources(
            topic=("json:type",), id=("header:x-request-id",), resource_id=("query:data.id",), data=("body",)
        ),
    ),
    "signature in the query": Scheme("in-query", headers=(), signature=("query:hmac",), signed="{body}"),
    "path": Scheme(
        "path",
        headers=("X-Sig",),
        signed="{method}\n{path}\n{body_sha256}\n{timestamp}",
        timestamp="header:x-time",
        event=Sources(id=("json:id",)),
        dedupe="id",
    ),
    "hash in base64": Scheme("hashed", headers=("X-Sig",), signed="{path}&{body_sha256_base64}"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_printed_toml_of_a_scheme_is_the_scheme(name: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    path = tmp_path / "config.toml"
    path.write_text(to_toml(scheme, scheme.name))
    assert load(path, {}).known_schemes[scheme.name] == scheme


@pytest.mark.parametrize(
    ("lines", "key", "fix"),
    [
        ('headers = ["X-Sig"]\n[schemes.s.event]\ntopic = []', "topic", "const:"),
        ('headers = ["X-Sig"]\n[schemes.s.event]\nid = ["const:a"]', "id", "is not a source"),
        ('headers = ["X-Sig"]\n[schemes.s.event]\ntopic = ["const:"]', "topic", "is not a source"),
        ("signature = []\nheaders = []", "headers", "name the header"),
        ('signature = ["json:s"]', "signed", "list the fields"),
        ('signature = ["form:s"]\nsigned = "{form_sorted}"', "signed", "list the fields"),
        ('signature = ["header:s"]', "signature", "in headers"),
        ('signature = ["json:s"]\nsigned = "{json:s}"\nallow_unsigned_body = true', "signed", "the signature itself"),
        ('headers = ["X-Sig"]\nalgorithm = "sha256"', "signed", "{secret}"),
        ('headers = ["X-Sig"]\nsigned = "{secret}{body}"', "signed", "remove it"),
        ('headers = ["X-Sig"]\nalgorithm = "sha256"\nsigned = "a{secret}{body}"', "signed", "first or last"),
        ('headers = ["X-Sig"]\nalgorithm = "sha256"\nsigned = "{secret}{body}{header:x-id}"', "signed", "add bytes"),
        ('headers = ["X-Sig"]\nsig_index = 1', "sig_index", "list_sep"),
        ('headers = ["X-Sig"]\nlist_sep = ","\nsig_index = 99', "sig_index", "0 to 15"),
        (
            'headers = ["X-Sig"]\nlist_sep = ","\nsig_index = 1\nsigned = "{timestamp}{body}"\ntimestamp = "sig:1"',
            "timestamp",
            "position",
        ),
        (
            'headers = ["X-Sig"]\nsigned = "{url}{path}{method}"\nallow_unsigned_body = true',
            "signed",
            "the same for every",
        ),
        (
            'headers = ["X-Sig"]\nsigned = "{json:a}{json:b}"\nallow_unsigned_body = true',
            "signed",
            "no text between them",
        ),
        ('headers = ["X-Sig"]\nsigned = "{query:a}{query:b}{body}"', "signed", "no text between them"),
        ('headers = ["X-Sig"]\nsigned = "{query}{body}"', "signed", "{query}, which is unknown"),
        (
            'headers = ["X-Sig"]\nsigned = "{header:a}{body}"\n[schemes.s.event]\ndata = ["form"]',
            "signed",
            "a part of a form to the header",
        ),
        (
            'headers = ["X-Sig"]\nsigned = "{body}{method}{header:a}"\n[schemes.s.event]\ndata = ["form"]',
            "signed",
            "a part of a form to the header",
        ),
        ('headers = ["X-Sig"]\nsigned = "{header:a}{form_sorted}"', "signed", "a part of a form to the header"),
        ('headers = ["X-Sig"]\nsigned = "{url}{form_sorted?}"', "signed", "remove the question mark"),
        ('headers = ["X-Sig"]\nbatch = "body"\ntimestamp = "json:sent"', "timestamp", "json:0.NAME"),
        ('headers = ["X-Sig"]\nbatch = "body"\nsigned = "{json:id}.{body}"', "signed", "json:0.NAME"),
        ('headers = ["X-Sig"]\nbatch = "json:events"\nsigned = "{form:id}.{body}"', "signed", "never found"),
        (
            'headers = ["X-Sig"]\nbatch = "json:events"\nsigned = "{json:id}"\nallow_unsigned_body = true',
            "batch",
            "add events to the list",
        ),
        (
            'headers = ["X-Sig"]\nsigned = "{url}{form_sorted}"\ndedupe = "id"\n[schemes.s.event]\nid = ["form:id"]',
            "dedupe",
            "not signed",
        ),
        (f"headers = {[f'X-{number}' for number in range(9)]}", "headers", "remove some"),
    ],
)
def test_an_unsafe_scheme_is_refused_with_the_fix(lines: str, key: str, fix: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[schemes.s]\n{lines}\n")
    with pytest.raises(ConfigError, match=r"schemes\.s") as error:
        load(path, {})
    assert fix in str(error.value)
    wanted = next((at for at, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(f"{key} =")), 1)
    assert f"config.toml:{wanted}:" in str(error.value)


# Signing and verifying

NAMES = list(SCHEMES)
DATA = {"id": 7, "total": "42.00", "note": "Größe & = %"}


def store_of(scheme: Scheme) -> Store:
    secret = "00112233445566778899aabbccddeeff"
    return Store("shop", scheme, (Secret(scheme.key_of(secret)),), url="https://hooks.example.com/webhooks/shop?x=1")


def composed(scheme: Scheme, **how: Any) -> Request:
    given = {"topic": "order.created", "delivery_id": "d-1", "data": DATA, "now": NOW, **how}
    return compose(store_of(scheme), **given)


@pytest.mark.parametrize("name", NAMES)
def test_a_composed_delivery_is_verified_and_read(name: str) -> None:
    scheme = SCHEMES[name]
    request = composed(scheme)
    delivery = receive(request.headers, request.body, store=store_of(scheme), now=NOW)
    assert not delivery.unreadable
    assert delivery.event.topic == ("message.received" if name == "twilio" else "order.created")
    assert delivery.event.delivery_id == "d-1"
    assert delivery.event.data["total"] == "42.00"
    assert delivery.event.data["note"] == DATA["note"]
    again = receive(request.headers, request.body, store=store_of(scheme), now=NOW)
    assert again.event.id == delivery.event.id


@pytest.mark.parametrize("name", NAMES)
def test_another_secret_is_refused(name: str) -> None:
    scheme = SCHEMES[name]
    request = composed(scheme)
    with pytest.raises(DeliveryRefused, match="invalid signature"):
        verify(scheme, secrets=[Secret(b"other")], headers=request.headers, body=request.body, now=NOW, url=URL)


LITERAL = b'{"id":1}'
KEY = Secret(b"key")


def refusal(scheme: Scheme, headers: dict[str, str], body: bytes = LITERAL, url: str = URL) -> str:
    """The reason why a delivery is refused; empty if it is valid."""
    try:
        verify(scheme, secrets=[KEY], headers=headers, body=body, now=NOW, url=url)
    except DeliveryRefused as error:
        return error.reason
    return ""


def hmac_of(content: bytes, digest: str = "sha256") -> bytes:
    return hmac.digest(b"key", content, digest)


def test_each_algorithm_is_the_one_of_its_name() -> None:
    sha1 = b64encode(hmac_of(LITERAL, "sha1")).decode()
    assert refusal(SCHEMES["sha1"], {"x-sig": sha1}) == ""
    assert refusal(SCHEMES["recharge"], {"x-sig": hashlib.sha256(b"key" + LITERAL).hexdigest()}) == ""
    assert refusal(SCHEMES["suffix"], {"x-sig": hashlib.sha256(LITERAL + b"key").hexdigest()}) == ""
    assert refusal(SCHEMES["suffix"], {"x-sig": hmac_of(LITERAL).hex()}) == "signature-mismatch"


def test_url_safe_base64_is_read_with_and_without_padding() -> None:
    bodies = [b'{"id":%d}' % number for number in range(60)]
    texts = [urlsafe_b64encode(hmac_of(body)).decode() for body in bodies]
    assert any("-" in text for text in texts)
    assert any("_" in text for text in texts)
    for body, text in zip(bodies, texts, strict=True):
        assert refusal(SCHEMES["url-safe"], {"x-sig": text}, body) == ""
        assert refusal(SCHEMES["url-safe"], {"x-sig": text.rstrip("=")}, body) == ""
        standard = b64encode(hmac_of(body)).decode()
        assert refusal(SCHEMES["url-safe"], {"x-sig": standard}, body) == (
            "" if standard == text else "malformed-signature"
        )
        assert refusal(SCHEMES["url-safe"], {"x-sig": text + "="}, body) == "malformed-signature"


@pytest.mark.parametrize("fits", ["x-primary", "x-secondary"])
def test_any_of_several_signature_headers_may_fit(fits: str) -> None:
    """Box and DocuSign send one signature for each key: during a rotation, one of them is ours."""
    valid, other = hmac_of(LITERAL + b"%d" % NOW).hex(), "00" * 32
    headers = {"x-primary": other, "x-secondary": other, "x-t": str(int(NOW))}
    assert refusal(SCHEMES["two headers"], headers) == "signature-mismatch"
    assert refusal(SCHEMES["two headers"], {**headers, fits: valid}) == ""
    assert refusal(SCHEMES["two headers"], {fits: valid, "x-t": headers["x-t"]}) == ""


def test_a_positional_header_holds_timestamp_and_signature() -> None:
    text = str(int(NOW))
    mac = hmac_of(text.encode() + b"." + LITERAL).hex()
    assert refusal(SCHEMES["positional"], {"x-sig": f"{text},{mac}"}) == ""
    assert refusal(SCHEMES["positional"], {"x-sig": f"{text}, {mac},v2"}) == ""
    assert refusal(SCHEMES["positional"], {"x-sig": f"{mac},{text}"}) == "malformed-signature"
    assert refusal(SCHEMES["positional"], {"x-sig": mac}) == "malformed-signature"
    late = str(int(NOW) - 301)
    mac = hmac_of(late.encode() + b"." + LITERAL).hex()
    assert refusal(SCHEMES["positional"], {"x-sig": f"{late},{mac}"}) == "too-old"


def test_an_optional_field_that_is_missing_is_an_empty_text() -> None:
    scheme, key = SCHEMES["adyen"], Secret(b"key")
    mac = b64encode(hmac_of(b"psp::AUTHORISATION")).decode()
    item = {"pspReference": "psp", "eventCode": "AUTHORISATION", "additionalData": {"hmacSignature": mac}}
    assert refusal(scheme, {}, orjson.dumps({"items": [{"item": item}]})) == ""
    changed = {**item, "originalReference": "x"}
    assert refusal(scheme, {}, orjson.dumps({"items": [{"item": changed}]})) == "signature-mismatch"
    del item["eventCode"]
    assert refusal(scheme, {}, orjson.dumps({"items": [{"item": item}]})) == "incomplete"
    assert key == KEY


def test_the_sorted_form_is_that_of_twilio() -> None:
    """Names and values in the order of names, of a repeated name each value once."""
    url = "https://example.com/x"
    body = b"To=%2B1&Body=a+b%26c&From=%2B2&Media=2&Media=1&Media=2&Empty="
    content = url + "Bodya b&cEmptyFrom+2Media1Media2To+1"
    headers = {"x-twilio-signature": b64encode(hmac_of(content.encode(), "sha1")).decode()}
    assert refusal(SCHEMES["twilio"], headers, body, url=url) == ""
    assert refusal(SCHEMES["twilio"], headers, body + b"&New=1", url=url) == "signature-mismatch"
    assert refusal(SCHEMES["twilio"], headers, b'{"To":"+1"}', url=url) == "incomplete"


def test_method_path_and_hash_of_the_body_are_signed() -> None:
    digest = hashlib.sha256(LITERAL)
    content = f"POST\n/webhooks/shop\n{digest.hexdigest()}\n{int(NOW)}"
    headers = {"x-sig": hmac_of(content.encode()).hex(), "x-time": str(int(NOW))}
    url = "https://hooks.example.com/webhooks/shop?a=b"
    assert refusal(SCHEMES["path"], headers, url=url) == ""
    assert refusal(SCHEMES["path"], headers, LITERAL + b" ", url=url) == "signature-mismatch"
    content = f"/webhooks/shop&{b64encode(digest.digest()).decode()}"
    assert refusal(SCHEMES["hash in base64"], {"x-sig": hmac_of(content.encode()).hex()}, url=url) == ""


def test_url_safe_base64_is_written_without_padding() -> None:
    made = sign(SCHEMES["url-safe"], secret=KEY, headers={}, body=LITERAL, now=NOW)
    assert made.headers["x-sig"] == urlsafe_b64encode(hmac_of(LITERAL)).decode().rstrip("=")


def test_a_query_field_may_be_a_credential_by_its_name() -> None:
    names = ["?token", "?Token", "?pass", "?Key", "?api_key", "?hmac", "?Signature", "?shop"]
    assert [is_credential(name) for name in names] == [True] * 5 + [False] * 3


def test_query_fields_are_decoded_bounded_and_never_control_characters() -> None:
    assert query_fields("a=1&b=x%20y+z&a=2&&c&=d&E=%C3%A9") == {"?a": "1", "?b": "x y z", "?c": "", "?E": "Ã©"}
    assert query_fields("a=1%0Ab&b%0D=1&c%3A=1") == {}
    assert len(query_fields("&".join(f"n{number}=1" for number in range(4000)))) == 64
    url, headers = with_query("/webhooks/shop", {"?a b": "x&y", "?é": "Ã©", "x-id": "1"})
    assert headers == {"x-id": "1"}
    assert query_fields(url.partition("?")[2]) == {"?é": "Ã©"}


@pytest.mark.parametrize("name", NAMES)
def test_the_weak_algorithms_and_contents_are_named(name: str) -> None:
    found = " ".join(caveats(SCHEMES[name]))
    assert ("HMAC-SHA1 is weak" in found) == (name in ("sha1", "twilio"))
    assert ("SHA-256(secret + body) is weak" in found) == (name == "recharge")
    assert ("text can be moved" in found) == (name == "twilio")


def test_a_body_with_bytes_added_by_length_extension_is_refused() -> None:
    """SHA-256(secret + body) can be continued without the secret. What is added can never be read."""
    glue = b"\x80" + b"\0" * 52 + (8 * len(b"key" + LITERAL)).to_bytes(8, "big")
    extended = LITERAL + glue + b'{"id":2}'
    headers = {"x-sig": hashlib.sha256(b"key" + extended).hexdigest()}
    store = Store("shop", SCHEMES["recharge"], (KEY,))
    with pytest.raises(DeliveryRefused) as error:
        receive(headers, extended, store=store, now=NOW)
    assert error.value.reason == "ambiguous"


# Forms


@pytest.mark.parametrize(
    "body", [b"a=%zz", b"a=%4", b"a", b"a&b=1", b'a="', b"a=1 2", b"a=\xc3\xa9", b"{a=1}", b"a=1\n"]
)
def test_what_is_not_a_form_is_none(body: bytes) -> None:
    assert form_fields(body) is None


def test_a_form_is_a_document_of_texts() -> None:
    body = b"a=1&a=2&b=&c&Gr%C3%B6%C3%9Fe=x%3Dy=z&n=%00%ff&&items%5B0%5D=1&p[q]=2"
    fields = form_fields(body)
    assert fields == {"a": "2", "b": "", "c": "", "Größe": "x=y=z", "n": "\0\ufffd", "items[0]": "1", "p[q]": "2"}
    assert fields == dict(parse_qsl(body.decode(), keep_blank_values=True))
    event = Event("1", "shop", "order.created", datetime.now(UTC), body)
    assert event.payload == event.data == fields
    assert event.record is not None


@pytest.mark.full
@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1, max_size=20))
def test_every_encoded_form_is_read_back(fields: dict[str, str]) -> None:
    assume(not any("\ud800" <= letter <= "\udfff" for text in (*fields, *fields.values()) for letter in text))
    assert form_fields(urlencode(fields).encode()) == fields


@pytest.mark.full
@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_json_and_no_part_of_it_is_a_form(document: Any) -> None:
    """So that no delivery can be read in two ways, and no cut JSON body as a form."""
    body = json.dumps([document, "a=b&c=d"]).encode()
    assert not any(is_form(body[at:]) or is_form(body[:at]) for at in range(len(body) + 1))


def test_a_form_that_is_long_to_read_is_not_read() -> None:
    assert form_fields(b"&".join([b"a=1"] * 1000)) == {"a": "1"}
    assert form_fields(b"&".join([b"a=1"] * 1001)) is None
    assert form_fields(b"a=" + b"=" * 2000) is None
    assert form_fields(b"a=" + b"%41" * 100_001) is None
    started = time.process_time()
    assert form_fields(b"a=" + b"%41" * 100_000) == {"a": "A" * 100_000}
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("name", ["mailgun", "adyen", "form field", "signature in the query"])
def test_signing_again_replaces_the_signature(name: str) -> None:
    scheme = SCHEMES[name]
    request = composed(scheme)
    other = Secret(b"other")
    again = sign(scheme, secret=other, headers=request.headers, body=request.body, now=NOW, url=URL)
    headers = {**request.headers, **again.headers}
    assert verify(scheme, secrets=[other], headers=headers, body=again.body, now=NOW, url=URL).secret == other


def test_fields_of_an_unsigned_body_are_one_event_however_they_are_cut() -> None:
    """The same signed text under another id must not be another event: the joined text of the fields is the id."""
    scheme, mac = SCHEMES["adyen"], b64encode(hmac_of(b"a:b:c:d")).decode()

    def event_of(psp: str, original: str, code: str) -> str:
        item = {"pspReference": psp, "originalReference": original, "eventCode": code}
        body = orjson.dumps({"items": [{"item": {**item, "additionalData": {"hmacSignature": mac}}}]})
        return receive({}, body, store=Store("shop", scheme, (KEY,)), now=NOW).event.id

    assert event_of("a", "b:c", "d") == event_of("a:b", "c", "d") == event_of("a", "b", "c:d")


def test_an_id_between_a_timestamp_and_its_separator_counts_with_its_body_if_it_has_the_separator() -> None:
    """A field that is signed next to no other movable part."""
    event = Sources(topic=("const:a.b",), id=("json:id",), data=("body",))
    scheme = Scheme(
        "dated",
        headers=("X-Sig",),
        signed="{timestamp}.{json:id}",
        timestamp="header:x-time",
        allow_unsigned_body=True,
        dedupe="id",
        event=event,
    )
    store = Store("shop", scheme, (KEY,))

    def event_of(own_id: str, extra: int) -> str:
        body, text = orjson.dumps({"id": own_id, "n": extra}), str(int(NOW))
        headers = {"x-time": text, "x-sig": hmac_of(f"{text}.{own_id}".encode()).hex()}
        return receive(headers, body, store=store, now=NOW).event.id

    assert event_of("a", 1) == event_of("a", 2)
    assert event_of("a.b", 1) != event_of("a.b", 2)
