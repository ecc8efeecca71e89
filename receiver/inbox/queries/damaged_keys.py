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


_REWRITTEN = "nothing is lost without it: running processes write it again"
_LOST = {
    "lanes fair:{lane} limits slots:{limit} paces busy suspects declarations declared_at declared_by "
    "declarations_version declared_since accepted_until open_since bodies_removed_until later_examined leader spools "
    "refusals replaced ordered fence history quarantined keyring_version secret_versions changing "
    "receivers": _REWRITTEN,
    "data": "without it, hosts report that Redis was replaced, until `storehooks hosts accept`",
    "history_place": "without it, the next host that moves events to SQLite counts as the one that has the history",
    "seen": "without it, hosts report that Redis lacks events, until `storehooks hosts accept`",
    "writes loops": "without it, suspected loops are not listed, and may be quick again for a moment",
    "resources": "without it, the events of a resource are linked anew from the next one on",
    "versions:{lane}": "without it, it is not known when versions of the handler were first declared",
    "series:10 series:300 series:3600 hours:{store}": "without it, charts begin anew",
    "n t:{store}": "without it, its counts begin at 0 again",
    "ready:{lane} leased later held:{store}": "without it, the housekeeper puts its runs back within minutes",
    "order:{lane}": "without it, two runs of an order key may overlap until the housekeeper has read all records, and "
    "keys that a failure has stopped go on",
    "unrouted:{store}": "without it, ordered runs may begin before older events of their store",
    "heads heads:{store}": "without it, the housekeeper lets the runs that it had begin within minutes",
    "ix ix:{store}": "without it, its events are handled, but not listed, and not put back if a set is lost",
    "done": "without it, events that it had are never removed by age",
    "paused": "without it, nothing is paused any more, and what was held runs",
    "resuming": "without it, held runs of a store that is resumed wait until it is resumed again",
    "failed groups g:{group} gr:{group} gh:{lane}": "without it, these failures are not listed; "
    "`storehooks events replay --run-status failed` finds their runs",
    "secrets:{store}": "without it, a web process writes its host's copy of the secrets again",
    "check sub:{store}": "without it, the next checks of subscriptions begin anew",
    "repairs:{store}": "without it, past repairs are not listed",
    "replaced_urls": "without it, subscriptions under former URLs are not removed",
    "bulk bulk_open": "without it, bulk actions are not listed, and those that were at work end; start them again",
    "alerts": "without it, alerts that fire are sent once more",
    "alert_messages alert_due": "without it, messages that no target has accepted yet are not sent",
    "alert_marks": _REWRITTEN,
    "audit": "without it, what people did before is not listed",
    "failures_end": "without it, failures are removed by age some days later",
    "imported": "without it, a repeated import brings again what was deleted or resumed since",
    "erasures": "without it, an erasure that was interrupted begins anew",
    "receipts": "without it, past erasures are not listed",
    "removed": "without it, removed stores are repaired again by workers with an old config",
}
"""What is lost without a key; the keys' types are in `keys`."""
_OTHER = _Kind("", "without it, what belongs to it is lost")
_OF_RQ = {
    "{worker}": "hash",
    "rq:job:wake-{queue}": "hash",
    "rq:queues": "set",
    "rq:workers": "set",
    "rq:workers:{rq_queue}": "set",
    "rq:queue:{rq_queue}": "list",
}


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
    expected: dict[str, _Kind] = {}
    for names, lost in _LOST.items():
        for name in names.split():
            kind = _Kind(keys.TYPES[name.partition("{")[0]], lost)
            expected |= dict.fromkeys(_filled(keys.PREFIX + name, places), kind)
    for name, type_ in _OF_RQ.items():
        expected |= dict.fromkeys(_filled(name, places), _Kind(type_, _REWRITTEN))
    return expected


def _filled(name: str, places: Mapping[str, Iterable[str | bytes]]) -> Iterable[str]:
    """The keys of this name, with each value of its place."""
    start, _, place = name.partition("{")
    return [start + as_text(value) for value in (places[place.rstrip("}")] if place else [""])]
