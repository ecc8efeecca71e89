"""Validates plugins. Each error is one sentence with the file, the line and the fix."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from receiver.config import Config
from receiver.config.values import parse_duration
from receiver.contract.errors import PluginError
from receiver.contract.topics import matches
from receiver.inbox import Declaration
from workers.plugins import conditions
from workers.plugins.router import Handler, Router

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOPIC = re.compile(r"\*|[a-z0-9_*-]+(\.[a-z0-9_*-]+)*")
_ORDER_BY = re.compile(r"resource|store|data(\.[^.\s]+)+")
_UNKNOWN_OPTION = re.compile(r"Router\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")
PACKAGES = ("workers", "receiver", "storehooks")
HOME = Path(__file__).parents[2]
OUR_FOLDERS = {HOME / package for package in PACKAGES}


def validate_handler(handler: Handler) -> None:
    """Refuse a handler that could not run, before an event is routed to it."""
    if not inspect.isroutine(handler.function):
        raise PluginError(f"{handler.name} is not a plain function; write `def` and call what you need from it")
    for fault in _faults(handler):
        raise PluginError(f"{handler.file}:{handler.line}: {handler.name} {fault}")


def validate_router(router: Router, origin: str) -> None:
    """Refuse a plugin with a wrong name, startup, shutdown or failed function."""
    if not isinstance(router.name, str) or not _NAME.fullmatch(router.name) or "." in router.name:
        raise PluginError(f'{origin}: a plugin needs a name of letters, digits, _ and -: router = Router("loyalty")')
    _validate_parts(router, origin)
    wanted: tuple[tuple[str, Callable[..., Any] | None, tuple[str, ...]], ...] = (
        ("startup", router.startup_function, ("settings",)),
        ("shutdown", router.shutdown_function, ("resource",)),
        ("failed", router.failed_function, ("event", "ctx", "error")),
    )
    for what, function, arguments in wanted:
        if function is not None and not _takes(function, len(arguments)):
            number = {1: "one argument", 3: "three arguments"}[len(arguments)]
            raise PluginError(
                f"{_place_of(function)}: @router.{what} of {router.name} must take {number}: "
                f"def {getattr(function, '__name__', what)}({', '.join(arguments)})"
            )


def missing_limits(config: Config, handlers: Iterable[Declaration]) -> dict[str, list[str]]:
    """The limits that installed plugins name and the config does not have, with their handlers."""
    found: dict[str, list[str]] = {}
    for one in handlers:
        if (limit := one.details.get("limit")) and limit not in config.limits:
            found.setdefault(limit, []).append(one.handler)
    return found


def unconfigured_stores(config: Config, handler: Declaration) -> list[str]:
    """The stores of a handler that the config does not have. A config without stores is still being written."""
    unknown = [one for one in handler.stores if not any(matches(one, store) for store in config.stores)]
    return unknown if config.stores else []


def redacted_reads(config: Config, handler: Handler) -> list[str]:
    """The options of a handler that read what `[redact] paths` remove: they never find a value."""
    by = handler.order_by or ""
    read = [("order_by", by.removeprefix("data."))] if by.startswith("data.") else []
    read += [("when", path) for path in handler.when] if isinstance(handler.when, Mapping) else []
    removed = tuple(f"{one}." for one in config.redact.paths)
    return [f"{option} {path}" for option, path in read if f"{path}.".startswith(removed)]


def _validate_parts(router: Router, origin: str) -> None:
    for part in router.included:
        if part.startup_function or part.shutdown_function or part.failed_function or part.settings:
            raise PluginError(
                f"{origin}: {router.name} includes a router with a startup, shutdown or failed function or settings of "
                "its own; those belong to the plugin: move them to the router that includes it"
            )
        _validate_parts(part, origin)


def _place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def _faults(handler: Handler) -> Iterator[str]:
    if not _NAME.fullmatch(handler.name):
        yield "has a name that is not letters, digits, _ and -"
    yield from _wrong_function(handler)
    yield from _wrong_options(handler)
    yield from conditions.faults_of(handler.when)
    yield from _wrong_numbers(handler)


def _wrong_function(handler: Handler) -> Iterator[str]:
    written = inspect.unwrap(handler.function)
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        yield "has a `yield`, so calling it does nothing; return a value instead"
    if not _takes(handler.function, 2):
        yield "must take two arguments: def handler(event, ctx)"


def _wrong_options(handler: Handler) -> Iterator[str]:
    if not handler.topics:
        yield 'names no topic; write @router.on("order.created") or @router.on("*")'
    for topic in handler.topics:
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            yield f'asks for the topic {topic!r}; topics look like "order.created" or "order.*"'
    if not all(isinstance(store, str) for store in handler.stores):
        yield f'has stores={handler.stores!r}; stores are names, such as "north" or "*"'
    if not isinstance(handler.queue, str) or not _QUEUE.fullmatch(handler.queue):
        yield f"has queue={handler.queue!r}; a queue's name is letters, digits, _ and -, at most 64"
    if handler.queue == "intermediate":
        yield "has queue='intermediate'; RQ uses that name for a list of its own, so choose another"
    if handler.limit is not None and not isinstance(handler.limit, str):
        yield f"has limit={handler.limit!r}; a limit is the name of a [limits.NAME] in config"
    if handler.echo not in ("drop", "run"):
        yield f'has echo={handler.echo!r}; write echo="drop" (the default) or echo="run"'
    yield from _wrong_order(handler)
    yield from _wrong_late_arrivals(handler)
    yield from _wrong_coalesce(handler)


def _wrong_order(handler: Handler) -> Iterator[str]:
    by, policy = handler.order_by, handler.on_failure
    if by is not None and not (isinstance(by, str) and _ORDER_BY.fullmatch(by)):
        yield f'has order_by={by!r}; write "resource", "store", or a path into the data such as "data.customer_id"'
    if policy not in ("continue", "stop"):
        yield f'has on_failure={policy!r}; write "continue" or "stop"'
    elif policy == "stop" and by is None:
        yield 'has on_failure="stop" without order_by=; write order_by="resource" too, or leave it out'


def _wrong_late_arrivals(handler: Handler) -> Iterator[str]:
    gap = handler.wait_for_gap
    if handler.stale not in ("run", "skip"):
        yield f'has stale={handler.stale!r}; write stale="run" (the default) or stale="skip"'
    try:
        waits = parse_duration(gap) > 0
    except ValueError:
        yield f'has wait_for_gap={gap!r}, which is not a duration; write wait_for_gap=30 or wait_for_gap="30s"'
        return
    if waits and handler.stale != "skip":
        yield 'has wait_for_gap= without stale="skip"; write both, or leave it out'
    if waits and handler.order_by is not None:
        yield (
            "has wait_for_gap= and order_by=; the order of acceptance would hold the missing event back, so leave "
            "order_by= out: events then run by their sequence"
        )


def _wrong_coalesce(handler: Handler) -> Iterator[str]:
    try:
        if parse_duration(handler.coalesce) == 0:
            return
    except ValueError:
        yield f'has coalesce={handler.coalesce!r}, which is not a duration; write coalesce=5 or coalesce="5s"'
        return
    if handler.order_by not in (None, "resource"):
        yield f"has coalesce= and order_by={handler.order_by!r}; events of one resource are merged: leave order_by= out"
    if handler.on_failure != "continue":
        yield 'has coalesce= and on_failure="stop"; the newest event is run in any case, so leave on_failure= out'
    if handler.delay not in (0, "0", "0s"):
        yield "has coalesce= and delay=; coalesce= is the delay, so leave delay= out"
    if handler.wait_for_gap not in (0, "0", "0s"):
        yield "has coalesce= and wait_for_gap=; merged events have gaps, so leave wait_for_gap= out"


def _wrong_numbers(handler: Handler) -> Iterator[str]:
    retries = handler.retries
    if not (retries is None or _is_count(retries) or (isinstance(retries, tuple) and all(map(_is_seconds, retries)))):
        yield (
            f"has retries={retries!r}, neither a number nor delays in seconds; write retries=5 or retries=(10, 60, 300)"
        )
    if handler.timeout is not None and not (_is_seconds(handler.timeout) and handler.timeout > 0):
        yield f"has timeout={handler.timeout!r}, which is not a number of seconds; write timeout=30"
    try:
        parse_duration(handler.delay)
    except ValueError:
        yield f'has delay={handler.delay!r}, which is not a duration; write delay=600 or delay="10m"'


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _takes(function: Callable[..., Any], many: int) -> bool:
    try:
        inspect.signature(function).bind(*[object()] * many)
    except (TypeError, ValueError):
        return False
    return True


# Errors while a plugin is imported


def import_error(origin: str, error: BaseException) -> PluginError:
    """One sentence for what a plugin's import raised, with the plugin's own file and line."""
    if isinstance(error, SyntaxError):
        begin = f"{error.filename}:{error.lineno}: {origin} has a syntax error"
        return PluginError(f"{begin}: {error.msg}; fix that line", logged=f"{begin}; fix that line")
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([one for one in frames if not _is_ours(one.filename)] or list(frames))[-1]
    begin, kind = f"{frame.filename}:{frame.lineno}: {origin} ", type(error).__name__
    missing = f"{kind}: {error.name}" if isinstance(error, ModuleNotFoundError) and error.name else kind
    whole, logged = (_describe_import_error(error, raised, frame.filename) for raised in (f"{kind}: {error}", missing))
    return PluginError(begin + whole, logged=begin + logged)


def _describe_import_error(error: BaseException, raised: str, file: str) -> str:
    if isinstance(error, TypeError) and (match := _UNKNOWN_OPTION.search(str(error))):
        known = [name for name in inspect.signature(getattr(Router, match[1])).parameters if name != "self"]
        near = difflib.get_close_matches(match[2], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
        return f"has an unknown option {match[2]}; {hint}"
    sentence = f"cannot be loaded: {raised}"
    if isinstance(error, ImportError) and error.name and error.name.partition(".")[0] in PACKAGES:
        package = error.name.partition(".")[0]
        own = f"{package} is storehooks' own package"
        places = (folder / package for folder in Path(file).parents if folder != HOME)
        yours = next((str(place) for place in places if place.is_dir()), "yours, if you have one")
        return sentence if own in sentence else f"{sentence}; {own}: rename {yours}"
    if isinstance(error, ModuleNotFoundError):
        return f"{sentence}; install it into this environment, or correct the import"
    if isinstance(error, ImportError):
        return f"{sentence}; correct the import"
    return f"{sentence}; code that can fail belongs into @router.startup or a handler"


def _is_ours(filename: str) -> bool:
    return "importlib" in filename or not OUR_FOLDERS.isdisjoint(Path(filename).parents)
