"""Validates the plugins of a config in a throw-away process, so that no plugin code runs in the caller."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

import orjson

from receiver.config import Config
from receiver.contract.errors import PluginError
from receiver.inbox import Declaration
from workers.plugins import discovery
from workers.processes import isolate_child

LOAD_SECONDS = 60
"""How long plugins may take to load: when they are validated, and in each child process."""


def validate_plugins(config: Config) -> list[Declaration]:
    """Validate the plugins of a config and wait for the result: their handlers, or PluginError."""
    return ValidationProcess(config).result()


def validate_plugin(config: Config, which: str) -> list[Declaration]:
    """Validate one plugin, by its name, file or module."""
    return ValidationProcess(config, which).result()


class ValidationProcess:
    """A forked process that loads plugins, reports their handlers or what is wrong with them, and ends."""

    def __init__(self, config: Config, only: str = "") -> None:
        self.config = config
        self._report = b""
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _load_and_report(config, writer, parent, only)
        os.close(writer)
        self._pidfd = os.pidfd_open(self._pid)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def result(self, *, within: float | None = None) -> list[Declaration]:
        """The handlers, or PluginError. Waits for the process, and kills what it left running."""
        deadline = time.monotonic() + within if within is not None else None
        while not self._read(deadline):
            if deadline is not None and time.monotonic() >= deadline:
                self._end()
                raise PluginError("loading the plugins takes too long: something in them waits while it is imported")
        return _handlers_in(self._report, self._end())

    def _end(self) -> int:
        """Kill the process and what it left running; returns its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._reader)
        os.close(self._pidfd)
        return os.waitstatus_to_exitcode(status)

    def _read(self, deadline: float | None = None) -> bool:
        """Read what has come; True when nothing more will come. A process that a plugin forked may hold the pipe."""
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([self._reader, self._pidfd], [], [], seconds)
        if self._reader not in ready:
            return bool(ready)
        piece = os.read(self._reader, 1 << 16)
        self._report += piece
        return not piece


def _handlers_in(report: bytes, code: int) -> list[Declaration]:
    try:
        found = orjson.loads(report)
    except orjson.JSONDecodeError:
        raise PluginError(
            f"loading the plugins ended the process ({_describe_exit(code)}); load them one by one"
        ) from None
    if "error" in found:
        raise PluginError(found["error"])
    return [
        Declaration(**{**one, "topics": tuple(one["topics"]), "stores": tuple(one["stores"])})
        for one in found["handlers"]
    ]


def _load_and_report(config: Config, writer: int, parent: int, only: str) -> NoReturn:
    """In the child: load, write the report into the pipe, and exit. Nothing may return into the caller's code."""
    code = 1
    try:
        isolate_child(parent, keep_open={writer})
        signal.alarm(LOAD_SECONDS)
        try:
            plugins = [discovery.load_one(config, only)] if only else discovery.load(config)
            report: dict[str, Any] = {"handlers": discovery.declarations(config, plugins)}
        except PluginError as error:
            report = {"error": str(error)}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(orjson.dumps(report))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  a plugin may raise anything
        print(f"storehooks: loading the plugins: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _describe_exit(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"it took longer than {LOAD_SECONDS} s"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
