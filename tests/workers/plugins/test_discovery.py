"""Plugins are validated when they are loaded, and errors name the plugin; the config overrides the code."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from receiver import config
from receiver.contract.errors import ConfigError, PluginError
from tests.support.harness import SECRET, Process, System, eventually
from workers import Context, Event, Router
from workers.plugins import discovery, plugin_settings
from workers.plugins.router import Handler
from workers.plugins.validation import import_error
from workers.plugins.validation_process import validate_plugin, validate_plugins

HEAD = "from workers import Router\nrouter = Router('shop')\n"
ONE = "@router.on('*')\ndef one(event, ctx):\n    pass\n"
STORE = f'[stores.north]\nsigning_secrets = ["{SECRET}"]\n'
MODEL = """from pydantic import BaseModel
from workers import Router
class Settings(BaseModel):
    level: int
    url: str = ""
router = Router("shop", settings=Settings)
@router.on("*")
def one(event, ctx):
    return ctx.settings.level
"""


def on(options: str, signature: str = "def one(event, ctx)") -> str:
    return f"{HEAD}@router.on({options})\n{signature}:\n    pass\n"


class Broken(NamedTuple):
    text: str
    place: str
    """The file and line that the error names."""
    says: str
    fix: str
    settings: str = ""


TWELVE = {
    "wrong arity": Broken(
        on("'*'", "def one(event)"), "shop.py:3", "must take two arguments", "def handler(event, ctx)"
    ),
    "unknown limit": Broken(on("'*', limit='crm'"), "shop.py:3", "no [limits.crm]", "concurrency = 2"),
    "unknown topic form": Broken(on("'Order Created!'"), "shop.py:3", "asks for the topic", '"order.created"'),
    "import error": Broken("import nowhere_x\n", "shop.py:1", "No module named 'nowhere_x'", "install it into this"),
    "syntax error": Broken(HEAD + "def (:\n", "shop.py:3", "has a syntax error", "fix that line"),
    "duplicate name": Broken(HEAD + ONE + ONE, "shop.py:6", "two handlers are called shop.one", "Rename one"),
    "bad settings": Broken(
        MODEL, "config.toml:4", "plugins.shop.level", "See class Settings at", '[plugins.shop]\nlevel = "many"\n'
    ),
    "raising at import": Broken(HEAD + "1 / 0\n", "shop.py:3", "ZeroDivisionError", "belongs into @router.startup"),
    "no Router": Broken("x = 1\n", "shop.py:1", "has no Router", '`router = Router("shop")`'),
    "wrong type of retries": Broken(on("'*', retries='5'"), "shop.py:3", "has retries='5'", "write retries=5"),
    "unknown option": Broken(on("'*', retriess=1"), "shop.py:3", "unknown option retriess", "did you mean retries?"),
    "a generator": Broken(HEAD + ONE.replace("pass", "yield 1"), "shop.py:3", "has a `yield`", "return a value"),
}

MORE = {
    "two routers": Broken(HEAD + "other = Router('b')\n", "shop.py:1", "has 2 Routers", "let it include the others"),
    "no topic": Broken(on(""), "shop.py:3", "names no topic", '@router.on("order.created")'),
    "retries of text": Broken(on("'*', retries=(1, 'x')"), "shop.py:3", "has retries=(1, 'x')", "write retries="),
    "retries=True": Broken(on("'*', retries=True"), "shop.py:3", "has retries=True", "write retries="),
    "bad timeout": Broken(on("'*', timeout='1m'"), "shop.py:3", "has timeout='1m'", "write timeout=30"),
    "bad delay": Broken(on("'*', delay='soon'"), "shop.py:3", "has delay='soon'", 'delay="10m"'),
    "bad echo": Broken(on("'*', echo=False"), "shop.py:3", "has echo=False", 'echo="run"'),
    "bad when": Broken(on("'*', when={'total': '> x'}"), "shop.py:3", "after > comes a number", "> 100"),
    "an async generator": Broken(
        HEAD + "@router.on('*')\nasync def one(event, ctx):\n    yield 1\n",
        "shop.py:3",
        "has a `yield`",
        "return a value",
    ),
    "failed without the error": Broken(
        HEAD + "@router.failed\ndef tell(event, ctx):\n    pass\n",
        "shop.py:3",
        "must take three arguments",
        "def tell(event, ctx, error)",
    ),
    "unknown order": Broken(
        on("'*', order_by='customer'"), "shop.py:3", "has order_by='customer'", '"resource", "store"'
    ),
    "order by code": Broken(on("'*', order_by=len"), "shop.py:3", "has order_by=<built-in", "data.customer_id"),
    "unknown on_failure": Broken(
        on("'*', order_by='store', on_failure='wait'"), "shop.py:3", "has on_failure='wait'", '"continue" or "stop"'
    ),
    "on_failure without order": Broken(on("'*', on_failure='stop'"), "shop.py:3", "without order_by=", "leave it out"),
    "unknown stale": Broken(on("'*', stale='drop'"), "shop.py:3", "has stale='drop'", 'stale="skip"'),
    "a gap without stale": Broken(
        on("'*', wait_for_gap='30s'"), "shop.py:3", 'has wait_for_gap= without stale="skip"', "write both"
    ),
    "a gap in an order": Broken(
        on("'*', stale='skip', wait_for_gap=30, order_by='resource'"),
        "shop.py:3",
        "and order_by=",
        "leave order_by= out",
    ),
    "a gap of no duration": Broken(
        on("'*', stale='skip', wait_for_gap='soon'"), "shop.py:3", "has wait_for_gap='soon'", 'wait_for_gap="30s"'
    ),
    "coalesce of no duration": Broken(on("'*', coalesce='soon'"), "shop.py:3", "has coalesce='soon'", 'coalesce="5s"'),
    "coalesce of a store": Broken(
        on("'*', coalesce=5, order_by='store'"), "shop.py:3", "and order_by='store'", "leave order_by= out"
    ),
    "coalesce that stops": Broken(
        on("'*', coalesce=5, order_by='resource', on_failure='stop'"),
        "shop.py:3",
        "and on_failure=",
        "leave on_failure=",
    ),
    "coalesce with a delay": Broken(on("'*', coalesce=5, delay='1m'"), "shop.py:3", "and delay=", "leave delay= out"),
    "coalesce with gaps": Broken(
        on("'*', coalesce=5, stale='skip', wait_for_gap=5"), "shop.py:3", "and wait_for_gap=", "leave wait_for_gap= out"
    ),
    "startup without settings": Broken(
        HEAD + "@router.startup\ndef go():\n    pass\n", "shop.py:3", "must take one argument", "def go(settings)"
    ),
    "their own workers": Broken(
        HEAD + "import workers.tasks\n", "shop.py:3", "storehooks' own package", "rename yours, if you have one"
    ),
    "a name of their own workers": Broken(
        HEAD + "from workers import Job\n", "shop.py:3", "cannot import name 'Job'", "rename yours"
    ),
    "no name": Broken(
        "from workers import Router\nrouter = Router()\n", "shop.py", "needs a name", 'Router("loyalty")'
    ),
    "missing setting": Broken(
        MODEL, "config.toml", "needs the setting level for store north", "write level = ... in [plugins.shop]"
    ),
    "misspelt setting": Broken(
        MODEL, "config.toml:5", "has no setting levle", "did you mean level?", "[plugins.shop]\nlevel = 1\nlevle = 2\n"
    ),
    "unknown handler": Broken(
        HEAD + ONE, "config.toml:4", "has no handler onee", "did you mean one?", "[plugins.shop]\nhandlers.onee = {}\n"
    ),
    "a setting with a reserved name": Broken(
        MODEL.replace("url: str", "stores: str"), "shop.py:3", "called stores", "uses for itself; rename it"
    ),
    "settings of another type": Broken(
        "from workers import Router\nrouter = Router('shop', settings=dict)\n", "", "neither a pydantic", "BaseModel"
    ),
}


def write(folder: Path, broken: Broken) -> Path:
    (folder / "shop.py").write_text(broken.text)
    path = folder / "config.toml"
    path.write_text(f'[workers]\nplugins = ["shop.py"]\n{broken.settings}{STORE}')
    return path


def load(path: Path) -> list[discovery.Plugin]:
    return discovery.load(config.load(path, {}))


@pytest.mark.parametrize("name", [*TWELVE, *MORE])
def test_the_error_of_a_broken_plugin_names_file_line_and_fix(tmp_path: Path, name: str) -> None:
    broken = {**TWELVE, **MORE}[name]
    with pytest.raises(PluginError) as caught:
        load(write(tmp_path, broken))
    said = str(caught.value)
    assert said.partition(": ")[0].endswith(broken.place) or not broken.place
    assert broken.says in said
    assert broken.fix in said
    assert "\n" not in said


def test_the_documented_errors_are_twelve() -> None:
    assert len(TWELVE) == 12


@pytest.mark.parametrize("name", TWELVE)
def test_a_broken_plugin_stops_the_worker_with_exit_code_2_and_no_traceback(
    make_system: Callable[..., System], name: str
) -> None:
    system = make_system(plugin=TWELVE[name].text, more=TWELVE[name].settings)
    done = system.refuse_to_start("worker")
    assert done.returncode == 2
    _assert_one_sentence(done.stderr, TWELVE[name])


def test_python_dash_m_workers_stops_in_the_same_way(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=TWELVE["raising at import"].text)
    command = [sys.executable, "-m", "workers", "--config", str(system.config_file)]
    process = Process(command, log=system.folder / "workers.log")
    assert process.wait(60) == 2
    _assert_one_sentence(process.output(), TWELVE["raising at import"])


def _assert_one_sentence(said: str, broken: Broken) -> None:
    assert broken.says in said
    assert broken.fix in said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if not line.startswith("{")]) == 1, "beside lines of the log"


def test_a_plugin_that_ends_the_process_is_refused(make_system: Callable[..., System]) -> None:
    system = make_system(plugin="import os\nos._exit(3)\n")
    with pytest.raises(PluginError, match="exit code 3"):
        validate_plugins(system.config)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, Broken(HEAD, "", "", ""))
    (tmp_path / "shop.py").unlink()
    with pytest.raises(PluginError, match=r"no such file; see \[workers\] plugins"):
        load(path)


def test_handlers_lists_the_loaded_handlers(system: System) -> None:
    system.plugin.write_text(
        HEAD + "__version__ = '1.2'\n@router.on('order.*', retries=(1, 2), timeout=5)\ndef one(event, ctx):\n    pass\n"
    )
    found = validate_plugins(system.config)
    assert [(one.handler, one.version, one.topics) for one in found] == [("shop.one", "1.2", ("order.*",))]
    shown = system.run_cli("handlers").stdout
    assert "shop.one" in shown
    assert "1/2 s" in shown


def test_one_plugin_is_found_by_its_name_its_file_or_its_module(tmp_path: Path) -> None:
    path = write(tmp_path, Broken(HEAD + ONE, "", "", ""))
    (tmp_path / "other_shop.py").write_text(HEAD.replace("shop", "other") + ONE)
    loaded = config.load(path, {})
    assert [one.handler for one in validate_plugin(loaded, "shop")] == ["shop.one"]
    assert [one.handler for one in validate_plugin(loaded, str(tmp_path / "other_shop.py"))] == ["other.one"]
    path.write_text('[workers]\nplugins = ["other_shop"]\n')
    assert [one.handler for one in validate_plugin(config.load(path, {}), "other")] == ["other.one"]


def test_one_file_or_module_needs_no_limits_in_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limited_shop.py").write_text(on("'*', limit='crm'"))
    monkeypatch.syspath_prepend(tmp_path)
    for which in (str(tmp_path / "limited_shop.py"), "limited_shop"):
        (found,) = validate_plugin(config.load(None, {}), which)
        assert (found.handler, found.details["limit"]) == ("shop.one", "crm")


def test_two_plugins_with_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(HEAD + ONE)
    (tmp_path / "b.py").write_text(HEAD + ONE.replace("one", "two"))
    path = tmp_path / "config.toml"
    path.write_text('[workers]\nplugins = ["a.py", "b.py"]\n')
    with pytest.raises(
        PluginError, match=r"two plugins are called shop: a\.py, and b\.py; if it is the same plugin, remove one"
    ):
        load(path)


def test_a_file_that_became_a_package_is_to_be_removed_from_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name the file would run beside the package, and each effect would happen twice."""
    about = tmp_path / "site" / "moved_shop-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: moved-shop\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[storehooks.handlers]\nshop = moved_shop\n")
    (tmp_path / "site" / "moved_shop.py").write_text(HEAD + ONE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    path = write(tmp_path, Broken(HEAD + ONE, "", "", ""))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("plugins ="))
    with pytest.raises(PluginError) as caught:
        load(path)
    said = str(caught.value)
    assert said.startswith("two plugins are called shop: entry point shop = moved_shop, and shop.py; ")
    assert re.search(rf"remove shop\.py from \[workers\] plugins \(.*config\.toml:{line}\)", said), said
    assert "in a config that tries the file, set [workers] installed = false" in said
    assert "rename" not in said
    path.write_text(path.read_text().replace("[workers]\n", "[workers]\ninstalled = false\n", 1))
    assert [plugin.origin for plugin in load(path)] == ["shop.py"]


# Settings


def test_settings_of_a_store_override_those_of_the_plugin(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f'[plugins.shop]\nurl = "a"\nkey = "b"\nstores = ["north"]\n{STORE}[stores.north.plugins.shop]\nurl = "c"\n'
    )
    found = config.load(path, {})
    assert plugin_settings.settings_of(found, "shop", "north") == {"url": "c", "key": "b"}
    assert plugin_settings.settings_of(found, "shop", "other") == {"url": "a", "key": "b"}


def test_a_model_may_read_a_setting_by_an_alias() -> None:
    from pydantic import AliasChoices, AliasPath, BaseModel, Field

    from workers.plugins.plugin_settings import _known_keys

    class Model(BaseModel):
        a: int = Field(alias="b")
        c: int = Field(validation_alias="d")
        e: int = Field(validation_alias=AliasChoices("f", AliasPath("g", 0)))

    assert _known_keys(Model) == set("abcdefg")


@pytest.mark.parametrize("model", [MODEL, MODEL.replace("(BaseModel)", "").replace("class", "@dataclass\nclass")])
def test_a_model_is_validated_for_each_store(tmp_path: Path, model: str) -> None:
    from workers.plugins import plugin_settings

    own = '[stores.south]\nsigning_secrets = ["whsec_dGVzdA=="]\n[stores.south.plugins.shop]\nlevel = 9\n'
    text = model.replace("from pydantic", "from dataclasses import dataclass\nfrom pydantic")
    path = write(tmp_path, Broken(text, "", "", "", "[plugins.shop]\nlevel = 5\n"))
    path.write_text(path.read_text() + own)
    loaded, (plugin,) = config.load(path, {}), load(path)
    levels = {store: plugin_settings.build(loaded, plugin.router, store).level for store in ("", "north", "south")}
    assert levels == {"": 5, "north": 5, "south": 9}
    path.write_text(path.read_text().replace("level = 9", 'level = "x"'))
    with pytest.raises(PluginError, match=r"config\.toml:10: plugins\.shop\.level for store south: .* integer"):
        load(path)


def test_a_setting_that_is_wrong_is_never_shown(tmp_path: Path) -> None:
    path = write(tmp_path, Broken(MODEL, "", "", "", '[plugins.shop]\nlevel = "pa55word"\n'))
    with pytest.raises(PluginError) as caught:
        load(path)
    assert "pa55word" not in str(caught.value)


def test_a_key_for_all_stores_is_refused_in_one_store(tmp_path: Path) -> None:
    path = write(tmp_path, Broken(HEAD + ONE, "", "", ""))
    path.write_text(path.read_text() + '[stores.north.plugins.shop]\nstores = ["north"]\n')
    with pytest.raises(PluginError, match=r"config\.toml:6: stores is set for all stores; move it"):
        load(path)


# Overrides in the config


def configured(tmp_path: Path, settings: str, options: str = "'*', retries=3, timeout=5, limit='crm'") -> Handler:
    (tmp_path / "shop.py").write_text(on(options))
    path = tmp_path / "config.toml"
    path.write_text(f'[workers]\nplugins = ["shop.py"]\n[limits.crm]\nconcurrency = 1\n{settings}{STORE}')
    return load(path)[0].handlers[0]


def test_config_overrides_stores_retries_timeout_and_limit(tmp_path: Path) -> None:
    plain = configured(tmp_path, "")
    assert (plain.stores, plain.retries, plain.timeout, plain.limit) == (("*",), 3, 5, "crm")
    over = '[plugins.shop]\nstores = ["north"]\nhandlers.one = {retries = ["1m", 5], timeout = "2m", limit = ""}\n'
    assert configured(tmp_path, '[plugins.shop]\nstores = "south"\n').stores == ("south",)
    found = configured(tmp_path, over)
    assert (found.stores, found.retries, found.timeout, found.limit) == (("north",), (60.0, 5.0), 120.0, None)


@pytest.mark.parametrize(
    ("code", "given", "stores"),
    [
        ("acme", '"*"', ("acme",)),
        ("acme", '["acme", "north"]', ("acme",)),
        ("acme", '"north"', ()),
        ("acme", "[]", ()),
        ("*", '"n*"', ("n*",)),
        ("n*", '["*h", "acme"]', ("north",)),  # the only configured store
        ("n?", '["n*", "n1"]', ("n1",)),
    ],
)
def test_stores_in_the_config_limit_those_in_the_code(
    tmp_path: Path, code: str, given: str, stores: tuple[str, ...]
) -> None:
    """They replaced them, so a handler for one store ran for others."""
    found = configured(tmp_path, f"[plugins.shop]\nstores = {given}\n", f"'*', stores={code!r}")
    assert found.stores == stores
    if not stores and given != "[]":
        assert found.store_limits == "acme in its code, north in [plugins.shop] stores"


def test_a_wrong_override_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml:6: unknown key plugins\.shop\.handlers\.one\.retrys; did you"):
        configured(tmp_path, "[plugins.shop]\nhandlers.one = {retrys = 1}\n")


# Routers


def test_the_decorator_returns_the_function_unchanged() -> None:
    def handler(event: Event, ctx: Context) -> str:
        return "called"

    assert Router("shop").on("*")(handler) is handler


def test_a_router_includes_others_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from workers import Router\npart = Router()\ninner = Router()\nrouter = Router('shop')\n"
        "router.include(part)\npart.include(inner)\n"
        + ONE.replace("router", "part")
        + ONE.replace("router", "inner").replace("one", "two")
        + ONE.replace("one", "three")
    )
    path = tmp_path / "config.toml"
    path.write_text('[workers]\nplugins = ["shop.py"]\n')
    (plugin,) = load(path)
    assert [handler.name for handler in plugin.handlers] == ["shop.three", "shop.one", "shop.two"]


def test_a_router_cannot_include_itself_nor_a_part_with_a_startup(tmp_path: Path) -> None:
    router = Router("shop")
    with pytest.raises(ValueError, match="cannot include itself"):
        router.include(router)
    text = HEAD + "part = Router()\nrouter.include(part)\n@part.startup\ndef go(settings):\n    pass\n"
    with pytest.raises(PluginError, match="includes a router with a startup"):
        load(write(tmp_path, Broken(text, "", "", "")))


# In the real pipeline

LIFE = """
import os
from pathlib import Path
from workers import Router
router = Router("shop")
HERE = Path(__file__).parent

@router.startup
def open_it(settings):
    return f"of {os.getpid()}"

@router.shutdown
def close_it(resource):
    (HERE / f"closed-{os.getpid()}").write_text(resource)

@router.on("order.*", when={"total": "> 100", "customer.email": "*"})
def large(event, ctx):
    return ctx.resource

@router.on("order.*", when=lambda event: event.data["total"])
def raising(event, ctx):
    return "called"

@router.on("order.*", delay=SECONDS)
def later(event, ctx):
    return ctx.resource
"""


def test_when_delay_and_shutdown_in_the_real_pipeline(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=LIFE.replace("SECONDS", "3"), child_processes=1)
    (worker, _) = system.start("worker", "housekeeper")
    small = system.accept(data={"id": 1, "total": "42.00"})
    large = system.accept(data={"id": 2, "total": "420.00", "customer": {"email": "a@b.c"}})
    eventually(lambda: (run := system.run_of(small, "shop.large")) and run.status == "dropped")
    eventually(lambda: (run := system.run_of(large, "shop.large")) and run.status == "done")
    skipped, waiting = system.run_of(small, "shop.large"), system.run_of(small, "shop.later")
    assert (skipped.result, skipped.reason) == ("skipped: total > 100 was false", "skipped")
    assert (waiting.status, waiting.attempts) == ("waiting", 0)
    assert 0 < (waiting.due_at - system.ledger.event(small).summary.received_at).total_seconds() <= 3.001
    worker.kill()  # a delayed run is only in the inbox
    (worker,) = system.start("worker")
    assert system.settled(small) == "settled"
    resource = system.run_of(small, "shop.later").result
    worker.stop()
    assert (system.folder / f"closed-{resource.removeprefix('of ')}").read_text() == resource
    assert system.identity_holds()


def test_a_condition_that_raises_is_a_failed_attempt(make_system: Callable[..., System]) -> None:
    text = HEAD + "@router.on('*', retries=0, when=lambda event: event.data['x'])\ndef one(event, ctx):\n    pass\n"
    system = make_system(plugin=text, child_processes=1)
    system.start("worker")
    event_id = system.accept()
    assert system.settled(event_id) == "failed"
    assert "KeyError" in system.run_of(event_id, "shop.one").error


def test_the_log_names_the_module_that_is_missing_and_no_message() -> None:
    """The log has no messages of exceptions, and said only `ModuleNotFoundError; install it`."""
    with pytest.raises(ModuleNotFoundError) as missing:
        importlib.import_module("crm_client")
    assert "cannot be loaded: ModuleNotFoundError: crm_client; install it" in import_error("p", missing.value).logged
    with pytest.raises(ValueError, match="whsec") as failed:
        raise ValueError("whsec_quoted")
    assert "whsec" not in import_error("p", failed.value).logged
