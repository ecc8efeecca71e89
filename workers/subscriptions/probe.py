"""Probe: a signed event of our own, sent to our own public URL as the store would send it, must come back in the inbox.

It goes the whole way of a delivery (name, proxy, receiver, signature, inbox) and to no handler.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from redis import Redis

from receiver.contract.compose import compose
from receiver.contract.errors import StorehooksError
from receiver.contract.stores import Store
from receiver.contract.topics import PROBE
from receiver.inbox import EventQueries

ANSWER_SECONDS = 10.0
SEEN_SECONDS = 5.0
LOOK_EVERY = 0.02


class ProbeFailed(StorehooksError):
    """Our own public URL does not take a signed event; says what it did instead."""


class NothingToSign(ProbeFailed):
    """The store has no secret that counts."""


def probe(store: Store, redis: Redis, *, url: str = "") -> float:
    """Send it and see it arrive; gives how long that took, in seconds."""
    import httpx2

    url = url or store.url
    live = [secret for secret in store.secrets if secret.is_active(time.time())]
    if not live:
        raise NothingToSign(f"{store.name} has no secret that counts, so nothing can be signed for it")
    signed_by = replace(store, secrets=(live[0],))
    delivery_id = f"probe_{secrets.token_hex(8)}"
    request = compose(signed_by, topic=PROBE, delivery_id=delivery_id, data={"id": delivery_id}, now=time.time())
    started = time.monotonic()
    try:
        answer = httpx2.post(
            url, headers=request.headers, content=request.body, timeout=ANSWER_SECONDS, trust_env=False
        )
    except httpx2.HTTPError as error:
        raise ProbeFailed(f"{url} does not answer us: {error or type(error).__name__}") from None
    if not answer.is_success:
        raise ProbeFailed(f"{url} answers our own signed event with {answer.status_code}")
    _see_it(answer, url, EventQueries(redis), delivery_id)
    return time.monotonic() - started


def _see_it(answer: object, url: str, ledger: EventQueries, mark: str) -> None:
    """What answered may be anybody, and name any event: only what is in our inbox with our mark has come back."""
    try:
        event_id = str(answer.json()["id"])  # type: ignore[attr-defined]
    except (ValueError, KeyError, TypeError):
        raise ProbeFailed(f"{url} answers, but not as our receiver does; does it lead here?") from None
    until = time.monotonic() + SEEN_SECONDS
    while (found := ledger.event(event_id[:64])) is None or mark.encode() not in found.body:
        if time.monotonic() > until:
            raise ProbeFailed(f"{url} took our event, and it is not in this inbox; does it lead here?")
        time.sleep(LOOK_EVERY)
