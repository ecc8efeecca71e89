"""Plugins are judged when they are loaded, and the culprit is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from receiver import config
from receiver.contract.errors import PluginError
from tests.harness import System
from workers import Context, Event, Router, plugins

HEAD = "from workers import Router\nrouter = Router('shop')\n"

BROKEN = {
    "has a syntax error": (HEAD + "def (:\n", 3),
    "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'": ("import nowhere_to_be_found\n", 1),
    "cannot be loaded: ZeroDivisionError": (HEAD + "1 / 0\n", 3),
    "has no Router": ("x = 1\n", 0),
    "has 2 Routers": (HEAD + "other = Router('b')\n", 0),
    "must take two arguments: def handler(event, ctx)": (HEAD + "@router.on('*')\ndef one(event):\n    pass\n", 3),
    "is async; write `def`": (HEAD + "@router.on('*')\nasync def one(event, ctx):\n    pass\n", 3),
    "names no topic": (HEAD + "@router.on()\ndef one(event, ctx):\n    pass\n", 3),
    "asks for the topic 'Order Created!'": (HEAD + "@router.on('Order Created!')\ndef one(event, ctx):\n    pass\n", 3),
    "has retries= that are neither": (HEAD + "@router.on('*', retries=(1, 'x'))\ndef one(event, ctx):\n    pass\n", 3),
    "unexpected keyword argument 'retriess'": (
        HEAD + "@router.on('*', retriess=1)\ndef one(event, ctx):\n    pass\n",
        3,
    ),
    "two handlers are called shop.one": (
        HEAD + "@router.on('*')\ndef one(event, ctx):\n    pass\n@router.on('*')\ndef one(event, ctx):\n    pass\n",
        6,
    ),
}


@pytest.mark.parametrize("says", BROKEN)
def test_a_broken_plugin_stops_the_worker_with_file_line_and_reason(
    make_system: Callable[..., System], says: str
) -> None:
    text, line = BROKEN[says]
    system = make_system(plugin=text)
    done = system.run_cli("worker")
    assert done.returncode == 2
    assert says in done.stderr
    assert f"shop.py:{line}:" in done.stderr or not line
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_plugin_that_ends_the_process_is_noticed(make_system: Callable[..., System]) -> None:
    system = make_system(plugin="import os\nos._exit(3)\n")
    with pytest.raises(PluginError, match="exit code 3"):
        plugins.judge_elsewhere(system.config)


def test_a_missing_file_is_named(make_system: Callable[..., System]) -> None:
    system = make_system()
    system.plugin.unlink()
    assert "there is no such file; see [workers] plugins" in system.run_cli("handlers").stderr


def test_handlers_lists_what_is_loaded(system: System) -> None:
    system.plugin.write_text(
        HEAD + "__version__ = '1.2'\n@router.on('order.*', retries=(1, 2), timeout=5)\ndef one(event, ctx):\n    pass\n"
    )
    found = plugins.judge_elsewhere(system.config)
    assert [(one.handler, one.version, one.topics) for one in found] == [("shop.one", "1.2", ("order.*",))]
    shown = system.run_cli("handlers").stdout
    assert "shop.one" in shown
    assert "1/2 s" in shown


def test_settings_of_a_store_stand_over_the_plugins(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[plugins.shop]\nurl = "a"\nkey = "b"\n'
        '[stores.north]\nsigning_secrets = ["whsec_dGVzdA=="]\n[stores.north.plugins.shop]\nurl = "c"\n'
    )
    found = config.load(path, {})
    assert plugins.settings_of(found, "shop", "north") == {"url": "c", "key": "b"}
    assert plugins.settings_of(found, "shop", "other") == {"url": "a", "key": "b"}


def test_a_decorator_gives_the_function_back_unchanged() -> None:
    def handler(event: Event, ctx: Context) -> str:
        return "called"

    assert Router("shop").on("*")(handler) is handler
