"""A repository that has folders called `workers` and `receiver`: plugins, commands and tests work beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import free_port
from tests.workers.testing.test_kit import run_pytest

SCRIPT = Path(sys.executable).parent / "storehooks"
PLUGIN = """\
import asyncio

from storehooks import Context, Event, Router
from storehooks.errors import ResourceNotFound
from storehooks.records import Order

router = Router("loyalty")


@router.on("order.paid")
def award(event: Event, ctx: Context) -> str:
    ctx.once("points", str, event.resource_id)
    return f"order {event.resource_id}"


@router.on("*")
async def note(event: Event, ctx: Context) -> str:
    return await ctx.once("note", send, event.topic)


async def send(text: str) -> str:
    await asyncio.sleep(0)
    return text
"""
TEST = """\
import loyalty
from storehooks.testing import make_context, make_event


def test_award():
    event = make_event("order.paid", {"id": 7})
    assert loyalty.award(event, make_context(event)) == "order 7"


def test_for_real(system):
    system.start(loyalty.__file__)
    assert system.send("order.paid", {"id": 7}).run("award").result == "order 7"
"""
OWN_TEST = """\
from workers.jobs import run


def test_run():
    assert run() == "their job"
"""
PYTEST_INI = "[pytest]\npythonpath = . plugins\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project with packages called `workers` and `receiver`, and a plugin for storehooks."""
    for name in ("workers", "receiver", "queue"):  # the last one has the name of a module of Python
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "workers/jobs.py").write_text("def run():\n    return 'their job'\n")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/loyalty.py").write_text(PLUGIN)
    storehooks = subprocess.run([SCRIPT, "init"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "wrote config.toml" in storehooks.stdout
    config = tmp_path / "config.toml"
    text = config.read_text().replace("plugins/hello.py", "plugins/loyalty.py")
    for port in ("8000", "8002"):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    more = f'[sandbox]\nbind = "{_sandbox(text)}"\n[console]\nbind = "127.0.0.1:0"\n[redis]\ndata_dir = "data"\n'
    config.write_text(text + more)
    return tmp_path


def _sandbox(text: str) -> str:
    return text.partition('base_url = "http://')[2].partition('"')[0]


def run(repository: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "STOREHOOKS_"))}
    return subprocess.run(
        [SCRIPT, *arguments],
        cwd=repository,
        env={**given, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.full
def test_dev_works_beside_them(repository: Path) -> None:
    """With its receiver, workers and sandbox, which are processes of their own."""
    done = run(repository, "dev", "--events", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accepted 3 = settled 3 + open 0 + failed 0" in done.stdout


@pytest.mark.full
def test_the_commands_work_although_python_finds_them_first(repository: Path) -> None:
    """PYTHONPATH names the repository. `web` and `worker` replace the process of the command."""
    (repository / "queue/__init__.py").unlink()  # it would hide Python's own from every program
    shown = run(repository, "handlers", PYTHONPATH=".")
    assert "loyalty.award" in shown.stdout, shown.stderr
    config = repository / "config.toml"
    text = config.read_text().replace("[redis]", f'[redis]\nurl = "redis://127.0.0.1:{free_port()}"')
    config.write_text(text.replace("[receiver]", '[receiver]\nspool = "off"').replace("loyalty.py", "absent.py"))
    web = run(repository, "web", PYTHONPATH=".")
    assert (web.returncode, "Redis" in web.stderr) == (2, True), web.stderr
    worker = run(repository, "worker", PYTHONPATH=".")
    assert (worker.returncode, "no such file" in worker.stderr) == (2, True), worker.stderr


@pytest.mark.slow
def test_certify_works_beside_them(repository: Path) -> None:
    done = run(repository, "handlers", "certify", "plugins/loyalty.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 handlers, 31 events" in done.stdout


@pytest.mark.full
def test_a_plugins_tests_work_beside_them(repository: Path) -> None:
    (repository / "pytest.ini").write_text(PYTEST_INI)
    (repository / "test_loyalty.py").write_text(TEST)
    (repository / "queue/__init__.py").unlink()  # pytest puts the repository first: Python's own would be hidden
    done = run_pytest(repository, "test_loyalty.py")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_tests_that_do_not_import_storehooks_are_not_affected(repository: Path) -> None:
    (repository / "pytest.ini").write_text(PYTEST_INI)
    (repository / "test_own.py").write_text(OWN_TEST)
    (repository / "queue/__init__.py").unlink()
    done = run_pytest(repository, "test_own.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("order", ["storehooks first", "theirs first"])
@pytest.mark.parametrize(
    "imported", ["from workers.jobs import run", "from workers import jobs", "from workers import X"]
)
def test_a_process_that_imports_both_gets_a_sentence_with_the_folder_and_the_fix(
    repository: Path, order: str, imported: str
) -> None:
    both = ["from storehooks import Router", imported]
    code = "\n".join(both if order == "storehooks first" else ["import workers.jobs", both[0]])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert str(repository / "workers") in last
    assert "rename it, or run its code in a process that does not import storehooks" in last


def test_a_plugin_that_imports_their_folder_is_refused_with_the_folder_and_the_fix(repository: Path) -> None:
    (repository / "plugins/loyalty.py").write_text("from workers.jobs import run\n" + PLUGIN)
    (repository / "queue/__init__.py").unlink()
    done = run(repository, "handlers", PYTHONPATH=".")
    assert done.returncode == 2
    assert "plugins/loyalty.py:1" in done.stderr
    assert f"not {repository / 'workers'}; rename it" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_folder_is_named_also_where_python_does_not_find_it(repository: Path) -> None:
    """Python's path of a command has neither the working directory nor the parents of a plugin."""
    (repository / "plugins/loyalty.py").write_text("from workers.jobs import run\n" + PLUGIN)
    done = run(repository, "handlers")
    assert done.returncode == 2
    assert f"workers is storehooks' own package: rename {repository / 'workers'}" in done.stderr
