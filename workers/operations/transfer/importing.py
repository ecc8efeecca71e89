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
from receiver.inbox.transferred_data import KeptValue, OtherCounts, Transfer
from workers.history.past_events import HistoryDatabase
from workers.operations.transfer import export_file
from workers.operations.transfer.export_file import ExportEnd, ExportHeader
from workers.operations.transfer.secret_box import open_box

EVENTS_AT_ONCE = 50
BYTES_AT_ONCE = 2 << 20
"""About the size of the bodies that are written in one step, for which deliveries wait."""
VALUES_AT_ONCE = 500


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
        self._data = ""
        self.results: Counter[str] = Counter()
        """How many events were `new`, here already (`known`), older than `[retention]` (`old`) or `damaged`; and how
        many pauses, values and secrets were new."""

    def run(self, path: Path, on_progress: Callable[[int], None]) -> None:
        fault = format_fault(self._client, write=True)
        if fault:
            raise ConfigError(str(fault))
        waiting: list[WholeEvent] = []
        for part in export_file.read_parts(path):
            now = server_ms(self._client)
            for line in part.lines:
                kind = next(iter(line))
                if kind == "event":
                    waiting += self._readable(line, now)
                    if (
                        len(waiting) >= EVENTS_AT_ONCE
                        or sum(len(one.content or b"") for one in waiting) > BYTES_AT_ONCE
                    ):
                        self._write_events(waiting)
                        waiting = []
                else:
                    self._write_events(waiting)
                    waiting = []
                    self._write_other(kind, line)
            self._write_values([export_file.value_of(line) for line in part.lines if "key" in line])
            on_progress(part.end)

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

    def _write_events(self, events: Sequence[WholeEvent]) -> None:
        if not events:
            return
        self._require_memory()
        past = self._in_history([one.id for one in events])
        wanted = [one for one in events if (one.id, one.accepted_at) not in past]
        new = sum(self._transfer.import_events(self._data, wanted))
        self.results["new"] += new
        self.results["known"] += len(events) - new

    def _in_history(self, event_ids: Sequence[str]) -> set[tuple[str, int]]:
        """Those of the events that this server has moved to its history. Their marks in Redis may have expired."""
        if self._history is None:
            return set()
        absent = self._moves.past(event_ids)
        return {(one.id, one.accepted_at) for one in self._history.events(absent)} if absent else set()

    def _require_memory(self) -> None:
        info = self._client.info("memory")
        if is_nearly_full(int(info["used_memory"]), int(info.get("maxmemory", 0))):
            raise ConfigError(
                "Redis is nearly full; raise maxmemory, or let `storehooks worker` move settled events to the history, "
                "then run the same command again: it goes on with what is missing"
            )

    def _write_other(self, kind: str, line: Mapping[str, Any]) -> None:
        if kind == export_file.MARK:
            self._data = export_file.header_of(line).data
        elif kind == "paused":
            what, _, name = line["paused"].partition(":")
            self.results["paused"] += self._people.pause(**{what: name})
        elif kind == "counts" and self._data not in self._transfer.data_ids():
            self._transfer.import_counts(self._data, OtherCounts(**line["counts"]))
        elif kind == "secrets" and self._passphrase and self._keyring:
            learned = [LearnedSecret(**one) for one in open_box(line["secrets"], self._passphrase)]
            self._keyring.store(learned)
            self.results["secrets"] += len(learned)

    def _write_values(self, values: Sequence[KeptValue]) -> None:
        for at in range(0, len(values), VALUES_AT_ONCE):
            self.results["values"] += self._transfer.import_values(values[at : at + VALUES_AT_ONCE])
