"""Damaged keys: which keys have another type than ours, and what is lost if one of them is removed. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from receiver.inbox import keys
from receiver.inbox.queries.damage import PartialReader, as_text

_MAX_GROUPS = 1_000


class _Kind(NamedTuple):
    type: str
    lost: str
    names: str


_REWRITTEN = "nothing is lost without it: running processes write it again"
_COUNTS = "without it, its counts begin at 0 again"
_ITEMS = "without it, the housekeeper puts its runs back within minutes"
_FAILURES = "without it, these failures are not listed; `storehooks events replay --run-status failed` finds their runs"
_SUBSCRIPTIONS = "without it, the next checks of subscriptions begin anew"
_KINDS = (
    _Kind("hash", _REWRITTEN, "lanes fair:{lane} limits slots:{limit} paces busy declarations declared_at spools"),
    _Kind("hash", _REWRITTEN, "secret_versions changing receivers quarantined replaced"),
    _Kind("string", _REWRITTEN, "accepted_until bodies_removed_until later_examined declarations_version"),
    _Kind("string", _REWRITTEN, "declared_since leader keyring_version"),
    _Kind("set", _REWRITTEN, "suspects"),
    _Kind("string", "without it, hosts report that Redis was replaced, until `storehooks hosts accept`", "data"),
    _Kind("hash", _COUNTS, "n t:{store}"),
    _Kind("zset", _ITEMS, "ready:{lane} leased later held:{store}"),
    _Kind(
        "zset", "without it, its events are handled, but not listed, and not put back if a set is lost", "ix ix:{store}"
    ),
    _Kind("zset", "without it, events that it had are never removed by age", "done"),
    _Kind("set", "without it, nothing is paused any more, and what was held runs", "paused"),
    _Kind("set", "without it, held runs of a store that is resumed wait until it is resumed again", "resuming"),
    _Kind("zset", _FAILURES, "failed groups gr:{group}"),
    _Kind("hash", _FAILURES, "g:{group}"),
    _Kind("set", _FAILURES, "gh:{lane}"),
    _Kind("hash", "without it, a web process writes its host's copy of the secrets again", "secrets:{store}"),
    _Kind("zset", _SUBSCRIPTIONS, "check"),
    _Kind("string", _SUBSCRIPTIONS, "sub:{store}"),
    _Kind("list", "without it, past repairs are not listed", "repairs:{store}"),
    _Kind("set", "without it, subscriptions under former URLs are not removed", "replaced_urls"),
    _Kind("set", "without it, removed stores are repaired again by workers with an old config", "removed"),
)
_OTHER = _Kind("", "without it, what belongs to it is lost", "")
_OF_RQ = (
    _Kind("hash", _REWRITTEN, "{worker} rq:job:wake-{queue}"),
    _Kind("set", _REWRITTEN, "rq:queues rq:workers rq:workers:{rq_queue}"),
    _Kind("list", _REWRITTEN, "rq:queue:{rq_queue}"),
)


@dataclass(frozen=True)
class DamagedKey:
    name: str
    field: str
    """The field that is not a number; empty if the key has another type than ours."""
    types: str
    """The type that it has and the one that it should have, as far as they are known."""
    lost: str
    """What is lost if the key is removed."""

    @property
    def text(self) -> str:
        why = f"its field {self.field} is not a number" if self.field else self.types or "it has another type than ours"
        return f"the key {self.name} is damaged: {why}"


def find_damaged_keys(reader: PartialReader, stores: Iterable[str]) -> list[DamagedKey]:
    """The keys of another type than ours, and what else this reader has found damaged. A key of one event is only found
    by reading that event."""
    expected = _expected(reader, stores)
    pipeline = reader.pipeline(transaction=False)
    for name in expected:
        pipeline.type(name)
    actual = {name: kind.decode() for name, kind in zip(expected, pipeline.execute(), strict=True)}
    types = {
        name: f"it is a {kind} and should be a {expected[name].type}"
        for name, kind in actual.items()
        if kind not in (expected[name].type, "none")
    }
    return [
        DamagedKey(name, reader.damaged.get(name, ""), types.get(name, ""), expected.get(name, _OTHER).lost)
        for name in sorted({*reader.damaged, *types})
    ]


def _expected(reader: PartialReader, stores: Iterable[str]) -> dict[str, _Kind]:
    """The names of all keys that are known without a search, each with its kind."""
    client: Any = reader
    lanes = client.hgetall(keys.LANES)
    queues = {keys.DEFAULT_QUEUE, *map(as_text, lanes.values())}
    places: dict[str, Iterable[str | bytes]] = {
        "store": stores,
        "lane": ["", *lanes],
        "limit": client.hvals(keys.LIMITS),
        "group": client.zrange(keys.GROUPS, 0, _MAX_GROUPS - 1, desc=True),
        "worker": client.smembers(keys.rq_workers(keys.DEFAULT_QUEUE)),
        "queue": queues,
        "rq_queue": [keys.rq_queue(queue) for queue in queues],
    }
    return _names(_KINDS, keys.PREFIX, places) | _names(_OF_RQ, "", places)


def _names(kinds: Iterable[_Kind], prefix: str, places: Mapping[str, Iterable[str | bytes]]) -> dict[str, _Kind]:
    found = {}
    for kind in kinds:
        for name in kind.names.split():
            start, _, place = name.partition("{")
            for value in places[place.rstrip("}")] if place else [""]:
                found[prefix + start + as_text(value)] = kind
    return found
