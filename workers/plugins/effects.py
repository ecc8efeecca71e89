"""Effects: what `ctx.once` and `ctx.state` store. In the inbox for real runs, in a dict for tests and local runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import orjson

from workers.plugins.exceptions import Busy, Fail

T = TypeVar("T")
Scope = Literal["event", "resource", "store"]
InDoubt = Literal["run", "fail"]
UNDER_WAY_DELAY = 1.0


class EffectUnderWay(Busy):
    """Another run is performing the same effect. Only this run waits for it: no limit and no handler is closed."""


class Effects(Protocol):
    """Where marks and state are stored: an EffectStore of the inbox, or LocalEffects. A place names a key."""

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt) -> list[Any]: ...
    def end(self, place: str, field: str, item: str, result: bytes) -> None: ...
    def clear(self, place: str, field: str, mark: bytes) -> None: ...
    def read(self, place: str, name: str) -> bytes | None: ...
    def write(self, place: str, name: str, value: bytes | None) -> None: ...
    def add(self, place: str, name: str, by: int) -> int: ...


def once(effects: Effects, place: str, field: str, item: str, call: Callable[[], T], *, in_doubt: InDoubt) -> T:
    """Call and store the result, or return the stored result. A call that raises has not happened."""
    answer, *rest = effects.begin(place, field, item, in_doubt=in_doubt)
    if answer == "done":
        found: T = orjson.loads(rest[0])
        return found
    if answer == "busy":
        raise EffectUnderWay(f"another run is performing {field}", after=UNDER_WAY_DELAY)
    if answer == "doubt":
        raise Fail(f"{field} is in doubt: an attempt died before its result was stored; check it, then replay or drop")
    try:
        result = call()
    except Exception:
        effects.clear(place, field, rest[0])
        raise
    try:
        stored = orjson.dumps(result)
    except TypeError as error:
        effects.end(place, field, item, b"null")  # the effect has happened; only its result cannot be stored
        raise Fail(f"{field} was done, but its result is not JSON: {error}") from None
    effects.end(place, field, item, stored)
    return result


class PluginState:
    """A small key-value store for one plugin and one store. Values are JSON. `add` is atomic, the others are not."""

    def __init__(self, effects: Effects, plugin: str, store: str) -> None:
        self._effects = effects
        self._place = f"st:{plugin}:{store}"

    def get(self, name: str, default: Any = None) -> Any:
        """The value that was set last, or the default."""
        value = self._effects.read(self._place, name)
        return default if value is None else orjson.loads(value)

    def set(self, name: str, value: Any) -> None:
        """Set a value: anything that JSON can hold."""
        self._effects.write(self._place, name, orjson.dumps(value))

    def delete(self, name: str) -> None:
        """Remove a value. One that is not there is no error."""
        self._effects.write(self._place, name, None)

    def add(self, name: str, by: int = 1) -> int:
        """Add to a whole number, which starts at 0, and return the sum. Safe with many processes at once."""
        return self._effects.add(self._place, name, by)


class LocalEffects:
    """Stores effects and state in this process only, for tests and local runs."""

    def __init__(self, stored: Mapping[tuple[str, str], bytes] | None = None) -> None:
        self._stored: dict[tuple[str, str], bytes] = dict(stored or {})

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt) -> list[Any]:  # noqa: ARG002
        found = self._stored.get((place, field))
        return ["go", b""] if found is None else ["done", found]

    def end(self, place: str, field: str, item: str, result: bytes) -> None:  # noqa: ARG002
        self._stored[(place, field)] = result

    def clear(self, place: str, field: str, mark: bytes) -> None:  # noqa: ARG002
        self._stored.pop((place, field), None)

    def read(self, place: str, name: str) -> bytes | None:
        return self._stored.get((place, name))

    def write(self, place: str, name: str, value: bytes | None) -> None:
        if value is None:
            self._stored.pop((place, name), None)
        else:
            self._stored[(place, name)] = value

    def add(self, place: str, name: str, by: int) -> int:
        total = int(self._stored.get((place, name), b"0")) + by
        self._stored[(place, name)] = str(total).encode()
        return total
