"""`storehooks worker` as a whole: HUP changes the number of its processes, and as PID 1 it reaps orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.harness import Process, Server, System, children_of, comm, eventually, gone

PLUGIN = """
import os, subprocess, sys, time
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    return "hello"
@router.on("order.slow", timeout=60)
def slow(event, ctx):
    open(os.path.join(os.path.dirname(__file__), "begun-" + event.id), "w").close()
    time.sleep(2)
    return f"by {os.getppid()}"
@router.on("order.orphan")
def orphan(event, ctx):
    # A daemon: its parent ends at once, and it ends a moment later.
    daemon = "import os, time\\nos.fork() and os._exit(0)\\nos.setsid()\\ntime.sleep(0.2)"
    subprocess.run([sys.executable, "-c", daemon])
"""


def set_workers(system: System, **settings: int) -> None:
    lines = [line for line in system.config_file.read_text().splitlines() if line.split(" ")[0] not in settings]
    place = lines.index("[workers]") + 1
    lines[place:place] = [f"{name} = {value}" for name, value in settings.items()]
    # The receiver has `processes` too, in the section before: it has its default from now on.
    system.config_file.write_text("\n".join(lines) + "\n")


def named(supervisor: Process, role: str) -> list[int]:
    """The processes that the supervisor has started itself, for a role."""
    direct = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    return [int(pid) for pid in direct if comm(int(pid)).startswith(f"sh-{role}") and not gone(int(pid))]


def workers(supervisor: Process) -> list[int]:
    return named(supervisor, "worker")


def test_no_connection_stays_open_after_the_check_at_start(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url, plugin=PLUGIN)
    system.start("supervisor")

    def blocked() -> list[bool]:
        """Of the connections whose last command is that of the check and of a worker that waits: which ones wait."""
        clients = own_redis.client.client_list()
        return ["b" in one["flags"] for one in clients if one["cmd"] == "blmove"]

    eventually(lambda: any(blocked()), what="the worker waits for wake-ups")
    assert blocked() == [True]


def test_hup_changes_the_number_of_child_processes(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, child_processes=2)
    (worker,) = system.start("worker")
    eventually(lambda: len(children_of(worker.pid)) == 2)
    for number in (5, 1):
        set_workers(system, child_processes=number)
        worker.send(signal.SIGHUP)
        eventually(lambda n=number: len([pid for pid in children_of(worker.pid) if not gone(pid)]) == n)
        eventually(lambda n=number: f'"child_processes": {n}' in system.log("worker").splitlines()[-1])
        assert system.settled(system.accept()) == "settled"


def test_hup_starts_and_drains_worker_processes(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    (first,) = eventually(lambda: workers(supervisor))
    eventually(lambda: "worker started" in system.log("supervisor"))
    set_workers(system, processes=3)
    supervisor.send(signal.SIGHUP)
    three = eventually(lambda: len(found := workers(supervisor)) == 3 and found)
    assert first in three
    eventually(lambda: system.client.scard("rq:workers:storehooks") == 3)

    eventually(lambda: system.log("supervisor").count("worker started") == 3)
    slow = [system.accept("order.slow", data={"id": number}) for number in range(3)]
    eventually(lambda: len(list(system.folder.glob("begun-*"))) == 3, what="each worker has a run under way")
    set_workers(system, processes=1)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: workers(supervisor) == [first])
    for event_id in slow:
        assert system.settled(event_id) == "settled"
        assert system.run_of(event_id, "shop.slow").attempts == 1
    assert len(list(system.folder.glob("begun-*"))) == 3, "the runs under way ended, and none began twice"
    assert "restarting it" not in system.log("supervisor")

    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(found := workers(supervisor)) == 1 and found != [first])
    assert len(named(supervisor, "housekeeper")) == 1


SECRET = "whsec_quoted"
IMPORT_RAISES = f"raise RuntimeError('{SECRET}')\n"
SYNTAX_ERROR = f"raise SyntaxError('{SECRET}', ('plugin.py', 1, 1, ''))\n"
SETTINGS_RAISE = f"""
from dataclasses import dataclass
from workers import Router

@dataclass
class Settings:
    key: str = ""
    def __post_init__(self):
        raise ERROR("{SECRET}")

router = Router("shop", settings=Settings)

@router.on("order.created")
def greet(event, ctx):
    pass
"""
QUOTING = {
    "RuntimeError": IMPORT_RAISES,
    "a syntax error": SYNTAX_ERROR,
    "value_error": SETTINGS_RAISE.replace("ERROR", "ValueError"),
    "KeyError": SETTINGS_RAISE.replace("ERROR", "KeyError"),
}


def test_a_log_has_no_message_of_a_plugins_exception_and_a_person_who_asks_gets_it(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    for number, (named_so, plugin) in enumerate(QUOTING.items(), 1):
        system.plugin.write_text(plugin)
        supervisor.send(signal.SIGHUP)
        eventually(lambda wanted=2 * number: system.log("supervisor").count("reload refused") == wanted)
        log = system.log("supervisor")
        assert named_so in log.splitlines()[-1]
        assert SECRET not in log
        assert SECRET in system.run_cli("doctor").stdout


def test_hup_with_a_broken_plugin_leaves_the_processes_as_they_are(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    (first,) = eventually(lambda: workers(supervisor))
    eventually(lambda: "worker started" in system.log("supervisor"))
    system.plugin.write_text("broken(")
    set_workers(system, processes=3)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: system.log("supervisor").count("reload refused") == 2, what="the supervisor and the worker")
    assert workers(supervisor) == [first]
    system.plugin.write_text(PLUGIN)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: len(workers(supervisor)) == 3)
    assert first in workers(supervisor)


def test_hup_names_the_settings_that_need_a_restart(make_system: Callable[..., System], own_redis: Server) -> None:
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    text = system.config_file.read_text()
    old = system.config.redis.url
    system.config_file.write_text(text.replace(old, own_redis.url))
    supervisor.send(signal.SIGHUP)
    eventually(lambda: "[redis] has changed" in system.log("supervisor"))
    eventually(lambda: '"supervisor reloaded"' in system.log("supervisor"))
    assert system.settled(system.accept()) == "settled", "the work goes on with the old server"


def test_hup_changes_the_number_of_web_processes(make_system: Callable[..., System]) -> None:
    system = make_system()
    (web,) = system.start("web")
    assert len(children_of(web.pid)) == 1
    text = system.config_file.read_text()
    for number in (3, 1):
        system.config_file.write_text(text.replace("processes = 1", f"processes = {number}", 1))
        web.send(signal.SIGHUP)
        eventually(lambda n=number: len([pid for pid in children_of(web.pid) if not gone(pid)]) == n)
        eventually(system.web_answers)


REPEATED = (
    PLUGIN
    + """
@router.on("order.repeated", retries=[1])
def repeated(event, ctx):
    if ctx.attempt == 1:
        raise ValueError("once")
    return "repeated"
"""
)


def kill(supervisor: Process) -> None:
    """Kill the worker and the housekeeper, as the kernel does if memory is short."""
    for pid in (*workers(supervisor), *named(supervisor, "housekeeper")):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("hup", [False, True], ids=["not reloaded", "reload refused"])
@pytest.mark.parametrize("broken", ["[[[ half an edit\n", "[workerz]\nx = 1\n"], ids=["no TOML", "unknown key"])
def test_processes_that_are_killed_while_the_config_is_invalid_go_on_with_the_old_one(
    make_system: Callable[..., System], broken: str, hup: bool
) -> None:
    """They ended with exit code 2 each second, until a person corrected the file."""
    system = make_system(plugin=REPEATED, child_processes=1)
    deliveries = [system.delivery(topic) for topic in ("order.created", "order.repeated")]
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    text = system.config_file.read_text()
    system.config_file.write_text(text + broken)
    if hup:
        supervisor.send(signal.SIGHUP)
        eventually(lambda: system.log("supervisor").count("the old config and plugins stay") == 2)
        eventually(lambda: '"config refused, the old one stays"' in system.log("supervisor"))
        refused = [one for one in map(json.loads, system.log("supervisor").splitlines()) if "refused" in one["event"]]
        assert {one["process"] for one in refused} == {"supervisor", "worker", "housekeeper"}
        assert all(one["level"] == "error" and str(system.config_file) in one["why"] for one in refused)
    kill(supervisor)
    for delivery in deliveries:
        assert system.settled(system.inbox.accept([delivery])[0].id, 20) == "settled"
    assert system.run_cli("worker", "--check").returncode == 0

    system.config_file.write_text(text)
    set_workers(system, child_processes=3)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: '"child_processes": 3' in system.log("supervisor"), what="a correct config is reloaded")


def test_a_worker_that_is_killed_runs_the_code_and_the_config_of_the_last_reload(
    make_system: Callable[..., System],
) -> None:
    """As its child processes do: an edit has no effect before HUP, and an invalid one stops nothing."""
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    set_workers(system, child_processes=2)
    system.plugin.write_text(PLUGIN.replace('"hello"', '"reloaded"'))
    supervisor.send(signal.SIGHUP)
    eventually(lambda: '"supervisor reloaded"' in system.log("supervisor"))
    for edit in (PLUGIN.replace('"hello"', '"edited"'), "broken("):
        system.plugin.write_text(edit)
        set_workers(system, child_processes=5)
        started = system.log("supervisor").count("worker started")
        kill(supervisor)
        eventually(lambda before=started: system.log("supervisor").count("worker started") > before)
        line = [line for line in system.log("supervisor").splitlines() if "worker started" in line][-1]
        assert json.loads(line)["child_processes"] == 2
        event_id = system.accept()
        assert system.settled(event_id) == "settled"
        assert system.run_of(event_id, "shop.greet").result == "reloaded"


SLOW_IMPORT = """
import pathlib, time
folder = pathlib.Path(__file__).parent
(folder / f"importing-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def test_a_worker_that_is_killed_during_a_reload_has_the_new_config_and_code_after_it(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    set_workers(system, child_processes=2)
    system.plugin.write_text(PLUGIN.replace('"hello"', '"reloaded"') + SLOW_IMPORT)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: len(list(system.folder.glob("importing-*"))) == 2, what="the supervisor and the worker validate")
    kill(supervisor)
    eventually(lambda: system.log("supervisor").count("worker started") == 2)
    assert '"supervisor reloaded"' not in system.log("supervisor")
    (system.folder / "go").touch()
    eventually(lambda: '"child_processes": 2' in system.log("supervisor"), what="the new worker is reloaded")
    event_id = system.accept()
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, "shop.greet").result == "reloaded"


IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.getuid() != 0:
    IN_NAMESPACE[1:1] = ["--user", "--map-root-user"]


def can_unshare() -> bool:
    try:
        return subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="a PID namespace is not permitted here")
def test_as_pid_1_a_worker_reaps_orphans_and_passes_signals_on(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN, child_processes=2)
    command = [*IN_NAMESPACE, sys.executable, "-m", "workers", "--config", str(system.config_file)]
    process = Process(command, log=system.folder / "supervisor.log")
    system.processes.append(process)

    def init() -> int:
        """The process that is PID 1 of its namespace, as it is called outside."""
        return children_of(process.pid)[0]

    def zombies() -> list[str]:
        below = [pid for pid in children_of(init()) if Path(f"/proc/{pid}").exists() and gone(pid)]
        return [comm(pid) for pid in below]

    ids = [system.accept("order.orphan", data={"id": number}) for number in range(3)]
    for event_id in ids:
        assert system.settled(event_id) == "settled"
    (worker,) = [pid for pid in children_of(init()) if comm(pid) == "sh-worker"]
    os.kill(worker, signal.SIGKILL)  # its child processes end with it, and are orphans of another kind
    eventually(lambda: "restarting it" in system.log("supervisor"))
    assert system.settled(system.accept()) == "settled"
    eventually(lambda: zombies() == [], what="no zombies")

    os.kill(init(), signal.SIGHUP)
    eventually(lambda: '"supervisor reloaded"' in system.log("supervisor"))
    os.kill(init(), signal.SIGTERM)
    assert process.wait(15) == 0
