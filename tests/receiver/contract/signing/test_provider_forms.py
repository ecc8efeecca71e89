"""The forms in which providers sign: places of the signature, algorithms, contents and bodies of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from receiver.config import load
from receiver.contract.diagnosis.detect import to_toml
from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import Scheme, Sources

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
        signed="{form:id}|{form:topic}|{form:at}",
        timestamp="form:at",
        allow_unsigned_body=True,
        event=Sources(topic=("form:topic",), id=("form:id",), resource_id=("form:order.id",), data=("form",)),
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
