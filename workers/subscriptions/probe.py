"""Probe: sends a signed event to our own public URL, as the store would, and waits until it is in the inbox.

It takes the whole path of a delivery (DNS, proxy, receiver, signature, inbox) and is routed to no handler.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from redis import Redis

from receiver.config.settings import NetworkSettings
from receiver.contract.compose import compose, event_id_in
from receiver.contract.errors import StorehooksError
from receiver.contract.signing.sources import with_query
from receiver.contract.stores import Store
from receiver.contract.topics import PROBE
from receiver.inbox import EventQueries

RESPONSE_SECONDS = 10.0
ARRIVAL_SECONDS = 5.0
POLL_EVERY = 0.02


class ProbeFailed(StorehooksError):
    """Our own public URL does not accept a signed event. The message says what it did instead."""


class NoActiveSecret(ProbeFailed):
    """The store has no active secret to sign with."""


def probe(store: Store, redis: Redis, *, url: str = "", network: NetworkSettings | None = None) -> float:
    """Send a probe and wait until it is stored; returns the seconds it took."""
    import httpx2

    from workers.storeapi.transport.network import call_options

    url = url or store.url
    active = [secret for secret in store.secrets if secret.is_active(time.time())]
    if not active:
        raise NoActiveSecret(f"{store.name} has no active secret, so a probe cannot be signed")
    signed_by = replace(store, secrets=(active[0],))
    delivery_id = f"probe_{secrets.token_hex(8)}"
    request = compose(signed_by, topic=PROBE, delivery_id=delivery_id, data={"id": delivery_id}, now=time.time())
    started = time.monotonic()
    try:
        target, headers = with_query(url, request.headers)
        response = httpx2.post(
            target,
            headers=headers,
            content=request.body,
            timeout=RESPONSE_SECONDS,
            **call_options(network or NetworkSettings(), target),
        )
    except (httpx2.HTTPError, OSError) as error:  # OSError: of ca_file
        kind = type(error).__name__
        raise ProbeFailed(
            f"{url} does not respond to our probe: {error or kind}", logged=f"{url} does not respond: {kind}"
        ) from None
    if not response.is_success:
        raise ProbeFailed(f"{url} answers our own signed event with {response.status_code}")
    _wait_until_stored(response, url, EventQueries(redis), delivery_id)
    return time.monotonic() - started


def _wait_until_stored(response: object, url: str, queries: EventQueries, delivery_id: str) -> None:
    """Any server may have responded, with any event's id. Only an event in this inbox with our delivery id counts."""
    try:
        event_id = event_id_in(response.json())  # type: ignore[attr-defined]
    except (ValueError, LookupError, TypeError):
        raise ProbeFailed(f"{url} responds, but not as our receiver does; does it lead to this installation?") from None
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while (found := queries.event(event_id[:64])) is None or delivery_id.encode() not in found.body:
        if time.monotonic() > deadline:
            raise ProbeFailed(
                f"{url} accepted our event, but it is not in this inbox; does it lead to this installation?"
            )
        time.sleep(POLL_EVERY)
