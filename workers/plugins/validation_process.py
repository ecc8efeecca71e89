"""Validates the plugins of a config in a throw-away process, so that no plugin code runs in the caller."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson

from receiver.config import Config
from receiver.contract.errors import PluginError
from receiver.inbox import Declaration
from receiver.inbox.model import read_declaration
from workers.plugins import discovery, validation
from workers.plugins.plugin_code import SourceCopies, ValidatedCode
from workers.processes import describe_exit, fork, isolate_child, wait_for_exit

LOAD_SECONDS = 60
"""How long plugins may take to load: when they are validated, and in each child process."""


@dataclass(frozen=True)
class ValidatedPlugins:
    """The result of validation: what a worker declares, and the code that its child processes run."""

    handlers: list[Declaration]
    code: ValidatedCode
    left_out: dict[str, str] = field(default_factory=dict)
    """Installed plugins without their settings in this config -> what is missing."""


def validate_plugins(config: Config) -> list[Declaration]:
    """Validate the plugins of a config and wait for the result: their handlers, or PluginError."""
    return ValidationProcess(config).result().handlers


def validate_plugin(config: Config, which: str) -> list[Declaration]:
    """Validate one plugin, by its name, file or module."""
    return ValidationProcess(config, which).result().handlers


class ValidationProcess:
    """A forked process that loads plugins, reports their handlers or what is wrong with them, and ends.

    If it cannot be started, that is a PluginError, too. With `code`, plugins that are files are those copies, and only
    packages are loaded from disk again.
    """

    def __init__(self, config: Config, only: str = "", *, code: ValidatedCode | None = None) -> None:
        self.config = config
        parent = os.getpid()
        try:
            self._report = os.memfd_create("report")  # unlike a pipe, it takes a report of any size before it is read
            try:
                self._pid, self._pidfd = fork(lambda: _load_and_report(config, self._report, parent, only, code))
            except OSError:
                os.close(self._report)
                raise
        except OSError as error:  # a limit of processes, memory or descriptors
            raise PluginError(f"no process can be started that loads the plugins: {error.strerror}") from None

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def result(self) -> ValidatedPlugins:
        """The handlers and their code, or PluginError. Waits for the process."""
        wait_for_exit(self._pidfd, None)
        code = self.kill()
        with os.fdopen(self._report, "rb") as file:
            file.seek(0)
            return _plugins_in(file.read(), code)

    def kill(self) -> int:
        """Kill the process, if it has not ended, and what it left running; returns its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        return os.waitstatus_to_exitcode(status)


def _plugins_in(report: bytes, code: int) -> ValidatedPlugins:
    try:
        found = orjson.loads(report)
    except orjson.JSONDecodeError:
        why = f"it took longer than {LOAD_SECONDS} s" if code == -signal.SIGALRM else f"it {describe_exit(code)}"
        raise PluginError(f"loading the plugins ended the process ({why}); load them one by one") from None
    if "error" in found:
        raise PluginError(found["error"], logged=found["logged"])
    handlers = [read_declaration(one) for one in found["handlers"]]
    return ValidatedPlugins(handlers, ValidatedCode.from_json(found["code"]), found["left_out"])


def _load_and_report(config: Config, writer: int, parent: int, only: str, validated: ValidatedCode | None) -> NoReturn:
    """In the child: load, write the report, and exit. Nothing may return into the caller's code."""
    exit_code = 1
    try:
        isolate_child(parent, keep_open={writer})
        signal.alarm(LOAD_SECONDS)
        try:
            copies, left_out = SourceCopies(validated), dict[str, str]()
            plugins = [discovery.load_one(config, only)] if only else discovery.load(config, copies, left_out)
            code = ValidatedCode(tuple(one.code for one in plugins), copies.copies, copies.modules)
            if validated:
                discovery.refuse_missing(code, validated)
            report: dict[str, Any] = {
                "handlers": discovery.declarations(config, plugins),
                "code": code.as_json(),
                "left_out": left_out,
            }
        except Exception as error:  # noqa: BLE001  a plugin's model of its settings may raise anything
            fault = error if isinstance(error, PluginError) else validation.import_error("a plugin", error)
            report = {"error": str(fault), "logged": fault.logged}
        with os.fdopen(writer, "wb") as file:
            file.write(orjson.dumps(report))
        exit_code = 0
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  a plugin may raise anything
        print(f"storehooks: loading the plugins raised {type(error).__name__}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
