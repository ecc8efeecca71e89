"""Rehearsal: runs a handler on a stored event in a process of its own, against the sandbox, and lists what it did.

`python -m workers.operations.rehearsal HANDLER EVENT` is that process. It only reads from Redis: what `ctx.once` and
`ctx.state` would write stays in its memory. From the moment that the plugin is loaded, connections to anything but the
sandbox store are refused, and so are other programs.
"""

from __future__ import annotations

import _posixsubprocess
import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import orjson

from receiver.config import Config, load_from_environment
from receiver.contract.errors import ConfigError, NotFound, StorehooksError
from receiver.contract.event import Event
from receiver.inbox import connect_to
from receiver.inbox.effect_store import EffectStore
from workers.history.configured_history import open_history
from workers.operations.all_events import AllEvents
from workers.operations.local_run import LocalRun
from workers.processes import describe_exit, die_with_parent, python_command
from workers.runtime.pool.run_limits import LOOK_EVERY, over_memory

if TYPE_CHECKING:
    from workers.storeapi import Client
    from workers.testing.local_system import LocalSystem

T = TypeVar("T")
SECONDS = 40.0
"""How long a rehearsal may take, with the start of the sandbox."""
MAX_LISTED = 200
MAX_PRINTED = 20_000
MAX_FILE = 64 << 20
"""Bytes of a file that it writes, and of what it prints."""
MAX_RESULT = 16 << 20
STARTS_PROGRAM = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
LOOKS_UP = ("socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
REFUSED = "refused: a rehearsal connects only to the sandbox store"


@dataclass
class Rehearsal:
    """What a handler did."""

    ending: str
    """As in `storehooks handlers run`: done, dropped, failed, raised, ..."""
    message: str
    traceback: str = ""
    ms: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Each call of the store's API: operation, arguments, fields."""
    state: list[dict[str, Any]] = field(default_factory=list)
    """Each value of `ctx.state` that it wrote: name, before, after."""
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Effects of `ctx.once` that were done before, and so are not repeated: mark, result."""
    performed: list[str] = field(default_factory=list)
    """Effects of `ctx.once` that it performed here."""
    refused: list[str] = field(default_factory=list)
    """Connections and programs that were refused."""
    printed: str = ""
    """What it wrote to standard output and to its log."""


def rehearse(config: Config, handler: str, event_id: str) -> Rehearsal:
    """Run a handler in a process of its own. Raises ConfigError if that ends without a result."""
    arguments = (handler, event_id, "--parent", str(os.getpid()))
    command = python_command("workers.operations.rehearsal", *arguments, config=config.path)
    with (
        tempfile.TemporaryDirectory(prefix="storehooks-rehearsal-", ignore_cleanup_errors=True) as folder,
        open(Path(folder) / "result", "w+b") as result,
        open(Path(folder) / "printed", "w+b") as printed,
        _started(command, result, printed, folder) as process,
    ):
        deadline = time.monotonic() + SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise ConfigError(f"the handler did not end within {SECONDS:.0f} s, and was ended")
            if why := over_memory(process.pid, config.workers.memory):
                raise ConfigError(f"the rehearsal was {why}")
            time.sleep(LOOK_EVERY)
        printed.seek(max(0, printed.tell() - MAX_PRINTED))
        text = printed.read(MAX_PRINTED).decode("utf-8", "replace")
        result.seek(0)
        output = result.read(MAX_RESULT + 1)
    if len(output) > MAX_RESULT:
        raise ConfigError(f"the list of what the handler did has more than {MAX_RESULT >> 20} MB")
    try:
        found = orjson.loads(output)
    except orjson.JSONDecodeError:
        last = text.strip().splitlines()[-1:] or [describe_exit(process.returncode)]
        raise ConfigError(f"the rehearsal ended without a result: {last[0][:500]}") from None
    if "fault" in found:
        raise ConfigError(found["fault"])
    return Rehearsal(**found, printed=text)


@contextmanager
def _started(
    command: list[str], result: IO[bytes], printed: IO[bytes], folder: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session and a folder of its own, of which nothing is left at the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=result,
        stderr=printed,
        start_new_session=True,
        env={**os.environ, "TMPDIR": folder},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# In the process of its own


class RehearsedEffects:
    """Reads marks and state as they are, and keeps what is written in memory."""

    def __init__(self, stored: EffectStore, once: Mapping[bytes, bytes], result: Rehearsal) -> None:
        self._stored, self._result = stored, result
        self._once = {name.decode(): mark for name, mark in once.items()}
        self._written: dict[tuple[str, str], bytes | None] = {}

    def begin(self, place: str, field: str, item: str, *, in_doubt: str, word: str = "") -> list[Any]:  # noqa: ARG002
        mark = self._written.get((place, field)) or self._once.get(field) or self._stored.read(place, field) or b""
        state, _, result = mark.partition(b" ")
        if state != b"done":
            return ["go", b""]
        _add(self._result.skipped, {"mark": field, "result": orjson.loads(result)})
        return ["done", result]

    def end(self, place: str, field: str, item: str, result: bytes) -> None:  # noqa: ARG002
        self._written[(place, field)] = b"done " + result
        _add(self._result.performed, field)

    def clear(self, place: str, field: str, mark: bytes) -> None:
        """A call that raised has not happened, and nothing was stored when it began."""

    def read(self, place: str, name: str) -> bytes | None:
        if (place, name) in self._written:
            return self._written[(place, name)]
        return self._stored.read(place, name)

    def write(self, place: str, name: str, value: bytes | None) -> None:
        before = self.read(place, name)
        self._written[(place, name)] = value
        loaded = [None if one is None else orjson.loads(one) for one in (before, value)]
        _add(self._result.state, {"name": name, "before": loaded[0], "after": loaded[1]})

    def add(self, place: str, name: str, by: int) -> int:
        total = int(self.read(place, name) or 0) + by
        self.write(place, name, str(total).encode())
        return total


def _add(listed: list[T], one: T) -> None:
    if len(listed) < MAX_LISTED:
        listed.append(one)


class ConnectionGuard:
    """Refuses connections of Python code, except to one address, and the start of programs. Once it is on, it stays."""

    def __init__(self, refused: list[str]) -> None:
        self._refused = refused
        self._exempt = 0
        """The thread that starts what the rehearsal needs; others may be the plugin's."""
        self.allowed: tuple[str, int] | None = None

    def turn_on(self) -> None:
        sys.addaudithook(self._check)
        start = _posixsubprocess.fork_exec  # multiprocessing calls it, and it raises no audit event

        def checked(*arguments: Any) -> int:
            self._check("os.spawn", arguments)
            return start(*arguments)

        _posixsubprocess.fork_exec = checked

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what the rehearsal itself starts."""
        self._exempt = threading.get_ident()
        try:
            yield
        finally:
            self._exempt = 0

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() == self._exempt:
            return
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self._check_address(arguments[1])
        elif event in LOOKS_UP:
            self._refuse(f"look up {arguments[0]}")
        elif event == "socket.getaddrinfo" and (arguments[0], arguments[1]) != self.allowed:
            host = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
            self._refuse(f"{host}:{arguments[1]}")
        elif event in STARTS_PROGRAM:
            self._refuse(f"start of a program: {arguments[0] if arguments else event}")

    def _check_address(self, address: Any) -> None:
        if address is None or (isinstance(address, tuple) and tuple(address[:2]) == self.allowed):
            return  # None for a message on a socket that is connected already
        self._refuse(":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address))

    def _refuse(self, what: str) -> None:
        if what not in self._refused and len(self._refused) < MAX_LISTED:
            self._refused.append(what[:300])
        raise ConnectionRefusedError(f"{what}: {REFUSED}")


class RehearsedRun(LocalRun):
    """A local run whose calls of the store's API are listed, and whose other connections are refused."""

    def __init__(self, config: Config, handler: str, effects: RehearsedEffects, result: Rehearsal) -> None:
        self._guard = ConnectionGuard(result.refused)
        self._guard.turn_on()  # before the plugin is loaded, which is code of the plugin too
        super().__init__(config, handler, record=False, effects=effects)
        self._listed: list[Any] = []
        self._rehearsal = result

    def rehearse(self, event: Event) -> None:
        outcome = self.run(event)
        self._rehearsal.ending, self._rehearsal.message = outcome.ending.value, outcome.message
        self._rehearsal.traceback, self._rehearsal.ms = outcome.traceback, outcome.ms
        self._rehearsal.calls = [
            {"operation": name, "arguments": list(arguments), "fields": fields}
            for name, arguments, fields in self._listed[:MAX_LISTED]
        ]

    def _client_of(self, event: Event) -> Client:
        from workers.testing.recording_context import RecordedApi

        with self._guard.paused():  # starts the sandbox; and a library may start a program when it is loaded
            client = super()._client_of(event)
        return RecordedApi(client, self._listed)  # type: ignore[return-value]

    def _sandbox_with(self, event: Event) -> LocalSystem:
        system = super()._sandbox_with(event)
        host, _, port = system.sandbox_url.removeprefix("http://").rpartition(":")
        self._guard.allowed = (host, int(port))
        return system


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.operations.rehearsal", description=__doc__)
    parser.add_argument("handler")
    parser.add_argument("event")
    parser.add_argument("--parent", type=int, help="end with this process")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    arguments = parser.parse_args()
    if arguments.parent:
        die_with_parent(arguments.parent)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    own_output = os.dup(1)
    os.dup2(2, 1)  # what the plugin prints is not the result
    try:
        result = asdict(_run(load_from_environment(arguments.config), arguments.handler, arguments.event))
        del result["printed"]
    except StorehooksError as error:
        result = {"fault": str(error)}
    with os.fdopen(own_output, "wb") as output:
        output.write(orjson.dumps(result, default=str, option=orjson.OPT_NON_STR_KEYS))
    return 0


def _run(config: Config, handler: str, event_id: str) -> Rehearsal:
    client = connect_to(config.redis, timeout=5.0)
    events = AllEvents(client, open_history(config, client))
    event = events.as_event(event_id)
    if event is None:
        raise NotFound(f"there is no event {event_id[:64]} with a body")
    result = Rehearsal("", "")
    stored = EffectStore(client, keep=0.0, at_work=0.0)
    run = RehearsedRun(config, handler, RehearsedEffects(stored, events.once_marks(event_id), result), result)
    try:
        run.rehearse(event)
    finally:
        run.close()
    return result


if __name__ == "__main__":
    sys.exit(main())
