"""doctor, against real processes: a healthy set-up has nothing to fix, of a broken one it names fault and fix."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from receiver.inbox import Administration, connect
from tests.support.harness import OTHER_SECRET, SECRET, eventually, own_server
from tests.support.installations import BROKEN, Clinic, Setup, nobody_works
from workers.cli import storehooks


@dataclass
class Told:
    """What doctor said."""

    code: int
    text: str
    findings: list[dict[str, Any]] = field(default_factory=list)

    def lines(self, level: str) -> list[str]:
        return [f"{one['check']}: {one['text']} | {one['fix']}" for one in self.findings if one["level"] == level]


def doctor(config: Path, *options: str, env: dict[str, str] | None = None) -> Told:
    """The command, called here: a process of its own would add seconds and nothing else."""
    arguments = ["doctor", "--config", str(config), *options]
    done = CliRunner().invoke(storehooks, arguments, env=env, catch_exceptions=False)
    findings = json.loads(done.stdout)["findings"] if "--json" in options else []
    return Told(done.exit_code, done.output, findings)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "data").mkdir()
    with own_server(tmp_path_factory.mktemp("server")) as server:
        clinic = Clinic(folder, server)
        yield clinic
        clinic.system.close()


def test_a_healthy_set_up_has_nothing_to_fix(clinic: Clinic) -> None:
    told = eventually(
        lambda: (t := doctor(clinic.config_file)).code == 0 and "1 of 1" in t.text and t, 20, what="a check"
    )
    assert "everything is fine" in told.text
    assert "FAIL" not in told.text
    for name in ("config", "server", "memory", "disk", "handlers", "workers", "housekeeper", "public url", "north"):
        assert f"ok    {name} " in told.text, told.text
    assert "token 59 min" in told.text or "token 1 h" in told.text
    assert SECRET not in told.text


@pytest.mark.parametrize(
    ("setup", "code", "check", "says", "fix"), BROKEN, ids=[f"{one[0].__name__}-{one[2]}" for one in BROKEN]
)
def test_a_broken_set_up_is_named_with_its_fix(
    clinic: Clinic, tmp_path: Path, setup: Setup, code: int, check: str, says: list[str], fix: str
) -> None:
    with setup(clinic, tmp_path) as config:
        started = time.monotonic()
        told = doctor(config, "--json", "--timeout", "2.5s")
        took = time.monotonic() - started
    found = [line for line in told.lines("fail") if line.startswith(f"{check}: ")]
    assert any(all(part in line for part in says) and fix in line for line in found), told.findings
    assert told.code == code
    assert took < 6, f"{took:.1f} s"
    assert SECRET not in told.text
    assert OTHER_SECRET not in told.text
    if setup is nobody_works:
        assert any(line.startswith("housekeeper: none is alive") for line in told.lines("fail"))


def test_what_is_only_to_know_is_no_failure_unless_asked_so(clinic: Clinic) -> None:
    with clinic.setting(appendfsync="everysec") as config:
        told = doctor(config)
        assert told.code == 0, told.text
        assert re.search(r"^WARN  server +Valkey [0-9.]+, appendfsync everysec$", told.text, flags=re.M)
        assert "a power cut may lose the last second of accepted events" in told.text
        assert "0 to fix, 1 to know" in told.text
        assert doctor(config, "--strict").code == 1


def test_secrets_that_others_can_read_are_told(clinic: Clinic) -> None:
    open_file = clinic.broken("processes = 1", "processes = 2", name="open.toml")
    open_file.chmod(0o644)
    told = doctor(open_file)
    assert "open.toml holds secrets, and others on this machine can read it" in told.text
    assert f"fix: chmod 600 {open_file}" in told.text
    open_file.write_text(clinic.text.replace(f'"{SECRET}"', '"env:ONE"').replace(f'"{OTHER_SECRET}"', '"env:TWO"'))
    text = open_file.read_text().replace('client_secret = "right"', 'client_secret = "env:THREE"')
    open_file.write_text(text)
    assert "others can read" not in doctor(open_file, env={"ONE": SECRET, "TWO": OTHER_SECRET, "THREE": "right"}).text


def test_a_paused_store_and_an_assumed_operation_are_told(clinic: Clinic) -> None:
    from workers.storeapi import ApiError, client_for_store

    administration = Administration(connect(clinic.server.url, timeout=5.0))
    with pytest.raises(ApiError):
        client_for_store(clinic.system.config, "north", administration.client).webhooks.get(99)
    administration.pause(store="north")
    try:
        told = doctor(clinic.config_file)
    finally:
        administration.resume(store="north")
    assert re.search(r"^WARN  paused +north is paused; its work waits$", told.text, flags=re.M)
    assert "fix: storehooks stores resume north" in told.text
    assert "webhooks.get is used, assumed, never confirmed" in told.text


@pytest.mark.parametrize(
    ("written", "exposed"),
    [
        ({"secrets": {"key": "a2V5"}}, ["a2V5"]),
        ({"secrets": {"key": "env:KEY"}}, []),
        ({"redis": {"url": "redis://:pw@host/0", "sentinel_password": "s"}}, ["s", "pw"]),
        ({"redis": {"url": "redis://host/0"}}, []),
        ({"redis": {"url": "env:REDIS"}}, []),
    ],
)
def test_keys_and_passwords_in_the_file_itself_are_secrets(written: dict[str, Any], exposed: list[str]) -> None:
    from workers.operations.doctor.local_facts import _secrets_in

    assert list(_secrets_in(written)) == exposed
