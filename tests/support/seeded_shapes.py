"""Seeded shapes: invented providers, each with its own way to sign and to write topic, id and resource.

A shape signs by itself, with `hmac` and `hashlib`, so that it does not share the code that it tests.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import urlencode

HOST = "hooks.example.com"
TARGET = "/webhooks/north?tenant=t-91"
URL = f"https://{HOST}{TARGET}"
START = 1_700_000_000
KINDS = ("order", "product", "customer", "invoice", "payment", "refund", "shipment")
ACTIONS = ("created", "updated", "deleted", "cancelled")
STYLES = ("{0}.{1}", "{0}s/{1}", "{0}:{1}", "{0}_{1}", "{0}-{1}", "{K}_{A}", "{C}{D}")
SEPARATORS = (".", ".", ".", ":", ":", "", "|", "\n", "&", ";", ",", "-", "_", "::", "+", " ", "#", "/", "\r\n")
TOPIC_HEADERS = ("topic", "event", "event-type", "webhook-topic", "event-name", "event-key", "webhook-event")
TOPIC_FIELDS = (
    "type", "event", "topic", "event_type", "eventType", "scope", "event_name", "trigger", "kind", "webhookEvent",
    "meta.event_name", "event.type", "triggerType", "notification.type",
)  # fmt: skip
ID_HEADERS = ("delivery", "delivery-id", "message-id", "event-id", "notification-id", "webhook-delivery-id")
ID_FIELDS = ("event_id", "eventId", "delivery_id", "message_id", "notificationId", "meta.event_id", "id")
RESOURCE_FIELDS = (
    "data.id", "data.id", "data.object.id", "resource.id", "payload.id", "{k}.id", "data.{k}.id", "{k}_id", "{k}Id",
    "resource_id", "data.{k}_id", "object_id", "id",
)  # fmt: skip
TIME_FIELDS = ("timestamp", "created_at", "occurred_at", "createdAt", "meta.sent_at")


@dataclass(frozen=True)
class Message:
    """One delivery of a shape, and what it means."""

    headers: dict[str, str]
    body: bytes
    topic: str
    id: str
    resource_id: str


class Shape:
    """An invented provider. The same seed makes the same provider and the same messages."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        r = self.random = Random(seed)
        vendor = r.choice(("acme", "northwind", "globex", "initech", "hooli"))
        self.prefix = r.choice((f"x-{vendor}-", f"{vendor}-", "x-"))
        self._choose_secret(vendor)
        self._choose_places()
        self._choose_signature()
        self._choose_content()
        self.decoys = r.sample(range(12), r.randrange(7))

    def _choose_secret(self, vendor: str) -> None:
        r = self.random
        self.key = r.randbytes(r.choice((16, 24, 32)))
        kind = r.choice(("text", "text", "text", "hex", "base64", "prefixed"))
        text = {"hex": self.key.hex(), "base64": b64encode(self.key).decode()}.get(kind, "")
        if kind == "text":
            text = "".join(r.choices("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789-._", k=29))
            self.key = text.encode()
        self.secret_prefix = f"{vendor}_" if kind == "prefixed" else ""
        self.secret_encoding = {"text": "utf8", "prefixed": "base64"}.get(kind, kind)
        if kind == "prefixed":
            text = self.secret_prefix + b64encode(self.key).decode()
        self.secret = text

    def _choose_places(self) -> None:
        r = self.random
        self.style = r.choice(STYLES)
        self.is_form = r.random() < 0.06
        in_header = r.random() < 0.4
        fields = [name for name in TOPIC_FIELDS if "." not in name or not self.is_form]
        self.topic = f"header:{self.prefix}{r.choice(TOPIC_HEADERS)}" if in_header else f"json:{r.choice(fields)}"
        resources = [name for name in RESOURCE_FIELDS if "." not in name or not self.is_form]
        self.resource = r.choice(resources)
        self.kinds = (r.choice(KINDS),) if "{k}" in self.resource else KINDS
        is_flat = self.resource == "id"
        roll = r.random()
        self.id = ""
        if roll < 0.4:
            self.id = f"header:{self.prefix}{r.choice(ID_HEADERS)}"
        elif roll < 0.8:
            ids = [name for name in ID_FIELDS if not (name == "id" and (is_flat or in_header or self.is_form))]
            ids = [name for name in ids if name != "id" or "." in self.resource]
            self.id = f"json:{r.choice([name for name in ids if '.' not in name or not self.is_form])}"
        self.time_field = r.choice(TIME_FIELDS) if r.random() < 0.6 else ""
        if self.topic == "json:event" and self.resource.startswith("event."):
            self.topic = "json:type"

    def _choose_signature(self) -> None:
        r = self.random
        self.algorithm = r.choices(
            ("hmac-sha256", "hmac-sha512", "hmac-sha1", "sha256", "hmac-sha384"), (75, 10, 7, 7, 1)
        )[0]
        self.encoding = r.choice(("hex", "hex", "base64", "base64", "base64url", "base64url-bare"))
        names = ("signature", "hmac-sha256", "hmac", "sign", "signature-256", "webhook-signature", "digest")
        self.sig_header = self.prefix + r.choice(names)
        self.form = r.choices(
            ("plain", "key", "list", "space-list", "positional", "authorization", "body"), (45, 15, 12, 6, 8, 7, 7)
        )[0]
        self.field_of_signature = "signature" if self.is_form else r.choice(("signature", "sign", "auth.signature"))
        self.sig_key = r.choice(("v1", "sha256", "s", "h1", "sig"))

    def _choose_content(self) -> None:
        r = self.random
        if self.form == "body":  # the body cannot be signed, since it has the signature in it
            shapes = {"TN": 5, "NT": 5, "T": 2}
        else:
            shapes = {"B": 30, "TB": 25, "NTB": 12, "NB": 8, "UB": 4, "MUB": 2, "UTB": 3, "MUTB": 3, "VTB": 4}
            shapes |= {"NUTB": 2, "MPTB": 2, "PB": 1, "NNTB": 2, "NNB": 1}
        letters = list(r.choices(list(shapes), list(shapes.values()))[0])
        if r.random() < 0.3 and "M" not in letters and "V" not in letters:
            r.shuffle(letters)
        self.body_hash = r.choice(("body_sha256", "body_sha256", "body_sha256_base64")) if r.random() < 0.08 else "body"
        if self.is_form and r.random() < 0.4:
            self.body_hash = "form_sorted"
        self.letters = letters
        self.separator = r.choice(SEPARATORS)
        self.end = "\n" if r.random() < 0.03 else ""
        self.secret_place = r.choice(("first", "last"))
        self.unit = r.choice(("s", "s", "s", "ms", "rfc3339"))
        self.time_place = {"list": "sig:t", "positional": "sig:0"}.get(self.form, "")
        if "T" not in letters:
            self.time_place = ""
        elif not self.time_place:
            names = ("timestamp", "request-timestamp", "time", "sent-at")
            self.time_place = f"header:{self.prefix}{r.choice(names)}"
            if self.form == "body" or r.random() < 0.1:
                self.time_place = "json:timestamp"
        if self.form == "positional" and "T" not in letters:
            self.form = "plain"
        if self.time_place == "json:timestamp":
            self.time_field = "timestamp"
        wanted = [self.id, self.topic, f"header:{self.prefix}shop-id", f"header:{self.prefix}nonce"]
        names = [one for one in wanted if one.startswith("header:")]
        self.signed_names = r.sample(names, letters.count("N"))
        self.version = r.choice(("v0", "v1", "v2"))

    # Messages

    def message(self, number: int) -> Message:
        r = Random(f"{self.seed}/{number}")
        moment = START + 977 * number + r.randrange(900)
        kind, action = r.choice(self.kinds), r.choice(ACTIONS)
        topic = self.style.format(
            kind, action, K=kind.upper(), A=action.upper(), C=kind.capitalize(), D=action.capitalize()
        )
        resource = r.choice((str(r.randrange(1000, 10**9)), f"{kind[:3]}_{r.randbytes(6).hex()}"))
        identity = r.choice((f"{r.randbytes(16).hex()}", f"msg_{r.randbytes(8).hex()}", _uuid(r))) if self.id else ""
        headers = {"host": HOST, "user-agent": "Acme/1.0", "content-type": "application/json", "accept": "*/*"}
        fields: dict[str, Any] = {}
        self._put(headers, fields, self.topic, topic)
        self._put(headers, fields, self.id, identity)
        path = self.resource.format(k=kind)
        self._put(
            headers, fields, f"json:{path}", int(resource) if resource.isdigit() and r.random() < 0.5 else resource
        )
        _set(fields, path.replace(".id", ".total") if "." in path else "total", f"{r.randrange(10**5)}.00")
        if self.time_field:
            _set(fields, self.time_field, _time(moment, self.unit))
        for name in self.signed_names:
            if name.endswith(("shop-id", "nonce")):
                headers[name[7:]] = "4711" if name.endswith("shop-id") else r.randbytes(8).hex()
        self._add_decoys(headers, fields, r, moment)
        time_text = _time(moment + 2, self.unit) if self.time_place != "json:timestamp" else _time(moment, self.unit)
        if self.time_place.startswith("header:"):
            headers[self.time_place[7:]] = str(time_text)
        body = self._sign(headers, fields, str(time_text))
        return Message(headers, body, topic, identity, str(resource))

    def _put(self, headers: dict[str, str], fields: dict[str, Any], source: str, value: Any) -> None:
        kind, _, name = source.partition(":")
        if kind == "header":
            headers[name] = str(value)
        elif kind:
            _set(fields, name, value)

    def _add_decoys(self, headers: dict[str, str], fields: dict[str, Any], r: Random, moment: int) -> None:
        p = self.prefix
        all_of = (
            (f"header:{p}shop-id", "4711"),
            (f"header:{p}webhook-id", "wh_17"),
            (f"header:{p}subscription-id", "8812"),
            (f"header:{p}event-time", datetime.fromtimestamp(moment, UTC).isoformat()),
            (f"header:{p}eventsub-message-retry", str(r.randrange(3))),
            (f"header:{p}delivery-attempt", "1"),
            ("header:x-request-id", _uuid(r)),
            (f"header:{p}event-version", "2024-01"),
            ("json:account_id", "acc_1"),
            ("json:api_version", "2024-04-01"),
            ("json:currency", "EUR"),
            ("json:webhook_id", 17),
        )
        for number in self.decoys:
            source, value = all_of[number]
            if source not in (self.id, self.topic):
                self._put(headers, fields, source, value)

    # Signing

    def _sign(self, headers: dict[str, str], fields: dict[str, Any], time: str) -> bytes:
        if self.is_form:
            headers["content-type"] = "application/x-www-form-urlencoded"
        body = b"" if self.form == "body" else self._written(fields)
        content = self.separator.encode().join(
            self._part(letter, headers, body, fields, time) for letter in self._slots()
        )
        text = self._encoded(self._mac(content + self.end.encode()))
        if self.form == "body":
            _set(fields, self.field_of_signature, text)
            return self._written(fields)
        if self.form == "authorization":
            headers["authorization"] = f"HMAC-SHA256 {text}"
            return body
        headers[self.sig_header] = {
            "plain": text,
            "key": f"{self.sig_key}={text}",
            "list": f"t={time},{self.sig_key}={text}" if self.time_place == "sig:t" else f"{self.sig_key}={text},v9=00",
            "space-list": f"{self.sig_key},{text} v9,abcd",
            "positional": f"{time},{text}",
        }[self.form]
        return body

    def _slots(self) -> list[str]:
        """The letters, with a number for each signed name."""
        names = iter(range(9))
        return [f"N{next(names)}" if letter == "N" else letter for letter in self.letters]

    def _part(self, slot: str, headers: dict[str, str], body: bytes, fields: dict[str, Any], time: str) -> bytes:
        if slot[0] == "N":
            return headers[self.signed_names[int(slot[1:])][7:]].encode()
        if slot == "B":
            return self._body_part(body, fields)
        path = TARGET.partition("?")[0]
        return {"T": time, "U": URL, "M": "POST", "P": path, "V": self.version}[slot].encode()

    def _body_part(self, body: bytes, fields: dict[str, Any]) -> bytes:
        digest = hashlib.sha256(body)
        return {
            "body": body,
            "body_sha256": digest.hexdigest().encode(),
            "body_sha256_base64": b64encode(digest.digest()),
            "form_sorted": "".join(f"{name}{fields[name]}" for name in sorted(fields)).encode(),
        }[self.body_hash]

    def _mac(self, content: bytes) -> bytes:
        if self.algorithm == "sha256":
            between = self.separator.encode()
            parts = [self.key, content] if self.secret_place == "first" else [content, self.key]
            return hashlib.sha256(between.join(parts)).digest()
        return hmac.digest(self.key, content, self.algorithm.removeprefix("hmac-"))

    def _encoded(self, mac: bytes) -> str:
        if self.encoding == "hex":
            return mac.hex()
        encode = b64encode if self.encoding == "base64" else urlsafe_b64encode
        text = encode(mac).decode()
        return text.rstrip("=") if self.encoding.endswith("bare") else text

    def _written(self, fields: dict[str, Any]) -> bytes:
        return urlencode(fields).encode() if self.is_form else json.dumps(fields, separators=(",", ":")).encode()

    def changed(self, message: Message) -> Message:
        """The message with a change that makes its signature invalid."""
        if "B" in self.letters:
            return replace(message, body=message.body.replace(b"00", b"01", 1) + b" ")
        other = Shape(self.seed)
        other.key = bytes(byte ^ 1 for byte in other.key)
        return other.message(next(number for number in range(9) if self.message(number) == message))


def _set(fields: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        inner = fields.setdefault(parent, {})
        fields = inner if isinstance(inner, dict) else fields
    fields.setdefault(name, value)


def _time(moment: int, unit: str) -> int | str:
    if unit == "rfc3339":
        return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    return moment * 1000 + 123 if unit == "ms" else moment


def _uuid(r: Random) -> str:
    text = r.randbytes(16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
