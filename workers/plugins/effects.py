"""Effects: what `ctx.once` and `ctx.state` store. In the inbox for real runs, in a dict for tests and local runs."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import orjson

from receiver import logs
from receiver.inbox.effect_store import EffectStoreAway, EffectStoreRefused
from workers.plugins.exceptions import Busy, Fail
from workers.storeapi.exact_json import has_infinite

T = TypeVar("T")
Scope = Literal["event", "resource", "store"]
InDoubt = Literal["run", "fail"]
UNDER_WAY_DELAY = 1.0
AWAY = (EffectStoreAway, EffectStoreRefused)
AWAY_PAUSE = 0.1
"""Seconds between two tries, while the server is away."""
LAST_SECOND = 1.0
"""With less time left, a run ends and is repeated, before its timeout counts as an attempt."""
IN_DOUBT = "is in doubt: "
log = logs.get("child")
_Key = tuple[asyncio.AbstractEventLoop, str, str]
_locks = WeakValueDictionary[_Key, asyncio.Lock]()
"""Of the effects that an async handler performs at this moment: it may ask for the same effect twice at once."""
_held: ContextVar[frozenset[_Key]] = ContextVar("held", default=frozenset())
"""The locks that this task, or the one that started it, holds: an effect within itself must not wait for itself."""
_thread_locks = WeakValueDictionary[tuple[str, str], Any]()
"""The same for the threads of a plain handler."""
_making_lock = threading.Lock()


class EffectUnderWay(Busy):
    """Another run is performing the same effect. Only this run waits for it: no limit and no handler is closed."""


class Effects(Protocol):
    """Where marks and state are stored: an EffectStore of the inbox, or LocalEffects. A place names a key."""

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt, word: str = "") -> list[Any]: ...
    def end(self, place: str, field: str, item: str, result: bytes) -> None: ...
    def clear(self, place: str, field: str, mark: bytes) -> None: ...
    def read(self, place: str, name: str) -> bytes | None: ...
    def write(self, place: str, name: str, value: bytes | None) -> None: ...
    def add(self, place: str, name: str, by: int) -> int: ...


@dataclass(frozen=True)
class Effect:
    """One effect of `ctx.once`: call and store the result, or return the stored result. A call that raises has not
    happened.

    If the server goes away meanwhile, only this process knows what has become of the call: it waits for the server as
    long as the run may take.
    """

    effects: Effects
    place: str
    field: str
    item: str
    in_doubt: InDoubt
    deadline: float = float("inf")

    def once(self, call: Callable[[], T]) -> T:
        with _making_lock:
            lock = _thread_locks.setdefault((self.place, self.field), threading.RLock())
        with lock:
            is_done, found = self._known(self._reached(self._begin()))
            if is_done:
                return cast(T, found)
            try:
                result = call()
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(
                        f"{self.field} is async; give ctx.once the `async def` function itself, and await it: "
                        "await ctx.once(key, function, ...)"
                    )
            except Exception:  # whatever it is, the effect has not happened
                self._reached(self._clear(found))
                raise
            stored, fault = _as_stored(result)
            self._reached(self._end(stored))
            return cast(T, self._returned(stored, fault))

    async def once_awaited(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self._alone():
            is_done, found = self._known(await self._reached_awaited(self._begin()))
            if is_done:
                return cast(T, found)
            try:
                result = await call()
            except Exception:  # the same
                await self._reached_awaited(self._clear(found))
                raise
            stored, fault = _as_stored(result)
            await self._reached_awaited(self._end(stored))
            return cast(T, self._returned(stored, fault))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait until no other task of this process performs the effect."""
        key, held = (asyncio.get_running_loop(), self.place, self.field), _held.get()
        if key in held:
            yield
            return
        async with _locks.setdefault(key, asyncio.Lock()):
            _held.set(held | {key})
            try:
                yield
            finally:
                _held.set(held)

    def _begin(self) -> Callable[[], list[Any]]:
        word = secrets.token_hex(4)
        return lambda: self.effects.begin(self.place, self.field, self.item, in_doubt=self.in_doubt, word=word)

    def _end(self, result: bytes) -> Callable[[], None]:
        return lambda: self.effects.end(self.place, self.field, self.item, result)

    def _clear(self, mark: bytes) -> Callable[[], None]:
        return lambda: self.effects.clear(self.place, self.field, mark)

    def _reached(self, ask: Callable[[], T]) -> T:
        """Ask the server, again and again while it is away and there is time for another try."""
        wait = _Wait(self)
        while True:
            try:
                return ask()
            except AWAY:
                if not wait.goes_on():
                    raise
            time.sleep(AWAY_PAUSE)

    async def _reached_awaited(self, ask: Callable[[], T]) -> T:
        """The same. Each further try is in a thread, since a server that hangs is asked for seconds."""
        wait = _Wait(self)
        try:
            return ask()
        except AWAY:
            if not wait.goes_on():
                raise
        while True:
            await asyncio.sleep(AWAY_PAUSE)
            try:
                return await asyncio.to_thread(ask)
            except AWAY:
                if not wait.goes_on():
                    raise

    def _known(self, answer: list[Any]) -> tuple[bool, Any]:
        """Whether it has happened; then its result, else the mark that it begins."""
        word, *rest = answer
        if word == "done":
            return True, orjson.loads(rest[0])
        if word == "busy":
            raise EffectUnderWay(f"another run is performing {self.field}", after=UNDER_WAY_DELAY)
        if word == "doubt":
            raise Fail(
                f"{self.field} {IN_DOUBT}an attempt ended before its result was stored; check whether it happened, "
                "then drop the failure, or make the call again: `storehooks events replay ID --handler H --again`"
            )
        return False, rest[0]

    def _returned(self, stored: bytes, fault: str) -> Any:
        """A result as every later call will get it: a tuple is a list in JSON."""
        if fault:
            raise Fail(f"{self.field} was done, but its result is not JSON: {fault}")
        return orjson.loads(stored)


class _Wait:
    """Whether to wait for a server that is away."""

    def __init__(self, effect: Effect) -> None:
        self._effect = effect
        self._tried = time.monotonic()
        self._is_logged = False

    def goes_on(self) -> bool:
        """After a try without an answer: whether there is time for another that takes as long."""
        now = time.monotonic()
        took, self._tried = now - self._tried, now
        if now + AWAY_PAUSE + took > self._effect.deadline - LAST_SECOND:
            return False
        if not self._is_logged:
            log.warning("Redis is away; a run waits for it, to note what has become of an effect")
            self._is_logged = True
        return True


def _as_stored(result: Any) -> tuple[bytes, str]:
    """A result as JSON, and why it cannot be written so: then it is lost, but the effect has happened."""
    try:
        return _to_json(result), ""
    except TypeError as error:
        return b"null", str(error)


def _to_json(value: Any) -> bytes:
    """Raises TypeError for what JSON cannot hold. orjson writes NaN and Infinity as null."""
    written = orjson.dumps(value)
    if b"null" in written and has_infinite(value):
        raise TypeError("NaN and Infinity are not JSON serializable")
    return written


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
        """Set a value: anything that JSON can hold. It raises TypeError for others, such as NaN."""
        self._effects.write(self._place, name, _to_json(value))

    def delete(self, name: str) -> None:
        """Remove a value. One that is not there is no error."""
        self._effects.write(self._place, name, None)

    def add(self, name: str, by: int = 1) -> int:
        """Add to a whole number, which starts at 0, and return the sum. Safe with many processes at once."""
        try:
            return self._effects.add(self._place, name, by)
        except ValueError:
            raise TypeError(
                f"ctx.state.add({name!r}, {by!r}): not two whole numbers, or their sum is too large"
            ) from None


class LocalEffects:
    """Stores effects and state in this process only, for tests and local runs."""

    def __init__(self, stored: Mapping[tuple[str, str], bytes] | None = None) -> None:
        self._stored: dict[tuple[str, str], bytes] = dict(stored or {})

    def begin(self, place: str, field: str, item: str, *, in_doubt: InDoubt, word: str = "") -> list[Any]:  # noqa: ARG002
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
