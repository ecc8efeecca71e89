"""An audit of a small inbox: reads all its keys in one transaction and checks that they agree with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from redis import Redis

from receiver.contract.event import Event
from receiver.inbox import EventQueries, FailureQueries, keys
from receiver.inbox.model import resource_digest

OPEN = ("ready", "leased", "later", "held", "queued")
DONE = keys.PREFIX + "done"


@dataclass(frozen=True)
class Item:
    """A run, or an event to be routed, as its record has it."""

    event: str
    handler: str
    state: str
    token: str

    @property
    def name(self) -> str:
        return keys.run_item(self.event, self.handler)


class InboxAudit:
    def __init__(self, client: Redis, events: Iterable[Event], *, handlers: Collection[str], limit: str) -> None:
        self._client = client
        self._stores = {event.id: event.store for event in events}
        stores = sorted(set(self._stores.values()))
        self._lanes = [keys.READY + name for name in ("", *handlers)]
        self._held = [keys.HELD + store for store in stores]
        self._queued = [key.decode() for key in client.keys(keys.QUEUED + "*")]
        self._active = {name: _text(client.hgetall(keys.ORDER + name)) for name in handlers}
        sets = [*self._lanes, *self._held, *self._queued, keys.LEASED, keys.LATER, keys.FAILED, DONE, keys.INDEX]
        indexes = [keys.index_of(store) for store in stores]
        found = self._read([*sets, *indexes], keys.SLOTS + limit)
        records, self._bodies, members, slots, self._quarantined, self._accepted, self._open_since, self._linked = found
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
        pipeline.zrange(keys.INDEX, 0, -1, withscores=True).get(keys.OPEN_SINCE).hgetall(keys.RESOURCES)
        replies = iter(pipeline.execute())
        pairs = [(event, _text(next(replies)), next(replies)) for event in self._stores]
        records = {event: record for event, record, _ in pairs}
        bodies = {event for event, _, has_body in pairs if has_body}
        return (
            records,
            bodies,
            {name: [one.decode() for one in next(replies)] for name in sets},
            _text(next(replies)),
            next(replies),
            {event.decode(): int(score) for event, score in next(replies)},
            int(next(replies) or 0),
            _text(next(replies)),
        )

    @property
    def states(self) -> dict[str, str]:
        """The state of each event."""
        return {event: record["state"] for event, record in self._records.items()}

    def every_open_item_is_in_exactly_one_set(self) -> None:
        found: dict[str, list[str]] = {}
        places = (self._lanes, [keys.LEASED], [keys.LATER], self._held, self._queued)
        for state, names in zip(OPEN, places, strict=True):
            for name in names:
                for item in self._members[name]:
                    found.setdefault(item, []).append(state)
        assert found == {one.name: [one.state] for one in self.items if one.state in OPEN}
        assert self._quarantined == 0

    def closed_items_are_in_the_set_of_their_state(self) -> None:
        assert set(self._members[keys.FAILED]) == {one.name for one in self.items if one.state == "failed"}
        assert set(self._members[DONE]) == {event for event, state in self.states.items() if state == "settled"}
        assert set(self._members[keys.INDEX]) == self._stores.keys()
        for store in set(self._stores.values()):
            events = {event for event, owner in self._stores.items() if owner == store}
            assert set(self._members[keys.index_of(store)]) == events

    def the_state_of_each_event_follows_from_its_runs(self) -> None:
        for event, record in self._records.items():
            states = Counter(one.state for one in self.items if one.event == event)
            open_runs = sum(states[state] for state in OPEN)
            assert int(record["open"]) == open_runs
            assert int(record.get("bad", 0)) == states["failed"]
            assert record["state"] == ("open" if open_runs else "failed" if states["failed"] else "settled")
            assert not open_runs or event in self._bodies, "an open event has its body"

    def the_counters_match_the_records(self, removed: Counter[tuple[str, str]]) -> None:
        expected = Counter(removed)
        for event, state in self.states.items():
            expected[(self._stores[event], state)] += 1
        counters = EventQueries(self._client).counters()
        for store, counted in counters.stores.items():
            states = {state: expected[(store, state)] for state in ("settled", "open", "failed")}
            assert {state: counted[state] for state in states} == states, store
            assert counted["accepted"] == sum(states.values()), store
        total = counters.total
        assert total["accepted"] == total["settled"] + total["open"] + total["failed"] == sum(expected.values())

    def exactly_the_slots_of_leased_runs_are_held(self, limited: Collection[str], most: int) -> None:
        in_use: dict[str, set[str]] = {}
        for one in self.items:
            if one.state == "leased" and one.handler in limited:
                in_use.setdefault(f"{one.token}|{one.handler}", set()).add(one.event)
        assert {slot: set(events.split()) for slot, events in self._slots.items()} == in_use
        assert len(in_use) <= most

    def one_claim_holds_the_active_runs_of_each_order_key(self) -> None:
        """All open runs of a key that are not queued are named as active, and no others but a failure that stops it."""
        active: dict[tuple[str, str], set[str]] = {}
        stopping: dict[tuple[str, str], set[str]] = {}
        queued: dict[tuple[str, str], set[str]] = {}
        tokens: dict[tuple[str, str], set[str]] = {}
        for one in self.items:
            mark = self._records[one.event].get(f"k:{one.handler}")
            if not mark:
                assert one.state != "queued"
                continue
            place = (one.handler, mark[2:])
            if one.state == "queued":
                queued.setdefault(place, set()).add(one.event)
            elif one.state in OPEN:
                active.setdefault(place, set()).add(one.event)
            elif one.state == "failed" and mark.startswith("s"):
                stopping.setdefault(place, set()).add(one.event)
            if one.state == "leased":
                tokens.setdefault(place, set()).add(one.token)
        assert all(len(held) == 1 for held in tokens.values()), "two leases of one key"
        named = {(name, key): set(ids.split()) for name, found in self._active.items() for key, ids in found.items()}
        for place in {*active, *queued, *named}:
            assert active.get(place, set()) <= named.get(place, set()), place
            assert named[place] <= active.get(place, set()) | stopping.get(place, set()), place
        names = {f"{keys.QUEUED}{name}:{key}" for name, key in queued}
        assert set(self._queued) == names

    def an_order_key_waits_only_for_older_events_to_be_routed(self) -> None:
        """Its first run is queued, and none is active, while its store has an older event that may get the same key."""
        to_route: dict[str, int] = {}
        queued: dict[tuple[str, str], list[str]] = {}
        for one in self.items:
            if not one.handler and one.state in ("ready", "leased", "held"):
                store, accepted = self._stores[one.event], self._accepted[one.event]
                to_route[store] = min(accepted, to_route.get(store, accepted))
            elif one.state == "queued":
                key = self._records[one.event][f"k:{one.handler}"][2:]
                queued.setdefault((one.handler, key), []).append(one.event)
        for (handler, key), events in queued.items():
            first = min(events, key=self._accepted.__getitem__)
            oldest = to_route.get(self._stores[first])
            is_held_back = oldest is not None and oldest < self._accepted[first]
            assert self._active[handler].get(key) or is_held_back, (handler, key)

    def what_is_remembered_is_true(self) -> None:
        """When runs ended, since when events are open, and how the events of a resource are linked."""
        assert all(one.token.isdecimal() for one in self.items if one.state in ("done", "dropped", "failed"))
        accepted = self._accepted
        assert all(accepted[event] >= self._open_since for event, state in self.states.items() if state == "open")
        newest: dict[str, int] = {}
        for event, record in self._records.items():
            digest = resource_digest(record["store"], record["topic"], record["resource"])
            newest[digest] = max(newest.get(digest, 0), accepted[event])
            assert int(record.get("earlier", 0)) < accepted[event]
        assert {digest: int(time) for digest, time in self._linked.items()}.items() <= newest.items()

    def the_failure_groups_match_the_records(self) -> None:
        marks = Counter(
            value for record in self._records.values() for name, value in record.items() if name.startswith("g:")
        )
        counted: Counter[str] = Counter()
        for group in FailureQueries(self._client).every_group():
            counted[f"{group.id} retrying"] += group.retrying
            counted[f"{group.id} failed"] += group.failed
            assert self._client.zcard(keys.GROUP_RUNS + group.id) == group.retrying + group.failed
        assert +counted == marks


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def _item(event: str, field: str, value: str) -> Item:
    state, _, _, _, token, *_ = value.split(" ")
    return Item(event, field[2:], state, token)
