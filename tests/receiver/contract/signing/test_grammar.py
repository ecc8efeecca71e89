"""The grammar: which schemes are valid, which are refused, and with which message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from receiver.config import Config, load
from receiver.contract.errors import ConfigError, DeliveryRefused
from receiver.contract.signing.grammar import Scheme, SchemeError, Sources, encode_secret
from receiver.contract.signing.signatures import PRESETS, parse_timestamp
from receiver.contract.signing.sources import header_bytes, parse_source, scalar_text, written

STORE = """
[stores.north]
scheme = "acme"
signing_secrets = ["topsecret"]
"""


def load_text(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load(path, environ or {})


def error_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    return str(caught.value).replace(str(tmp_path) + "/", "")


OWN = Scheme("own", event=Sources(id=("header:x-id",), occurred=("header:x-time", "json:at"), sequence=("header:x-n",)))


@pytest.mark.parametrize(
    ("scheme", "signed"),
    [
        (PRESETS["shopify"], ["json:updated_at"]),
        (PRESETS["woocommerce"], ["json:date_modified_gmt", "json:date_created_gmt"]),
        (PRESETS["standard-webhooks"], ["json:timestamp"]),
        (PRESETS["ecwid"], ["json:eventCreated"]),
        (PRESETS["adyen"], []),
        (PRESETS["mercadopago"], []),
        (PRESETS["twilio"], []),
        (OWN, ["json:at"]),
        (replace(OWN, signed="{header:x-time}.{body}"), ["header:x-time", "json:at"]),
        (replace(OWN, signed="{header:x-n}.{body}"), ["json:at", "header:x-n"]),
        (
            replace(OWN, signed="{header:x-id}.{timestamp}", timestamp="header:x-time", allow_unsigned_body=True),
            ["header:x-time"],
        ),
    ],
)
def test_only_signed_times_and_numbers_say_which_event_is_newer(scheme: Scheme, signed: list[str]) -> None:
    assert [written(part) for what in ("occurred", "sequence") for part in scheme.read_from[what]] == signed


def test_no_other_preset_names_a_time_that_is_not_signed() -> None:
    """Their times say which event is newer; a new preset must have one that is signed, or none."""
    unused = {name for name, scheme in PRESETS.items() if not all(map(scheme.signs, scheme.event.occurred))}
    assert unused == {"shopify", "adyen", "mercadopago", "twilio"}


TIMED = {"timestamp": "header:x-time"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"headers": ()}, "headers", "name the header"),
    ({"headers": ("X Signature",)}, "headers", "not a valid header name"),
    ({"signed": "{timestamp}", "timestamp": "header:x-t"}, "signed", "allow_unsigned_body"),
    ({"signed": "constant", "allow_unsigned_body": True}, "signed", "same for every delivery"),
    ({"signed": "{body}{nonce}"}, "signed", "{nonce}, which is unknown"),
    ({"signed": "{body}{header:}"}, "signed", "unknown"),
    ({"signed": "{body:utf8}"}, "signed", "unknown"),
    ({"signed": "{body"}, "signed", "brace"),
    ({"signed": "{timestamp}.{body}"}, "timestamp", "set its source"),
    ({"timestamp": "cookie:t", "signed": "{timestamp}.{body}"}, "timestamp", "header:NAME"),
    ({"timestamp": "header:", "signed": "{timestamp}.{body}"}, "timestamp", "header:NAME"),
    ({"timestamp": "header:x-time"}, "timestamp", "is not signed"),
    ({"timestamp": "sig:t", "signed": "{timestamp}.{body}"}, "timestamp", "list_sep and pair_sep"),
    ({"timestamp": "sig:t", "signed": "{timestamp}.{body}", "list_sep": ","}, "timestamp", "list_sep and pair_sep"),
    (
        {"timestamp": "sig:t", "signed": "{timestamp}.{body}", "pair_sep": "=", "sig_keys": ("v1",)},
        "timestamp",
        "list_sep and pair_sep",
    ),
    (
        {
            "timestamp": "sig:v1",
            "signed": "{timestamp}.{body}",
            "list_sep": ",",
            "pair_sep": "=",
            "sig_keys": ("v1",),
        },
        "timestamp",
        "cannot be both",
    ),
    ({"sig_keys": ("v1",)}, "sig_keys", "needs pair_sep"),
    ({"pair_sep": "="}, "pair_sep", "needs sig_keys"),
    ({"pair_sep": ",", "list_sep": ",", "sig_keys": ("v1",)}, "list_sep", "the same"),
    ({"pair_sep": "=", "sig_keys": ("",)}, "sig_keys", "empty key"),
    ({"signed": "{header:x-topic}{timestamp}{header:x-id}{body}", **TIMED}, "signed", "no text between"),
    ({"signed": "{header:x-topic}{header:x-id}.{body}"}, "signed", "no text between"),
    ({"signed": "{header:x-topic}.{body}{header:x-id}"}, "signed", "no text between"),
    ({"signed": "{header:x-id}{timestamp}{body}", **TIMED, "tolerance": 0}, "signed", "no text between"),
    ({"event": Sources(topic=("cookie:topic",))}, "event.topic", "is not a source"),
    ({"event": Sources(topic=("body",))}, "event.topic", "is not a source"),
    ({"event": Sources(id=("header:",))}, "event.id", "is not a source"),
    ({"event": Sources(data=("header:x-data",))}, "event.data", 'is not a source; write "json:a.b", "body" or "form"'),
    ({"signed": "{cookie}{body}"}, "signed", "{form_sorted} {secret}"),
    ({"success": 199}, "success", "200 to 299"),
    ({"success": 300}, "success", "200 to 299"),
    ({"dedupe": "id"}, "dedupe", "not signed"),
    ({"topics": {"orders/create": "Order Created"}}, "topics", "order.created"),
    ({"success": 302}, "success", "200 to 299"),
    ({"tolerance": -1}, "tolerance", "0 turns it off"),
]


@pytest.mark.parametrize(("given", "key", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_an_insecure_or_meaningless_scheme_cannot_be_built(given: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(SchemeError) as caught:
        Scheme("acme", **given)
    assert caught.value.key == key
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "signed", ["{header:x-id}{timestamp}{body}", "{timestamp}{header:x-id}{body}", "{header:x-id}{body}", "{url}{body}"]
)
def test_a_single_header_may_touch_parts_that_end_in_one_place_only(signed: str) -> None:
    Scheme("acme", signed=signed, timestamp="header:x-time" if "{timestamp}" in signed else "")


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_an_empty_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        PRESETS["standard-webhooks"].key_of(secret)


@pytest.mark.parametrize(
    ("encoding", "text", "key"),
    [("utf8", "ab", b"ab"), ("hex", "6162", b"ab"), ("base64", "YWI=", b"ab"), ("base64", "YWI", b"ab")],
)
def test_a_secret_is_read_in_its_encoding(encoding: Any, text: str, key: bytes) -> None:
    assert Scheme("acme", secret_encoding=encoding).key_of(text) == key


@pytest.mark.parametrize(("encoding", "text"), [("hex", "616"), ("hex", "zz"), ("base64", "a b"), ("base64", "é")])
def test_a_secret_in_another_encoding_is_refused(encoding: Any, text: str) -> None:
    with pytest.raises(ValueError, match="it is not"):
        Scheme("acme", secret_encoding=encoding).key_of(text)


def test_dedupe_by_id_alone_is_allowed_for_a_signed_id() -> None:
    Scheme("acme", dedupe="id", event=Sources(id=("json:event_id",)))
    Scheme("acme", dedupe="id", event=Sources(id=("header:X-Id",)), signed="{header:x-id}.{body}")


def test_a_scheme_without_a_parent_starts_from_the_grammars_defaults(tmp_path: Path) -> None:
    config = load_text(tmp_path, '[schemes.acme]\nheaders = ["X-Sig"]\n' + STORE)
    assert config.known_stores["north"].scheme == Scheme("acme", headers=("X-Sig",))


def test_a_scheme_inherits_what_it_does_not_set(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        '[schemes.acme]\nextends = "shopify"\nheaders = ["X-Acme"]\n[schemes.acme.event]\nid = []\n'
        '[schemes.acme.topics]\n"orders/create" = "sale.made"\n' + STORE,
    )
    scheme = config.known_stores["north"].scheme
    assert scheme.headers == ("X-Acme",)
    assert scheme.event.id == ()
    assert scheme.event.topic == PRESETS["shopify"].event.topic
    assert scheme.topics["orders/create"] == "sale.made"
    assert scheme.topics["orders/paid"] == "order.paid"
    assert scheme.configured == {"orders/create"}


def test_a_scheme_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    text = '[schemes.base]\nextends = "stripe"\ntolerance = 60\n'
    text += '[schemes.acme]\nextends = "base"\nsuccess = 204\n'
    scheme = load_text(tmp_path, text + STORE).known_stores["north"].scheme
    assert (scheme.tolerance, scheme.success, scheme.timestamp) == (60, 204, "sig:t")


def test_a_scheme_may_extend_the_preset_of_its_own_name(tmp_path: Path) -> None:
    config = load_text(tmp_path, '[schemes.stripe]\nextends = "stripe"\ntolerance = 60\n')
    assert config.known_schemes["stripe"].tolerance == 60


CONFIGS = [
    (
        '[schemes.acme]\nheaders = ["X-Sig"]\ntolerance = 300\n',
        "config.toml:3: schemes.acme: tolerance needs a timestamp",
    ),
    ('[schemes.acme]\nencoding = "hex"\n', "config.toml:1: schemes.acme: name the header"),
    (
        '[schemes.acme]\nheaders = ["X-Sig"]\nsigned = "{url}"\n',
        "config.toml:3: schemes.acme: signed leaves out {body}",
    ),
    (
        '[schemes.acme]\nextends = "stripe"\n[schemes.acme.event]\ntopic = ["cookie:t"]\n',
        "config.toml:4: schemes.acme: 'cookie:t' is not a source",
    ),
    (
        '[schemes.acme]\nextends = "stripe"\npair_sep = ""\n',
        "config.toml:1: schemes.acme: sig_keys needs pair_sep",
    ),
    (
        '[schemes.acme]\nextends = "stripy"\n',
        "config.toml:2: there is no scheme stripy; did you mean stripe?",
    ),
    ('[schemes.acme]\nextends = "acme"\n', "extends itself"),
    ('[schemes.a]\nextends = "acme"\n[schemes.acme]\nextends = "a"\n', "extends itself"),
    (
        '[schemes.acme]\nheaders = ["X-Sig"]\ncoding = "hex"\n',
        "config.toml:3: unknown key schemes.acme.coding",
    ),
]


@pytest.mark.parametrize(("text", "message"), CONFIGS)
def test_the_error_for_a_bad_scheme_names_its_line_and_the_fix(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, text)


def test_the_error_for_a_bad_secret_names_its_line_and_does_not_show_it(tmp_path: Path) -> None:
    text = (
        '[stores.north]\nsigning_secrets = [\n  "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",\n'
        '  # the old one\n  {value = "not base64!", not_after = 2026-12-01T00:00:00Z},\n]\n'
    )
    message = error_of(tmp_path, text)
    assert "config.toml:5: stores.north.signing_secrets[1] cannot be used with standard-webhooks" in message
    assert "not base64!" not in message


def test_the_origin_of_each_secret_is_its_line(tmp_path: Path) -> None:
    text = '[stores.north]\nscheme = "github"\nsigning_secrets = [\n  "one",\n  "two",\n]\n'
    secrets = load_text(tmp_path, text).known_stores["north"].secrets
    assert [secret.origin.rpartition(":")[2] for secret in secrets] == ["4", "5"]


def test_more_than_16_secrets_are_refused(tmp_path: Path) -> None:
    text = f'[stores.north]\nscheme = "github"\nsigning_secrets = {[str(n) for n in range(17)]}\n'
    assert "keep the newest 16" in error_of(tmp_path, text)


def test_an_empty_secret_in_the_config_is_refused(tmp_path: Path) -> None:
    assert "it is empty" in error_of(tmp_path, '[stores.north]\nscheme = "github"\nsigning_secrets = [""]\n')


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        (PRESETS["standard-webhooks"], "whsec_AAEC/w=="),
        (Scheme("own", secret_encoding="hex", secret_prefix="key-"), "key-000102ff"),
        (PRESETS["github"], "000102ff"),
    ],
)
def test_a_new_key_is_written_in_the_form_of_its_scheme(scheme: Scheme, text: str) -> None:
    assert encode_secret(scheme, b"\0\1\2\xff") == text
    assert scheme.key_of(text) == (text.encode() if scheme.secret_encoding == "utf8" else b"\0\1\2\xff")


@pytest.mark.parametrize("source", ["header:x-topic", "query:topic", "json:a.b", "json:?a", "body", "const:order.paid"])
def test_a_source_is_shown_as_it_is_written(source: str) -> None:
    assert written(parse_source(source)) == source


def test_without_a_word_about_repetitions_the_body_counts_for_the_id() -> None:
    assert Scheme("own").dedupe == "id+body"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (12, "12"), (1.5, "1.5"), ("a", "a"), (None, None), ([], None)],
)
def test_what_a_store_signs_of_a_value_in_a_body(value: object, text: str | None) -> None:
    assert scalar_text(value) == text


@pytest.mark.parametrize(
    ("text", "sent"), [("caf\xe9", b"caf\xe9"), ("\u20ac", b"\xe2\x82\xac"), ("\ud800", b"\xed\xa0\x80")]
)
def test_a_header_is_signed_as_the_bytes_that_were_sent(text: str, sent: bytes) -> None:
    assert header_bytes(text) == sent


@pytest.mark.parametrize(
    ("unit", "what"),
    [("s", "whole seconds since 1970"), ("ms", "milliseconds since 1970"), ("rfc3339", "an RFC 3339 time")],
)
def test_a_refusal_says_which_form_of_time_was_expected(unit: Any, what: str) -> None:
    scheme = Scheme("own", timestamp="header:x-time", timestamp_unit=unit, signed="{timestamp}.{body}")
    with pytest.raises(DeliveryRefused, match=f"the timestamp is not {what}$"):
        parse_timestamp(scheme, "yesterday")
