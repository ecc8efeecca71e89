"""Importing: writes an export file into a server. What is there already is left as it is, so it can be repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.inbox import Administration
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import LearnedSecret
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.redis.data_format import format_fault
from receiver.inbox.redis.server_state import is_nearly_full
from receiver.inbox.transferred_data import Brought, KeptValue, OtherCounts, Transfer
from workers.history.past_events import HistoryDatabase, PastEvent
from workers.operations.all_events import AllEvents
from workers.operations.transfer import export_file
from workers.operations.transfer.export_file import ExportEnd, ExportHeader
from workers.operations.transfer.secret_box import open_box

EVENTS_AT_ONCE = 50
BYTES_AT_ONCE = 2 << 20
"""About the size of the bodies that are written in one step, for which deliveries wait."""
VALUES_AT_ONCE = 500
NO_END = 1e12
"""Later than the end of any secret (s)."""


def read_summary(path: Path) -> tuple[ExportHeader, ExportEnd]:
    """What a file is, and how many events it has. Raises ConfigError if it is not complete."""
    header, last = None, {}
    for part in export_file.read_parts(path):
        header = header or export_file.header_of(part.lines[0])
        last = part.lines[-1]
    if header is None or "end" not in last:
        raise ConfigError(f"{path} is not complete: `storehooks export` with the same options goes on with it")
    return header, ExportEnd(**last["end"])


class DataImporter:
    def __init__(
        self,
        client: Redis,
        history: HistoryDatabase | None,
        config: Config,
        *,
        keyring: Keyring | None,
        passphrase: str,
    ) -> None:
        self._client, self._history, self._config = client, history, config
        self._keyring, self._passphrase = keyring, passphrase
        self._transfer, self._moves, self._people = Transfer(client), HistoryMoves(client), Administration(client)
        self._is_history_checked = False
        self._data = self._export = ""
        self._brought = 0
        """Up to which line this export was imported before."""
        self._events: list[WholeEvent] = []
        self._values: list[KeptValue] = []
        """What is read and not written yet."""
        self.results: Counter[str] = Counter()
        """How many events were `new`, here already (`known`), older than `[retention]` (`old`) or `damaged`; and how
        many pauses, values and secrets were new."""

    def run(self, path: Path, on_progress: Callable[[int], None]) -> None:
        fault = format_fault(self._client, write=True)
        if fault:
            raise ConfigError(str(fault))
        number, before = 0, 0
        for part in export_file.read_parts(path):
            now = server_ms(self._client)
            for number, line in enumerate(part.lines, before + 1):
                try:
                    self._take(line, number, now)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise ConfigError(f"{path} is damaged: line {number}: {type(error).__name__} {error}") from None
            before = number
            on_progress(part.end)
        self._write_waiting(number)

    def _take(self, line: Mapping[str, Any], number: int, now: float) -> None:
        kind, *_ = line
        is_new = number > self._brought
        if self._events and kind != "event":
            self._write_waiting(number - 1)
        if kind == "event":
            readable = self._readable(line, now)
            self._events += readable if is_new else ()
            self.results["known"] += 0 if is_new else len(readable)
            size = sum(len(one.content or b"") for one in self._events)
            if len(self._events) >= EVENTS_AT_ONCE or size > BYTES_AT_ONCE:
                self._write_waiting(number)
        elif kind == "key":
            self._values += [export_file.value_of(line)] if is_new else ()
            if len(self._values) >= VALUES_AT_ONCE:
                self._write_waiting(number)
        else:
            self._write_waiting(number - 1)
            self._write_other(kind, line, number)

    def _readable(self, line: Mapping[str, Any], now: float) -> list[WholeEvent]:
        try:
            event = export_file.event_of(line)
        except ValueError:
            self.results["damaged"] += 1
            return []
        retention, window = self._config.retention, self._config.receiver.dedupe_retention
        kept = max(retention.records, window)
        if event.settled_at and event.settled_at < now - kept * 1000:
            self.results["old"] += 1
            return []
        if event.settled_at and event.settled_at < now - retention.bodies * 1000:
            event = event._replace(content=None)
        return [event]

    def _write_waiting(self, number: int) -> None:
        """`number`: of the last line that was read, which is noted in the same step. So events and values are never
        written together: the import may end between the two steps."""
        events, values, self._events, self._values = self._events, self._values, [], []
        brought = Brought(self._export, number)
        if events:
            self._require_memory()
            with self._moves.kept([one.id for one in events] if self._history else []):
                past, written = self._in_history(events)
                wanted = [one for one in events if (one.id, one.accepted_at) not in past]
                new = written + sum(self._transfer.import_events(self._data, wanted, brought))
            self.results["new"] += new
            self.results["known"] += len(events) - new
        if values:
            self.results["values"] += self._transfer.import_values(values, brought)

    def _in_history(self, events: Sequence[WholeEvent]) -> tuple[set[tuple[str, int]], int]:
        """Those of the events that this server has moved to its history. Their marks in Redis may have expired.

        One with effects that are not done here goes back to Redis, where they are added. One of which there is a mark
        and no more was moved to another database, which was the history before: it is written to the one of now, and
        the second result is how many of these there were.
        """
        absent = self._moves.past([one.id for one in events]) if self._history else ()
        if not self._history or not absent:
            return set(), 0
        past = {one.id: one for one in self._history.events(absent)}
        moved = set(self._moves.marked([one for one in absent if one not in past]))
        found = self._write_to_history([PastEvent(*one) for one in events if one.id in moved and one.settled_at])
        lacking = {one.id for one in events if one.id in past and _done(one.once) - _done(past[one.id].once)}
        AllEvents(self._client, self._history).bring_back(lacking)
        return {(one.id, one.accepted_at) for one in (past | found).values() if one.id not in lacking}, len(found)

    def _write_to_history(self, events: Sequence[PastEvent]) -> dict[str, PastEvent]:
        """Returns those that were written: a database may be unable to store one."""
        assert self._history
        if not events:
            return {}
        if not self._is_history_checked:
            self._history.check()
            self._is_history_checked = True
        refused = {one.id for one in self._history.write(events)}
        return {one.id: one for one in events if one.id not in refused}

    def _require_memory(self) -> None:
        info = self._client.info("memory")
        if is_nearly_full(int(info["used_memory"]), int(info.get("maxmemory", 0))):
            raise ConfigError(
                "Redis is nearly full; raise maxmemory, or let `storehooks worker` move settled events to the history, "
                "then run the same command again: it goes on with what is missing"
            )

    def _write_other(self, kind: str, line: Mapping[str, Any], number: int) -> None:
        if kind == export_file.MARK:
            self._data, self._export = export_file.header_of(line).data, export_file.export_id(line)
            self._brought = self._transfer.brought(self._export, "lines")
        elif kind == "paused" and number > self._brought:
            what, _, name = line["paused"].partition(":")
            self.results["paused"] += self._people.pause(**{what: name})
            self._transfer.note_brought(self._export, "lines", number)
        elif kind == "counts" and self._data not in self._transfer.data_ids():
            self._transfer.import_counts(self._data, OtherCounts(**line["counts"]))
        elif kind == "secrets" and self._passphrase and not self._transfer.brought(self._export, "secrets"):
            self._write_secrets([LearnedSecret(**one) for one in open_box(line["secrets"], self._passphrase)])
            self._transfer.note_brought(self._export, "secrets", number)

    def _write_secrets(self, learned: Sequence[LearnedSecret]) -> None:
        """Those that are not here, or end here later: a secret that has ended in either server has ended."""
        if not self._keyring:
            return
        stores = {one.store for one in learned}
        ends = {(one.store, one.fingerprint): _end(one) for store in stores for one in self._keyring.secrets_of(store)}
        wanted = [one for one in learned if _end(one) < ends.get((one.store, one.fingerprint), float("inf"))]
        self._keyring.store(wanted)
        self.results["secrets"] += len(wanted)


def _end(secret: LearnedSecret) -> float:
    return NO_END if secret.not_after is None else secret.not_after


def _done(once: Mapping[bytes, bytes]) -> set[bytes]:
    return {name for name, mark in once.items() if mark.startswith(b"done ")}
