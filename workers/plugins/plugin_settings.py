"""A plugin's settings: `[plugins.NAME]` with `[stores.STORE.plugins.NAME]` over it, checked by the plugin's own model.

A wrong setting is refused when plugins are loaded, not when an event comes. The message names the key, the line of the
config and the line of the model. Values are never shown: they may be secrets.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from receiver.config import Config
from receiver.contract.errors import MissingSetting, PluginError
from receiver.contract.topics import matches
from workers.plugins.context import make_settings
from workers.plugins.router import Handler, Router

RESERVED = ("stores", "handlers")


def settings_of(config: Config, plugin: str, store: str) -> dict[str, Any]:
    """`[plugins.NAME]`, with `[stores.STORE.plugins.NAME]` over it."""
    return {**general_settings(config, plugin), **settings_of_store(config, plugin, store)}


def general_settings(config: Config, plugin: str) -> Mapping[str, Any]:
    return config.plugins[plugin].plugin_values if plugin in config.plugins else {}


def settings_of_store(config: Config, plugin: str, store: str) -> Mapping[str, Any]:
    return config.stores[store].plugins.get(plugin, {}) if store in config.stores else {}


def is_configured(config: Config, plugin: str) -> bool:
    return plugin in config.plugins or any(plugin in store.plugins for store in config.stores.values())


def build(config: Config, router: Router, store: str, defaults: Mapping[str, Any] | None = None) -> Any:
    """The settings for a store: an instance of the plugin's model, or a namespace. The store "" means no store.

    `defaults` are values for settings that this config does not have.
    """
    values = {**(defaults or {}), **settings_of(config, router.name, store)}
    if router.settings is None:
        return make_settings(values)
    _refuse_unknown(config, router, store, values)
    return _validated(config, router, store, values)


def check(config: Config, router: Router, handlers: Iterable[Handler]) -> None:
    """Build the settings for every store that events may come from. PluginError names the wrong setting."""
    _refuse_reserved(config, router)
    if router.settings is None:
        return
    _refuse_other_models(router)
    patterns = [pattern for handler in handlers for pattern in handler.stores]
    stores = [name for name in config.stores if any(matches(pattern, name) for pattern in patterns)]
    if router.startup_function is not None or not stores:
        build(config, router, "")
    for store in stores:
        build(config, router, store)


def _refuse_reserved(config: Config, router: Router) -> None:
    for name, store in config.stores.items():
        for key in RESERVED:
            if key in store.plugins.get(router.name, {}):
                where = config.place("stores", name, "plugins", router.name, key)
                raise PluginError(f"{where}: {key} is set for all stores; move it to [plugins.{router.name}]")


def _refuse_other_models(router: Router) -> None:
    model = router.settings
    if not (hasattr(model, "model_validate") or dataclasses.is_dataclass(model)):
        raise PluginError(
            f"plugin {router.name} has settings={getattr(model, '__name__', model)!r}, "
            "which is neither a pydantic model nor a dataclass; derive it from pydantic.BaseModel"
        )
    for key in RESERVED:
        if key in (_known_keys(model) or ()):
            raise PluginError(
                f"{_model_place(router).rpartition(' ')[2]}: plugin {router.name} has a setting called {key}, which "
                f"[plugins.{router.name}] uses for itself; rename it"
            )


def _refuse_unknown(config: Config, router: Router, store: str, values: Mapping[str, Any]) -> None:
    """A misspelt key would be a setting that is silently ignored."""
    known = _known_keys(router.settings)
    for key in values:
        if known is not None and key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"its settings are {', '.join(sorted(known)) or 'none'}."
            where = _place(config, router, store, key)
            raise PluginError(f"{where}: plugin {router.name} has no setting {key}; {hint} See {_model_place(router)}")


def _known_keys(model: Any) -> set[str] | None:
    """The keys of a model; None if it accepts any key."""
    if dataclasses.is_dataclass(model):
        return {field.name for field in dataclasses.fields(model) if field.init}
    if model.model_config.get("extra") == "allow":
        return None
    fields = model.model_fields
    return {*fields, *(name for field in fields.values() for name in _aliases(field))}


def _aliases(field: Any) -> Iterator[str]:
    """Other names by which a field of a model is read; of a path, its first part."""
    given = field.validation_alias or field.alias
    for one in getattr(given, "choices", [given] if given else []):
        yield one if isinstance(one, str) else str(one.path[0])


def _validated(config: Config, router: Router, store: str, values: Mapping[str, Any]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    model: Any = router.settings
    try:
        return TypeAdapter(model).validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
    key = ".".join(str(step) for step in problem["loc"]) or "its settings"
    table = f"[plugins.{router.name}]"
    if problem["type"] in ("missing", "missing_argument"):
        of_store = f" for store {store}" if store else ""
        own = f" or [stores.{store}.plugins.{router.name}]" if store else ""
        fix = logged = f"plugin {router.name} needs the setting {key}{of_store}; write {key} = ... in {table}{own}"
    else:
        begin = f"plugins.{router.name}.{key}{f' for store {store}' if store else ''}: "
        fix = begin + problem["msg"].removeprefix("Value error, ")
        logged = begin + f"invalid ({problem['type']})"  # the message may be the plugin's, and quote the value
    where = _place(config, router, store, *(str(step) for step in problem["loc"]))
    see = f"See {_model_place(router)}"
    kind = MissingSetting if problem["type"] in ("missing", "missing_argument") else PluginError
    raise kind(f"{where}: {fix}. {see}", logged=f"{where}: {logged}. {see}")


def _place(config: Config, router: Router, store: str, *key: str) -> str:
    """Where a setting is written; else where its table is, else the file that it belongs into."""
    own = settings_of_store(config, router.name, store)
    found = config.place("stores", store, "plugins", router.name, *key) if key and key[0] in own else None
    found = found or config.place("plugins", router.name, *key)
    return str(found or config.path or "config")


def _model_place(router: Router) -> str:
    model: Any = router.settings
    try:
        return f"class {model.__name__} at {inspect.getsourcefile(model)}:{inspect.getsourcelines(model)[1]}"
    except (OSError, TypeError):
        return f"class {model.__name__}"
