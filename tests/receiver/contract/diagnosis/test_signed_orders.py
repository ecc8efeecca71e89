"""Detection over the orders of signed parts that docs/schemes.md names: each is found as it was signed."""

from __future__ import annotations

import hmac
from base64 import b64encode
from itertools import permutations
from pathlib import Path

import orjson
import pytest

from receiver.config import load
from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import Detection, detect
from receiver.contract.diagnosis.search import find_signer
from receiver.contract.signing.grammar import Secret

SECRET = "kiosk-secret-17"
URL = "https://hooks.example.com/webhooks/kiosk"
PLACEHOLDERS = {
    "t": "{timestamp}",
    "m": "{method}",
    "b": "{body}",
    "p": "{path}",
    "n": "{header:x-kiosk-message-id}",
    "f": "{json:reference}",
}


def delivery(order: str, separator: str, number: int) -> Capture:
    """A delivery with `TIME;SIGNATURE` in a header, signed over the parts of `order`."""
    sent, message, reference = str(1_700_000_000_123 + number), f"msg-{number}", f"r-{number}"
    fields = {"type": "order.created", "reference": reference, "data": {"id": number}}
    body = orjson.dumps(fields).decode()
    values = {"t": sent, "m": "POST", "b": body, "p": "/webhooks/kiosk", "n": message, "f": reference}
    content = separator.join(values[part] for part in order).encode()
    seal = b64encode(hmac.digest(SECRET.encode(), content, "sha256")).decode()
    names = {"x-kiosk-message-id": message} if "n" in order else {}
    return Capture({"host": "hooks.example.com", "x-kiosk-seal": f"{sent};{seal}", **names}, body.encode())


def found_in(order: str, separator: str, url: str) -> Detection:
    return detect([delivery(order, separator, number) for number in (1, 2)], SECRET, url=url)


def check(order: str, separator: str, url: str) -> Detection:
    """The parts are found in their order, and the scheme verifies an unseen delivery, but not with a changed body."""
    found = found_in(order, separator, url)
    assert found.scheme is not None, f"{order} is not found"
    assert found.scheme.signed == separator.join(PLACEHOLDERS[part] for part in order)
    secrets, unseen = [Secret(SECRET.encode())], delivery(order, separator, 3)
    assert find_signer(found.scheme, secrets, unseen.headers, unseen.body, url)
    assert "b" not in order or not find_signer(found.scheme, secrets, unseen.headers, unseen.body + b" ", url)
    return found


@pytest.mark.parametrize("url", ["", URL], ids=["without URL", "with URL"])
@pytest.mark.parametrize(
    ("order", "separator"),
    [
        ("tmb", "|"),
        ("tmb", "."),
        ("tmb", ":"),
        ("tmb", ""),
        ("mtb", "|"),
        ("mtb", ":"),
        ("btm", "|"),
        ("mb", "|"),
        ("mb", "."),
        ("bm", "\n"),
        ("mntb", "|"),
        ("tbnm", "|"),
    ],
)
def test_the_method_is_found_without_a_path_beside_it(order: str, separator: str, url: str, tmp_path: Path) -> None:
    found = check(order, separator, url)
    path = tmp_path / "config.toml"
    path.write_text(found.toml("kiosk") + f'[stores.kiosk]\nscheme = "kiosk"\nsigning_secrets = ["{SECRET}"]\n')
    store = load(path, {}).known_stores["kiosk"]
    for number in (1, 2):
        sent = delivery(order, separator, number)
        assert find_signer(store.scheme, store.secrets, sent.headers, sent.body, store.url)


@pytest.mark.parametrize(
    "parts", ["mb", "nb", "fb", "mtb", "mpb", "mnb", "ptb", "ntb", "pnb", "ftb", "mptb", "tm", "mpt", "mnt", "n"]
)
def test_every_order_of_the_parts_is_found(parts: str) -> None:
    for order in permutations(parts):
        check("".join(order), "|", URL)


@pytest.mark.parametrize("order", ["mpntb", "mntpb", "mtnbp", "ntmpb", "bmptn", "mnpb", "nmpb"])
def test_with_path_and_header_the_method_is_found_first_or_before_it(order: str) -> None:
    check(order, "|", URL)


def test_what_was_tried_names_the_parts() -> None:
    captures = [delivery("tmb", "|", number) for number in (1, 2)]
    parts = "parts, combined as in docs/schemes.md: {body}, {body_sha256}, {body_sha256_base64}, {method}, "
    versions = "v0, v1, v2, v3, v4, 1, 2"
    assert f"{parts}{versions}" in detect(captures, "another secret").tried
    assert f"{parts}{{url}}, {{path}}, {versions}" in detect(captures, "another secret", url=URL).tried
    named = [Capture({**one.headers, "x-kiosk-method": "POST"}, one.body) for one in captures]
    assert f"{parts}{versions}" in detect(named, "another secret").tried
