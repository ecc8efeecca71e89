"""Explains, step by step and without showing a secret, why a delivery's signature is valid or not.

The steps are those of `signatures.verify`, run one by one; the verdict is the result of `intake.receive`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from receiver.contract.diagnosis.hints import Hint, find_hints, format_time
from receiver.contract.diagnosis.terminal_text import printable
from receiver.contract.errors import DeliveryRefused, Reason
from receiver.contract.intake import Delivery, NoEvents, receive
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import (
    MAX_TRIED,
    Headers,
    Pairs,
    candidates_in,
    check_timestamp,
    find_secret,
    find_signatures,
    parse_timestamp,
    read_timestamp,
    split_signatures,
)
from receiver.contract.signing.sources import FORM_SORTED, BodyFields
from receiver.contract.stored_headers import NOT_STORED, require_stored, sealed_headers
from receiver.contract.stores import Store

SHOWN_ITEMS = 3
"""Events of a batch that are shown one by one."""
_T = TypeVar("_T")


class ExplanationLine(NamedTuple):
    """One fact and its result: "ok", "not ok", "matches", "no match", "would match", or an empty text."""

    text: str
    mark: str = ""


class ExplanationStep(NamedTuple):
    """One step of verification. `ok` is None for a step that only shows something."""

    title: str
    lines: tuple[ExplanationLine, ...]
    ok: bool | None


@dataclass(frozen=True)
class Explanation:
    """Why a delivery is valid or not, and what to do about it."""

    steps: tuple[ExplanationStep, ...]
    verdict: str
    """The reason in one sentence."""
    caveats: tuple[str, ...]
    """Attacks that the scheme does not prevent even with a valid signature."""
    reason: Reason | None = None
    hints: tuple[Hint, ...] = ()
    """Changes that would make the signature match, the most likely first."""

    @property
    def valid(self) -> bool:
        return self.reason is None


def explain(store: Store, headers: Headers, body: bytes, now: float, *, others: Iterable[Store] = ()) -> Explanation:
    """Verify a delivery as of `now` and explain the result. The secrets of the stores in `others` are tried, too."""
    sealed = sealed_headers(headers)
    stored = {name: value for name, value in headers.items() if value != NOT_STORED and name not in sealed}
    steps, limits = tuple(_Steps(store, stored, body, now).run()), caveats(store.scheme)
    try:
        require_stored(headers, store.scheme)
        delivery = receive(headers, body, store=store, now=now)
    except DeliveryRefused as refusal:
        hints = tuple(find_hints(refusal, store, headers, body, others))
        return Explanation(steps, f"{refusal.reason}: {refusal}", limits, refusal.reason, hints)
    except NoEvents:
        return Explanation(steps, "valid; the list of events is empty", limits)
    verdict = f"signed with {delivery.signed_with}" + (f"; {delivery.unreadable}" if delivery.unreadable else "")
    return Explanation((*steps, *_event_steps(delivery)), verdict, limits)


def caveats(scheme: Scheme) -> tuple[str, ...]:
    """Return the attacks that this scheme does not prevent, and what is not used for that reason.

    `verify` and `doctor` show them.
    """
    found = []
    if not scheme.timestamp or not scheme.tolerance:
        found.append("no timestamp is signed: a captured delivery can be replayed later")
    if not all(map(scheme.signs, scheme.event.id)):
        found.append("the delivery id is not signed: a delivery replayed under a new id is accepted as a new event")
    if not all(map(scheme.signs, scheme.event.topic)):
        found.append("the topic is not signed: a captured delivery can be replayed under another topic")
    if scheme.allow_unsigned_body:
        parts = [part for part in scheme.template if not isinstance(part, bytes)]
        fields = [name.rpartition(".")[2] for kind, name in parts if kind in ("json", "form")]
        signed = f", except {', '.join(fields)}" if fields else ""
        found.append(f"the body is not signed{signed}: a captured delivery can be replayed with other content")
    if FORM_SORTED in scheme.signed_parts:
        found.append("the form is signed without its separators: text can be moved from one field to the next")
    times = (*scheme.event.occurred, *scheme.event.sequence)
    if unused := [source for source in times if not scheme.signs(source)]:
        found.append(f"not signed, so not used to tell which of two events is newer: {', '.join(unused)}")
    if scheme.algorithm == "hmac-sha1":
        found.append("HMAC-SHA1 is weak by today's standards: use hmac-sha256 if the store offers it")
    if scheme.can_be_extended:
        found.append("SHA-256(secret + body) is weak: bytes can be added to a body; such a delivery is refused")
    return tuple(found)


class _Steps:
    """Runs the steps of verification one by one and records each, as far as the delivery allows."""

    def __init__(self, store: Store, headers: Headers, body: bytes, now: float) -> None:
        self.store, self.scheme = store, store.scheme
        self.headers, self.fields, self.now = headers, BodyFields(body), now
        self.steps: list[ExplanationStep] = []

    def run(self) -> list[ExplanationStep]:
        scheme = self.scheme
        found = self._attempt("header", lambda: find_signatures(scheme, self.headers, self.fields))
        if found is None:
            return self.steps
        self._note("header", "; ".join(f"{where}, {len(raw):,} characters" for where, raw in found), ok=True)
        pairs = split_signatures(scheme, found)
        candidates = self._attempt("candidates", lambda: candidates_in(scheme, pairs))
        if candidates is not None:
            self._note("candidates", f"{len(candidates)}, {scheme.encoding}, {scheme.digest_size} bytes", ok=True)
        text = self._time(pairs)
        if text is None:
            return self.steps
        url = self.store.url
        content = self._attempt("signed", lambda: scheme.signed_content(self.headers, self.fields, text, url))
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()[:6]
            signed = json.dumps(scheme.signed, ensure_ascii=False)  # with \n for a line break, as in the config
            self._note("signed", f"{signed}, {len(content):,} bytes, sha256 {digest}", ok=None)
        if content is not None and candidates is not None:
            self._secrets(content, candidates)
        return self.steps

    def _attempt(self, title: str, step: Callable[[], _T]) -> _T | None:
        try:
            return step()
        except DeliveryRefused as refusal:
            self._note(title, str(refusal), ok=False)
            return None

    def _note(self, title: str, text: str, *, ok: bool | None) -> None:
        self.steps.append(_step(title, text, {True: "ok", False: "not ok", None: ""}[ok], ok=ok))

    def _time(self, pairs: Pairs) -> str | None:
        """Return the text of the timestamp; empty if the scheme has none, None if it is missing."""
        if not self.scheme.timestamp:
            return ""
        text = self._attempt("time", lambda: read_timestamp(self.scheme, self.headers, self.fields, pairs))
        if text is None or not self.scheme.tolerance:
            return text
        facts, ok = printable(text), True
        try:
            moment = parse_timestamp(self.scheme, text)
            side = "after" if moment > self.now else "before"
            facts += f", {abs(round(self.now - moment)):,} s {side} arrival, limit {self.scheme.tolerance} s"
            check_timestamp(self.scheme, moment, self.now)
        except DeliveryRefused as refusal:
            ok = False
            facts += "" if "limit" in facts else f", {refusal}"
        self._note("time", facts, ok=ok)
        return text

    def _secrets(self, content: bytes, candidates: list[bytes]) -> None:
        lines = []
        for secret in self.store.secrets[:MAX_TRIED]:
            matches = find_secret(self.scheme, [secret], content, candidates, self.now) is not None
            mark = ("matches" if secret.is_active(self.now) else "would match") if matches else "no match"
            lines.append(ExplanationLine(_describe(secret, self.now), mark))
        self.steps.append(ExplanationStep("secrets", tuple(lines), any(line.mark == "matches" for line in lines)))


def _step(title: str, text: str, mark: str, *, ok: bool | None) -> ExplanationStep:
    return ExplanationStep(title, (ExplanationLine(text, mark),), ok)


def _event_steps(delivery: Delivery) -> list[ExplanationStep]:
    """The event, or the first ones of a batch."""
    steps = [_event_step(one) for one in (delivery, *delivery.rest[: SHOWN_ITEMS - 1])]
    if more := len(delivery.rest) + 1 - len(steps):
        steps.append(_step("event", f"and {more:,} more events", "ok", ok=True))
    return steps


def _event_step(delivery: Delivery) -> ExplanationStep:
    event = delivery.event
    if delivery.unreadable:
        return _step("event", delivery.unreadable, "accepted, but not readable", ok=False)
    topic = event.topic if event.topic == delivery.theirs else f"{event.topic} ({printable(delivery.theirs)})"
    ids = f"delivery id {printable(event.delivery_id) or 'none'}, resource id {printable(event.resource_id) or 'none'}"
    return _step("event", f"{topic}, {ids}", "ok", ok=True)


def _describe(secret: Secret, now: float) -> str:
    text = f"{secret.fingerprint}  {secret.origin}".rstrip()
    if secret.not_after is None:
        return text
    return f"{text}, {'expires' if secret.is_active(now) else 'expired'} {format_time(secret.not_after)}"
