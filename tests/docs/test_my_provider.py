"""docs/my-provider.md, from its first step to its last, with a provider that has no preset."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.config import load
from tests.docs.test_commands_in_docs import blocks
from tests.support.harness import System, eventually
from tests.support.programs import ROOT, typed

PAGE = ROOT / "docs/my-provider.md"
SECRET = "the secret that acme has shown once"


def send(system: System, number: int) -> int:
    """A delivery as acme sends it. Its signature is over time and body, joined by a colon."""
    content = {"event_type": "order.created", "order": {"id": number, "total": "42.00"}}
    body, stamp = json.dumps(content).encode(), str(int(time.time()))
    signed = hmac.new(SECRET.encode(), f"{stamp}:".encode() + body, hashlib.sha512).hexdigest()
    headers = {"x-acme-time": stamp, "x-acme-digest": f"sha512={signed}", "x-acme-delivery-id": f"d-{number}"}
    return system.http.post("/webhooks/acme", headers=headers, content=body).status_code


@pytest.mark.full
def test_the_steps_lead_from_refused_deliveries_to_a_verified_store(make_system: Callable[..., System]) -> None:
    system = make_system()
    (web,) = system.start("web")
    assert [send(system, number) for number in (1, 2)] == [401, 401]
    system.refused(2)
    (system.folder / "acme.secret").write_text(SECRET)
    (system.folder / "acme.secret").chmod(0o600)
    listed, captured, detected, verified, accepted = blocks(PAGE, "sh")

    def type_in(block: str) -> str:
        return " ".join(run(system, block).split())

    assert type_in(listed).count("unknown-store") == 2
    type_in(captured)
    type_in(detected)
    added = system.config_file.read_text()
    assert "[stores.acme]" in added
    assert "order.created" in added, "the comments say what was read"
    comments = re.findall(r"^# (?:(\w+):? |\S+ (is read as)$)", added, flags=re.MULTILINE)
    said = {first or second for first, second in comments}
    assert said == {"matches", "proven", "is read as", "note"}
    explained = re.findall(r"^\| `([a-z ]+)`", PAGE.read_text(), flags=re.MULTILINE)
    assert said <= set(explained), "the page explains each comment"
    assert type_in(verified).count(" VALID ") == 2
    web.send(signal.SIGHUP)
    eventually(lambda: send(system, 3) == 200, 20, what="new deliveries are accepted")
    told = type_in(accepted)
    assert "2 events accepted" in told
    assert "order.created" in told
    events = system.ledger.events(store="acme")
    assert {(one.topic, one.delivery_id, one.resource_id) for one in events} == {
        ("order.created", f"d-{number}", str(number)) for number in (1, 2, 3)
    }


def run(system: System, block: str) -> str:
    printed = ""
    for line in block.splitlines():
        done = typed(line, env={"STOREHOOKS_CONFIG": str(system.config_file)}, cwd=system.folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


def test_the_sample_loads(tmp_path: Path) -> None:
    (sample,) = blocks(PAGE, "toml")
    (tmp_path / "config.toml").write_text(sample)
    assert "authorization" in load(tmp_path / "config.toml", {}).known_stores["acme"].scheme.reads
