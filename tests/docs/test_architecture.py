"""docs/architecture.md is the map: its rooms, its import rule and its names are held to the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts import file_index
from tests.support.programs import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
MAP_AND_WORDS = PAGE.split("## Every file")[0] + (ROOT / "docs/glossary.md").read_text()
PACKAGES = ("receiver", "workers", "storehooks")
SHARED = (
    "receiver.logs",
    "receiver.owned_files",
    "receiver.process",
    "workers.processes",
)
EDGE = ("receiver.app", "receiver.server", "receiver.delivery")
FLASK_ROOMS = ("workers.console", "workers.storeapi.sandbox")
PURE_ROOMS = {"receiver.contract": ("flask", "redis", "rq", "gunicorn", "socket", "sqlite3", "pydantic")}
NOT_COUNTED = ("__init__.py", "__main__.py", "__pycache__", "py.typed")
SAME_PART = {
    "errors": "the errors of a room",
    "api": "the store's API, for scripts, and the command that calls it",
    "keys": "the Redis keys of a room",
    "records": "products, orders and customers; the client's are the contract's",
    "events": "reading events, and the command that shows them",
    "failures": "reading failures, and the command that shows them",
    "handlers": "reading handlers, and the command that shows them",
    "stores": "stores, and the command that shows them",
    "topics": "topics, and the command that shows them",
}
"""Names that modules of different rooms may share, because they play the same part there."""
QUAINT = re.compile(
    r"\b(nobody|somebody|whoever|so many|has against|bears|is told|pretend(s|ed)?|horses?|whatever becomes)\b",
    re.IGNORECASE,
)
RQ_SAYS_HORSE = ("docs/glossary.md",)


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def imports(source: str) -> list[str]:
    """Every module a file names in an import, also inside functions and type-checking blocks."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def inside(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def as_module(path: str) -> str:
    return path.removesuffix(".py").rstrip("/").replace("/", ".")


@cache
def import_rule() -> dict[str, tuple[str, ...]]:
    """Each room of the page's table, and the rooms that its third column names."""
    section = PAGE.split("## The rooms")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \|.*\|([^|]*)\|$", section, flags=re.MULTILINE)
    return {as_module(room): tuple(map(as_module, re.findall(r"`(\S+?)`", allowed))) for room, allowed in rows}


def broken_rules(module: str, source: str) -> list[str]:
    """What a module imports that the page does not allow."""
    named = set(imports(source))
    ours = {name for name in named if inside(name, *PACKAGES) and name != "receiver.__version__"}
    broken = []
    for room, allowed in import_rule().items():
        if inside(module, room):
            may = (room, *allowed, *SHARED)
            broken += [name for name in ours if not inside(name, *may) and not any(inside(one, name) for one in may)]
    if inside(module, "receiver"):
        broken += [name for name in ours if inside(name, "workers", "storehooks")]
    if inside(module, "workers"):
        broken += [name for name in ours if inside(name, *EDGE, "storehooks")]
        broken += [name for name in named if inside(name, "flask") and not inside(module, *FLASK_ROOMS)]
    if inside(module, "workers.storeapi.sandbox"):
        broken += [name for name in ours if inside(name, "workers.storeapi.client", "workers.storeapi.transport")]
    for room, heavy in PURE_ROOMS.items():
        if inside(module, room):
            broken += [name for name in named if inside(name, *heavy)]
    return broken


@pytest.mark.parametrize(("module", "path"), modules().items())
def test_each_module_imports_only_what_the_page_allows(module: str, path: Path) -> None:
    assert broken_rules(module, path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("receiver.app", "from workers import Router"),
        ("receiver.contract.event", "import redis"),
        ("receiver.contract.event", "from receiver.inbox import Inbox"),
        ("receiver.inbox.queries.events", "from receiver.config import Config"),
        ("receiver.delivery.storage", "from receiver.server import web"),
        ("workers.runtime.worker.worker", "from receiver.app import create_app"),
        ("workers.runtime.worker.worker", "import receiver.server.web"),
        ("workers.cli.dev", "def f():\n    from receiver import app"),
        ("workers.runtime.worker.worker", "import flask"),
        ("workers.plugins.router", "from workers.runtime import supervisor"),
        ("workers.testing.events", "from storehooks import Event"),
        ("workers.storeapi.sandbox.server", "from workers.storeapi.client import Client"),
    ],
)
def test_a_forbidden_import_is_detected(module: str, line: str) -> None:
    assert broken_rules(module, line)


def test_every_room_is_on_the_page() -> None:
    below = {name for name in modules() if name.count(".") == 1 and not name.endswith("__main__")}
    rooms = {name for name in below if not inside(name, "storehooks", *SHARED)}
    assert rooms | {"storehooks"} == set(import_rule())


@cache
def graph() -> dict[str, set[str]]:
    """Which module imports which. A package's `__init__` is its public face, so it may import from its own rooms."""
    files = modules()
    return {
        name: {
            target
            for target in imports(path.read_text())
            if target in files and target != name and not inside(name, target) and not inside(target, name)
        }
        for name, path in files.items()
    }


def first_cycle(edges: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(edges.get(name, ())):
            if cycle := visit(target, (*path, name)):
                return cycle
        done.add(name)
        return []

    return next(filter(None, (visit(name, ()) for name in sorted(edges))), [])


def test_modules_form_no_import_cycle() -> None:
    assert first_cycle(graph()) == []


def test_the_entries_of_a_folder_form_no_import_cycle() -> None:
    """A folder counts as one entry of the folder above it, with everything below."""
    folders: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, targets in graph().items():
        for target in targets:
            common, left, right = split_at_the_common_folder(name, target)
            folders[common][left].add(right)
    assert {folder: cycle for folder, edges in folders.items() if (cycle := first_cycle(edges))} == {}


def split_at_the_common_folder(one: str, other: str) -> tuple[str, str, str]:
    a, b = one.split("."), other.split(".")
    same = next(place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return ".".join(a[:same]), a[same], b[same]


# Only the inbox writes to Redis


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
    calls = (node.func for node in ast.walk(parsed(source)) if isinstance(node, ast.Call))
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


def reads_in_transactions(source: str) -> list[str]:
    """Calls on a pipeline that do not write, in functions that open one as a transaction, as is redis-py's default."""
    found = []
    for function in (node for node in ast.walk(parsed(source)) if isinstance(node, ast.FunctionDef)):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        methods = [(call, call.func) for call in calls if isinstance(call.func, ast.Attribute)]
        opened = [ast.unparse(call) for call, method in methods if method.attr == "pipeline"]
        if any("transaction=False" not in call for call in opened):
            used = {method.attr for _, method in methods if ast.unparse(method.value) == "pipeline"} - {"execute"}
            found += [f"{function.name}: {name}" for name in sorted(used) if not WRITES.fullmatch(name)]
    return found


@pytest.mark.parametrize("path", modules().values())
def test_no_read_is_a_transaction(path: Path) -> None:
    """At maxmemory, Redis refuses every command inside MULTI, reads too."""
    assert reads_in_transactions(path.read_text()) == []


def test_a_read_in_a_transaction_is_detected() -> None:
    function = "def f(client):\n    pipeline = client.pipeline({})\n    pipeline.{}\n    pipeline.execute()"
    for opened in ("", "transaction=True"):
        assert reads_in_transactions(function.format(opened, "hgetall(a)")) == ["f: hgetall"]
        assert reads_in_transactions(function.format(opened, "hincrby(a, b, 1)")) == []
    assert reads_in_transactions(function.format("transaction=False", "hgetall(a)")) == []


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
def test_a_write_outside_the_inbox_is_detected(line: str) -> None:
    assert redis_writes("workers.operations.replay", line)
    assert redis_writes("receiver.inbox.inbox", line) == []
    assert redis_writes("workers.operations.replay", "fields.set(name, value); parts.append(client.get(key))") == []


# Names and paths on the page


def words_in_code_style(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def test_every_path_on_the_page_exists() -> None:
    paths = {
        word
        for word in words_in_code_style(MAP_AND_WORDS)
        if re.fullmatch(r"[a-z_]+(/[a-z_.]+)*/?|[\w/]+\.(py|lua|toml|md)", word)
    }
    paths = {path for path in paths if "/" in path or path.endswith((".py", ".toml"))}
    assert len(paths) > 40
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_class_and_function_on_the_page_exists() -> None:
    defined = set()
    for path in modules().values():
        tree = parsed(path.read_text())
        defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    named = {
        word for word in words_in_code_style(PAGE + MAP_AND_WORDS) if re.fullmatch(r"[A-Z][A-Za-z]+|create_app", word)
    }
    assert len(named) > 5
    assert named - defined == set()


def test_the_list_of_files_is_current() -> None:
    assert file_index.page(PAGE) == PAGE, "run make reference"


def test_the_table_of_changes_has_at_least_twelve_rows() -> None:
    section = PAGE.split("## To change this, open that")[1].split("## Every file")[0]
    assert len(re.findall(r"^\| [^-|][^|]+\| `", section, flags=re.MULTILINE)) >= 12


# Counts


def product_files() -> list[Path]:
    lua = [path for package in ("receiver", "workers") for path in (ROOT / package).rglob("*.lua")]
    return [*modules().values(), *lua]


def texts_for_people() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "config.example.toml", *(ROOT / "docs").rglob("*.md")]
    return [*product_files(), *pages, *(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.md")]


def classes() -> Iterator[tuple[str, int, str]]:
    """Each class of the product: its name, how many methods it has, and its module."""
    for module, path in modules().items():
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
                yield node.name, methods, module


def test_the_counts_of_the_house_are_within_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    flat = sorted(path.name for path in (ROOT / "workers").glob("*.py") if path.name not in NOT_COUNTED)
    names = Counter(name for name, _, _ in classes())
    twice = sorted(name for name, count in names.items() if count > 1)
    large = sorted(f"{module}.{name} ({methods})" for name, methods, module in classes() if methods > 20)
    long = sorted(str(path.relative_to(ROOT)) for path in product_files() if len(path.read_text().splitlines()) > 400)
    quaint = [f"{path.relative_to(ROOT)}: {word}" for path in texts_for_people() for word in quaint_words(path)]
    with capsys.disabled():
        print(f"\nmodules directly in workers/: {len(flat)}; class names defined twice: {len(twice)}; ", end="")
        print(f"classes with more than 20 methods: {len(large)}; files over 400 lines: {len(long)}; ", end="")
        print(f"quaint words: {len(quaint)}")
    assert len(flat) <= 3, flat
    assert twice == []
    assert large == []
    assert long == []
    assert len(quaint) <= 5, quaint


def quaint_words(path: Path) -> Iterable[str]:
    found = [match[0] for match in QUAINT.finditer(path.read_text())]
    allowed = ("horse", "horses") if str(path.relative_to(ROOT)) in RQ_SAYS_HORSE else ()
    return [word for word in found if word.lower() not in allowed]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_at_most_ten_entries(package: str) -> None:
    entries = {name.split(".")[1] for name in modules() if name.count(".") and inside(name, package)}
    assert len(entries - {"__main__"}) <= 10, sorted(entries)


def test_modules_share_a_name_only_where_they_play_the_same_part() -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for module, path in modules().items():
        if path.name not in NOT_COUNTED:
            names[path.stem].add(module.rpartition(".")[0])
    shared = {name for name, rooms in names.items() if len(rooms) > 1}
    assert shared - set(SAME_PART) == set()


def test_the_tests_have_the_rooms_of_the_product() -> None:
    for package in ("receiver", "workers"):
        rooms = {path.name for path in (ROOT / "tests" / package).iterdir() if path.is_dir()} - {"__pycache__"}
        assert rooms <= {name.split(".")[1] for name in modules() if name.count(".") and inside(name, package)}


# What is loaded, and what is public


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_workers_is_light() -> None:
    loaded = loaded_by("import workers")
    assert not loaded & {"flask", "rq", "redis", "pydantic", "httpx2", "gunicorn", "structlog", "rich", "opentelemetry"}


def test_the_public_web_process_loads_no_plugin_console_or_client_code() -> None:
    loaded = loaded_by("import receiver.server.web")
    assert not {name for name in loaded if name.partition(".")[0] in ("workers", "rq", "httpx2")}
    assert not {name for name in loaded if name.startswith("cryptography.hazmat")}, "only where there is a keyring"


def test_the_worker_loads_no_web_framework() -> None:
    loaded = loaded_by("import workers.runtime.worker.worker, workers.runtime.pool.child, workers.runtime.housekeeper")
    assert not loaded & {"flask", "gunicorn", "httpx2"}


def test_every_module_says_what_it_is_for() -> None:
    for module, path in modules().items():
        if module != "workers.cli.__main__":
            assert ast.get_docstring(parsed(path.read_text())), module


def test_every_room_states_its_law() -> None:
    for module, path in modules().items():
        if path.name == "__init__.py" and module not in (*PACKAGES, "workers.cli"):
            assert "Law of this room" in (ast.get_docstring(parsed(path.read_text())) or ""), module
