"""Exporting: writes events and what belongs to them to an export file, and goes on where an export was interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from redis import Redis

from receiver.contract.errors import ConfigError
from receiver.contract.topics import matches
from receiver.inbox import Administration
from receiver.inbox.keyring.learned_secrets import LearnedSecret
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.transferred_data import EVENT_COUNTERS, OtherCounts, Transfer
from workers.history.past_events import HistoryDatabase, PastEvent, Position
from workers.operations.all_events import AllEvents
from workers.operations.transfer import export_file
from workers.operations.transfer.export_file import ExportEnd, ExportHeader, ExportWriter
from workers.operations.transfer.secret_box import close_box

PAGE = 200
_BEFORE_OTHERS = (export_file.MARK, "counted", "paused", "event")
"""Lines that an export which goes on keeps. What follows the events is written again."""


class DataExporter:
    def __init__(self, client: Redis, history: HistoryDatabase | None, path: Path, header: ExportHeader) -> None:
        self._transfer, self._history, self._path = Transfer(client), history, path
        self._events, self._paused = AllEvents(client, history), Administration(client).paused
        self._header = header
        self._counters: dict[str, int] = {}
        """When the export began. Read before the events: an event may count itself twice, and none is missing."""
        self._states: Counter[tuple[str, str]] = Counter()
        """Exported events by store and state."""
        self._last = Position(-1, "")
        self.damaged = 0
        """Events that were left out."""

    @property
    def exported(self) -> int:
        return self._states.total()

    def run(self, learned: Sequence[LearnedSecret], passphrase: str, on_progress: Callable[[int], None]) -> ExportEnd:
        at = self._read_begun()
        writer = ExportWriter(self._path, at=at)
        try:
            if not at:
                self._begin(writer)
            self._write_events(writer, on_progress)
            if self._header.has_all:
                self._write_others(writer)
            if self._header.secrets:
                writer.add({"secrets": close_box([asdict(one) for one in learned], passphrase)})
            failed, open_ = (self._total(one) for one in (EventStatus.FAILED, EventStatus.OPEN))
            end = ExportEnd(self.exported, open_, failed)
            writer.add({"end": end._asdict()})
            writer.end_part()
        finally:
            writer.close()
        return end

    def _read_begun(self) -> int:
        """Read what the file has of this export. Returns where that ends; 0 for a new file."""
        end = 0
        for part in export_file.read_parts(self._path) if self._path.exists() else ():
            kinds = {next(iter(line)) for line in part.lines}
            if "end" in kinds:
                raise ConfigError(f"{self._path} is a complete export; give another file, or remove it")
            if not end:
                self._go_on(export_file.header_of(part.lines[0]))
            if not kinds <= set(_BEFORE_OTHERS):
                continue
            for line in part.lines:
                self._counters |= line.get("counted", {})
                if "event" in line:
                    self._note(line)
            end = part.end
        return end

    def _go_on(self, begun: ExportHeader) -> None:
        wanted = replace(self._header, id=begun.id, storehooks=begun.storehooks)
        if not wanted.is_limited or not wanted.until:
            wanted = replace(wanted, until=begun.until)
        if wanted != begun:
            raise ConfigError(
                f"{self._path} is an unfinished export with other options, or of other data; give the same options, "
                "with dates instead of durations, or another file"
            )
        self._header = begun

    def _begin(self, writer: ExportWriter) -> None:
        self._counters = self._transfer.counters(self._header.store)
        until = self._events.accepted_until()
        self._header = replace(self._header, until=min(self._header.until or until, until))
        writer.add(export_file.header_line(self._header))
        writer.add({"counted": self._counters})
        for name in sorted(self._paused()) if self._header.has_all else ():
            if self._header.store in ("", name.removeprefix("store:")):
                writer.add({"paused": name})
        writer.end_part()

    def _write_events(self, writer: ExportWriter, on_progress: Callable[[int], None]) -> None:
        header = self._header
        start = max(header.since, self._last.accepted_at)
        found = self._events.in_order(start=start, end=header.until, store=header.store, content=True)
        new = (one for one in found if one.position > self._last)
        for page in _pages(new):
            for one in self._complete(page):
                self._write_event(writer, one)
            on_progress(self.exported)
        writer.end_part()

    def _write_event(self, writer: ExportWriter, one: WholeEvent) -> None:
        topic = one.fields.get(b"topic", b"").decode("utf-8", "replace")
        if self._header.topic and not matches(self._header.topic, topic):
            return
        try:
            line = export_file.event_line(one)
            if not one.fields.get(b"store"):
                raise ValueError("it has no store")
        except ValueError:
            self.damaged += 1
            return
        self._note(line)
        writer.add(line)

    def _note(self, line: dict[str, Any]) -> None:
        self._states[line["record"]["store"], line["record"].get("state", "")] += 1
        self._last = Position(line["accepted_at"], line["event"])

    def _complete(self, page: Sequence[PastEvent]) -> Iterator[WholeEvent]:
        """With their once marks. One that has left Redis since it was read is in the history, with its marks."""
        here = [one.whole for one in page if not one.settled_at]
        read = {one.id: again for one, again in zip(here, self._transfer.complete(here), strict=True)}
        moved = [event_id for event_id, again in read.items() if again is None]
        past = {one.id: one.whole for one in self._history.events(moved)} if self._history and moved else {}
        for one in page:
            whole = read.get(one.id) or past.get(one.id) if not one.settled_at else one.whole
            if whole is not None and whole.accepted_at == one.accepted_at:
                yield whole

    def _write_others(self, writer: ExportWriter) -> None:
        for value in self._transfer.kept_values(self._header.store):
            writer.add(export_file.value_line(value))
        writer.end_part()
        stores = sorted({name.partition("|")[2] for name in self._counters} - {""})
        accepted = [
            (store, many, 0) for store in stores if (many := self._counters.get(f"accepted|{store}")) is not None
        ]
        other = {name: n for name, n in self._counters.items() if name.partition("|")[0] not in EVENT_COUNTERS}
        writer.add({"counts": asdict(OtherCounts(accepted, other, self._transfer.names(stores)))})

    def _total(self, state: str) -> int:
        return sum(many for (_, its), many in self._states.items() if its == state)


def _pages(events: Iterable[PastEvent]) -> Iterator[list[PastEvent]]:
    found = iter(events)
    while page := list(islice(found, PAGE)):
        yield page
