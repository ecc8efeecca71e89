"""The books of a small inbox: what its keys say, read at once, and whether they agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from redis import Redis

from receiver.contract.event import Event
from receiver.inbox import EventQueries, FailureQueries, keys

OPEN = ("ready", "leased", "later", "held")
DONE = keys.PREFIX + "done"


@dataclass(frozen=True)
class Item:
    """A run, or an event that is to be routed, as its record has it."""

    event: str
    handler: str
    state: str
    token: str

    @property
    def name(self) -> str:
        return keys.run_item(self.event, self.handler)


class Books:
    def __init__(self, client: Redis, events: Iterable[Event], *, handlers: Collection[str], limit: str) -> None:
        self._client = client
        self._stores = {event.id: event.store for event in events}
        stores = sorted(set(self._stores.values()))
        self._lanes = [keys.READY + name for name in ("", *handlers)]
        self._held = [keys.HELD + store for store in stores]
        sets = [*self._lanes, *self._held, keys.LEASED, keys.LATER, keys.FAILED, DONE, keys.INDEX]
        indexes = [keys.index_of(store) for store in stores]
        records, self._bodies, members, slots, self._quarantined = self._read([*sets, *indexes], keys.SLOTS + limit)
        self._records: dict[str, dict[str, str]] = records
        self._members: dict[str, list[str]] = members
        self._slots: dict[str, str] = slots
        self.items = [
            _item(event, name, value)
            for event, fields in records.items()
            for name, value in fields.items()
            if name.startswith("r:")
        ]

    def _read(self, sets: list[str], slots: str) -> tuple[Any, ...]:
        pipeline = self._client.pipeline(transaction=True)
        for event in self._stores:
            pipeline.hgetall(keys.EVENT + event).exists(keys.BODY + event)
        for name in sets:
            pipeline.zrange(name, 0, -1)
        pipeline.hgetall(slots).hlen(keys.QUARANTINED)
        told = iter(pipeline.execute())
        pairs = [(event, _text(next(told)), next(told)) for event in self._stores]
        records = {event: record for event, record, _ in pairs}
        bodies = {event for event, _, there in pairs if there}
        return (
            records,
            bodies,
            {name: [one.decode() for one in next(told)] for name in sets},
            _text(next(told)),
            next(told),
        )

    @property
    def states(self) -> dict[str, str]:
        """Each event's own."""
        return {event: record["state"] for event, record in self._records.items()}

    def every_open_item_is_in_exactly_one_place(self) -> None:
        places: dict[str, list[str]] = {}
        for state, names in zip(OPEN, (self._lanes, [keys.LEASED], [keys.LATER], self._held), strict=True):
            for name in names:
                for item in self._members[name]:
                    places.setdefault(item, []).append(state)
        assert places == {one.name: [one.state] for one in self.items if one.state in OPEN}
        assert self._quarantined == 0

    def what_is_closed_is_listed_as_it_ended(self) -> None:
        assert set(self._members[keys.FAILED]) == {one.name for one in self.items if one.state == "failed"}
        assert set(self._members[DONE]) == {event for event, state in self.states.items() if state == "settled"}
        assert set(self._members[keys.INDEX]) == self._stores.keys()
        for store in set(self._stores.values()):
            mine = {event for event, whose in self._stores.items() if whose == store}
            assert set(self._members[keys.index_of(store)]) == mine

    def an_event_is_as_its_runs_are(self) -> None:
        for event, record in self._records.items():
            states = Counter(one.state for one in self.items if one.event == event)
            many = sum(states[state] for state in OPEN)
            assert int(record["open"]) == many
            assert int(record.get("bad", 0)) == states["failed"]
            assert record["state"] == ("open" if many else "failed" if states["failed"] else "settled")
            assert not many or event in self._bodies, "work has its body"

    def the_counters_are_what_the_records_say(self, forgotten: Counter[tuple[str, str]]) -> None:
        found = Counter(forgotten)
        for event, state in self.states.items():
            found[(self._stores[event], state)] += 1
        counters = EventQueries(self._client).counters()
        for store, told in counters.stores.items():
            kinds = {kind: found[(store, kind)] for kind in ("settled", "open", "failed")}
            assert {kind: told[kind] for kind in kinds} == kinds, store
            assert told["accepted"] == sum(kinds.values()), store
        total = counters.total
        assert total["accepted"] == total["settled"] + total["open"] + total["failed"] == sum(found.values())

    def exactly_the_slots_in_use_are_held(self, limited: Collection[str], most: int) -> None:
        in_use: dict[str, set[str]] = {}
        for one in self.items:
            if one.state == "leased" and one.handler in limited:
                in_use.setdefault(f"{one.token}|{one.handler}", set()).add(one.event)
        assert {slot: set(events.split()) for slot, events in self._slots.items()} == in_use
        assert len(in_use) <= most

    def the_groups_count_what_failed(self) -> None:
        marks = Counter(
            value for record in self._records.values() for name, value in record.items() if name.startswith("g:")
        )
        told: Counter[str] = Counter()
        for group in FailureQueries(self._client).groups():
            told[f"{group.id} retrying"] += group.retrying
            told[f"{group.id} failed"] += group.failed
            assert self._client.zcard(keys.GROUP_RUNS + group.id) == group.retrying + group.failed
        assert +told == marks


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _item(event: str, field: str, value: str) -> Item:
    state, _, _, _, token = value.split(" ")
    return Item(event, field[2:], state, token)
