"""Finds the plugins of a config (entry points, modules, files, `[forward]`), loads, validates and configures them.

This imports plugin code. So it runs in a child process, in a throw-away process (`validation_process`), or in a command
that a person started; never in the worker itself.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from receiver.config import Config
from receiver.config.settings import HandlerSettings, PluginSettings
from receiver.config.values import parse_duration
from receiver.contract.errors import MissingSetting, PluginError
from receiver.contract.topics import WILDCARDS, matches
from receiver.inbox import Declaration
from workers.plugins import conditions, forward, plugin_settings, validation
from workers.plugins.plugin_code import (
    CHANGED,
    PLUGIN_FILE,
    PluginCode,
    PluginSource,
    SourceCopies,
    ValidatedCode,
    code_roots,
    digest_below,
)
from workers.plugins.router import Handler, Router

GROUP = "storehooks.handlers"


@dataclass(frozen=True)
class Plugin:
    router: Router
    code: PluginCode
    handlers: tuple[Handler, ...] = ()
    """With the options that the config sets."""

    @property
    def name(self) -> str:
        return self.router.name

    @property
    def version(self) -> str:
        return self.code.version

    @property
    def origin(self) -> str:
        return self.code.source.origin


def load(
    config: Config,
    copies: SourceCopies | None = None,
    left_out: dict[str, str] | None = None,
    *,
    need_limits: bool = True,
) -> list[Plugin]:
    """Every plugin of this config and this environment, validated. PluginError names the first invalid one.

    Files are read from disk, except those that are in `copies`, which then has the others, too. An installed plugin is
    in every config of its environment. One that needs settings, and of which this config has none, is left out:
    `left_out` then has its name and the reason.
    """
    sources = [*_entry_points(config), *_configured(config)]
    if config.forward:
        sources.append(PluginSource(f"[forward] of {config.path or 'the config'}"))
    _search_config_folder(config)
    copies = copies or SourceCopies()
    found: list[Plugin] = []
    for source in sources:
        found.append(_load(config, source, copies, sources))
        _refuse_modules_of_one_name(sources, copies)
    _refuse_duplicate_plugins(config, found)
    plugins = [replace(plugin, handlers=_configured_handlers(config, plugin)) for plugin in found]
    seen: dict[str, Handler] = {}
    for plugin in plugins:
        for handler in plugin.handlers:
            if need_limits:
                _refuse_unknown_limit(config, plugin, handler)
            if other := seen.get(handler.name):
                raise PluginError(
                    f"{handler.file}:{handler.line}: two handlers are called {handler.name}; the other is at "
                    f"{other.file}:{other.line}. Rename one, or give it name=..."
                )
            seen[handler.name] = handler
    without = {} if left_out is None else left_out
    for plugin in plugins:
        try:
            plugin_settings.check(config, plugin.router, plugin.handlers)
        except MissingSetting as error:
            if not plugin.code.source.version or plugin_settings.is_configured(config, plugin.name):
                raise
            without[plugin.name] = error.logged
    return [plugin for plugin in plugins if plugin.name not in without]


def load_validated(config: Config, validated: ValidatedCode) -> tuple[list[Plugin], dict[str, str]]:
    """The plugins as they were validated, and those that cannot be loaded so any more: name -> why, for the log."""
    _search_config_folder(config)
    copies = SourceCopies(validated)
    sources = [one.source for one in validated.plugins]
    plugins: list[Plugin] = []
    missing: dict[str, str] = {}
    for one in validated.plugins:
        try:
            plugin = _load(config, one.source, copies, sources, digest=one.digest)
            plugins.append(replace(plugin, code=one, handlers=_configured_handlers(config, plugin)))
        except PluginError as error:
            missing[one.name] = error.logged
    return plugins, missing


def refuse_missing(code: ValidatedCode, validated: ValidatedCode) -> None:
    """Refuse to go on without a plugin that was validated before: it may be gone only while it is upgraded."""
    found = {one.name for one in code.plugins}
    for one in validated.plugins:
        if one.name not in found:
            raise PluginError(
                f"plugin {one.name} is not installed any more ({one.source.origin}); install it again, or send HUP to "
                "work without it"
            )


def load_one(config: Config, which: str) -> Plugin:
    """One plugin, validated: found by its name among the plugins of the config, or by its file or module.

    It is loaded for a trial: the config need not have the limits that a file or module names.
    """
    if which.endswith(".py") or "/" in which:
        return load(_with_only(config, str(Path(which).absolute())), need_limits=False)[0]
    left_out: dict[str, str] = {}
    loaded = load(config, left_out=left_out)
    if which in left_out:
        raise PluginError(left_out[which])
    for plugin in loaded:
        if plugin.name == which:
            return plugin
    if importlib.util.find_spec(which.partition(".")[0]) is not None:
        return load(_with_only(config, which), need_limits=False)[0]
    known = ", ".join(sorted(plugin.name for plugin in loaded)) or "none"
    raise PluginError(
        f"no plugin is called {which}; the loaded plugins are: {known}. A file or a module can be given too"
    )


def _with_only(config: Config, which: str) -> Config:
    alone = config.workers.model_copy(update={"plugins": (which,), "installed": False})
    return config.model_copy(update={"workers": alone, "forward": {}})


def _configured_handlers(config: Config, plugin: Plugin) -> tuple[Handler, ...]:
    """The plugin's handlers, validated, with the options that the config sets in place of those in the code."""
    validation.validate_router(plugin.router, plugin.origin)
    for handler in plugin.router.handlers:
        validation.validate_handler(handler)
    given = config.plugins.get(plugin.name)
    if given is None:
        return tuple(plugin.router.handlers)
    known = [handler.own_name for handler in plugin.router.handlers]
    for name in given.handlers:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"its handlers are {', '.join(known) or 'none'}"
            where = config.place("plugins", plugin.name, "handlers", name)
            raise PluginError(f"{where}: plugin {plugin.name} has no handler {name}; {hint}")
    limited = [_with_fewer_stores(handler, config, plugin.name) for handler in plugin.router.handlers]
    return tuple(_with_overrides(handler, given) for handler in limited)


def _with_fewer_stores(handler: Handler, config: Config, plugin: str) -> Handler:
    """Only for the stores that both the code and `[plugins.NAME] stores` allow: the config limits, and never widens."""
    given = config.plugins[plugin].stores
    if given is None or "*" in given:
        return handler
    if "*" in handler.stores:
        return replace(handler, stores=given)
    # Of two patterns, the names that match both can only be looked up.
    names = sorted({*config.stores, *(one for one in (*handler.stores, *given) if not set(one) & set(WILDCARDS))})
    both = [one for one in names if all(any(matches(each, one) for each in of) for of in (handler.stores, given))]
    limits = f"{', '.join(handler.stores)} in its code, {', '.join(given) or 'none'} in [plugins.{plugin}] stores"
    return replace(handler, stores=tuple(both), store_limits=limits)


def _with_overrides(handler: Handler, given: PluginSettings) -> Handler:
    own = given.handlers.get(handler.own_name, HandlerSettings())
    return replace(
        handler,
        retries=handler.retries if own.retries is None else own.retries,
        timeout=handler.timeout if own.timeout is None else own.timeout,
        limit=handler.limit if own.limit is None else own.limit or None,
    )


def _refuse_duplicate_plugins(config: Config, plugins: list[Plugin]) -> None:
    seen: dict[str, Plugin] = {}
    for plugin in plugins:
        if other := seen.get(plugin.name):
            same = other.router is plugin.router
            where = config.place("workers", "plugins") or config.path or "config"
            fix = "remove one"
            if other.code.source.version and not plugin.code.source.version:
                fix = (
                    f"remove {plugin.origin} from [workers] plugins ({where}), or, in a config that tries the file, "
                    "set [workers] installed = false, which leaves out all installed plugins"
                )
            elif not same:
                # Under another name both would run, and each effect would happen twice.
                fix = f"if it is the same plugin, remove one from [workers] plugins ({where}), else rename a Router"
            problem = f"plugin {plugin.name} is loaded twice" if same else f"two plugins are called {plugin.name}"
            raise PluginError(f"{problem}: {other.origin}, and {plugin.origin}; {fix}")
        seen[plugin.name] = plugin


def _refuse_unknown_limit(config: Config, plugin: Plugin, handler: Handler) -> None:
    """An installed plugin is in every config of its environment, also in those that do not know its limits."""
    by_code = {one.limit for one in plugin.router.handlers if one.name == handler.name}
    if plugin.code.source.version and handler.limit in by_code:
        return
    if handler.limit is not None and handler.limit not in config.limits:
        raise PluginError(
            f"{handler.file}:{handler.line}: {handler.name} has limit={handler.limit!r}, and config has no "
            f'[limits.{handler.limit}]; write it with concurrency = 2 or rate = "5/s"'
        )


def declarations(config: Config, plugins: list[Plugin]) -> list[Declaration]:
    """What a worker declares of these plugins' handlers; retries and timeout with the defaults of the config."""
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
                "delay": parse_duration(handler.coalesce) or parse_duration(handler.delay),
                "order_by": "resource" if parse_duration(handler.coalesce) else handler.order_by,
                "coalesce": parse_duration(handler.coalesce),
                "on_failure": handler.on_failure,
                "stale": handler.stale,
                "when": conditions.describe(handler.when),
                **({"store_limits": handler.store_limits} if handler.store_limits else {}),
                **({"redacted": redacted} if (redacted := validation.redacted_reads(config, handler)) else {}),
                "file": handler.file,
                "line": handler.line,
            },
        )
        for plugin in plugins
        for handler in plugin.handlers
    ]


def _entry_points(config: Config) -> Iterator[PluginSource]:
    if not config.workers.installed:
        return
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        version = point.dist.version if point.dist else "?"
        yield PluginSource(f"entry point {point.name} = {point.value}", module=point.value, version=version)


def _base(config: Config) -> Path:
    return config.path.parent if config.path else Path()


def _configured(config: Config) -> Iterator[PluginSource]:
    for name in config.workers.plugins:
        if name.endswith(".py"):
            yield PluginSource(name, file=str((_base(config) / name).absolute()))
        else:
            yield PluginSource(name, module=name)


def _search_config_folder(config: Config) -> None:
    """Modules are also searched for in the folder of the config, after everything that is installed."""
    folder = str(_base(config).absolute())
    if any(not name.endswith(".py") for name in config.workers.plugins) and folder not in sys.path:
        sys.path.append(folder)


def _load(
    config: Config, source: PluginSource, copies: SourceCopies, others: Sequence[PluginSource], *, digest: str = ""
) -> Plugin:
    """Load one plugin, only if its code has this digest, if one is given."""
    if source.file:
        return _load_file(source, copies, others)
    if source.module:
        return _load_module(source, digest)
    return _plugin(forward.ForwardRouter(config), source, forward.digest_of(config))


def _load_file(source: PluginSource, copies: SourceCopies, others: Sequence[PluginSource]) -> Plugin:
    name = f"{PLUGIN_FILE}{Path(source.file).stem}"
    if source.file not in copies.copies and not Path(source.file).is_file():
        raise PluginError(f"plugin {source.file}: no such file; see [workers] plugins")
    spec = _import_safely(f"plugin {source.file}", lambda: copies.spec_of(name, source.file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look a class's module up here
    with _folder_searched(str(Path(source.file).parent)):
        _import_safely(f"plugin {source.file}", lambda: spec.loader.exec_module(module) if spec.loader else None)
    files = copies.copy_modules_beside(source.file, other_plugins=[one.top_level for one in others])
    return _plugin(module, source, copies.digest(files))


@contextmanager
def _folder_searched(folder: str) -> Iterator[None]:
    """A plugin finds the modules in its folder, after everything that is installed. Other plugins do not."""
    is_added = folder not in sys.path
    if is_added:
        sys.path.append(folder)
    try:
        yield
    finally:
        if is_added and folder in sys.path:
            sys.path.remove(folder)


def _refuse_modules_of_one_name(sources: Sequence[PluginSource], copies: SourceCopies) -> None:
    """Python has one module of each name: a plugin would get that of another plugin in place of its own."""
    for source in sources:
        for name, path in copies.modules.items() if source.file else ():
            stem = Path(source.file).parent.joinpath(*name.split("."))
            own = next((one for one in (stem.with_suffix(".py"), stem / "__init__.py") if one.is_file()), None)
            if own and os.path.realpath(own) != os.path.realpath(path):
                raise PluginError(f"plugin {source.file}: another plugin has a module {name}, too: {path}; rename one")


def _load_module(source: PluginSource, validated: str) -> Plugin:
    origin = source.origin if source.version else f"plugin {source.origin}"
    point = EntryPoint(source.origin, source.module, GROUP)
    roots = _import_safely(origin, lambda: code_roots(point.module))
    digest = digest_below(roots)
    if validated and digest != validated:
        raise PluginError(f"{origin}: {CHANGED}")
    found = _import_safely(origin, point.load)
    if digest_below(roots) != digest:
        raise PluginError(f"{origin}: its files changed while it was loaded; try again")
    return _plugin(found, source, digest, roots)


def _plugin(found: Any, source: PluginSource, digest: str, roots: tuple[str, ...] = ()) -> Plugin:
    router = found if isinstance(found, Router) else _router_of(found, source.origin)
    version = source.version or str(getattr(found, "__version__", None) or digest[:7])
    return Plugin(router, PluginCode(router.name, version, source, digest, roots))


def _import_safely(origin: str, load_it: Any) -> Any:
    """Import a plugin. Any exception becomes a PluginError: one sentence with the plugin's own file and line."""
    try:
        return load_it()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything while it is imported
        raise validation.import_error(origin, error) from None


def _router_of(module: Any, origin: str) -> Router:
    """The one router of a module. Routers that another one includes do not count."""
    found = list({id(value): value for value in vars(module).values() if isinstance(value, Router)}.values())
    parts = {id(part) for one in found for part in one.included}
    routers = [one for one in found if id(one) not in parts]
    if len(routers) == 1:
        return routers[0]
    file = getattr(module, "__file__", origin)
    if not routers:
        raise PluginError(
            f"{file}:1: {origin} has no Router; write `from storehooks import Router` and "
            f'`router = Router("{Path(origin).stem}")`'
        )
    raise PluginError(f"{file}:1: {origin} has {len(routers)} Routers; a plugin has one: let it include the others")
