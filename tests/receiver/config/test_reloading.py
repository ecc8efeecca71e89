"""On HUP each key is applied, or named in the log as one that needs a restart: all keys of the config, one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGHUP
from typing import Any

import pytest
from pydantic import BaseModel

from receiver.config import Config, load
from receiver.config.reloading import SANDBOX, SERVICE, adopt
from receiver.config.source_files import KeyPath, dotted
from tests.support.harness import System, eventually
from tests.support.programs import ROOT

NAMED = """
[limits.erp]
rate = "5/s"
[forward.erp]
url = "https://erp.example/hook"
topics = ["order.*"]
[alerts.targets.ops]
url = "https://ops.example/hook"
[plugins.hello]
greeting = "x"
handlers.greet = { timeout = "5s" }
[catalogue.orders.get]
path = "x"
[schemes.own]
extends = "shopify"
[stores.north]
signing_secrets = ["whsec_dGVzdCBzZWNyZXQgb2Ygb25lIHN0b3Jl"]
"""
RELOADS = {
    "receiver/server/web.py": "web",
    "workers/__main__.py": "the supervisor",
    "workers/runtime/worker/worker.py": "a worker",
    "workers/runtime/housekeeper.py": "the housekeeper",
    "workers/console/web_process.py": "the console",
    "workers/storeapi/sandbox/process.py": "the sandbox",
    "workers/cli/dev.py": "dev",
}


def keys_of(table: Any, key: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a table and of the tables in it, and one for each name of a table such as [stores]."""
    if isinstance(table, BaseModel):
        for name in type(table).model_fields:
            yield from keys_of(getattr(table, name), (*key, name))
        for name, value in (table.model_extra or {}).items():
            yield from keys_of(value, (*key, name))
    elif isinstance(table, dict) and table:
        for name, value in table.items():
            yield from keys_of(value, (*key, name))
    else:
        yield key


def with_value(table: Any, key: KeyPath, value: Any) -> Any:
    """The table with another value at a key."""
    if not key:
        return value
    name, *rest = key
    if isinstance(table, dict):
        return {**table, name: with_value(table[name], tuple(rest), value)}
    return table.model_copy(update={str(name): with_value(getattr(table, str(name)), tuple(rest), value)})


def value_at(table: Any, key: KeyPath) -> Any:
    for name in key:
        table = table[name] if isinstance(table, dict) else getattr(table, str(name))
    return table


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.toml").write_text(NAMED)
    return load(tmp_path / "config.toml", {})


@pytest.mark.parametrize("kept", [SERVICE, SANDBOX])
def test_each_key_of_the_config_is_applied_or_named(config: Config, kept: str) -> None:
    keys, named = list(keys_of(config)), set()
    assert len(keys) > 150
    for key in keys:
        changed = object()
        adopted, left = adopt(config, with_value(config, key, changed), keep=kept)
        if value_at(adopted, key) is changed:
            assert left == []
        else:
            assert left == [dotted(key)]
            assert value_at(adopted, key) == value_at(config, key)
            named.add(dotted(key))
    assert named == {dotted(key) for key in keys if key[0] == kept}
    assert adopt(config, config, keep=kept)[1] == []


def test_each_process_that_reads_the_config_again_uses_it_in_this_way() -> None:
    """A process that read it in a way of its own could lose a key, or use another server than its neighbours."""
    readers = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("receiver", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\badopt\((self\._?)?config,", path.read_text())
    }
    assert set(readers) == set(RELOADS)
    for name, text in readers.items():
        assert "has changed; restart" in text or "the supervisor logs" in text, name


@pytest.mark.full
def test_running_processes_name_the_keys_that_need_a_restart(make_system: Callable[..., System]) -> None:
    system = make_system()
    names = ("web", "supervisor", "console")
    processes = system.start(*names)
    eventually(lambda: '"worker started"' in system.log("supervisor"), 60)
    eventually(lambda: "console " in system.log("console"), 60)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[redis]\n", '[redis]\ntimeout = "700ms"\nack = "replica"\n', 1))
    for name, process in zip(names, processes, strict=True):
        before = system.log(name)
        process.send(SIGHUP)
        said = eventually(lambda n=name, b=before: "has changed; restart" in system.log(n)[len(b) :], 60, what=name)
        assert said
        assert '"keys": ["redis.ack", "redis.timeout"]' in system.log(name)
    eventually(system.web_answers)
    assert system.http.get("/readyz?strict=1").status_code == 200, "it goes on with the server that it has"
