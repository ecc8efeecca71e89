"""new-plugin: write a plugin package with a handler, settings, tests, an entry point and a README."""

from __future__ import annotations

import keyword
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import click

from receiver.contract.errors import ConfigError
from workers.cli.output import echo, next_command

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_TAKEN = {"workers", "receiver", "storehooks", "tests", "test", "pytest"}


def is_taken(module: str) -> bool:
    """Whether a module of this name cannot be imported, or would hide another one."""
    with suppress(PackageNotFoundError):
        for one in requires("storehooks") or ():
            if re.split(r"[^A-Za-z0-9_-]", one)[0].replace("-", "_").lower() == module:
                return True
    return module in _TAKEN or keyword.iskeyword(module) or module in sys.stdlib_module_names


FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=80"]
build-backend = "setuptools.build_meta"

[project]
name = "storehooks-{dashed}"
version = "0.1.0"
description = "A storehooks plugin."
requires-python = ">=3.11"
dependencies = ["storehooks"]

[project.entry-points."storehooks.handlers"]
{module} = "{module}"

[tool.setuptools]
py-modules = ["{module}"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
""",
    "{module}.py": '''\
"""A storehooks plugin: greets every paid order of some size."""

from pydantic import BaseModel

from storehooks import Context, Drop, Event, Router


class Settings(BaseModel):
    """The keys of [plugins.{module}] in the config."""

    greeting: str = "thank you"


router = Router("{module}", settings=Settings)


@router.on("order.paid", when={{"total": "> 10"}}, retries=(10, 60, 300), timeout=30)
def greet(event: Event, ctx: Context[Settings]) -> str:
    if event.data.get("test"):
        raise Drop("a test order")
    # An effect that must happen once goes through ctx.once; see docs/effects.md.
    return f"{{ctx.settings.greeting}} for order {{event.resource_id}}, {{event.data['total']}}"
''',
    "tests/test_{module}.py": """\
from pathlib import Path

import pytest
import {module}
from {module} import Settings, greet

from storehooks import Drop
from storehooks.testing import make_context, make_event


def test_a_paid_order_is_greeted():
    event = make_event("order.paid", {{"id": 1001, "total": "42.00"}})
    ctx = make_context(event, settings=Settings(greeting="merci"))
    assert greet(event, ctx) == "merci for order 1001, 42.00"


def test_a_test_order_is_dropped():
    event = make_event("order.paid", {{"test": True}})
    with pytest.raises(Drop):
        greet(event, make_context(event, settings=Settings()))


def test_for_real(system):
    system.start(Path({module}.__file__))
    sent = system.send("order.paid", {{"id": 1001, "total": "42.00"}})
    assert sent.run("greet").result == "thank you for order 1001, 42.00"
    assert system.send("order.paid", {{"total": "5.00"}}).run("greet").result == "skipped: total > 10 was false"
""",
    "README.md": """\
# {dashed}

A storehooks plugin. Its tests need pytest (`pip install pytest`):

    python -m pytest

Install it beside storehooks, and workers find it by its entry point:

    pip install .

A wheel for other machines, in the folder `dist`. Build it in the environment of storehooks; its version is in
`pyproject.toml`:

    python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .

Or, while you write it, name its file in the config: `[workers] plugins = ["{folder}/{module}.py"]`.

```toml
[plugins.{module}]
greeting = "thank you"
```

Test it against duplicates, reordering and crashes:

    storehooks handlers certify {module}.py
""",
    ".gitignore": "__pycache__/\n*.egg-info/\nbuild/\ndist/\n.pytest_cache/\n",
}


@click.command("new-plugin")
@click.argument("name")
def new_plugin(name: str) -> None:
    """Write a plugin package with tests into a new folder."""
    dashed, module = name.replace("_", "-"), name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:64]!r} is not a valid plugin name; use lower-case letters and digits, such as stock-alert"
        )
    if is_taken(module):
        raise ConfigError(
            f"{name!r} is not a valid plugin name: Python or storehooks uses it already; choose another name"
        )
    folder = Path(name)
    if folder.exists():
        raise ConfigError(f"{folder} already exists and is not overwritten; choose another name")
    words = {"dashed": dashed, "module": module, "folder": str(folder)}
    for path, text in FILES.items():
        file = folder / path.format(**words)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(**words))
    echo(f"wrote {folder}/: {', '.join(path.format(**words) for path in FILES)}")
    next_command(
        f"cd {folder} && python -m pytest  run its tests, with pytest installed",
        f'[workers] plugins = ["{folder}/{module}.py"]  in config.toml: load it',
        f"storehooks handlers certify {folder}/{module}.py  test it against duplicates, reordering and crashes",
    )
