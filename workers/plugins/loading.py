"""Plugins: entry points, modules and files -> handlers. Judged when loaded, and the culprit is named.

Law of this room: it imports plugin code, so it runs in a child process, in a process that is thrown away
(`judge_elsewhere`), or in a command a person started; never in the worker's parent.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import orjson

from receiver.config import Config
from receiver.config.settings import HandlerSettings, PluginSettings
from receiver.config.values import parse_duration
from receiver.contract.errors import PluginError
from receiver.inbox import Declaration
from workers.plugins import conditions, plugin_settings, validation
from workers.plugins.plugin_settings import settings_of
from workers.plugins.router import Handler, Router
from workers.processes import become_a_child

__all__ = ["GROUP", "Plugin", "ValidationProcess", "declarations", "judge_elsewhere", "load", "settings_of"]

GROUP = "storehooks.handlers"
LOAD_SECONDS = 60


@dataclass(frozen=True)
class Plugin:
    router: Router
    version: str
    origin: str
    handlers: tuple[Handler, ...] = ()
    """As config decides them."""

    @property
    def name(self) -> str:
        return self.router.name


def load(config: Config) -> list[Plugin]:
    """Every plugin of this config and this environment, judged. PluginError names what is wrong with which."""
    _refuse_shadows(config)
    found = [*_from_entry_points(config), *_from_config(config)]
    _refuse_two_of_a_name(found)
    plugins = [replace(plugin, handlers=_decided(config, plugin)) for plugin in found]
    seen: dict[str, Handler] = {}
    for plugin in plugins:
        for handler in plugin.handlers:
            _refuse_unknown_limit(config, handler)
            if other := seen.get(handler.name):
                raise PluginError(
                    f"{handler.file}:{handler.line}: two handlers are called {handler.name}; the other is at "
                    f"{other.file}:{other.line}. Rename one, or give it name=..."
                )
            seen[handler.name] = handler
        plugin_settings.check(config, plugin.router, plugin.handlers)
    return plugins


def load_one(config: Config, which: str) -> Plugin:
    """One plugin, judged: by its name among those of the config, or by its file or module."""
    if which.endswith(".py") or "/" in which:
        return load(_with_only(config, str(Path(which).absolute())))[0]
    loaded = load(config)
    for plugin in loaded:
        if plugin.name == which:
            return plugin
    if importlib.util.find_spec(which.partition(".")[0]) is not None:
        return load(_with_only(config, which))[0]
    known = ", ".join(sorted(plugin.name for plugin in loaded)) or "none"
    raise PluginError(f"no plugin is called {which}; loaded are: {known}. A file or a module may be named too")


def _with_only(config: Config, which: str) -> Config:
    alone = config.workers.model_copy(update={"plugins": (which,), "installed": False})
    return config.model_copy(update={"workers": alone})


def _decided(config: Config, plugin: Plugin) -> tuple[Handler, ...]:
    """The plugin's handlers, judged, with what config says over what the code proposes."""
    validation.judge_router(plugin.router, plugin.origin)
    for handler in plugin.router.handlers:
        validation.judge(handler)
    given = config.plugins.get(plugin.name)
    if given is None:
        return tuple(plugin.router.handlers)
    known = [handler.own_name for handler in plugin.router.handlers]
    for name in given.handlers:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            where = config.place("plugins", plugin.name, "handlers", name)
            raise PluginError(f"{where}: plugin {plugin.name} has no handler {name}; {hint}")
    return tuple(_overridden(handler, given) for handler in plugin.router.handlers)


def _overridden(handler: Handler, given: PluginSettings) -> Handler:
    own = given.handlers.get(handler.own_name, HandlerSettings())
    return replace(
        handler,
        stores=handler.stores if given.stores is None else given.stores,
        retries=handler.retries if own.retries is None else own.retries,
        timeout=handler.timeout if own.timeout is None else own.timeout,
        limit=handler.limit if own.limit is None else own.limit or None,
    )


def _refuse_two_of_a_name(plugins: list[Plugin]) -> None:
    seen: dict[str, Plugin] = {}
    for plugin in plugins:
        if other := seen.get(plugin.name):
            if other.router is plugin.router:
                raise PluginError(
                    f"plugin {plugin.name} is loaded twice: {other.origin}, and {plugin.origin}; keep one"
                )
            raise PluginError(
                f"two plugins are called {plugin.name}: {other.origin}, and {plugin.origin}; rename the Router of one"
            )
        seen[plugin.name] = plugin


def _refuse_unknown_limit(config: Config, handler: Handler) -> None:
    if handler.limit is not None and handler.limit not in config.limits:
        raise PluginError(
            f"{handler.file}:{handler.line}: {handler.name} has limit={handler.limit!r}, and config has no "
            f'[limits.{handler.limit}]; write it with concurrency = 2 or rate = "5/s"'
        )


def _refuse_shadows(config: Config) -> None:
    base = _base(config)
    folders = [Path(), base, *validation.searched_before_ours()]
    folders += [(base / name).parent for name in config.workers.plugins if name.endswith(".py")]
    where = config.place("workers", "plugins") or config.path or "config"
    validation.refuse_a_shadow(folders, f"{where}: plugins cannot be loaded")


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
                "plugin": plugin.name,
                "retries": config.workers.retries if handler.retries is None else handler.retries,
                "timeout": handler.timeout or config.workers.timeout,
                "limit": handler.limit,
                "delay": parse_duration(handler.delay),
                "when": conditions.described(handler.when),
                "file": handler.file,
                "line": handler.line,
            },
        )
        for plugin in plugins
        for handler in plugin.handlers
    ]


class ValidationProcess:
    """Loads and judges in a child that is thrown away, so that no plugin code ever runs in the caller."""

    def __init__(self, config: Config, only: str = "") -> None:
        self.config = config
        self._answer = b""
        parent = os.getpid()
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _report(config, writer, parent, only)
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
    return ValidationProcess(config).verdict()


def judge_one(config: Config, which: str) -> list[Declaration]:
    """Judge one plugin, by its name, file or module."""
    return ValidationProcess(config, which).verdict()


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


def _report(config: Config, writer: int, parent: int, only: str) -> NoReturn:
    """In the child: judge, tell the parent through the pipe, and end; nothing may climb back into the caller's code."""
    code = 1
    try:
        become_a_child(parent, keep={writer})
        signal.alarm(LOAD_SECONDS)
        try:
            verdict: dict[str, Any] = {
                "handlers": declarations(config, [load_one(config, only)] if only else load(config))
            }
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


def _from_entry_points(config: Config) -> Iterator[Plugin]:
    if not config.workers.installed:
        return
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        origin = f"entry point {point.name} = {point.value}"
        found = _guarded(origin, point.load)
        router = found if isinstance(found, Router) else _router_of(found, origin)
        yield Plugin(router, _distribution_version(point), origin)


def _distribution_version(point: EntryPoint) -> str:
    return point.dist.version if point.dist else "?"


def _base(config: Config) -> Path:
    return config.path.parent if config.path else Path()


def _from_config(config: Config) -> Iterator[Plugin]:
    """Modules are found beside the config too, after everything that is installed."""
    base = _base(config)
    if any(not name.endswith(".py") for name in config.workers.plugins) and str(base.absolute()) not in sys.path:
        sys.path.append(str(base.absolute()))
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
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything while it is imported
        raise validation.import_error(origin, error) from None


def _router_of(module: Any, origin: str) -> Router:
    """The module's one router; those that another one includes are parts of it."""
    found = list({id(value): value for value in vars(module).values() if isinstance(value, Router)}.values())
    parts = {id(part) for one in found for part in one.included}
    routers = [one for one in found if id(one) not in parts]
    if len(routers) == 1:
        return routers[0]
    file = getattr(module, "__file__", origin)
    if not routers:
        raise PluginError(
            f"{file}:1: {origin} has no Router; write `from workers import Router` and "
            f'`router = Router("{Path(origin).stem}")`'
        )
    raise PluginError(
        f"{file}:1: {origin} has {len(routers)} Routers; keep one for each plugin, and let it include the others"
    )


def _module_version(module: ModuleType) -> str:
    """`__version__`, or a mark of the file's content, so that two versions can be told apart."""
    if version := getattr(module, "__version__", None):
        return str(version)
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:7] if file else "?"
