"""Child processes run the code that was validated, whatever is on disk when they start."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Process, System, children_of, comm, eventually

SHOP = """
import os, pathlib, time
from workers import Fail, Router
router = Router("shop")
IMPORTED_BY = os.getpid()
WORD = (pathlib.Path(__file__).parent / "word.txt").read_text()

@router.on("order.created")
def greet(event, ctx):
    return f"old {WORD}"

@router.on("order.failing", retries=0)
def failing(event, ctx):
    raise Fail("the old line")

@router.on("order.pids")
@router.on("order.pids", name="more_pids")  # a handler gets half of the child processes at most
def pids(event, ctx):
    time.sleep(0.05)
    return f"{IMPORTED_BY} {os.getpid()}"
"""
BESIDE = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport beside\n" + SHOP.replace(
    'f"old {WORD}"', 'f"{beside.WORD} {beside.parts.one.WORD}"'
)
LOYALTY = """
from loyalty.points import POINTS
from workers import Router
router = Router("loyalty")

@router.on("order.created", "customer.created")
def points(event, ctx):
    return POINTS
"""
QUICK = {"workers.runtime.worker.worker.VALIDATE_AGAIN_EVERY": 0.5}


def child_processes(worker: Process) -> list[int]:
    return [pid for pid in children_of(worker.pid) if comm(pid) == "sh-child"]


def kill_child_processes(worker: Process, many: int = 99) -> None:
    killed = child_processes(worker)[:many]
    for pid in killed:
        with suppress(ProcessLookupError):  # one that cannot load a plugin ends by itself
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not set(killed) & set(child_processes(worker)), what="they are reaped")


def runs(system: System, event_id: str) -> dict[str, dict[str, Any]]:
    """The runs of a settled event by handler, as `events show` prints them."""
    system.settled(event_id)
    shown = system.run_cli("events", "show", event_id, "--json")
    return {run["handler"]: run for run in json.loads(shown.stdout)["runs"]}


def result(system: System, event_id: str, handler: str = "shop.greet") -> tuple[str, str]:
    """What a run returned, and the version that it ran."""
    system.settled(event_id, 20)
    run = system.run_of(event_id, handler)
    return str(run.result), str(run.version)


def doctor(system: System) -> str:
    """What `doctor` says on a host without the package, about the workers' hosts."""
    found = json.loads(system.run_cli("doctor", "--json").stdout)
    return " ".join(str(one) for one in found["findings"] if one["check"] == "workers")


def wait_until_done(system: System, event_id: str, handler: str) -> None:
    """Wait for one run of an event; others may still wait."""
    eventually(
        lambda: (run := system.run_of(event_id, handler)) and run.status == "done",
        what=f"{handler} done; the worker's log: {system.log('worker')[-800:]}",
    )


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    system = make_system(plugin=SHOP)
    (system.folder / "word.txt").write_text("hat")
    return system


@pytest.fixture
def with_package(shop: System) -> System:
    """A second plugin, which is a package, found by its name."""
    write_package(shop.folder, "POINTS = 'old'\n")
    shop.config_file.write_text(shop.config_file.read_text().replace('["shop.py"]', '["shop.py", "loyalty"]'))
    return shop


def write_package(folder: Path, points: str) -> None:
    package = folder / "loyalty"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(LOYALTY)
    (package / "points.py").write_text(points)


def install(folder: Path) -> Path:
    """Install the package with its entry point; returns the folder for Python's path."""
    site = folder / "site"
    about = site / "loyalty-1.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: loyalty\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text("[storehooks.handlers]\nloyalty = loyalty:router\n")
    write_package(site, "POINTS = 'old'\n")
    return site


# A plugin named by file


def test_row_28_work_goes_on_with_the_validated_code_after_the_file_broke_and_child_processes_were_killed(
    shop: System,
) -> None:
    _, worker, _ = shop.start("web", "worker", "housekeeper")
    before = result(shop, shop.deliver())
    shop.plugin.write_text("this is not python\n" * 30)
    worker.send(signal.SIGHUP)
    eventually(lambda: "the old config and plugins stay" in shop.log("worker"))
    for _ in range(3):
        kill_child_processes(worker)
        assert {result(shop, shop.deliver()) for _ in range(10)} == {before}
    failed = shop.deliver("order.failing")
    assert shop.settled(failed) == "failed"
    (group,) = json.loads(shop.run_cli("failures", "--json").stdout)
    shown = shop.run_cli("failures", "show", group["group"]).stdout
    line = 1 + SHOP[: SHOP.index("raise Fail")].count("\n")
    assert f'File "{shop.plugin}", line {line}, in failing' in shown
    assert 'raise Fail("the old line")' in shown
    assert worker.alive


def test_a_valid_edit_runs_only_after_hup(shop: System) -> None:
    _, worker, _ = shop.start("web", "worker", "housekeeper")
    before = result(shop, shop.deliver())
    assert before[0] == "old hat"
    shop.plugin.write_text(SHOP.replace('f"old', 'f"new'))
    done = []
    for _ in range(5):
        kill_child_processes(worker)
        done += [shop.deliver() for _ in range(20)]
    assert {result(shop, event_id) for event_id in done} == {before}
    assert runs(shop, done[-1])["shop.greet"]["version"] == before[1]
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in shop.log("worker"))
    after = eventually(lambda: (found := result(shop, shop.deliver())) != before and found)
    assert after[0] == "new hat"
    assert after[1] != before[1]


def test_the_copy_of_a_file_includes_what_it_imports_from_its_folder(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=BESIDE)
    (system.folder / "word.txt").write_text("hat")
    (system.folder / "parts").mkdir()
    (system.folder / "parts/__init__.py").write_text("from . import one\n")
    (system.folder / "parts/one.py").write_text("WORD = 'one'\n")
    (system.folder / "beside.py").write_text("import parts\nWORD = 'old'\n")
    worker, _ = system.start("worker", "housekeeper")
    before = result(system, system.accept())
    assert before[0] == "old one"
    (system.folder / "beside.py").write_text("import parts\nWORD = 'new'\n")
    (system.folder / "parts/one.py").unlink()
    kill_child_processes(worker)
    assert result(system, system.accept()) == before
    (system.folder / "parts/one.py").write_text("WORD = 'two'\n")
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    after = eventually(lambda: (found := result(system, system.accept())) != before and found)
    assert after[0] == "new two"
    assert after[1] != before[1]


@pytest.mark.full
def test_each_child_process_imports_the_plugins_itself(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    eventually(lambda: len(child_processes(worker)) == 2)
    events = [shop.accept("order.pids") for _ in range(20)]
    pairs = {result(shop, event_id, handler)[0] for event_id in events for handler in ("shop.pids", "shop.more_pids")}
    assert all(pair.split()[0] == pair.split()[1] for pair in pairs)
    assert {int(pair.split()[0]) for pair in pairs} == set(child_processes(worker))


# A plugin that is a package


@pytest.mark.full
def test_an_installed_package_that_breaks_stops_no_other_plugin_and_resumes_when_repaired(
    shop: System, tmp_path: Path
) -> None:
    site = install(tmp_path)
    _, worker, _ = shop.start("web", "worker", "housekeeper", env={"PYTHONPATH": str(site)})
    assert result(shop, shop.deliver(), "loyalty.points") == ("old", "1.5")
    shown = shop.run_cli("handlers", "--json", env={"PYTHONPATH": str(site)})
    files = {one["handler"]: one["file"] for one in json.loads(shown.stdout)}
    assert files["shop.greet"] == str(shop.plugin)
    assert files["loyalty.points"] == str(site / "loyalty/__init__.py")

    (site / "loyalty/points.py").write_text("POINTS = broken(\n")
    kill_child_processes(worker)
    waiting = [shop.deliver() for _ in range(5)]
    for event_id in waiting:
        wait_until_done(shop, event_id, "shop.greet")
    eventually(lambda: "loyalty/points.py:1" in shop.log("worker"), what=shop.log("worker"))
    for event_id in waiting:
        run = shop.run_of(event_id, "loyalty.points")
        assert (run.status, run.attempts) == ("waiting", 0)
    assert "a plugin cannot be loaded any more" in doctor(shop)
    assert f"{site}/loyalty/points.py:1: entry point loyalty" in doctor(shop)
    explained = json.loads(shop.run_cli("handlers", "explain", waiting[0], "--json").stdout)
    (why,) = (one["why"] for one in explained if one["handler"] == "loyalty.points")
    assert f"a worker cannot load the plugin loyalty any more: {site}/loyalty/points.py:1: entry point loyalty" in why

    (site / "loyalty/points.py").write_text("POINTS = 'newer'\n")
    assert {result(shop, event_id, "loyalty.points") for event_id in waiting} == {("newer", "1.5")}
    assert "a plugin cannot be loaded any more" not in doctor(shop)


@pytest.mark.full
def test_a_package_that_is_gone_for_a_moment_is_not_forgotten(shop: System, tmp_path: Path) -> None:
    """As while it is upgraded. Without HUP, its handlers are neither retired nor lost."""
    site = install(tmp_path)
    worker, _ = shop.start("worker", "housekeeper", env={"PYTHONPATH": str(site)})
    shop.settled(shop.accept())
    site.rename(tmp_path / "moved")
    kill_child_processes(worker)
    event_id = shop.accept()
    wait_until_done(shop, event_id, "shop.greet")
    eventually(lambda: "plugin loyalty is not installed any more" in shop.log("worker"), what=shop.log("worker"))
    (tmp_path / "moved").rename(site)
    assert result(shop, event_id, "loyalty.points") == ("old", "1.5")
    eventually(lambda: "all plugins can be loaded again" in shop.log("worker"), what=shop.log("worker"))


@pytest.mark.full
def test_child_processes_that_have_a_broken_package_keep_it(with_package: System) -> None:
    shop = with_package
    worker, _ = shop.start("worker", "housekeeper", quicker=QUICK)
    eventually(lambda: len(child_processes(worker)) == 2)
    before = result(shop, shop.accept(), "loyalty.points")
    (shop.folder / "loyalty/points.py").write_text("POINTS = broken(\n")
    kill_child_processes(worker, 1)
    eventually(lambda: "points.py:1" in shop.log("worker"), what=shop.log("worker"))
    events = [shop.accept() for _ in range(30)]
    assert {result(shop, event_id, "loyalty.points") for event_id in events} == {before}
    assert {result(shop, event_id)[0] for event_id in events} == {"old hat"}
    lines = [line for line in shop.log("worker").splitlines() if "points.py:1" in line]
    assert len(lines) == 1, "the fault is logged once"


@pytest.mark.full
def test_a_child_process_is_not_replaced_while_a_package_is_broken(with_package: System) -> None:
    shop = with_package
    quicker = QUICK | {"workers.runtime.pool.pool.RUNS_BEFORE_RECYCLING": 10}
    shop.start("worker", "housekeeper", quicker=quicker)
    before = result(shop, shop.accept(), "loyalty.points")
    (shop.folder / "loyalty/points.py").write_text("import sys; sys.exit(3)\n")
    events = [shop.accept() for _ in range(60)]
    assert {result(shop, event_id, "loyalty.points") for event_id in events} == {before}
    eventually(lambda: "points.py:1" in shop.log("worker"), what=shop.log("worker"))
    write_package(shop.folder, "POINTS = 'newer'\n")
    after = eventually(lambda: (found := result(shop, shop.accept(), "loyalty.points")) != before and found)
    assert after[0] == "newer"


def test_a_package_that_changed_is_validated_and_all_child_processes_are_replaced(with_package: System) -> None:
    shop = with_package
    worker, _ = shop.start("worker", "housekeeper", quicker=QUICK)
    eventually(lambda: len(child_processes(worker)) == 2)
    before = result(shop, shop.accept(), "loyalty.points")
    shop.plugin.write_text(SHOP.replace('f"old', 'f"edited'))  # valid, but without HUP it must not run
    write_package(shop.folder, "POINTS = 'newer'\n")
    kill_child_processes(worker, 1)
    events = [shop.accept() for _ in range(50)]
    eventually(lambda: '"reloaded"' in shop.log("worker"))
    after = eventually(lambda: (found := result(shop, shop.accept(), "loyalty.points")) != before and found)
    assert after[0] == "newer"
    events += [shop.accept() for _ in range(20)]
    assert {result(shop, event_id, "loyalty.points") for event_id in events} <= {before, after}
    assert {result(shop, event_id)[0] for event_id in events} == {"old hat"}


def test_a_package_that_ends_the_process_at_import_stops_no_other_plugin(with_package: System) -> None:
    shop = with_package
    worker, _ = shop.start("worker", "housekeeper", quicker=QUICK)
    shop.settled(shop.accept())
    write_package(shop.folder, "import os\nos._exit(7)\n")
    kill_child_processes(worker)
    event_id = shop.accept()
    wait_until_done(shop, event_id, "shop.greet")
    eventually(lambda: "exit code 7" in shop.log("worker"))
    write_package(shop.folder, "POINTS = 'newer'\n")
    assert result(shop, event_id, "loyalty.points")[0] == "newer"


def test_a_plugin_whose_import_fails_in_child_processes_stops_no_other_plugin(with_package: System) -> None:
    """Its code is as validated, but it reads a file that is gone."""
    shop = with_package
    worker, _ = shop.start("worker", "housekeeper", quicker=QUICK)
    shop.settled(shop.accept())
    (shop.folder / "word.txt").unlink()
    kill_child_processes(worker)
    event_id = shop.accept()
    wait_until_done(shop, event_id, "loyalty.points")
    eventually(lambda: "a plugin cannot be loaded any more" in shop.log("worker"))
    assert "FileNotFoundError" in shop.log("worker")
    assert "word.txt" not in shop.log("worker"), "a log has no message of an exception"
    assert "word.txt" in doctor(shop)
    (shop.folder / "word.txt").write_text("cap")
    assert result(shop, event_id)[0] == "old cap"


def test_a_plugin_that_only_child_processes_cannot_load_is_reported_and_not_reloaded(
    with_package: System,
) -> None:
    """As one that needs a lock, or one of few connections: it was valid, and reloaded every five seconds."""
    shop = with_package
    refuses = """
if (pathlib.Path(__file__).parent / "refuse").exists() and "child" in pathlib.Path("/proc/self/comm").read_text():
    raise RuntimeError("no connection is free")
"""
    shop.plugin.write_text(SHOP + refuses)
    quicker = QUICK | {"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.5}
    worker, _ = shop.start("worker", "housekeeper", quicker=quicker)
    shop.settled(shop.accept())
    (kept,) = child_processes(worker)[1:]
    (shop.folder / "refuse").touch()
    kill_child_processes(worker, 1)
    eventually(lambda: "plugins cannot be loaded as they were validated" in shop.log("worker"))
    eventually(lambda: "a plugin cannot be loaded any more" in doctor(shop), what=shop.log("worker"))
    assert "RuntimeError" in doctor(shop)
    assert kept in child_processes(worker), "it has every plugin"
    kill_child_processes(worker)
    event_id = shop.accept()
    wait_until_done(shop, event_id, "loyalty.points")
    assert shop.log("worker").count("plugins cannot be loaded as they were validated") == 1
    assert '"reloaded"' not in shop.log("worker")
    (shop.folder / "refuse").unlink()
    assert result(shop, event_id)[0] == "old hat"
    eventually(lambda: "a plugin cannot be loaded any more" not in doctor(shop))


def test_the_package_of_a_plugin_is_found_below_a_namespace(make_system: Callable[..., System]) -> None:
    system = make_system()
    folder = system.folder / "acme_shops"
    folder.mkdir()
    write_package(folder, "POINTS = 'old'\n")
    init = folder / "loyalty/__init__.py"
    init.write_text(init.read_text().replace("loyalty.points", "acme_shops.loyalty.points"))
    system.config_file.write_text(system.config_file.read_text().replace('["shop.py"]', '["acme_shops.loyalty"]'))
    worker, _ = system.start("worker", "housekeeper", quicker=QUICK)
    before = result(system, system.accept(), "loyalty.points")
    (folder / "loyalty/points.py").write_text("POINTS = 'newer'\n")
    kill_child_processes(worker)
    after = eventually(lambda: (found := result(system, system.accept(), "loyalty.points")) != before and found)
    assert after[0] == "newer"
    assert after[1] != before[1]
