"""The alert store: which alerts fire, and the messages about them that targets have not accepted yet.

That an alert begins or ends, and the messages about it, are written in one step. So each is sent once, whichever
housekeeper judges and whenever one is killed; a message that may have been sent is sent again under the same id. What
a housekeeper has read before another one judged is not judged.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

import orjson

from receiver.inbox import keys
from receiver.inbox.model import from_ms
from receiver.inbox.queries.damage import as_text
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser, server_ms

LEASE_MS = 30_000
"""Longer than one message takes to be sent."""
MAX_ALERTS = 50
"""In one message; the others are only counted."""
MAX_MESSAGES = 500
KEPT_SECONDS = 30 * 86400


@dataclass(frozen=True)
class Alert:
    """A rule that is broken by a subject: a handler, a store or a host; empty for the whole system."""

    rule: str
    subject: str
    text: str
    since: datetime

    @property
    def name(self) -> str:
        return f"{self.rule}|{self.subject}"


@dataclass(frozen=True)
class AlertMessage:
    """Alerts of one rule that began, or ended, at one moment."""

    id: str
    target: str
    rule: str
    what: Literal["fired", "recovered"]
    alerts: tuple[Alert, ...]
    number: int
    """Of alerts; `alerts` has the first of them."""
    at: datetime
    tries: int = 0
    error: str = ""
    """Why it was not accepted last time."""
    next_at: datetime | None = None
    """When it is sent next. None if it was given up."""

    @property
    def item(self) -> str:
        return f"{self.id}|{self.target}"


class AlertJudgement(NamedTuple):
    """The last judgement of the rules."""

    text: bytes = b""
    """As it is stored."""
    number: int = 0
    """About its time (ms), and more than that of the judgement before."""
    marks: Mapping[str, tuple[int, int]] = {}
    """For each store how many deliveries were accepted and refused when it last had one accepted."""

    def marks_now(self, counters: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, int]]:
        """The marks after this judgement. `counters` are those of stores now."""
        marks = {}
        for store, one in counters.items():
            good, refused = one["accepted"] + one["duplicates"], one["refused"]
            # A store that the last judgement did not know had no delivery then. Before the first one, nothing is known.
            mark = self.marks.get(store, (0, 0)) if self.number else (good, refused)
            marks[store] = mark if mark[0] == good and mark[1] <= refused else (good, refused)
        return marks


class AlertStore(ServerUser):
    def firing(self) -> list[Alert]:
        """The alerts that fire now, the oldest first."""
        found: Any = self.client.hgetall(keys.ALERTS)
        alerts = []
        for name, text in found.items():
            with suppress(ValueError, KeyError, TypeError):
                rule, _, subject = as_text(name).partition("|")
                alerts.append(_alert(rule, {"subject": subject, **orjson.loads(text)}))
        return sorted(alerts, key=lambda one: one.since)

    def last_judgement(self) -> AlertJudgement:
        text: Any = self.client.get(keys.ALERT_MARKS) or b""
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged; it is written again
            found = orjson.loads(text)
            marks = {store: (int(good), int(refused)) for store, (good, refused) in found["stores"].items()}
            return AlertJudgement(text, int(found["number"]), marks)
        return AlertJudgement(text)

    def judge(
        self,
        firing: Mapping[str, str],
        targets: Iterable[str],
        *,
        last: AlertJudgement,
        marks: Mapping[str, tuple[int, int]],
    ) -> tuple[int, int]:
        """Store which alerts fire now, by "rule|subject", each with its text of now. Returns how many began and ended.

        `last` was read before the rules were judged. After another judgement since then, this changes nothing.
        """
        names = list(targets)
        pairs = [part for pair in firing.items() for part in pair]
        number = max(last.number + 1, int(server_ms(self.client)))
        state = orjson.dumps({"number": number, "stores": marks})
        id_ = f"alert_{number:015d}_{secrets.token_hex(8)}_"
        before = (id_, MAX_ALERTS, KEPT_SECONDS, last.text, state, len(names))
        fired, recovered = script_runner.run_one(self.client, "judge_alerts", *before, *names, *pairs)
        return int(fired), int(recovered)

    def claim(self) -> AlertMessage | None:
        """A message that is due. No other caller gets it before the lease is over."""
        while found := script_runner.run_one(self.client, "claim_alert", LEASE_MS):
            if message := _message(*found):
                return message
            self._remove(found[0])  # it is damaged, and others wait for it
        return None

    def delivered(self, message: AlertMessage) -> None:
        self._remove(message.item)

    def _remove(self, item: str | bytes) -> None:
        pipeline = self.client.pipeline(transaction=True)
        pipeline.zrem(keys.ALERT_DUE, item)
        pipeline.hdel(keys.ALERT_MESSAGES, item)
        pipeline.execute()

    def failed(self, message: AlertMessage, error: str, delay: float | None) -> None:
        """Send a message again after a delay (s); None gives it up, and it is only shown."""
        again = replace(message, tries=message.tries + 1, error=error)
        wait = "" if delay is None else round(delay * 1000)
        script_runner.run_one(self.client, "retry_alert", message.item, _as_json(again), wait)
        if int(self.client.hlen(keys.ALERT_MESSAGES)) > MAX_MESSAGES:
            for one in self.messages()[:-MAX_MESSAGES]:
                self.delivered(one)

    def messages(self) -> list[AlertMessage]:
        """The messages that were not accepted yet, the oldest first."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hgetall(keys.ALERT_MESSAGES)
        pipeline.zrange(keys.ALERT_DUE, 0, -1, withscores=True)
        texts, due = pipeline.execute()
        next_at = {item: from_ms(at) for item, at in due}
        read = ((item, _message(item, text)) for item, text in texts.items())
        found = [replace(message, next_at=next_at.get(item)) for item, message in read if message]
        return sorted(found, key=lambda one: one.item)

    def refused_in_a_row(self, counters: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """For each store the number of deliveries that were refused since it last had one accepted, as far as
        judgements can tell. `counters` are those of stores now."""
        marks = self.last_judgement().marks_now(counters)
        return {store: counters[store]["refused"] - mark[1] for store, mark in marks.items()}


def _alert(rule: str, fields: Mapping[str, Any]) -> Alert:
    return Alert(rule, fields["subject"], fields["text"], from_ms(fields["since"]))


def _message(item: bytes, text: bytes) -> AlertMessage | None:
    """None if it is damaged."""
    id_, _, target = as_text(item).partition("|")
    with suppress(ValueError, KeyError, TypeError):
        fields = orjson.loads(text)
        alerts = tuple(_alert(fields["rule"], one) for one in fields["alerts"])
        numbers = (fields["number"], from_ms(fields["at"]), fields["tries"])
        return AlertMessage(id_, target, fields["rule"], fields["what"], alerts, *numbers, error=fields["error"])
    return None


def _as_json(message: AlertMessage) -> bytes:
    fields = {"rule": message.rule, "what": message.what, "number": message.number, "tries": message.tries}
    alerts = [{"subject": one.subject, "text": one.text, "since": _ms(one.since)} for one in message.alerts]
    return orjson.dumps({**fields, "error": message.error, "at": _ms(message.at), "alerts": alerts})


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
