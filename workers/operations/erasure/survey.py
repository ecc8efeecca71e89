"""Survey: finds what is stored about a person in Redis, in the history and on this host. It only reads.

It looks in the order in which a delivery moves on: what moves meanwhile is found in the next place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import NoEvents, read_delivery
from receiver.inbox import keys
from receiver.inbox.erasures import FIND_SLICE, Erasures, TextPlace
from receiver.spool import (
    Refusal,
    SpooledRow,
    events_files,
    kept_files,
    newest_events_file,
    open_events,
    open_existing_refusals,
)
from workers.history.past_events import HistoryDatabase, PastEvent, Position
from workers.history.row_format import day_name, event_of, texts_of
from workers.operations.erasure.erased_events import is_about
from workers.operations.erasure.subject import Subject
from workers.operations.host_spools import find_hosts

PAGE = 2000
SPOOL_PAGE = 200
FREE_TEXT = ("bulk:*", "alert*", "quarantined", "g:*")
"""Keys whose values may quote a person's data; what quotes it is replaced."""

Progress = Callable[[int], object]


@dataclass
class PersonalData:
    """What is stored about a person, by place."""

    events: list[str] = field(default_factory=list)
    """Events in Redis that have ended."""
    open: list[str] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    """Events in the history."""
    damaged: list[str] = field(default_factory=list)
    """Events in Redis that may be about the person and cannot be read."""
    days: set[str] = field(default_factory=set)
    """On which the events were accepted."""
    spooled: list[SpooledRow] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    texts: list[TextPlace] = field(default_factory=list)
    resources: set[tuple[str, str]] = field(default_factory=set)
    """The resources of the events: kind and id."""
    counts: Counter[str] = field(default_factory=Counter)
    by_hand: list[str] = field(default_factory=list)
    """What only a person can do."""

    @property
    def has_open(self) -> bool:
        return bool(self.open or self.spooled)

    def __bool__(self) -> bool:
        return bool(self.events or self.past or self.damaged or self.has_open or self.refused or self.texts)


class Survey:
    def __init__(self, config: Config, client: Redis, history: HistoryDatabase | None, subject: Subject) -> None:
        self.config, self.client, self.history, self.subject = config, client, history, subject
        self._erasures = Erasures(client)
        self._record_map = config.record_map(subject.store)
        self.found = PersonalData()

    @property
    def size(self) -> int:
        """How many events are looked through, in Redis and in the history."""
        return self._erasures.many(self.subject.store) + (self.history.sizes().events if self.history else 0)

    def run(self, progress: Progress = lambda _: None) -> PersonalData:
        self.found.refused += self._in_refused()
        self.found.spooled += self._in_spool()
        for event in self._in_redis(progress):
            self._note(event)
            self.found.counts["events"] += 1
            self.found.counts["failures"] += event.fields.get(b"state") == b"failed"
            is_open = event.fields.get(b"state") == b"open"
            (self.found.open if is_open else self.found.events).append(event.id)
        for event in self._in_history(progress):
            self._note(event)
            self.found.counts["past events"] += 1
            self.found.past.append(event.id)
        self.found.texts += self.texts()
        self.found.counts |= Counter(
            {"open events": len(self.found.open), "spool": len(self.found.spooled), "refused": len(self.found.refused)}
        )
        self.found.by_hand += self._by_hand()
        return self.found

    def _in_history(self, progress: Progress) -> Iterator[PastEvent]:
        after = Position(-1, "")
        while self.history is not None:
            page = self.history.rows(self.subject.store, after, PAGE)
            for row in page:
                if any(map(self.subject.may_be_in, texts_of(row[3], row[5]))):
                    event = event_of(*row)
                    if is_about(self.subject, event, self._record_map):
                        yield event
            progress(len(page))
            if len(page) < PAGE:
                return
            after = Position(page[-1][1], page[-1][0])

    def _in_redis(self, progress: Progress) -> Iterator[PastEvent]:
        for page in self._erasures.candidates(self.subject.store, self.subject.probes):
            progress(FIND_SLICE)
            self.found.damaged += [event_id for event_id, one in page.items() if one is None]
            for event in (PastEvent(*one) for one in page.values() if one):
                if is_about(self.subject, event, self._record_map):
                    yield event

    def _note(self, one: PastEvent) -> None:
        counts, event = self.found.counts, one.event
        with suppress(ValueError):  # its time is damaged, so that it cannot be moved to the history
            self.found.days.add(day_name(one.accepted_at))
        counts["bodies"] += one.content is not None
        counts["results and errors"] += sum(name[:2] in (b"x:", b"a:") for name in one.fields)
        counts["once marks"] += len(one.once)
        if event.resource_id:
            self.found.resources.add((event.topic.partition(".")[0], event.resource_id))

    def _in_spool(self) -> Iterator[SpooledRow]:
        file = newest_events_file(self.config.data_dir)
        if not file.exists():
            return
        with closing(open_events(self.config.data_dir)) as spool:
            after = 0
            while rows := spool.oldest(SPOOL_PAGE, after=after):
                after = rows[-1].number
                for row in rows:
                    if row.delivery and row.store == self.subject.store and self._is_in(row.delivery.event):
                        yield row

    def _in_refused(self) -> Iterator[int]:
        with closing(open_existing_refusals(self.config.data_dir)) as refusals:
            for batch in refusals.with_body():
                for one in batch:
                    if self.subject.store in (one.store, one.named) and any(map(self._is_in, self._events_in(one))):
                        yield one.id

    def _events_in(self, refusal: Refusal) -> Iterator[Event]:
        """The events of a refused delivery, as they would be read; else one with its bytes."""
        store = self.config.known_stores[self.subject.store]
        body, moment = refusal.body or b"", refusal.moment
        yield Event("", store.name, "", moment, body, refusal.headers)
        try:
            given = replace(store, redact=())
            read = read_delivery(refusal.headers, body, store=given, now=refusal.at, source="")
        except (DeliveryRefused, NoEvents):
            return
        yield from (one.event for one in (read, *read.rest))

    def _is_in(self, event: Event) -> bool:
        given = replace(event, record_map=self._record_map)
        texts = (event.body, *(value.encode("utf-8", "replace") for value in event.headers.values()))
        return self.subject.is_in_event(given) or any(map(self.subject.is_in_text, texts))

    def texts(self) -> Iterator[TextPlace]:
        """What is outside of events now, and names the person or is about a resource that was found."""
        subject, store, counts = self.subject, self.subject.store, self.found.counts
        mine = {f"o:r:{store}:{kind}:{id_}:" for kind, id_ in self.found.resources}
        for key, fields in self._erasures.hashes(f"o:r:{store}:*", f"o:s:{store}:*"):
            is_mine = any(key.startswith(one) for one in mine)
            for name, value in fields.items():
                named = subject.is_in_text(key.encode("utf-8", "surrogateescape")) or subject.is_in_text(name)
                has_result = value.startswith(b"done ") and value != b"done null"  # one that has begun has none yet
                if named or (has_result and (is_mine or subject.is_in_text(value))):
                    counts["once marks"] += 1
                    yield TextPlace(key, "hash", name, value, b"" if named else b"done null")
        for key, fields in self._erasures.hashes(f"st:*:{store}"):
            for name, value in fields.items():
                if subject.is_in_text(name) or subject.is_in_text(value):
                    counts["state"] += 1
                    yield TextPlace(key, "hash", name, value)
        tails = tuple(f"|{store}|{kind}|{id_}" for kind, id_ in self.found.resources)
        for key in self._erasures.names(f"newest:*|{store}|*", f"gap:*|{store}|*", f"written:*|{store}|*"):
            if key.endswith(tails) or subject.is_in_text(key.encode("utf-8", "surrogateescape")):
                counts["memory of resources"] += 1
                yield TextPlace(key, "key")
        yield from self._in_free_text()

    def _in_free_text(self) -> Iterator[TextPlace]:
        subject, counts = self.subject, self.found.counts
        if not subject.is_distinctive:
            return
        for key, fields in self._erasures.hashes(*FREE_TEXT):
            for name, value in fields.items():
                if subject.is_in_text(value):
                    counts["other texts"] += 1
                    yield TextPlace(key, "hash", name, value, subject.replaced_in(value))
        for entry in self._erasures.audit_entries():
            if subject.is_in_text(entry):
                counts["audit trail"] += 1
                yield TextPlace("audit", "zset", entry, b"", subject.replaced_in(entry))

    def _by_hand(self) -> Iterator[str]:
        data_dir = self.config.data_dir
        damaged = [*events_files(data_dir)[:-1], *kept_files(data_dir), *data_dir.glob("refused.sqlite3-damaged*")]
        for path in damaged:
            if self.subject.may_be_in(path.read_bytes()):
                yield f"{path} is damaged and may have it: remove the file, if nothing else in it is needed"
        here = keys.host_of(data_dir)
        for host in find_hosts(self.config, self.client):
            if host.name != here:
                yield f"{host.name} has a spool and refused deliveries of its own: run the same command there"
