"""A warm interpreter that forks the product's programs for the tests.

Half of the suite's time was Python importing the same libraries again. A forked program is as real as an executed
one: a process with its own session, signals and descriptors; only its imports are done already. A program that needs
its own imports, interpreter environment or passed descriptors is executed (see `can_fork`).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from workers.processes import die_with_parent, isolate_child

PROGRAMS = {
    "receiver.server.web": "receiver.server.web",
    "workers": "workers.__main__",
    "workers.runtime.worker": "workers.runtime.worker.__main__",
    "workers.runtime.housekeeper": "workers.runtime.housekeeper",
    "workers.console": "workers.console.__main__",
    "workers.cli": "workers.cli.__main__",
}
"""The name after `python -m`, and the module that then runs as `__main__`."""
QUICKER = "TESTS_QUICKER"
"""A variable with JSON, "module.NAME" -> seconds: constants that a forked program replaces."""
BEFORE_THE_INTERPRETER = ("LD_", "PYTHON")
"""Variables that are read before Python code runs: they need a new interpreter."""


def can_fork(command: list[str], env: dict[str, str], keep: tuple[int, ...] = ()) -> bool:
    """Whether a command is `python -m` with one of our programs, and does not need an interpreter of its own."""
    ours = command[:2] == [sys.executable, "-m"] and command[2] in PROGRAMS
    return ours and not keep and _early(env) == _early(dict(os.environ))


def _early(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(BEFORE_THE_INTERPRETER)}


class Forked:
    """A forked program, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int, command: list[str], status: int) -> None:
        self.pid = pid
        self.args = command
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its status is on the way
                os.kill(self.pid, number)

    def _read(self, timeout: float | None) -> int | None:
        with self._lock, selectors.DefaultSelector() as selector:
            if self.returncode is None:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = int(os.read(self._status, 16) or b"-9")
                    os.close(self._status)
            return self.returncode


class Warm:
    """The warm interpreter, seen from the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def fork(
        self, command: list[str], *, env: dict[str, str], cwd: Path, output: IO[bytes], error: IO[bytes]
    ) -> Forked:
        theirs, ours = os.pipe()[::-1]
        order = json.dumps({"argv": command[2:], "env": env, "cwd": str(cwd)}).encode()
        with self._lock:
            connection = self._connection()
            socket.send_fds(connection, [order], [output.fileno(), error.fileno(), theirs])
            pid = int(connection.recv(16))
        os.close(theirs)
        return Forked(pid, command, ours)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.support.warm_interpreter", str(theirs.fileno()), str(os.getpid())]
            self._popen = subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd=Path(__file__).parents[2])
            theirs.close()
        return self._socket


# In the warm interpreter


def main() -> None:
    number, parent = (int(given) for given in sys.argv[1:])
    die_with_parent(parent)
    _import_what_programs_import()
    connection = socket.socket(fileno=number)
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends this process
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    _report_ended(running)
                elif not (order := _next_order(connection)):
                    return None
                elif not (pid := os.fork()):
                    return become(*order)
                else:
                    running[pid] = order[1][2]
                    for descriptor in order[1][:2]:
                        os.close(descriptor)
                    connection.send(b"%d" % pid)


def _import_what_programs_import() -> None:
    """The programs' own modules are removed again: they run as `__main__`, as they do when executed."""
    commands = importlib.import_module("workers.cli").COMMANDS
    for name in (*(f"workers.cli.{file}" for file, _ in commands.values()), *PROGRAMS):
        importlib.import_module(name)
    importlib.import_module("workers.__main__")
    importlib.import_module("workers.runtime.worker.__main__")
    importlib.import_module("workers.runtime.alerting.alert_sending")
    for name in PROGRAMS.values():
        sys.modules.pop(name, None)
    gc.collect()
    gc.freeze()  # so that no collection in a forked program touches, and so copies, what was imported here


def _next_order(connection: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    message, ancillary, *_ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(3 * 4))
    descriptors = array.array("i")
    for *_, data in ancillary:
        descriptors.frombytes(data)
    return (json.loads(message), list(descriptors)) if message else None


def _report_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        os.write(running[pid], b"%d" % os.waitstatus_to_exitcode(status))
        os.close(running.pop(pid))


def become(order: dict[str, object], descriptors: list[int]) -> None:
    """Turn this process into the program."""
    isolate_child(os.getppid(), keep_open=descriptors[:2])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in zip((nothing, *descriptors[:2]), (0, 1, 2), strict=True):
        os.dup2(source, target)
    for descriptor in (nothing, *descriptors[:2]):
        os.close(descriptor)
    argv, env = order["argv"], order["env"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(order["cwd"]))
    for name, seconds in json.loads(os.environ.pop(QUICKER, "{}")).items():
        module, _, constant = name.rpartition(".")
        assert hasattr(sys.modules[module], constant), name
        setattr(sys.modules[module], constant, seconds)
    os.execv = os.execvp = _execute
    _run_and_exit(argv)


def _execute(file: str, command: list[str]) -> None:
    """For a program that executes another one: stay in this process if it is one of ours."""
    ours = [sys.executable, "-P", "-m", "storehooks.run_module"]
    given, command = command, [sys.executable, "-m", *command[4:]] if command[:4] == ours else command
    if not can_fork(command, dict(os.environ)):
        return os.execvpe(file, given, os.environ)
    atexit._clear()
    for name in PROGRAMS.values():
        sys.modules.pop(name, None)
    return _run_and_exit(command[2:])


def _run_and_exit(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  the program's own, block-buffered as to any file
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["", *argv[1:]]
    _exit(_run(PROGRAMS[argv[0]]))


def _run(module: str) -> int:
    """Run the program; returns the exit code that an interpreter would have."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001  printed as an interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _exit(code: int) -> None:
    """Exit as an interpreter does, but without clearing every module: that took a quarter of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    main()
