"""Plugins: entry points, modules and files -> handlers. Judged when loaded, and the culprit is named.

Law of this room: it imports plugin code, so it runs in a horse, in a process that is thrown away
(`judge_elsewhere`), or in a command a person started; never in the worker's parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import orjson

from receiver.config import Config
from receiver.contract.errors import PluginError
from receiver.inbox import Declaration
from workers.processes import become_a_child
from workers.routing import Handler, Router

GROUP = "storehooks.handlers"
LOAD_SECONDS = 60
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOPIC = re.compile(r"\*|[a-z0-9_*-]+(\.[a-z0-9_*-]+)*")


@dataclass(frozen=True)
class Plugin:
    router: Router
    version: str
    origin: str


def load(config: Config) -> list[Plugin]:
    """Every plugin of this config and this environment, judged. PluginError names what is wrong with which."""
    plugins = [*_from_entry_points(), *_from_config(config)]
    seen: dict[str, Handler] = {}
    for plugin in plugins:
        for handler in plugin.router.handlers:
            _judge(handler)
            if handler.limit is not None and handler.limit not in config.limits:
                raise PluginError(
                    f"{handler.file}:{handler.line}: {handler.name} has limit={handler.limit!r}, and config has no "
                    f'[limits.{handler.limit}]; write it with concurrency = 2 or rate = "5/s"'
                )
            if other := seen.get(handler.name):
                raise PluginError(
                    f"{handler.file}:{handler.line}: two handlers are called {handler.name}; the other is at "
                    f"{other.file}:{other.line}. Rename one, or give it name=..."
                )
            seen[handler.name] = handler
    return plugins


def declarations(config: Config, plugins: list[Plugin]) -> list[Declaration]:
    """What a worker says of these plugins' handlers; retries and timeout as config decides them."""
    return [
        Declaration(
            handler=handler.name,
            version=plugin.version,
            topics=handler.topics,
            stores=handler.stores,
            queue=handler.queue,
            details={
                "plugin": plugin.router.name,
                "retries": config.workers.retries if handler.retries is None else handler.retries,
                "timeout": handler.timeout or config.workers.timeout,
                "limit": handler.limit,
                "file": handler.file,
                "line": handler.line,
            },
        )
        for plugin in plugins
        for handler in plugin.router.handlers
    ]


def settings_of(config: Config, plugin: str, store: str) -> dict[str, Any]:
    """`[plugins.NAME]`, with `[stores.STORE.plugins.NAME]` over it."""
    general = config.plugins[plugin].model_dump() if plugin in config.plugins else {}
    own = config.stores[store].plugins.get(plugin, {}) if store in config.stores else {}
    return {**general, **own}


class Judge:
    """Loads and judges in a child that is thrown away, so that no plugin code ever runs in the caller."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._answer = b""
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _report(config, writer, parent)
        os.close(writer)
        self._pidfd = os.pidfd_open(self._pid)

    def fileno(self) -> int:
        """Readable when the child has ended."""
        return self._pidfd

    def verdict(self, *, within: float | None = None) -> list[Declaration]:
        """The handlers, or PluginError. Waits for the child; whatever that left running is ended."""
        until = time.monotonic() + within if within is not None else None
        while not self._read(until):
            if until is not None and time.monotonic() >= until:
                self._end()
                raise PluginError("loading the plugins takes too long: something in them waits while it is imported")
        return _handlers_in(self._answer, self._end())

    def _end(self) -> int:
        """End the child and whatever it left running; give its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._reader)
        os.close(self._pidfd)
        return os.waitstatus_to_exitcode(status)

    def _read(self, until: float | None = None) -> bool:
        """Take what there is; True when nothing more will come. A process the plugin forked may hold the pipe open."""
        patience = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._reader, self._pidfd], [], [], patience)
        if self._reader not in ready:
            return bool(ready)
        piece = os.read(self._reader, 1 << 16)
        self._answer += piece
        return not piece


def judge_elsewhere(config: Config) -> list[Declaration]:
    """Judge the plugins of a config, and wait for the verdict."""
    return Judge(config).verdict()


def _handlers_in(answer: bytes, code: int) -> list[Declaration]:
    try:
        verdict = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise PluginError(
            f"loading the plugins ended the process ({_exit_words(code)}); load them one by one"
        ) from None
    if "error" in verdict:
        raise PluginError(verdict["error"])
    return [
        Declaration(**{**one, "topics": tuple(one["topics"]), "stores": tuple(one["stores"])})
        for one in verdict["handlers"]
    ]


def _report(config: Config, writer: int, parent: int) -> NoReturn:
    """In the child: judge, tell the parent through the pipe, and end; nothing may climb back into the caller's code."""
    code = 1
    try:
        become_a_child(parent, keep={writer})
        signal.alarm(LOAD_SECONDS)
        try:
            verdict: dict[str, Any] = {"handlers": declarations(config, load(config))}
        except PluginError as error:
            verdict = {"error": str(error)}
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(orjson.dumps(verdict))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  a plugin may raise anything
        print(f"storehooks: loading the plugins: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_words(code: int) -> str:
    if code == -14:
        return f"it took longer than {LOAD_SECONDS} s"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


# Finding


def _from_entry_points() -> Iterator[Plugin]:
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        origin = f"entry point {point.name} = {point.value}"
        found = _guarded(origin, point.load)
        router = found if isinstance(found, Router) else _router_of(found, origin)
        yield Plugin(router, _distribution_version(point), origin)


def _distribution_version(point: EntryPoint) -> str:
    return point.dist.version if point.dist else "?"


def _from_config(config: Config) -> Iterator[Plugin]:
    base = config.path.parent if config.path else Path()
    for name in config.workers.plugins:
        module = _import_file(base / name) if name.endswith(".py") else _import_module(name)
        yield Plugin(_router_of(module, name), _module_version(module), name)


def _import_module(name: str) -> ModuleType:
    found: ModuleType = _guarded(f"plugin {name}", lambda: importlib.import_module(name))
    return found


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"plugin {path}: there is no such file; see [workers] plugins")
    name = f"storehooks_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin {path}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look a class's module up here
    _guarded(f"plugin {path}", lambda: spec.loader.exec_module(module) if spec.loader else None)
    return module


def _guarded(origin: str, load_it: Any) -> Any:
    """Run a plugin's import; whatever it raises becomes one sentence with the plugin's own file and line."""
    try:
        return load_it()
    except SyntaxError as error:
        raise PluginError(f"{error.filename}:{error.lineno}: {origin} has a syntax error: {error.msg}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything while it is imported
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outside = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
        frame = outside[-1] if outside else frame
        raise PluginError(
            f"{frame.filename}:{frame.lineno}: {origin} cannot be loaded: {type(error).__name__}: {error}"
        ) from None


def _is_ours(filename: str) -> bool:
    return "importlib" in filename or Path(filename).parent == Path(__file__).parent


def _router_of(module: Any, origin: str) -> Router:
    routers = list({id(value): value for value in vars(module).values() if isinstance(value, Router)}.values())
    if len(routers) == 1:
        return routers[0]
    file = getattr(module, "__file__", origin)
    if not routers:
        raise PluginError(f'{file}: {origin} has no Router; write `router = Router("{Path(origin).stem}")`')
    raise PluginError(f"{file}: {origin} has {len(routers)} Routers; keep one for each plugin")


def _module_version(module: ModuleType) -> str:
    """`__version__`, or a mark of the file's content, so that two versions can be told apart."""
    if version := getattr(module, "__version__", None):
        return str(version)
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:7] if file else "?"


# Judging


def _judge(handler: Handler) -> None:
    """Refuse a handler that could not run, before anything is routed to it."""
    if not inspect.isfunction(handler.function):
        raise PluginError(f"{handler.name} is not a plain function; write `def` and call what you need from it")
    for fault in _faults(handler):
        raise PluginError(f"{handler.file}:{handler.line}: {handler.name} {fault}")


def _faults(handler: Handler) -> Iterator[str]:
    if not _NAME.fullmatch(handler.name):
        yield "has a name that is not letters, digits, _ and -"
    if inspect.iscoroutinefunction(handler.function):
        yield "is async; write `def` and call asyncio.run() inside where you need it"
    if not _takes_event_and_context(handler):
        yield "must take two arguments: def handler(event, ctx)"
    if not handler.topics:
        yield 'names no topic; write @router.on("order.created") or @router.on("*")'
    for topic in handler.topics:
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            yield f'asks for the topic {topic!r}; topics look like "order.created" or "order.*"'
    if not all(isinstance(store, str) for store in handler.stores):
        yield f'has stores={handler.stores!r}; stores are names, such as "north" or "*"'
    if not isinstance(handler.queue, str) or not _QUEUE.fullmatch(handler.queue):
        yield f"has queue={handler.queue!r}; a queue's name is letters, digits, _ and -, at most 64"
    if handler.limit is not None and not isinstance(handler.limit, str):
        yield f"has limit={handler.limit!r}; a limit is the name of a [limits.NAME] in config"
    yield from _wrong_numbers(handler)


def _wrong_numbers(handler: Handler) -> Iterator[str]:
    delays = handler.retries if isinstance(handler.retries, tuple) else ()
    count = handler.retries if isinstance(handler.retries, int) else 0
    if not all(_is_seconds(one) for one in delays) or count < 0:
        yield "has retries= that are neither a number nor delays in seconds"
    if handler.timeout is not None and not (_is_seconds(handler.timeout) and handler.timeout > 0):
        yield "has a timeout= that is no number of seconds"


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _takes_event_and_context(handler: Handler) -> bool:
    try:
        inspect.signature(handler.function).bind(object(), object())
    except (TypeError, ValueError):
        return False
    return True
