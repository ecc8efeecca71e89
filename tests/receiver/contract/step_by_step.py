"""Judging a delivery step by step, straight from the grammar: slow, and with nothing made in advance.

`receive` must judge every delivery like this. Text of refusals is left out; their reasons count.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import orjson

from receiver.contract.errors import DeliveryRefused, Reason
from receiver.contract.event import UNREADABLE, Event, form_fields
from receiver.contract.intake import MAX_ID, MAX_TOPIC, Delivery, read_document
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import MAX_CANDIDATES, MAX_SIGNATURE_HEADER, check_timestamp, may_be_cut
from receiver.contract.stored_headers import MAX_HEADERS, is_credential
from receiver.contract.stores import Store, names_another_store
from receiver.contract.topics import translate

Headers = dict[str, str]
TIMES = {
    "s": r"0|[1-9][0-9]{0,15}",
    "ms": r"0|[1-9][0-9]{0,15}",
    "rfc3339": r"\d{4}-\d\d-\d\d[T ][\d:.]{8,18}(Z|[+-]\d\d:\d\d)",
}


def judge(headers: Headers, body: bytes, *, store: Store, now: float) -> Delivery:
    return read(headers, body, store, now, verified(store, headers, body, now))


def require(value: Any, reason: Reason) -> Any:
    if value is None or value is False or value == []:
        raise DeliveryRefused(reason, reason)
    return value


def value_at(source: str, headers: Headers, document: Any) -> Any:
    """The value at a source of an event."""
    kind, _, name = source.partition(":")
    if kind == "const":
        return name
    if kind in ("header", "query"):
        return headers.get(name.lower() if kind == "header" else f"?{name}")
    if kind == "form" and name:
        return document.get(name) if isinstance(document, dict) else None
    for step in name.split(".") if name else ():
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and re.fullmatch("[0-9]+", step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


# Verification


def verified(store: Store, headers: Headers, body: bytes, now: float) -> Secret:
    scheme = store.scheme
    places = [*(f"header:{name}" for name in scheme.headers), *scheme.signature]
    found = require([text for place in places if (text := text_at(place, headers, body))], "no-signature")
    require(all(len(text) <= MAX_SIGNATURE_HEADER for text in found), "malformed-signature")
    pairs = [
        pair_of(scheme, item.strip(), position)
        for text in found
        for position, item in enumerate(text.split(scheme.list_sep or "\0\0"))
    ]
    keys = scheme.sig_keys if scheme.sig_index < 0 else (str(scheme.sig_index),)
    texts = [value for key, value in pairs if not keys or key in keys][:MAX_CANDIDATES]
    candidates = require([mac for text in texts if (mac := mac_in(scheme, text))], "malformed-signature")
    signs_time = scheme.timestamp and (
        "{timestamp}" in scheme.signed or "{" + scheme.timestamp.lower() + "}" in scheme.signed.lower()
    )
    time = require(time_text(scheme, headers, body, pairs) or None, "no-timestamp") if signs_time else ""
    content = signed_bytes(scheme, headers, body, time, store.url)
    made = [
        secret
        for secret in store.secrets
        for candidate in candidates
        if mac_of(scheme, secret.key, content) == candidate
    ]
    active = [secret for secret in made if secret.is_active(now)]
    require(made, "signature-mismatch")
    require(active, "secret-expired")
    if scheme.timestamp and scheme.tolerance:
        text = require(time or time_text(scheme, headers, body, pairs) or None, "no-timestamp")
        check_timestamp(scheme, moment_of(scheme, text), now)
    elif signs_time and any(
        between in as_bytes(time) for left, between, right in scheme.joints if ("timestamp", "") in (left, right)
    ):
        moment_of(scheme, time)
    return active[0]


def mac_of(scheme: Scheme, key: bytes, content: bytes) -> bytes:
    if scheme.algorithm == "sha256":
        return hashlib.sha256(key + content if scheme.signed.startswith("{secret}") else content + key).digest()
    return hmac.new(key, content, scheme.algorithm.removeprefix("hmac-")).digest()


def pair_of(scheme: Scheme, item: str, position: int) -> tuple[str, str]:
    if scheme.sig_index >= 0:
        return str(position), item
    key, sep, value = item.partition(scheme.pair_sep) if scheme.pair_sep else ("", "", item)
    return (key, value) if sep or not scheme.pair_sep else ("", key)


def mac_in(scheme: Scheme, text: str) -> bytes | None:
    try:
        if scheme.encoding == "hex":
            mac = bytes.fromhex(text) if re.fullmatch("([0-9a-fA-F]{2})*", text) else b""
        elif scheme.encoding == "base64url":
            mac = base64.urlsafe_b64decode(text.rstrip("=").encode("ascii") + b"===")
            padded = base64.urlsafe_b64encode(mac).decode()
            mac = mac if text in (padded, padded.rstrip("=")) else b""
        else:
            mac = base64.b64decode(text.encode("ascii"), validate=True)
            mac = mac if base64.b64encode(mac).decode() == text else b""
    except (UnicodeEncodeError, binascii.Error):
        return None
    return mac if len(mac) == hashlib.new(scheme.digest).digest_size else None


def time_text(scheme: Scheme, headers: Headers, body: bytes, pairs: list[tuple[str, str]]) -> str | None:
    kind, _, name = scheme.timestamp.partition(":")
    if kind == "sig":
        return next((value for key, value in pairs if key == name), None)
    return text_at(scheme.timestamp, headers, body)


def text_at(source: str, headers: Headers, body: bytes) -> str | None:
    kind, _, name = source.partition(":")
    if kind == "json":
        return scalar_at(name, body)
    return fields_of(body).get(name) if kind == "form" else value_at(source, headers, None)


def fields_of(body: bytes) -> dict[str, str]:
    """The fields of a form; every byte as one character."""
    return dict(parse_qsl(body.decode(), True, encoding="latin-1")) if form_fields(body) is not None else {}


def moment_of(scheme: Scheme, text: str) -> float:
    require(bool(re.fullmatch(TIMES[scheme.timestamp_unit], text, re.ASCII)), "malformed-timestamp")
    if scheme.timestamp_unit != "rfc3339":
        return int(text) / (1000 if scheme.timestamp_unit == "ms" else 1)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise DeliveryRefused("malformed-timestamp", "") from None


def signed_bytes(scheme: Scheme, headers: Headers, body: bytes, time: str, url: str) -> bytes:
    content = b""
    for literal, placeholder in re.findall(r"([^{}]*)(?:\{([^{}]*)\})?", scheme.signed):
        content += literal.encode()
        kind = placeholder.partition(":")[0]
        if kind == "body":
            content += body
        elif kind in ("url", "path"):
            content += (url if kind == "url" else "/" + url.split("/", 3)[3].split("?", maxsplit=1)[0]).encode()
        elif kind == "method":
            content += b"POST"
        elif kind == "body_sha256":
            content += hashlib.sha256(body).hexdigest().encode()
        elif kind == "body_sha256_base64":
            content += base64.b64encode(hashlib.sha256(body).digest())
        elif kind == "form_sorted":
            require(form_fields(body) is not None, "incomplete")
            pairs = sorted(set(parse_qsl(body.decode(), True, encoding="latin-1")))
            content += "".join(key + value for key, value in pairs).encode("latin-1")
        elif kind == "timestamp" or (placeholder and placeholder.lower() == scheme.timestamp.lower()):
            content += as_bytes(time)
        elif kind and kind != "secret":
            text = text_at(placeholder.removesuffix("?"), headers, body)
            text = require_text(text, optional=placeholder.endswith("?") and has_kind(kind, body))
            content += text.encode("utf-8", "surrogatepass") if kind == "json" else as_bytes(text)
    return content


def has_kind(kind: str, body: bytes) -> bool:
    """Whether the body is JSON, or a form, if the field is one of such a body."""
    if kind == "form":
        return form_fields(body) is not None
    try:
        return kind != "json" or orjson.loads(body) is not None
    except orjson.JSONDecodeError:
        return False


def require_text(text: str | None, *, optional: bool) -> str:
    if text is None and not optional:
        raise DeliveryRefused("incomplete", "incomplete")
    return text or ""


def scalar_at(path: str, body: bytes) -> str | None:
    try:
        value = value_at(f"json:{path}", {}, orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    return scalar(value)


def scalar(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def as_bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


# Reading


def read(headers: Headers, body: bytes, store: Store, now: float, secret: Secret) -> Delivery:
    scheme = store.scheme
    document, problem = read_document(body)
    readable = not problem
    require(not names_another_store(store, headers, document), "wrong-store")
    form = form_fields(body) is not None
    cut = (form or not readable) and may_be_cut(scheme, headers, body, is_form=form)
    extended = not readable and scheme.algorithm == "sha256" and scheme.signed.startswith("{secret}")
    require(not cut and not extended, "ambiguous")

    def first(sources: tuple[str, ...]) -> Any:
        found = [source for source in sources if value_at(source, headers, document) not in (None, "")]
        value = value_at(found[0], headers, document) if found else None
        return value_at(found[0], headers, json.loads(body)) if isinstance(value, float) else value

    def text(sources: tuple[str, ...]) -> str:
        value = first(sources)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""

    theirs, delivery_id = text(scheme.event.topic), text(scheme.event.id)
    topic = translate(theirs, scheme.topics)
    if readable and not topic:
        problem = f"no topic at {' or '.join(scheme.event.topic) or 'any source'}"
    objects = [
        source
        for source in scheme.event.data
        if source in ("body", "form") or isinstance(value_at(source, {}, document), dict)
    ]
    data_path = objects[0].partition(":")[2] if objects else ""
    names = [name for name in headers if not is_credential(name) or name in scheme.reads - {"authorization", "cookie"}]
    names.sort(key=lambda name: len(names) > MAX_HEADERS and name not in scheme.reads)
    own, first_id, others_count = identity(store, headers, body, document, delivery_id, readable)
    return Delivery(
        event=Event(
            id=own,
            store=store.name,
            topic=UNREADABLE if problem else topic,
            received_at=datetime.fromtimestamp(now, UTC),
            body=body,
            headers={name: headers[name] for name in names[:MAX_HEADERS]},
            delivery_id=bounded(delivery_id, MAX_ID),
            resource_id=bounded(text(scheme.event.resource_id), MAX_ID),
            occurred_at=time_of(first(tuple(one for one in scheme.event.occurred if is_signed(scheme, one)))),
            data_path=data_path,
        ),
        theirs=bounded(theirs, MAX_TOPIC),
        unreadable=problem,
        signed_with=secret.fingerprint,
        first_id=first_id,
        others_count=others_count,
    )


def is_signed(scheme: Scheme, source: str) -> bool:
    placeholders = re.findall(r"\{([^{}]*?)\??\}", scheme.signed.replace("{timestamp}", "{" + scheme.timestamp + "}"))
    whole = {"body", "body_sha256", "body_sha256_base64"}.intersection(placeholders)
    return source.lower() in map(str.lower, placeholders) or bool(whole and source.startswith(("json:", "form:")))


def identity(
    store: Store, headers: Headers, body: bytes, document: Any, delivery_id: str, readable: bool
) -> tuple[str, str, bool]:
    """The event's id, its id if it is the first body under its delivery id, and whether other bodies count."""
    scheme = store.scheme
    if not delivery_id:
        return "", "", False
    found = next(
        part for part in scheme.event.parts["id"] if value_at(":".join(part), headers, document) not in (None, "")
    )
    run = scheme.joined_ids.get(found, ())
    whole = any(placeholder in scheme.signed for placeholder in ("{body}", "{body_sha256}", "{body_sha256_base64}"))
    movable = ("header",) if whole else ("header", "json", "form")

    def signed_as(part: tuple[str, str]) -> bytes:
        value = value_at(":".join(part), headers, document)
        if part[0] == "header":
            return as_bytes(value or "")
        text = (
            str(value).lower()
            if isinstance(value, bool)
            else str(value)
            if isinstance(value, str | int | float)
            else ""
        )
        return text.encode("utf-8", "surrogatepass")

    joined = b"".join(part if isinstance(part, bytes) else signed_as(part) for part in run)
    key = b"joined\0" + joined if joined else b"id\0" + delivery_id.encode("utf-8", "surrogatepass")
    ids = [part for part in scheme.event.parts["id"] if part[0] in movable]
    beside = [(part, between) for left, between, right in scheme.joints for part in (left, right) if part in ids]
    separated = any(between in signed_as(part) for part, between in beside)
    by_header = any(part[0] == "header" for part, _ in beside)
    is_json = readable and form_fields(body) is None
    alone = scheme.dedupe == "id" and (bool(joined) or not separated) and (is_json or not by_header)
    by_id, by_body = hashed(store, key), hashed(store, b"id+body\0%d\0" % len(key) + key + body)
    return (by_id, "", whole) if alone else (by_body, "" if scheme.dedupe == "id" else by_id, False)


def hashed(store: Store, key: bytes) -> str:
    digest = hashlib.sha256(store.name.encode() + b"\0" + key).digest()[:26]
    return "".join("abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in digest)


def bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def time_of(value: Any) -> datetime | None:
    try:
        if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,16}(\.[0-9]{1,9})?", value):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
            return datetime.fromtimestamp(number / 1000 if number > 10**11 else number, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
