"""docs/schemes.md: every sample loads, and every preset and reason is listed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from receiver.config import load
from receiver.contract.errors import REASONS
from receiver.contract.record_map import FIELDS
from receiver.contract.signing.grammar import Scheme
from receiver.contract.signing.signatures import PRESETS
from tests.support.captures import CAPTURES, Capture

TEXT = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
ROWS = {row[0].strip("` "): row for row in (line.strip("|").split("|") for line in TEXT.splitlines()) if len(row) == 9}
UNCONFIRMED = {"bigcommerce", "ecwid", "lemonsqueezy", "commercelayer", "shopee", "tiktok-shop", "recharge"}
ENVIRON = {"NORTH_SECRET": "new", "NORTH_OLD_SECRET": "old", "SOUTH_SECRET": "south"}


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_sample_loads(sample: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(sample)
    assert load(path, ENVIRON)


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 7


def test_the_full_scheme_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(next(sample for sample in SAMPLES if "[schemes.full]" in sample))
    assert load(path, {}).known_schemes["full"] == Scheme("full", headers=("X-Store-Signature",))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_correct_row(name: str) -> None:
    scheme, row = PRESETS[name], [cell.strip() for cell in ROWS[name]]
    assert row[1] == (f"`{scheme.headers[0]}`" if scheme.headers else "(in the body)")
    assert scheme.encoding in row[2]
    assert ("body" in row[3] or "form" in row[3], "time" in row[3]) == (scheme.signs_content, scheme.signs_time)
    assert row[3].startswith("only ") == scheme.allow_unsigned_body
    assert ("forged" in row[7]) == scheme.allow_unsigned_body
    assert ("weak" in row[7]) == (scheme.algorithm == "hmac-sha1")
    assert row[4].startswith("signed") == bool(scheme.timestamp)
    assert row[5] == _signed_or_not(scheme, scheme.event.id)
    assert row[6] == _signed_or_not(scheme, scheme.event.topic)


def _signed_or_not(scheme: Scheme, sources: tuple[str, ...]) -> str:
    if not sources:
        return "none"
    return "signed" if all(map(scheme.signs, sources)) else "not signed"


@pytest.mark.parametrize("capture", [one for one in CAPTURES if one.preset], ids=lambda capture: capture.preset)
def test_the_source_of_every_preset_is_named_or_it_is_unconfirmed(capture: Capture) -> None:
    """By a user's package, or without one and without a document of the provider, it is unconfirmed."""
    source = ROWS[capture.preset][8].strip()
    package, _, version = capture.source.partition(" ")
    if capture.library and "(by a user" not in capture.source and capture.preset != "bigcommerce":
        assert source.startswith(package)
        assert version.startswith(source.rpartition(" ")[2])
    else:
        assert source.startswith("unconfirmed") == (capture.preset in UNCONFIRMED)
        assert source


@pytest.mark.parametrize("name", [name for name, scheme in PRESETS.items() if scheme.record])
def test_every_record_map_has_a_correct_row(name: str) -> None:
    record_map = PRESETS[name].record
    section = TEXT.partition("## Record fields")[2]
    (row,) = [line.strip("|").split("|") for line in section.splitlines() if line.startswith(f"| `{name}` |")]
    fields = [(kind, field) for kind, names in record_map.fields.items() for field in names]
    absent = [f"{kind}.{field}" for kind, field in fields if not record_map.paths(kind, field)]
    assert sorted(re.findall(r"`(.*?)`", row[2])) == sorted(absent)
    assert ("minor" in row[3]) == (record_map.money == "minor")


def test_every_standard_field_is_listed() -> None:
    for kind, names in FIELDS.items():
        assert f"| `{kind}` | {', '.join(f'`{name}`' for name in names)}" in TEXT


def test_every_reason_is_explained() -> None:
    for reason in REASONS:
        assert f"`{reason}`" in TEXT


def test_the_contract_stays_pure_and_light() -> None:
    """It imports no web framework and no other room, and `event` imports only the standard library."""
    code = (
        "import sys, receiver.contract.event as e; light = set(sys.modules)\n"
        "import receiver.contract.diagnosis.explain, receiver.contract.diagnosis.detect; every = set(sys.modules)\n"
        "assert not {'orjson', 'pydantic', 'receiver.contract.signing.signatures'} & light, light\n"
        "bad = {name for name in every if name.split('.')[0] in {'flask', 'redis', 'rq', 'workers'}}\n"
        "rooms = {name for name in every if name.startswith('receiver.') and 'contract' not in name}\n"
        "assert not bad | rooms, bad | rooms\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
