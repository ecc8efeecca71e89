"""Erasing: erases what a survey has found, in slices, place by place. It may be killed at any moment and repeated.

What is outside of events goes first: it is found by the events' resources, which are not known any more once the events
are erased. Then deliveries in the spool become events, and the events are erased. At the end events and texts are
looked for once more: they may have moved, or been written by a run that was under way.
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

from receiver.contract.errors import StorehooksError
from receiver.inbox import Inbox
from receiver.inbox.erasures import ErasedAs, Erasures, Receipt
from receiver.inbox.redis.persistence import rewrite_files
from receiver.spool import compact, open_events, open_existing_refusals
from receiver.spool.database import DamagedFileError
from workers.history.past_events import HistoryDatabase, PastEvent
from workers.history.row_format import day_name
from workers.operations.erasure.erased_events import erased
from workers.operations.erasure.plugin_hooks import PluginHooks
from workers.operations.erasure.survey import PersonalData, Survey

HISTORY_SLICE = 100
RUNNING_SECONDS = 60.0
"""A run that is under way is waited for this long."""
POLL_SECONDS = 0.2
TRIES = 5

Step = Callable[[str], object]


class Unfinished(StorehooksError):
    """The erasure has not ended: the text says why. It can be repeated."""


class Erasing:
    def __init__(self, survey: Survey, hooks: PluginHooks) -> None:
        """What the survey has found is erased."""
        self._survey, self._hooks = survey, hooks
        self._config, self._client, self._history = survey.config, survey.client, survey.history
        self._erasures = Erasures(survey.client)
        self._missed = dict.fromkeys(survey.found.damaged, "its record is damaged")

    @property
    def unfinished(self) -> Receipt | None:
        """The erasure of the same subject that was begun before and has not ended."""
        begun, subject = self._erasures.unfinished(), self._survey.subject
        return next((one for one in begun if one.subject == subject.digest(one.salt)), None)

    def run(self, who: str, *, open_too: bool, step: Step = lambda _: None) -> Receipt:
        """Erase all of it, and store the receipt. Raises Unfinished, HistoryError, and what a plugin raises."""
        found, begun = self._survey.found, self._begin(who)
        step("texts")
        self._erasures.erase_texts(found.texts)
        step("spool")
        ids = list(dict.fromkeys([*self._accept_spooled(found), *found.events, *found.open, *found.past]))
        step("events")
        self._erase_events(ids, begun.id, open_too)
        step("refused deliveries")
        with closing(open_existing_refusals(self._config.data_dir)) as refusals:
            refusals.delete(found.refused)
        step("plugins")
        plugins = dict(self._hooks.call(self._survey.subject))
        step("what was written meanwhile")
        self._erase_events(ids, begun.id, open_too)
        self._erase_new_texts()
        step("files")
        files, left = self._rewrite_files(begun.days)
        missed = [f"{event_id}: {reason}" for event_id, reason in self._missed.items()]
        done = replace(begun, plugins=plugins, files=files, left=[*left, *found.by_hand], missed=missed, days=())
        done = signed(replace(done, ended=datetime.now(UTC).isoformat(timespec="seconds")))
        self._erasures.end(done, keep=self._config.retention.receipts)
        return done

    def _begin(self, who: str) -> Receipt:
        """Record that the erasure begins, with what was found; or go on with one that was begun before. The days of all
        that it changes are recorded before the first change: it may be killed before their tables are written anew."""
        subject, found = self._survey.subject, self._survey.found
        begun = self.unfinished
        if begun is None:
            counts = {name: many for name, many in found.counts.items() if many}
            began, salt = datetime.now(UTC).isoformat(timespec="seconds"), secrets.token_hex(16)
            names = (subject.store, subject.words, subject.digest(salt))
            begun = Receipt(secrets.token_hex(6), *names, who, began, counts, salt=salt)
        today = {day_name(time.time() * 1e6)} if found.spooled else set[str]()
        begun = replace(begun, days=sorted({*begun.days, *found.days, *today}))
        self._erasures.begin(begun)
        return begun

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
                spool.delete([row])  # unless another file has taken its place since, with other rows
        return ids

    @property
    def _replicas(self) -> int:
        return int(self._config.redis.ack == "replica")

    def _erase_events(self, ids: Sequence[str], erasure: str, open_too: bool) -> None:
        """In Redis, then in the history, where they may have been moved meanwhile, or may be moved now by a process
        that has read them before. A history that has nothing yet is not begun here: another host may be to have it."""
        self._erase_in_redis(ids, erasure, open_too)
        if self._history is not None and self._history.sizes().parts:
            for at in range(0, len(ids), HISTORY_SLICE):
                self._erase_past(self._history, ids[at : at + HISTORY_SLICE], erasure)

    def _erase_in_redis(self, ids: Sequence[str], erasure: str, open_too: bool) -> None:
        deadline = time.monotonic() + RUNNING_SECONDS
        while ids:
            results = list(zip(ids, self._erasures.erase(ids, erasure, open_too=open_too), strict=True))
            if any(result is ErasedAs.OPEN for _, result in results):
                raise Unfinished("some of the events were opened again meanwhile: run the same command again")
            for one, result in results:
                if result is ErasedAs.DAMAGED:
                    self._missed[one] = "its record is damaged"
            ids = [one for one, result in results if result is ErasedAs.RUNNING]
            if ids and time.monotonic() > deadline:
                raise Unfinished(f"{len(ids):,} of the events are being handled now: run the same command again later")
            if ids:
                time.sleep(POLL_SECONDS)

    def _erase_past(self, history: HistoryDatabase, ids: Sequence[str], erasure: str) -> None:
        """Those that are erased in Redis are stored first: no older state, with its content, is stored after them."""
        here = [one for one in (PastEvent(*one) for one in self._erasures.settled(ids)) if one.is_erased]
        if here:
            history.write(here)
        stamp = f"{int(time.time() * 1000)} {erasure}".encode()
        events = [erased(one, stamp) for one in history.events(ids, every=True) if not one.is_erased]
        for one in history.write(events) if events else ():
            if one.newer:
                raise Unfinished("some of the events were replayed meanwhile: run the same command again")
            self._missed[one.id] = f"the history cannot store it without its content: {one.reason}"

    def _erase_new_texts(self) -> None:
        """What was written since the survey, such as by a run that was under way."""
        for _ in range(TRIES):
            places = list(self._survey.texts())
            if self._erasures.erase_texts(places) == len(places):
                return
        raise Unfinished("texts about the person are being written now: run the same command again later")

    def _rewrite_files(self, days: Sequence[str]) -> tuple[list[str], list[str]]:
        done, left = rewrite_files(self._client)
        left += [f"not compacted: {one}" for one in compact(self._config.data_dir)]
        done.append("the files of the spool and of refused deliveries on this host were compacted")
        if self._history is not None:
            self._history.compact(days)
            done.append("the files of the history were written anew")
        return done, left


def signed(receipt: Receipt) -> Receipt:
    """The receipt with the hash of its other fields."""
    fields = {name: value for name, value in asdict(receipt).items() if name != "hash"}
    text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return replace(receipt, hash=hashlib.sha256(text).hexdigest())
