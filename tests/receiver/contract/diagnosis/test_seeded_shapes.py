"""Detection of invented providers: no claim is false, and nearly all that the grammar can say is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from receiver.config import load
from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import Detection, detect
from receiver.contract.diagnosis.search import find_signer
from receiver.contract.intake import read_delivery
from receiver.contract.signing.grammar import Scheme, SchemeError, Secret
from receiver.contract.stores import Store
from tests.support.seeded_shapes import URL, Message, Shape


def verifies(scheme: Scheme, shape: Shape, message: Message) -> bool:
    secrets = [Secret(scheme.key_of(shape.secret))]
    return find_signer(scheme, secrets, message.headers, message.body, URL) is not None


def truth(shape: Shape) -> Scheme | None:
    """The scheme of a shape; None if the grammar refuses it."""
    names = iter(shape.signed_names)
    written = {"B": f"{{{shape.body_hash}}}", "T": "{timestamp}", "U": "{url}", "M": "{method}", "P": "{path}"}
    written["V"] = shape.version
    parts = [f"{{{next(names)}}}" if letter == "N" else written[letter] for letter in shape.letters]
    signed = shape.separator.join(parts) + shape.end
    if shape.algorithm == "sha256":
        order = ["{secret}", signed] if shape.secret_place == "first" else [signed, "{secret}"]
        signed = shape.separator.join(order)
    forms = {
        "key": {"pair_sep": "=", "sig_keys": (shape.sig_key,)},
        "list": {"list_sep": ",", "pair_sep": "=", "sig_keys": (shape.sig_key,)},
        "space-list": {"list_sep": " ", "pair_sep": ",", "sig_keys": (shape.sig_key,)},
        "positional": {"list_sep": ",", "sig_index": 1},
        "authorization": {"headers": ("authorization",), "pair_sep": " ", "sig_keys": ("HMAC-SHA256",)},
        "body": {"headers": (), "signature": (f"{'form' if shape.is_form else 'json'}:{shape.field_of_signature}",)},
    }
    if shape.algorithm == "hmac-sha384":
        return None
    values = {
        "headers": (shape.sig_header,),
        "algorithm": shape.algorithm,
        "encoding": shape.encoding.removesuffix("-bare"),
        "signed": signed,
        "allow_unsigned_body": "B" not in shape.letters,
        "secret_prefix": shape.secret_prefix,
        "secret_encoding": shape.secret_encoding,
        "timestamp": shape.time_place.replace("json:", "form:") if shape.is_form else shape.time_place,
        "timestamp_unit": shape.unit if shape.time_place else "s",
        **forms.get(shape.form, {}),
    }
    try:
        return Scheme("true", **values)  # type: ignore[arg-type]
    except SchemeError:
        return None


def judge(seed: int, tmp_path: Path, figures: Counter[str]) -> None:
    """Detect one shape, and count what is right; a false claim fails."""
    shape = Shape(seed)
    true, unseen = truth(shape), shape.message(5)
    if true:
        figures["can be said"] += 1
        assert verifies(true, shape, unseen), f"seed {seed}: the shape does not sign as it says"
        assert not verifies(true, shape, shape.changed(unseen)), f"seed {seed}: the change is not a change"
    captures = [shape.message(number) for number in range(2 - seed % 2)]
    found = detect([Capture(one.headers, one.body) for one in captures], shape.secret, url=URL)
    if found.scheme is None:
        return
    schemes = [found.scheme, *found.alternatives]
    assert any(verifies(scheme, shape, unseen) for scheme in schemes), f"seed {seed}: a false claim"
    assert not any(verifies(scheme, shape, shape.changed(unseen)) for scheme in schemes), f"seed {seed}: a false claim"
    figures["found"] += true is not None
    figures["ambiguous"] += bool(found.alternatives)
    right = parts_read(found, shape, unseen, tmp_path)
    figures.update(right)
    figures["all three right"] += len(right) == 3


def parts_read(found: Detection, shape: Shape, unseen: Message, tmp_path: Path) -> list[str]:
    """What is read right from a delivery that detection has not seen, with the printed TOML."""
    path = tmp_path / "config.toml"
    path.write_text(found.toml("acme") + f'[stores.north]\nscheme = "acme"\nsigning_secrets = ["{shape.secret}"]\n')
    store = load(path, {}).known_stores["north"]
    delivery = read_delivery(unseen.headers, unseen.body, store=Store("x", store.scheme, ()), now=0.0, source="webhook")
    read = {"topic": delivery.theirs, "id": delivery.event.delivery_id, "resource": delivery.event.resource_id}
    wanted = {"topic": unseen.topic, "id": unseen.id, "resource": unseen.resource_id}
    return [f"{part} right" for part in wanted if read[part] == wanted[part]]


def check(seeds: range, tmp_path: Path) -> None:
    figures: Counter[str] = Counter()
    for seed in seeds:
        judge(seed, tmp_path, figures)
    print(f"{len(seeds)} shapes: {dict(figures)}")
    assert figures["found"] >= 0.95 * figures["can be said"], figures
    assert figures["all three right"] >= 0.9 * figures["found"], figures


@pytest.mark.full
def test_detection_makes_no_false_claim_over_100_shapes(tmp_path: Path) -> None:
    check(range(100), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(8))
def test_detection_makes_no_false_claim_over_2000_shapes(block: int, tmp_path: Path) -> None:
    check(range(100 + block * 240, 340 + block * 240), tmp_path)
