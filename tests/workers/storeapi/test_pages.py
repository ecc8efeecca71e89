"""docs/client.md and docs/sandbox.md: the samples run, the config loads, and every fault is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from receiver import config as config_room
from tests.support.harness import SECRET
from tests.support.programs import ROOT
from tests.workers.conftest import SandboxRun
from workers.cli.sandbox import ACTIONS
from workers.storeapi import errors
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.sandbox.misbehaviour import FAULT_SETTINGS, FAULTS

CLIENT = (ROOT / "docs/client.md").read_text()
SANDBOX = (ROOT / "docs/sandbox.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_first_sample_of_the_page_works(sandbox: SandboxRun, capsys: pytest.CaptureFixture[str]) -> None:
    sandbox.client().orders.create(lines=[{"product_id": 1}])
    url = f"http://127.0.0.1:{sandbox.port}"
    token = sandbox.client()._tokens.bearer(until=float("inf"))
    sample = blocks(CLIENT, "python")[0].replace("https://shop.example", url)
    sample = sample.replace('token="..."', f'token="{token}", allow_private=True')
    assert len(sample.strip().splitlines()) <= 6
    exec(sample, {})
    assert len(capsys.readouterr().out.splitlines()) == 40
    assert sandbox.client().orders.get(1001).status == "paid"


def test_the_pages_sample_builds_a_client_for_a_configured_store(
    sandbox: SandboxRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREHOOKS_CONFIG", str(sandbox.config_file))
    scope: dict[str, object] = {}
    exec(blocks(CLIENT, "python")[1], scope)
    assert scope["client"].products.get(1).id == 1  # type: ignore[attr-defined]


def test_the_config_samples_of_the_pages_load(tmp_path: Path) -> None:
    stores = f'[store_defaults]\nsigning_secrets = ["{SECRET}"]\n'
    for number, block in enumerate([*blocks(CLIENT, "toml"), *blocks(SANDBOX, "toml")]):
        path = tmp_path / f"{number}.toml"
        path.write_text(stores + block)
        config = config_room.load(
            path, dict.fromkeys(("NORTH_ID", "NORTH_SECRET", "EAST_KEY", "WEST_USER_AND_PASSWORD"), "a:b")
        )
        for store in config.stores:
            configured_catalogue(config, store)


def test_the_sandbox_page_lists_every_fault_and_every_action() -> None:
    for name in (*FAULTS, *FAULT_SETTINGS, *ACTIONS):
        assert re.search(rf"\b{re.escape(name)}\b", SANDBOX), name


def test_the_tree_of_errors_in_the_docstring_is_complete() -> None:
    docstring = errors.__doc__ or ""
    classes = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.ApiError)}
    listed = set(re.findall(r"^[│├└─ ]*([A-Z]\w+)  ", docstring, flags=re.MULTILINE))
    assert listed == classes
