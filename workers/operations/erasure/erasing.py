"""Erasing: erases what a survey has found, in slices, place by place. It may be killed at any moment and repeated.

What is outside of events goes first: it is found by the events' resources, which are not known any more once the events
are erased. Then deliveries in the spool become events, and the events are erased.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime

import orjson
from redis import Redis

from receiver.config import Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import Inbox
from receiver.inbox.erasures import ErasedAs, Erasures, Receipt
from receiver.inbox.redis.persistence import rewrite_files
from receiver.spool import compact, open_events, open_existing_refusals
from receiver.spool.database import DamagedFileError
from workers.history.past_events import HistoryDatabase, PastEvent, Position
from workers.history.row_format import event_of
from workers.operations.erasure.erased_events import erased
from workers.operations.erasure.plugin_hooks import PluginHooks
from workers.operations.erasure.subject import Subject
from workers.operations.erasure.survey import PersonalData

HISTORY_SLICE = 100
RUNNING_SECONDS = 60.0
"""A run that is under way is waited for this long."""
POLL_SECONDS = 0.2

Step = Callable[[str], object]


class Unfinished(StorehooksError):
    """The erasure has not ended: the text says why. It can be repeated."""


class Erasing:
    def __init__(
        self, config: Config, client: Redis, history: HistoryDatabase | None, subject: Subject, hooks: PluginHooks
    ) -> None:
        self._config, self._client, self._history, self._subject = config, client, history, subject
        self._hooks = hooks
        self._erasures = Erasures(client)

    def begin(self, found: PersonalData, who: str) -> Receipt:
        """Record that the erasure begins, with what was found; or go on with one that was begun before."""
        subject = self._subject
        counts = {name: many for name, many in found.counts.items() if many}
        began = datetime.now(UTC).isoformat(timespec="seconds")
        new = Receipt(secrets.token_hex(6), subject.store, subject.words, subject.digest, who, began, counts)
        return self._erasures.begin(new)

    def run(self, begun: Receipt, found: PersonalData, *, open_too: bool, step: Step = lambda _: None) -> Receipt:
        """Erase all of it, and store the receipt. Raises Unfinished, HistoryError, and what a plugin raises."""
        step("texts")
        self._erasures.erase_texts(found.texts)
        step("spool")
        ids = [*found.events, *found.open, *self._accept_spooled(found)]
        step("events")
        self._erase_events(ids, begun.id, open_too)
        step("history")
        changed = self._erase_past(found.past, begun.id)
        step("refused deliveries")
        with closing(open_existing_refusals(self._config.data_dir)) as refusals:
            refusals.delete(found.refused)
        step("plugins")
        plugins = dict(self._hooks.call(self._subject))
        changed += self._erase_past(self._moved_meanwhile(ids), begun.id)
        step("files")
        files, left = self._rewrite_files(changed)
        done = replace(begun, plugins=plugins, files=files, left=[*left, *found.by_hand])
        done = signed(replace(done, ended=datetime.now(UTC).isoformat(timespec="seconds")))
        self._erasures.end(done, keep=self._config.retention.receipts)
        return done

    def _moved_meanwhile(self, ids: Sequence[str]) -> list[Position]:
        """Events that were on their way to the history since before they were erased in Redis."""
        slices = [ids[at : at + HISTORY_SLICE] for at in range(0, len(ids), HISTORY_SLICE)]
        history = self._history
        found = [one for these in slices for one in history.events(these)] if history else []
        return [one.position for one in found if not one.is_erased]

    def _accept_spooled(self, found: PersonalData) -> list[str]:
        """Deliveries that wait on this host become events: so they are counted, and a redelivery is a duplicate."""
        ids = []
        for row in found.spooled:
            if row.delivery is None:
                continue
            window = self._config.receiver.dedupe_window_unidentified
            (answer,) = Inbox(self._client).accept(
                [row.delivery], repeat_window=window, waited={row.id: row.waited}, replicas=self._replicas
            )
            ids.append(answer.id)
            with closing(open_events(self._config.data_dir)) as spool, suppress(DamagedFileError):
                spool.delete([row.id])  # unless the receiver has drained it just now
        return ids

    @property
    def _replicas(self) -> int:
        return int(self._config.redis.ack == "replica")

    def _erase_events(self, ids: Sequence[str], erasure: str, open_too: bool) -> None:
        deadline = time.monotonic() + RUNNING_SECONDS
        while ids:
            results = self._erasures.erase(ids, erasure, open_too=open_too)
            if ErasedAs.OPEN in results:
                raise Unfinished("some of the events were opened again meanwhile: run the same command again")
            ids = [one for one, result in zip(ids, results, strict=True) if result is ErasedAs.RUNNING]
            if ids and time.monotonic() > deadline:
                raise Unfinished(f"{len(ids):,} of the events are being handled now: run the same command again later")
            if ids:
                time.sleep(POLL_SECONDS)

    def _erase_past(self, positions: Sequence[Position], erasure: str) -> list[Position]:
        history, stamp = self._history, f"{int(time.time() * 1000)} {erasure}".encode()
        if history is None:
            return []
        for at in range(0, len(positions), HISTORY_SLICE):
            events: list[PastEvent] = []
            for position in positions[at : at + HISTORY_SLICE]:
                before = Position(position.accepted_at, position.id[:-1])
                rows = history.rows(self._subject.store, before, 1)
                events += [erased(event_of(*row), stamp) for row in rows if row[0] == position.id]
            history.write(events)
        return list(positions)

    def _rewrite_files(self, changed: Sequence[Position]) -> tuple[list[str], list[str]]:
        done, left = rewrite_files(self._client)
        left += [f"not compacted: {one}" for one in compact(self._config.data_dir)]
        done.append("the files of the spool and of refused deliveries on this host were compacted")
        if self._history is not None:
            self._history.compact(changed)
            done.append("the files of the history were written anew")
        return done, left


def signed(receipt: Receipt) -> Receipt:
    """The receipt with the hash of its other fields."""
    fields = {name: value for name, value in asdict(receipt).items() if name not in ("hash", "at")}
    text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return replace(receipt, hash=hashlib.sha256(text).hexdigest())
