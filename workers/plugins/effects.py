"""Effects: what `ctx.once` and `ctx.state` remember. In the inbox for real runs, in a dict for tests and trial runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import orjson

from workers.plugins.exceptions import Busy, Fail

T = TypeVar("T")
Scope = Literal["event", "resource", "store"]
InDoubt = Literal["run", "fail"]
AT_WORK_AFTER = 1.0


class AtWork(Busy):
    """Another run is at the same effect just now. Only this one waits for it: no limit and no handler is shut."""


class Effects(Protocol):
    """Where marks and state are kept: an EffectStore of the inbox, or LocalEffects. A place names a key."""

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt) -> list[Any]: ...
    def end(self, place: str, field: str, item: str, result: bytes) -> None: ...
    def clear(self, place: str, field: str, mark: bytes) -> None: ...
    def read(self, place: str, name: str) -> bytes | None: ...
    def write(self, place: str, name: str, value: bytes | None) -> None: ...
    def add(self, place: str, name: str, by: int) -> int: ...


def once(effects: Effects, place: str, field: str, item: str, call: Callable[[], T], *, in_doubt: InDoubt) -> T:
    """Call and remember, or give what was remembered. A call that raises has not happened."""
    answer, *rest = effects.begin(place, field, item, in_doubt=in_doubt)
    if answer == "done":
        found: T = orjson.loads(rest[0])
        return found
    if answer == "busy":
        raise AtWork(f"another run is doing {field} just now", after=AT_WORK_AFTER)
    if answer == "doubt":
        raise Fail(f"{field} is in doubt: an attempt died between the call and its mark; look, then replay or drop")
    try:
        result = call()
    except Exception:
        effects.clear(place, field, rest[0])
        raise
    try:
        remembered = orjson.dumps(result)
    except TypeError as error:
        effects.end(place, field, item, b"null")  # the effect has happened; only its result cannot be remembered
        raise Fail(f"{field} was done, but its result is not JSON: {error}") from None
    effects.end(place, field, item, remembered)
    return result


class PluginState:
    """A small key-value store for one plugin and one store. Values are JSON; `add` is atomic."""

    def __init__(self, effects: Effects, plugin: str, store: str) -> None:
        self._effects = effects
        self._place = f"st:{plugin}:{store}"

    def get(self, name: str, default: Any = None) -> Any:
        """What was set last, or the default."""
        value = self._effects.read(self._place, name)
        return default if value is None else orjson.loads(value)

    def set(self, name: str, value: Any) -> None:
        """Keep a value that is JSON."""
        self._effects.write(self._place, name, orjson.dumps(value))

    def delete(self, name: str) -> None:
        """Forget it."""
        self._effects.write(self._place, name, None)

    def add(self, name: str, by: int = 1) -> int:
        """Add to a whole number, from 0; give the sum."""
        return self._effects.add(self._place, name, by)


class LocalEffects:
    """In this process, for tests and trial runs: nothing leaves it, and nothing stays."""

    def __init__(self, kept: Mapping[tuple[str, str], bytes] | None = None) -> None:
        self._kept: dict[tuple[str, str], bytes] = dict(kept or {})

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt) -> list[Any]:  # noqa: ARG002
        found = self._kept.get((place, field))
        return ["go", b""] if found is None else ["done", found]

    def end(self, place: str, field: str, item: str, result: bytes) -> None:  # noqa: ARG002
        self._kept[(place, field)] = result

    def clear(self, place: str, field: str, mark: bytes) -> None:  # noqa: ARG002
        self._kept.pop((place, field), None)

    def read(self, place: str, name: str) -> bytes | None:
        return self._kept.get((place, name))

    def write(self, place: str, name: str, value: bytes | None) -> None:
        if value is None:
            self._kept.pop((place, name), None)
        else:
            self._kept[(place, name)] = value

    def add(self, place: str, name: str, by: int) -> int:
        total = int(self._kept.get((place, name), b"0")) + by
        self._kept[(place, name)] = str(total).encode()
        return total
