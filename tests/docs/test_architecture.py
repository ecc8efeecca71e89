"""The house's own rules: who may import whom, what a light import loads, what is exported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workers
from tests.support.programs import ROOT

EDGE = ("receiver.app", "receiver.server", "receiver.delivery")
SHARED = (
    "receiver.contract",
    "receiver.config",
    "receiver.inbox",
    "receiver.spool",
    "receiver.logs",
    "receiver.ports",
    "receiver.process_files",
)
FLASK_ROOMS = ("workers.console", "workers.storeapi.sandbox")


def modules() -> dict[str, Path]:
    found = {}
    for package in ("receiver", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str) -> Iterator[str]:
    """Every module a file names in an import, also inside functions and type-checking blocks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def broken_rules(module: str, source: str) -> list[str]:
    """What a module imports that it may not."""
    named = set(imports(source))
    ours = {name for name in named if inside(name, "receiver", "workers")}
    broken = []
    if inside(module, "receiver"):
        broken += [name for name in ours if inside(name, "workers")]
    if inside(module, "receiver.contract"):
        broken += [name for name in ours if not inside(name, "receiver.contract") and name != "receiver"]
        broken += [name for name in named if inside(name, "flask", "redis", "rq", "gunicorn", "socket", "sqlite3")]
    if inside(module, "receiver.inbox"):
        broken += [
            name
            for name in ours
            if not inside(
                name, "receiver.contract", "receiver.inbox", "receiver.config.settings", "receiver.config.values"
            )
            and name not in ("receiver", "receiver.config")
        ]
    if inside(module, "workers"):
        broken += [name for name in ours if inside(name, *EDGE)]
        broken += [
            n
            for n in ours
            if inside(n, "receiver") and n.count(".") and not inside(n, *SHARED) and n != "receiver.__version__"
        ]
        if not inside(module, *FLASK_ROOMS):
            broken += [name for name in named if inside(name, "flask")]
    if inside(module, "workers.storeapi.sandbox"):
        broken += [name for name in ours if inside(name, "workers.storeapi.client", "workers.storeapi.transport.auth")]
    return broken


@pytest.mark.parametrize(("module", "path"), modules().items())
def test_imports_point_left(module: str, path: Path) -> None:
    assert broken_rules(module, path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("receiver.app", "from workers import Router"),
        ("receiver.contract.event", "import redis"),
        ("receiver.contract.event", "from receiver.inbox import Inbox"),
        ("receiver.inbox.queries.events", "from receiver.config import Config"),
        ("workers.runtime.worker.worker", "from receiver.app import create_app"),
        ("workers.runtime.worker.worker", "import receiver.server.web"),
        ("workers.cli.dev", "def f():\n    from receiver import app"),
        ("workers.runtime.worker.worker", "import flask"),
        ("workers.storeapi.sandbox.server", "from workers.storeapi.client import Client"),
    ],
)
def test_a_forbidden_import_is_noticed(module: str, line: str) -> None:
    assert broken_rules(module, line)


WRITES = re.compile(
    r"[hmp]?set(ex|nx|range)?|[hx]?del|delete|unlink|[sxz]add|[lsz]rem\w*|[lr]push\w*|b?[lr]pop\w*|b?lm(ove|pop)|ltrim|spop"
    r"|b?zm?pop\w*|[hz]?incr\w*|decr\w*|p?expire\w*|persist|append|rename\w*|eval\w*|fcall|register_script|script_load"
    r"|function_\w+|flush\w+|publish|execute_command"
)
WRITERS = ("receiver.inbox", "workers.storeapi")
"""The rooms that write to Redis. The store's API has keys of its own: tokens and rate limits."""


def redis_writes(module: str, source: str) -> list[str]:
    """Calls of writing commands on something named like a client of Redis, outside the rooms that may."""
    if inside(module, *WRITERS):
        return []
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call)
        for call in calls
        if isinstance(call, ast.Attribute) and WRITES.fullmatch(call.attr) and _is_redis(call.value)
    ]


def _is_redis(value: ast.expr) -> bool:
    """`client`, `self._redis`, `inbox.client`, `client.pipeline()`, `connect_to(...)`."""
    if isinstance(value, ast.Call):
        return _is_redis(value.func)
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.strip("_") in (
        "client",
        "redis",
        "pipeline",
        "pipe",
        "Redis",
        "connect",
        "connect_to",
        "connect_server",
    )


@pytest.mark.parametrize(("module", "path"), modules().items())
def test_only_the_inbox_writes_its_keys(module: str, path: Path) -> None:
    assert redis_writes(module, path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "inbox.client.hset(key, field, value)",
        "self._redis.delete(key)",
        "client.pipeline(transaction=True).zadd(key, {})",
        "connect_to(settings, timeout=1).set(key, value)",
    ],
)
def test_a_write_outside_the_inbox_is_noticed(line: str) -> None:
    assert redis_writes("workers.operations.replay", line)
    assert redis_writes("receiver.inbox.inbox", line) == []
    assert redis_writes("workers.operations.replay", "fields.set(name, value); parts.append(client.get(key))") == []


def test_there_are_no_import_cycles() -> None:
    files = modules()
    graph = {
        name: {target for target in imports(path.read_text()) if target in files and target != name}
        for name, path in files.items()
    }
    for name, targets in graph.items():  # a package's __init__ is its face; what its rooms import of it is theirs
        graph[name] = {target for target in targets if not name.startswith(target + ".")}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_workers_is_light() -> None:
    loaded = loaded_by("import workers")
    assert not loaded & {"flask", "rq", "redis", "pydantic", "httpx2", "gunicorn", "structlog", "rich"}


def test_the_public_web_process_loads_no_plugin_console_or_client_code() -> None:
    loaded = loaded_by("import receiver.server.web")
    assert not {name for name in loaded if name.partition(".")[0] in ("workers", "rq", "httpx2")}
    assert not {name for name in loaded if name.startswith("cryptography.hazmat")}, "only where there is a keyring"


def test_the_worker_loads_no_web_framework() -> None:
    assert not loaded_by(
        "import workers.runtime.worker.worker, workers.runtime.pool.child, workers.runtime.housekeeper"
    ) & {"flask", "gunicorn", "httpx2"}


def test_the_integrators_words_are_these() -> None:
    assert workers.__all__ == ["Busy", "Context", "Drop", "Event", "Fail", "Retry", "Router"]
    assert all(hasattr(workers, name) for name in workers.__all__)


def test_every_room_states_its_law_in_its_first_line() -> None:
    for module, path in modules().items():
        if module != "workers.cli.__main__":
            assert ast.get_docstring(ast.parse(path.read_text())), module
