"""Installed plugins: found in every config of their environment, and uninstalled while workers run."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver import config as config_room
from receiver.contract.errors import PluginError
from tests.support.harness import System, eventually
from workers.plugins import discovery

PLUGIN = """
import os, time
from storehooks import Router
router = Router("loyalty")
now = os.path.join(os.path.dirname(__file__), "now")

@router.on("order.created", limit="crm")
def award(event, ctx):
    os.close(os.open(now, os.O_CREAT | os.O_EXCL))  # fails if another run is under way
    time.sleep(0.05)
    os.remove(now)
    return "awarded"
"""


OWN = """
from storehooks import Router
router = Router("shop")
@router.on("order.*")
def greet(event, ctx):
    return "hi"
"""


def install(folder: Path, plugin: str = PLUGIN) -> Path:
    """Install the plugin with its entry point; returns the folder for Python's path."""
    site = folder / "site"
    about = site / "loyalty-1.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: loyalty\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text("[storehooks.handlers]\nloyalty = loyalty\n")
    (site / "loyalty.py").write_text(plugin)
    return site


def test_one_without_its_limit_in_config_stops_nothing_and_its_runs_are_done_one_at_a_time(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """Another config of the same environment, which knows nothing of the plugin, must start as well."""
    site = install(tmp_path)
    system = make_system(child_processes=4)
    environ = {"PYTHONPATH": str(site)}
    system.start("worker", "housekeeper", env=environ)
    events = [system.accept(data={"id": number}) for number in range(12)]
    assert {system.settled(event_id, 20) for event_id in events} == {"settled"}
    assert {system.run_of(event_id, "loyalty.award").attempts for event_id in events} == {1}
    (line,) = [one for one in map(json.loads, system.log("worker").splitlines()) if "no [limits" in one["event"]]
    assert (line["level"], line["limit"], line["handlers"]) == ("warning", "crm", ["loyalty.award"])
    shown = system.run_cli("handlers", env=environ)
    assert shown.returncode == 0
    assert "[limits.crm]" in shown.stderr


def test_a_limit_that_the_config_itself_names_must_be_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path))
    path = tmp_path / "config.toml"
    path.write_text('[plugins.loyalty]\nhandlers.award = { limit = "erp" }\n')
    with pytest.raises(PluginError, match=r"has limit='erp', and config has no \[limits.erp\]"):
        discovery.load(config_room.load(path, {}))


def test_the_corrected_file_of_one_is_run_by_a_config_without_installed_plugins(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """As in the runbook of a bug in the night. Without `installed = false` both are loaded, and the error says so."""
    environ = {"PYTHONPATH": str(install(tmp_path))}
    corrected = PLUGIN.replace('"awarded"', '"corrected"')
    system = make_system(plugin=corrected, more="[limits.crm]\nconcurrency = 1\n")
    command = ("handlers", "run", "loyalty.award", "--event", system.accept())
    assert "set [workers] installed = false" in system.run_cli(*command, env=environ).stderr
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[workers]\n", "[workers]\ninstalled = false\n"))
    assert "corrected" in system.run_cli(*command, env=environ).stdout


@pytest.mark.parametrize("settings", ["", "[plugins.loyalty]\nrate = 3\n"])
def test_hup_after_an_uninstall_says_which_handlers_are_gone(
    make_system: Callable[..., System], tmp_path: Path, settings: str
) -> None:
    """Also if the config still has settings of the plugin."""
    site = install(tmp_path, PLUGIN.replace(', limit="crm"', ""))
    system = make_system(more=settings)
    (supervisor,) = system.start("supervisor", env={"PYTHONPATH": str(site)})
    eventually(lambda: "worker started" in system.log("supervisor"), 20)
    eventually(lambda: shutil.rmtree(site, ignore_errors=True) or not site.exists())  # a process may write there
    supervisor.send(signal.SIGHUP)
    lines = eventually(
        lambda: [one for one in system.log("supervisor").splitlines() if "handlers are gone after a reload" in one]
    )
    assert json.loads(lines[0])["handlers"] == ["loyalty.award"]
    eventually(lambda: "supervisor reloaded" in system.log("supervisor"))


NEEDY = PLUGIN.replace('Router("loyalty")', 'Router("loyalty", settings=Settings)').replace(
    "router = ",
    "from pydantic import BaseModel\nclass Settings(BaseModel):\n    url: str\n    points: int = 1\nrouter = ",
    1,
)


@pytest.mark.full
def test_one_without_its_settings_in_config_is_left_out_and_stops_no_other_plugin(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """Another config of the same environment, which knows nothing of the plugin, must start as well."""
    environ = {"PYTHONPATH": str(install(tmp_path, NEEDY))}
    system = make_system(plugin=OWN)
    system.start("worker", "housekeeper", env=environ)
    event_id = system.accept()
    assert system.settled(event_id, 20) == "settled"
    assert [run.handler for run in system.ledger.event(event_id).runs] == ["shop.greet"]
    (line,) = [one for one in map(json.loads, system.log("worker").splitlines()) if "left out" in one["event"]]
    assert (line["level"], line["plugin"]) == ("warning", "loyalty")
    assert "needs the setting url" in line["why"]
    shown = system.run_cli("handlers", env=environ)
    assert (shown.returncode, "loyalty.award" in shown.stdout) == (0, False)
    assert "the installed plugin loyalty is left out: " in shown.stderr
    findings = json.loads(system.run_cli("doctor", "--json", env=environ).stdout)["findings"]
    (found,) = [one for one in findings if "loyalty" in one["text"]]
    assert (found["level"], "[plugins.loyalty]" in found["fix"]) == ("warn", True)
    assert "needs the setting url" in system.run_cli("handlers", "certify", "loyalty", env=environ).stderr


def test_handlers_says_that_one_is_left_out_where_it_says_that_there_are_none(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """It said that no plugin is installed; the reason was on standard error only."""
    system, environ = make_system(), {"PYTHONPATH": str(install(tmp_path, NEEDY))}
    left_out = "no handlers: 1 installed plugin is left out (loyalty), and "
    assert f"{left_out}none of [workers] plugins has one" in system.run_cli("handlers", env=environ).stdout
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace('plugins = ["shop.py"]', "plugins = []"))
    assert f"{left_out}[workers] plugins is empty" in system.run_cli("handlers", env=environ).stdout
    none = "no handlers: no plugin is installed, and [workers] plugins is empty"
    assert none in system.run_cli("handlers").stdout


def test_one_with_some_of_its_settings_in_config_must_have_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config means to use it."""
    monkeypatch.delitem(sys.modules, "loyalty", raising=False)
    monkeypatch.syspath_prepend(install(tmp_path, NEEDY))
    path = tmp_path / "config.toml"
    path.write_text("[plugins.loyalty]\npoints = 2\n[limits.crm]\nconcurrency = 1\n")
    with pytest.raises(PluginError, match="plugin loyalty needs the setting url"):
        discovery.load(config_room.load(path, {}))
