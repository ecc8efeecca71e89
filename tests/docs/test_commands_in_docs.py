"""The documents are correct: their commands run, their config keys and links exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from receiver.config import SANDBOX_SECRET, Config, load
from tests.support.harness import System, own_server
from tests.support.installations import spread_refusals
from tests.support.programs import ROOT, typed
from workers.cli.capture_file import write

DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
TESTED_ELSEWHERE = {
    "tutorial.md": "test_tutorial.py",
    "my-provider.md": "test_my_provider.py",
    "event-files.md": "test_event_files_page.py",
    "how-to/deploy.md": "test_deploy_pages.py",
    "how-to/production.md": "test_deploy_pages.py",
    "how-to/packaging.md": "test_integrator_pages.py",
    "how-to/forward.md": "../workers/cli/test_listen.py",
    "backup.md": "../faults/test_restore_drill.py",
    "certification.md": "test_store_pages.py",
    "client.md": "test_store_pages.py",
    "sandbox.md": "test_store_pages.py",
    "subscriptions.md": "test_store_pages.py",
    "operating/alerts.md": "../workers/runtime/test_alerts.py",
    "operating/replaced-redis.md": "test_store_pages.py",
    "operating/spool.md": "test_store_pages.py",
    "operating/stores.md": "test_store_pages.py",
    **{f"runbooks/{path.name}": "test_runbooks.py" for path in (ROOT / "docs/runbooks").glob("*.md")},
}
"""Pages whose commands other tests run, from the first to the last."""


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT / "docs"))


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), flags=re.DOTALL)


def commands(document: Path) -> list[str]:
    return [line for block in blocks(document, "sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The store of the documents, with a captured request, and deliveries that are refused for some time."""
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = documented_system(System(tmp_path_factory.mktemp("system"), server.url))
        yield system
        system.close()


def documented_system(system: System) -> System:
    text = system.config_file.read_text()
    text = text[: text.index("[stores.north]")] + f'[stores.demo]\nsigning_secrets = ["{SANDBOX_SECRET}"]\n'
    system.config_file.write_text(text)
    captured = system.request(store="demo")
    second = system.request(store="demo")
    (system.folder / "request.txt").write_bytes(write(captured.headers, captured.body))
    (system.folder / "second.txt").write_bytes(write(second.headers, second.body))
    system.start("web", "worker", "housekeeper")
    for number in range(3):
        system.post(captured._replace(body=captured.body + b"\n" * (number + 1)), "demo")
    system.refused(3)
    spread_refusals(system.config.data_dir)
    return system


@pytest.mark.parametrize(
    "document",
    [one for one in DOCUMENTS if commands(one) and name_of(one) not in TESTED_ELSEWHERE],
    ids=lambda path: path.name,
)
def test_every_command_of_a_document_works(demo: System, document: Path) -> None:
    environ = {"STOREHOOKS_CONFIG": str(demo.config_file), "DEMO_SECRET": SANDBOX_SECRET}
    for line in commands(document):
        variables, command, words = line.partition("storehooks ")
        assert command, line
        own = dict(one.split("=", 1) for one in variables.split())
        done = typed(command + words, env=environ | own, cwd=demo.folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        if "||" in line:
            assert line.rpartition("echo ")[2].strip('"') in done.stdout, f"{line} did not print it\n{done.stdout}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_exist(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target


def test_operating_shows_the_default_config(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SANDBOX_SECRET)  # of a page about a store of the sandbox
    for page in (ROOT / "docs/operating").glob("*.md"):
        for sample in blocks(page, "toml"):
            (tmp_path / "config.toml").write_text(sample)
            assert load(tmp_path / "config.toml", {}).receiver == Config().receiver


def test_subscriptions_shows_known_keys_and_mostly_defaults(tmp_path: Path) -> None:
    environ = {"DEMO_TOKEN": "t", "DEMO_SECRET": SANDBOX_SECRET, "KEYRING_KEY": "00" * 32}
    (tmp_path / "config.toml").write_text("".join(blocks(ROOT / "docs/subscriptions.md", "toml")))
    shown = load(tmp_path / "config.toml", environ)
    assert shown.subscriptions == Config().subscriptions
    assert shown.secrets.overlap == Config().secrets.overlap
    assert shown.api.rate_limit == 10
    assert shown.stores["demo"].subscribe == ("order.*", "-order.deleted")
