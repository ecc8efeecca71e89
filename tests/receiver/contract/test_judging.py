"""`receive`, with everything that a scheme makes in advance, judges deliveries like the grammar read step by step."""

from __future__ import annotations

import hmac
import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from receiver.contract.diagnosis.explain import explain
from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import Delivery, receive
from receiver.contract.signing.grammar import SchemeError, Sources
from receiver.contract.signing.mac import keyed
from receiver.contract.signing.signatures import Scheme, Secret, sign
from receiver.contract.stores import Store
from tests.receiver.contract import step_by_step
from tests.support.deliveries import NOW, URL, WHOLE_BODY

SECRETS = (
    Secret(b"an old secret", not_after=datetime.fromtimestamp(NOW - 60, UTC)),
    Secret(b"a secret of thirty-two bytes, ok"),
    Secret(b"long" * 50),
    Secret(b"an old secret"),
)
IDS = ["msg_1", "msg.1", "a:b", "1700000000", "", "é", "\u2713", "x" * 300]
VALUES: list[Any] = [
    "order.created",
    "",
    7,
    2**70,
    1.5,
    True,
    None,
    [],
    {},
    [{"id": 3}],
    {"id": "x"},
    "2026-11-15T08:00:00Z",
]
VALUES += ["1700000000", "20261115", "20261115T080000Z", 1_700_000_000_000, "2026-11-15T08:00:00+02:00", "2026-11-15"]
SOURCES = ["header:X-Id", "header:X-Topic", "json:type", "json:id", "json:data.id", "json:data.0.id", "json:timestamp"]
SOURCES += ["query:x-id", "form:id", "form:data.id", "form:type"]
TIMES = ["", "header:X-Time", "sig:t", "sig:0", "json:timestamp", "query:t", "form:timestamp"]
PLACES: list[dict[str, Any]] = [
    {"headers": ("X-Sig",)},
    {"headers": ("X-Sig", "X-Other")},
    {"headers": ("X-Sig",), "signature": ("query:sig",)},
    {"headers": (), "signature": ("json:signed.0.by",)},
    {"headers": (), "signature": ("form:sig", "query:sig")},
]


def odd_scheme(chance: random.Random) -> Scheme | None:
    pair_sep = chance.choice(["", "=", ","])
    parts = [
        "{timestamp}",
        "{url}",
        "{header:x-id}",
        "{header:X-Topic}",
        "{json:id}",
        "{json:type?}",
        "{form:id}",
        "{form_sorted}",
        "{query:x-id?}",
        "{path}",
        "{method}",
        "{body_sha256}",
        "{body_sha256_base64}",
        "{header:x-time}",
        ".",
        ":",
        "%b",
        "é",
    ]
    chosen = chance.choices(parts, k=chance.randint(0, 5)) + ["{body}"] * chance.choice([0, 1, 1, 2])
    algorithm = chance.choice(["hmac-sha256", "hmac-sha512", "hmac-sha1", "sha256"])
    secret = chance.choice([("{secret}", ""), ("", "{secret}")]) if algorithm == "sha256" else ("", "")
    list_sep = chance.choice(["", ",", " ", ":"])
    sig_index = chance.choice([-1, 0, 1]) if list_sep and not pair_sep else -1
    event = {
        name: tuple(chance.sample(SOURCES, chance.randint(0, 3))) for name in ("topic", "id", "resource_id", "occurred")
    }
    data = tuple(chance.sample(["json:data", "json:id", "json:data.0", "body", "form"], chance.randint(0, 3)))
    try:
        return Scheme(
            "odd",
            **chance.choice(PLACES),
            algorithm=algorithm,  # type: ignore[arg-type]
            encoding=chance.choice(["hex", "base64", "base64url"]),
            list_sep=list_sep,
            sig_index=sig_index,
            pair_sep=pair_sep,
            sig_keys=chance.choice([("v1",), ("v0", "v1")]) if pair_sep else (),
            signed="".join([secret[0], *chosen, secret[1]]),
            allow_unsigned_body=True,
            timestamp=chance.choice(TIMES),
            timestamp_unit=chance.choice(["s", "ms", "rfc3339"]),
            tolerance=chance.choice([0, 300]),
            dedupe=chance.choice(["id", "id+body"]),
            event=Sources(**event, data=data, store=("json:shop",)),
            topics={"order.created": "order.made"} if chance.random() < 0.3 else {},
        )
    except SchemeError:
        return None


def odd_body(chance: random.Random, scheme: Scheme) -> bytes:
    if chance.random() < 0.1:
        return chance.choice(
            [b"", b"[]", b"7", b"{", b"\xef\xbb\xbf{}", b"1700000000.{}", b"[" * 300 + b"]" * 300, b'"\xff"']
        )
    times = {"s": int(NOW), "ms": int(NOW * 1000), "rfc3339": "2023-11-14T22:13:20Z"}
    document = {
        name: chance.choice(VALUES) for name in ("type", "id", "data", "topic", "event") if chance.random() < 0.8
    }
    document["timestamp"] = times[scheme.timestamp_unit] if chance.random() < 0.8 else chance.choice(VALUES)
    document["shop"] = chance.choice(["north.example", "https://North.example/", "other", None])
    if scheme.reads_form and chance.random() < 0.7:
        fields = {name: value for name, value in document.items() if isinstance(value, str | int)}
        return urlencode(fields | {"data.id": chance.choice(["1", "a.b", "é"])}).encode()
    return json.dumps(document).encode()


def odd_delivery(chance: random.Random, scheme: Scheme) -> tuple[dict[str, str], bytes]:
    body = odd_body(chance, scheme)
    names = {"x-id", "x-topic", "x-api-key", *(name for name in scheme.reads if name not in scheme.header_names)}
    headers = {name: chance.choice(IDS) for name in sorted(names) if chance.random() < 0.9}
    moment = NOW + chance.choice([0, 0, 0, 0, -400, 400])
    try:
        signed = sign(scheme, secret=chance.choice(SECRETS), headers=headers, body=body, now=moment, url=URL)
        headers, body = headers | signed.headers, signed.body
    except (DeliveryRefused, ValueError, TypeError):  # a body that has no field for the signature
        headers["x-sig"] = "v1=00"
    if chance.random() < 0.1:
        headers["x-other"] = headers.get("x-sig", "v1=00")
        headers["x-sig"] = chance.choice(["", "v1=00", headers["x-other"]])
    return mutated(chance, scheme, headers), body + b" " * (chance.random() < 0.05)


def mutated(chance: random.Random, scheme: Scheme, headers: dict[str, str]) -> dict[str, str]:
    name = "x-sig"
    if name in headers and scheme.list_sep and chance.random() < 0.3:
        junk = chance.choices(["v1=zz", "", "A" * 43 + "=", "v0=" + "0" * 64, "t=1", "é"], k=chance.randint(1, 20))
        headers[name] = scheme.list_sep.join(
            [*junk, headers[name]] if chance.random() < 0.5 else [headers[name], *junk]
        )
    if chance.random() < 0.15:
        changed = chance.choice(sorted(headers))
        new = [
            headers[changed].upper(),
            headers[changed] + "=",
            " " + headers[changed],
            "",
            "0" + headers[changed],
            "x" * 5000,
        ]
        headers[changed] = chance.choice(new)
    if chance.random() < 0.05:
        del headers[chance.choice(sorted(headers))]
    return headers


def outcome(judge: Any, headers: dict[str, str], body: bytes, store: Store) -> Delivery | str:
    """The delivery, without what is random; or the reason why it is refused."""
    try:
        delivery: Delivery = judge(headers, body, store=store, now=NOW)
    except DeliveryRefused as refusal:
        return refusal.reason
    event = delivery.event if delivery.event.delivery_id else replace(delivery.event, id="")
    return replace(delivery, event=event, content_hash="")


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed else pytest.mark.full) for seed in range(4)]
)
def test_compiled_and_step_by_step_judging_agree(seed: int) -> None:
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    schemes = [*WHOLE_BODY.values(), *filter(None, (odd_scheme(chance) for _ in range(3000 if seed else 2000)))]
    for scheme in schemes:
        store = Store(
            "north", scheme, SECRETS[: chance.randint(1, 4)], url=URL, domain=chance.choice(["", "north.example"])
        )
        for _ in range(6):
            headers, body = odd_delivery(chance, scheme)
            expected = outcome(step_by_step.judge, headers, body, store)
            assert outcome(receive, headers, body, store) == expected, (scheme, headers, body)
            seen[expected if isinstance(expected, str) else "accepted"] += 1
            shown = explain(store, headers, body, NOW) if chance.random() < 0.05 else None
            assert shown is None or (shown.reason or "accepted") == (
                expected if isinstance(expected, str) else "accepted"
            )
    assert len(seen) >= 10, seen
    assert seen["accepted"] > 300, seen


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_a_keyed_mac_is_the_hmac(digest: str) -> None:
    chance = random.Random(1)
    for length in (1, 32, 63, 64, 65, 127, 128, 129, 300):
        key, content = chance.randbytes(length), chance.randbytes(chance.randint(0, 3000))
        mac = keyed(key, digest)
        assert mac(content) == mac(content) == hmac.digest(key, content, digest)
