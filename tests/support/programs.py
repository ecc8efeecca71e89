"""The product's programs as processes of a test. They are forked where that makes no difference, and end with it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.support.warm_interpreter import QUICKER, Forked, Warm, can_fork
from workers.processes import die_with_parent

ROOT = Path(__file__).parents[2]
WARM = Warm()
NOT_INHERITED = ("REDIS_URL", "PORT", "WEB_CONCURRENCY")
"""Variables that would override the config of a test."""
OFTEN = {
    "receiver.inbox.counter_buffer.FLUSH_EVERY": 0.1,
    "receiver.delivery.refusal_log.WRITE_EVERY": 0.1,
    "receiver.delivery.secret_cache.REFRESH_EVERY": 0.1,
    "receiver.delivery.drain.RUN_EVERY": 0.1,
    "receiver.delivery.drain.PUBLISH_EVERY": 0.2,
    "workers.runtime.worker.worker.FAILURES_EVERY": 0.2,
    "workers.cli.dev.CHECK_FILES_EVERY": 0.1,
    "workers.operations.doctor.local_facts.HOUSEKEEPER_SECONDS": 0.2,
}
"""Programs do their background work more often than in production, since tests wait for it."""


def with_times(seconds: dict[str, float]) -> dict[str, str]:
    """The environment of a program with other times: "module.NAME" -> seconds, on top of OFTEN."""
    return {QUICKER: json.dumps(OFTEN | seconds)}


def start(
    command: list[str],
    output: IO[bytes],
    error: IO[bytes],
    *,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    keep: tuple[int, ...] = (),
) -> subprocess.Popen[bytes] | Forked:
    """Start a process in a session of its own that ends with ours. It is forked where that only saves time."""
    environ = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED} | with_times({}) | (env or {})
    if can_fork(command, environ, keep):
        return WARM.fork(command, env=environ, cwd=cwd, output=output, error=error)
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdout=output,
        stderr=error,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environ,
        start_new_session=True,
        pass_fds=keep,
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  pytest has one thread here
    )


def storehooks(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator would, and return its exit code and output."""
    return run_to_end("workers.cli", *arguments, env=env, cwd=cwd)


def run_to_end(
    module: str, *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by itself, and return its exit code and output."""
    command = [sys.executable, "-m", module, *arguments]
    with TemporaryFile() as output, TemporaryFile() as error:
        process = start(command, output, error, env=env, cwd=cwd)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        said = [(file.seek(0), file.read().decode())[1] for file in (output, error)]
    return subprocess.CompletedProcess(command, code, *said)


def typed(line: str, *, env: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a line of a document as a person would type it: without a shell, if only `|| echo` needs one."""
    command, otherwise, said = line.partition(" || echo ")
    name, *words = shlex.split(command)
    if set(command) & set("|<>&;$*`"):
        started = [shlex.quote(word) for word in (sys.executable, "-m", "workers.cli")]
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **env}
        text = line.replace(name, " ".join(started), 1)
        return subprocess.run(
            ["/bin/sh", "-c", text], capture_output=True, text=True, cwd=cwd, env=environ, check=False
        )
    done = storehooks(*words, env=env, cwd=cwd)
    if otherwise and done.returncode:
        done.stdout, done.returncode = f"{done.stdout}{' '.join(shlex.split(said))}\n", 0
    return done


class Process:
    """A process of the product with its output in a file. It ends with the test."""

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
        keep: tuple[int, ...] = (),
    ) -> None:
        self.log = log
        self.command = command
        with open(log, "ab") as output:
            self.popen = start(command, output, output, env=env, cwd=cwd, keep=keep)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, within: float = 15.0) -> int:
        return self.popen.wait(within)

    def stop(self, within: float = 15.0) -> int:
        if self.alive:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                return self.wait(within)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.wait()

    def kill(self) -> None:
        if self.alive:
            self.send(signal.SIGKILL)
        self.popen.wait(5)


def start_command(*arguments: str, config: Path, log: Path, env: dict[str, str] | None = None) -> Process:
    """Start a command, as an operator would, that does not end by itself or that a test interrupts."""
    return Process([sys.executable, "-m", "workers.cli", *arguments, "--config", str(config)], log=log, env=env)
