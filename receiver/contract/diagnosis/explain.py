"""Explains, step by step and without showing a secret, why a delivery's signature is valid or not.

The steps are those of `signatures.verify`, run one by one; the verdict is the result of `intake.receive`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from receiver.contract.diagnosis.captures import OMITTED, Capture, omitted, unit_of
from receiver.contract.diagnosis.hints import Findings, Hint, find_hints
from receiver.contract.diagnosis.terminal_text import harmless
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
from receiver.contract.signing.sources import FORM_SORTED
from receiver.contract.stored_headers import NEVER_STORED, NOT_STORED, omitted_headers, require_stored, sealed_headers
from receiver.contract.stores import Store

MAX_PRINTED = 60
SHOWN_ITEMS = 3
"""Events of a batch that are shown one by one."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class ExplanationLine:
    """One fact and its result: "ok", "not ok", "matches", "no match", "would match", or an empty text."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class ExplanationStep:
    """One step of verification. `ok` is None for a step that only shows something."""

    title: str
    lines: tuple[ExplanationLine, ...]
    ok: bool | None


@dataclass(frozen=True)
class Explanation:
    """Why a delivery is valid or not, and what to do about it."""

    steps: tuple[ExplanationStep, ...]
    valid: bool
    verdict: str
    """The reason in one sentence."""
    reason: Reason | None = None
    hints: tuple[Hint, ...] = ()
    """Changes that would make the signature match, the most likely first."""
    caveats: tuple[str, ...] = ()
    """Attacks that the scheme does not prevent even with a valid signature."""


def explain(store: Store, headers: Headers, body: bytes, now: float, *, others: Iterable[Store] = ()) -> Explanation:
    """Verify a delivery as of `now` and explain the result. The secrets of the stores in `others` are tried, too."""
    sealed = sealed_headers(headers)
    stored = {name: value for name, value in headers.items() if value != NOT_STORED and name not in sealed}
    steps = _Steps(store, stored, body, now).run()
    try:
        require_stored(headers, store.scheme)
        delivery = receive(headers, body, store=store, now=now)
    except DeliveryRefused as refusal:
        hints = _hints(refusal, store, headers, body, others)
        return Explanation(
            steps=tuple(steps),
            valid=False,
            reason=refusal.reason,
            verdict=f"{refusal.reason}: {refusal}",
            hints=tuple(hints),
            caveats=caveats(store.scheme),
        )
    except NoEvents:
        return Explanation(tuple(steps), True, "valid; the list of events is empty", caveats=caveats(store.scheme))
    return Explanation(
        steps=(*steps, *_event_steps(delivery)),
        valid=True,
        verdict=f"signed with {delivery.signed_with}" + (f"; {delivery.unreadable}" if delivery.unreadable else ""),
        caveats=caveats(store.scheme),
    )


def caveats(scheme: Scheme) -> tuple[str, ...]:
    """Return the attacks that this scheme does not prevent. `verify` and `doctor` show them."""
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
    if scheme.algorithm == "hmac-sha1":
        found.append("HMAC-SHA1 is weak by today's standards: use hmac-sha256 if the store offers it")
    if scheme.can_be_extended:
        found.append("SHA-256(secret + body) is weak: bytes can be added to a body; such a delivery is refused")
    return tuple(found)


class _Steps:
    """Runs the steps of verification one by one and records each, as far as the delivery allows."""

    def __init__(self, store: Store, headers: Headers, body: bytes, now: float) -> None:
        self.store, self.scheme = store, store.scheme
        self.headers, self.body, self.now = headers, body, now
        self.steps: list[ExplanationStep] = []

    def run(self) -> list[ExplanationStep]:
        found = self._attempt("header", lambda: find_signatures(self.scheme, self.headers, self.body))
        if found is None:
            return self.steps
        places = [f"{where}, {len(raw):,} characters" for where, raw in found]
        self._note("header", "; ".join(places), ok=True)
        pairs = split_signatures(self.scheme, found)
        candidates = self._attempt("candidates", lambda: candidates_in(self.scheme, pairs))
        if candidates is not None:
            facts = f"{len(candidates)}, {self.scheme.encoding}, {self.scheme.digest_size} bytes"
            self._note("candidates", facts, ok=True)
        text = self._time(pairs)
        content = self._content(text) if text is not None else None
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
        mark = {True: "ok", False: "not ok", None: ""}[ok]
        self.steps.append(ExplanationStep(title, (ExplanationLine(text, mark),), ok))

    def _time(self, pairs: Pairs) -> str | None:
        """Return the text of the timestamp; empty if the scheme has none, None if it is missing."""
        if not self.scheme.timestamp:
            return ""
        text = self._attempt("time", lambda: read_timestamp(self.scheme, self.headers, self.body, pairs))
        if text is None or not self.scheme.tolerance:
            return text
        facts, ok = printable(text), True
        try:
            moment = parse_timestamp(self.scheme, text)
            facts += f", {_distance(moment, self.now)}, limit {self.scheme.tolerance} s"
            check_timestamp(self.scheme, moment, self.now)
        except DeliveryRefused as refusal:
            ok = False
            facts += "" if "limit" in facts else f", {refusal}"
        self._note("time", facts, ok=ok)
        return text

    def _content(self, text: str) -> bytes | None:
        def build() -> bytes:
            return self.scheme.signed_content(self.headers, self.body, text, self.store.url)

        content = self._attempt("signed", build)
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()[:6]
            self._note("signed", f'"{self.scheme.signed}", {len(content):,} bytes, sha256 {digest}', ok=None)
        return content

    def _secrets(self, content: bytes, candidates: list[bytes]) -> None:
        lines = []
        for secret in self.store.secrets[:MAX_TRIED]:
            matches = find_secret(self.scheme, [secret], content, candidates, self.now) is not None
            mark = ("matches" if secret.is_active(self.now) else "would match") if matches else "no match"
            lines.append(ExplanationLine(_describe(secret, self.now), mark))
        self.steps.append(ExplanationStep("secrets", tuple(lines), any(line.mark == "matches" for line in lines)))


def _event_steps(delivery: Delivery) -> list[ExplanationStep]:
    """The event, or the first ones of a batch."""
    steps = [_event_step(one) for one in (delivery, *delivery.rest[: SHOWN_ITEMS - 1])]
    if more := len(delivery.rest) + 1 - len(steps):
        steps.append(ExplanationStep("event", (ExplanationLine(f"and {more:,} more events", "ok"),), ok=True))
    return steps


def _event_step(delivery: Delivery) -> ExplanationStep:
    event = delivery.event
    if delivery.unreadable:
        return ExplanationStep("event", (ExplanationLine(delivery.unreadable, "accepted, but not readable"),), ok=False)
    topic = event.topic if event.topic == delivery.theirs else f"{event.topic} ({printable(delivery.theirs)})"
    ids = f"delivery id {printable(event.delivery_id) or 'none'}, resource id {printable(event.resource_id) or 'none'}"
    return ExplanationStep("event", (ExplanationLine(f"{topic}, {ids}", "ok"),), ok=True)


def _describe(secret: Secret, now: float) -> str:
    text = f"{secret.fingerprint}  {secret.origin}".rstrip()
    if secret.not_after is None:
        return text
    return f"{text}, {'expires' if secret.is_active(now) else 'expired'} {_format_time(secret.not_after)}"


def _format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _distance(moment: float, now: float) -> str:
    apart = round(now - moment)
    return f"{abs(apart):,} s {'after' if apart < 0 else 'before'} arrival"


def printable(text: str) -> str:
    """Return text from a delivery, safe to print: shortened, and without control characters."""
    clean = harmless(text[: MAX_PRINTED + 1])
    return clean if len(clean) <= MAX_PRINTED else clean[:MAX_PRINTED] + "…"


# Hints


def _hints(
    refusal: DeliveryRefused, store: Store, headers: Headers, body: bytes, others: Iterable[Store]
) -> list[Hint]:
    if refusal.reason == "secret-expired":
        return _rotation_hints(store, str(refusal))
    if refusal.reason in ("too-old", "too-new", "malformed-timestamp"):
        return _time_hints(store.scheme, headers, body, refusal.reason)
    if refusal.reason == "wrong-store":
        sources = ", ".join(store.scheme.event.store)
        fix = f"compare {sources} of the delivery with [stores.{store.name}] domain"
        return [Hint("the signature matches this store's secret, but the delivery names another store", fix)]
    if refusal.reason == "ambiguous":
        fix = (
            "look for the whole delivery in `storehooks events`; if the store really sends this, ask it for JSON or "
            "for signed headers without the separator"
        )
        return [Hint("the signature matches, but the same bytes may be another delivery, cut elsewhere", fix)]
    if hints := _unstored_hints(store.scheme, headers):
        return hints
    findings = find_hints(store, headers, body, others)
    return list(findings.hints) or [_no_match(findings, headers, body)]


def _unstored_hints(scheme: Scheme, headers: Headers) -> list[Hint]:
    """Why the value of a header is not here: it may hold a credential."""
    if scheme.reads.intersection(sealed_headers(headers)):
        return [Hint("it was sealed on arrival", "run this with the [secrets] key that the receiver had then")]
    omitted = scheme.reads.intersection(omitted_headers(headers))
    if omitted & NEVER_STORED:
        fix = 'set [secrets] key = "env:KEYRING_KEY" for every process, and have the store send it again'
        return [Hint("it may hold a credential, so it is stored only sealed, while the scheme reads it", fix)]
    if omitted:
        fix = "have the store send it again; while the scheme reads this header, its value is stored"
        return [Hint("its name says that it may hold a credential, and the scheme did not read it on arrival", fix)]
    return []


def _rotation_hints(store: Store, detail: str) -> list[Hint]:
    expired = next((secret for secret in store.secrets if secret.fingerprint in detail), None)
    if expired is None or expired.not_after is None:
        return []
    place = expired.origin or f"[stores.{store.name}] signing_secrets"
    return [
        Hint(
            f"the signature matches {expired.fingerprint}, which expired {_format_time(expired.not_after)}",
            f"extend not_after in {place}, then send HUP; or finish the rotation: "
            f"storehooks subscriptions rotate --store {store.name}",
        )
    ]


def _time_hints(scheme: Scheme, headers: Headers, body: bytes, reason: str) -> list[Hint]:
    found = find_signatures(scheme, headers, body)
    text = read_timestamp(scheme, headers, body, split_signatures(scheme, found))
    unit = unit_of(text)
    if unit and unit != scheme.timestamp_unit:
        return [
            Hint(f"the signature matches, but the timestamp has another unit, {unit}", f'timestamp_unit = "{unit}"')
        ]
    if reason == "malformed-timestamp":
        return [Hint(f"the signature matches, but {scheme.timestamp} is not a timestamp", "set timestamp")]
    fix = "synchronise the clocks; for a store that signs once and retries for hours, raise tolerance"
    return [
        Hint(
            "the signature matches, but the timestamp is outside the tolerance: a wrong clock, a late retry "
            "or a replay",
            fix,
        )
    ]


def _no_match(findings: Findings, headers: Headers, body: bytes) -> Hint:
    """Names every possible cause: a wrong scheme, a wrong secret and a changed body look the same."""
    unstored = omitted(headers)
    about_unstored = f"; {OMITTED}{', '.join(map(printable, unstored))}" if unstored else ""
    if not findings.has_signature:
        if unstored:
            return Hint(
                f"no stored header contains a signature{about_unstored}",
                f'headers = ["{printable(unstored[0])}"], if that is the signature; later ones are stored with it',
            )
        names = ", ".join(printable(name) for name in Capture(headers, body).custom_headers) or "no others"
        return Hint(
            f"no header contains a signature; besides the usual headers the delivery has {names}",
            "turn on signing at the store, or find the proxy that removes the header",
        )
    limit = "" if findings.is_complete else f", and not all were tried: the body is {len(body):,} bytes long"
    return Hint(
        "no known change makes the signature match: the store signs with a secret that is not configured, or in a way "
        f"that is not among the {findings.tried:,} that were tried{limit}, or the body was changed in "
        f"transit{about_unstored}",
        "compare the secret at the store with the fingerprints above; if it is the right one, compare the scheme with "
        "the store's documentation",
    )
