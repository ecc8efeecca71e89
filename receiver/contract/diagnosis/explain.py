"""Explain: why a delivery fits or does not, step by step, without ever showing a secret.

The steps are verify's own, run one by one; the verdict is what `receive` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from receiver.contract.diagnosis import candidates
from receiver.contract.diagnosis.hints import Hint, would_fit
from receiver.contract.errors import DeliveryRefused, Reason
from receiver.contract.intake import Delivery, receive
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import (
    MAX_SECRETS,
    Headers,
    Pairs,
    candidates_in,
    check_time,
    find_signature,
    fitting_secret,
    moment_of,
    read_timestamp,
    signed_content,
    split_signature,
)
from receiver.contract.stores import Store

MAX_SHOWN = 60
_SEARCHED = ("no-signature", "malformed-signature", "signature-mismatch", "incomplete", "no-timestamp")
_T = TypeVar("_T")


@dataclass(frozen=True)
class ExplanationLine:
    """One fact, and how it was judged: "ok", "no match", "would match", or nothing."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class ExplanationStep:
    """One step of verification. `ok` is None where nothing is judged, only shown."""

    title: str
    lines: tuple[ExplanationLine, ...]
    ok: bool | None


@dataclass(frozen=True)
class Explanation:
    steps: tuple[ExplanationStep, ...]
    valid: bool
    verdict: str
    """A sentence: what it is, and why."""
    reason: Reason | None = None
    hints: tuple[Hint, ...] = ()
    """What would have matched, and what to do about it; the likeliest first."""
    caveats: tuple[str, ...] = ()
    """What the scheme cannot promise even when everything fits."""


def explain(store: Store, headers: Headers, body: bytes, now: float, *, others: Iterable[Store] = ()) -> Explanation:
    """Judge a delivery as of `now` and say why. `others` are stores whose secrets are tried as well."""
    steps = _Steps(store, headers, body, now).run()
    try:
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
    return Explanation(
        steps=(*steps, _event_step(delivery)),
        valid=True,
        verdict=f"signed with {delivery.signed_with}" + (f"; {delivery.unreadable}" if delivery.unreadable else ""),
        caveats=caveats(store.scheme),
    )


def caveats(scheme: Scheme) -> tuple[str, ...]:
    """What a store with this scheme cannot be protected from; `verify` and `doctor` say it."""
    found = []
    if not scheme.timestamp or not scheme.tolerance:
        found.append("no time is signed: a captured delivery can be sent again later")
    if not all(map(scheme.signs, scheme.event.id)):
        found.append("the delivery id is not signed: a delivery sent again under a new id is a new event")
    if not all(map(scheme.signs, scheme.event.topic)):
        found.append("the topic is not signed: whoever captures a delivery can send it under another topic")
    if scheme.allow_unsigned_body:
        found.append("the body is not signed: whoever captures a delivery can change its content")
    return tuple(found)


class _Steps:
    """Runs verify's steps one after the other and writes each down, as far as there is something to go on."""

    def __init__(self, store: Store, headers: Headers, body: bytes, now: float) -> None:
        self.store, self.scheme = store, store.scheme
        self.headers, self.body, self.now = headers, body, now
        self.steps: list[ExplanationStep] = []

    def run(self) -> list[ExplanationStep]:
        found = self._attempt("header", lambda: find_signature(self.scheme, self.headers))
        if found is None:
            return self.steps
        name, raw = found
        written = next(header for header in self.scheme.headers if header.lower() == name)
        self._note("header", f"{written}, {len(raw):,} characters", ok=True)
        pairs = split_signature(self.scheme, raw)
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
        """The text of the time; empty where the scheme has none, None where it is missing."""
        if not self.scheme.timestamp:
            return ""
        text = self._attempt("time", lambda: read_timestamp(self.scheme, self.headers, self.body, pairs))
        if text is None or not self.scheme.tolerance:
            return text
        facts, ok = shown(text), True
        try:
            moment = moment_of(self.scheme, text)
            facts += f", {_distance(moment, self.now)}, limit {self.scheme.tolerance} s"
            check_time(self.scheme, moment, self.now)
        except DeliveryRefused as refusal:
            ok = False
            facts += "" if "limit" in facts else f", {refusal}"
        self._note("time", facts, ok=ok)
        return text

    def _content(self, text: str) -> bytes | None:
        def put_together() -> bytes:
            return signed_content(self.scheme, headers=self.headers, body=self.body, timestamp=text, url=self.store.url)

        content = self._attempt("signed", put_together)
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()[:6]
            self._note("signed", f'"{self.scheme.signed}", {len(content):,} bytes, sha256 {digest}', ok=None)
        return content

    def _secrets(self, content: bytes, candidates: list[bytes]) -> None:
        lines = []
        for secret in self.store.secrets[:MAX_SECRETS]:
            fits = fitting_secret(self.scheme, [secret], content, candidates, self.now) is not None
            mark = ("ok" if secret.is_active(self.now) else "would match") if fits else "no match"
            lines.append(ExplanationLine(_described(secret, self.now), mark))
        self.steps.append(ExplanationStep("secrets", tuple(lines), any(line.mark == "ok" for line in lines)))


def _event_step(delivery: Delivery) -> ExplanationStep:
    event = delivery.event
    if delivery.unreadable:
        return ExplanationStep("event", (ExplanationLine(delivery.unreadable, "kept, not understood"),), ok=False)
    facts = f"{shown(delivery.theirs)} is {event.topic}, id {shown(event.delivery_id) or 'none'}"
    return ExplanationStep(
        "event", (ExplanationLine(f"{facts}, resource {shown(event.resource_id) or 'none'}", "ok"),), ok=True
    )


def _described(secret: Secret, now: float) -> str:
    text = f"{secret.fingerprint}  {secret.origin}".rstrip()
    if secret.not_after is None:
        return text
    return f"{text}, {'ends' if secret.is_active(now) else 'ended'} {_clock(secret.not_after)}"


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _distance(moment: float, now: float) -> str:
    apart = round(now - moment)
    return f"{abs(apart):,} s {'after' if apart < 0 else 'before'} arrival"


def shown(text: str) -> str:
    """Text from outside, fit for a terminal: short, and nothing in it that moves the cursor."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: MAX_SHOWN + 1])
    return clean if len(clean) <= MAX_SHOWN else clean[:MAX_SHOWN] + "…"


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
        return [Hint("it is signed with this store's secret, but names another store", fix)]
    found = would_fit(store, headers, body, others) if refusal.reason in _SEARCHED else []
    return found or [_nothing_fits(refusal.reason, headers)]


def _rotation_hints(store: Store, detail: str) -> list[Hint]:
    ended = next((secret for secret in store.secrets if secret.fingerprint in detail), None)
    if ended is None or ended.not_after is None:
        return []
    place = ended.origin or f"[stores.{store.name}] signing_secrets"
    return [
        Hint(
            f"it would fit with {ended.fingerprint}, which ended {_clock(ended.not_after)}",
            f"give it more time: not_after in {place}, then HUP; or finish the rotation: "
            f"storehooks subscriptions rotate --store {store.name}",
        )
    ]


def _time_hints(scheme: Scheme, headers: Headers, body: bytes, reason: str) -> list[Hint]:
    _, raw = find_signature(scheme, headers)
    text = read_timestamp(scheme, headers, body, split_signature(scheme, raw))
    unit = candidates.unit_of(text)
    if unit and unit != scheme.timestamp_unit:
        return [Hint(f"the time is written in another unit, {unit}", f'timestamp_unit = "{unit}"')]
    if reason == "malformed-timestamp":
        return [
            Hint(
                f"the signature fits, but {scheme.timestamp} holds no time",
                "set timestamp",
            )
        ]
    fix = "set the clocks right; for a store that signs once and retries for hours, raise tolerance"
    return [Hint("the signature fits, only the time is too far away: a clock, a late retry or a replay", fix)]


def _nothing_fits(reason: str, headers: Headers) -> Hint:
    if reason in ("no-signature", "malformed-signature") and not candidates.signatures_in(headers):
        names = ", ".join(shown(name) for name in candidates.uncommon(headers)) or "none of its own"
        return Hint(
            f"no header holds anything of the size of a signature; it came with {names}",
            "turn signing on at the store; or something on the way removes the header",
        )
    return Hint(
        "nothing that was tried makes it fit: it was signed with a secret that is not configured, or the "
        "body was changed on the way",
        "compare the secret at the store with the fingerprints above",
    )
