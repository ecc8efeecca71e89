"""Door: what has arrived -> let in, or an answer that refuses it. One decision, whoever serves the request.

Both ways in use it, the Flask view and the loop, so that they cannot answer differently. It knows no framework and
no socket, and it never loads plugin code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from receiver.config.values import is_store_name
from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import Delivery, receive, stored_headers
from receiver.contract.signing.signatures import Headers
from receiver.contract.stores import Store, StoreIndex, decoy
from receiver.delivery.answers import Answer, problem, told, unavailable
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.delivery.storage import NotStored, Stored
from receiver.inbox.refusal_counts import UNKNOWN_STORE, RefusalCounts
from receiver.spool import Refusal

SIGNED_BY_NOBODY = problem(HTTPStatus.UNAUTHORIZED, "Invalid signature.")
SIGNED_BY_NOBODY_YET = unavailable("The signature cannot be verified now; send it again.")
NOT_KEPT = unavailable("The delivery could not be kept; send it again.")
FULL = unavailable("This store has too many events waiting; send it again later.")


class IncomingDelivery(NamedTuple):
    """A request for the door: to a store's own URL, or to the URL of all (""), where it says itself whose it is."""

    store: str
    headers: Headers
    """Names in lower case."""
    body: bytes
    address: str
    at: float


class BodyTooLong(Exception):
    """Longer than is taken."""


class BodyUnreadable(Exception):
    """Not what it says it is. The text is fit for the sender."""


class Admission:
    """Where deliveries come in."""

    def __init__(
        self, stores: Mapping[str, Store], tally: RefusalCounts, keeper: RefusalLog, locksmith: SecretCache
    ) -> None:
        self._stores = stores
        self._index = StoreIndex(stores)
        self._decoy = decoy()
        self._tally = tally
        self._keeper = keeper
        self._locksmith = locksmith

    def judge(self, arrival: IncomingDelivery) -> Delivery | Answer:
        """A delivery to keep, or the answer to one that is not let in."""
        store = arrival.store
        named = self._stores.get(store) if store else self._index.find(arrival.headers, arrival.body)
        known = self._locksmith.equipped(named)
        try:
            return self._let_in(known, arrival)
        except DeliveryRefused as refusal:
            self._refuse(refusal, known, arrival)
            return SIGNED_BY_NOBODY_YET if self._locksmith.unsure else SIGNED_BY_NOBODY

    def answer(self, delivery: Delivery, kept: Stored | NotStored) -> Answer:
        """What to say once it is kept, or once it is known that it is not."""
        if isinstance(kept, NotStored):
            return NOT_KEPT
        if kept.status == "full":
            return FULL
        return told({"id": kept.id, "status": kept.status}, self._stores[delivery.event.store].scheme.success)

    def _let_in(self, known: Store | None, arrival: IncomingDelivery) -> Delivery:
        """An unknown store costs the same work as a known one and ends the same way."""
        try:
            delivery = receive(arrival.headers, arrival.body, store=known or self._decoy, now=arrival.at)
        except DeliveryRefused:
            if known:
                raise
        if known is None:
            raise DeliveryRefused("unknown-store", "no such store")
        return delivery

    def _refuse(self, refusal: DeliveryRefused, known: Store | None, arrival: IncomingDelivery) -> None:
        """Count it, and keep it for a while: the secret may be wrong on our side."""
        label = known.name if known else UNKNOWN_STORE
        self._tally.refused(label, refusal.reason)
        self._keeper.keep(
            Refusal(
                at=arrival.at,
                store=label,
                named=arrival.store if is_store_name(arrival.store) else "",
                reason=refusal.reason,
                length=len(arrival.body),
                hash=hashlib.sha256(arrival.body).hexdigest()[:16],
                address=arrival.address,
                headers=stored_headers(arrival.headers, known.scheme.reads if known else ()),
                body=arrival.body,
            )
        )


def read_body(read: Callable[[int], bytes], announced: str, limit: int) -> bytes:
    """The whole body. Refuses one that is longer than the limit, or not as long as it says."""
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise BodyTooLong
    try:
        body = _read_up_to(read, limit + 1)
    except Exception:  # noqa: BLE001  a bad chunk, a sender that went away: each server has its own errors for it
        raise BodyUnreadable("The body could not be read.") from None
    if len(body) > limit:
        raise BodyTooLong
    if announced and len(body) != int(announced):
        raise BodyUnreadable("The body is shorter than its Content-Length.")
    return body


def _read_up_to(read: Callable[[int], bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := read(limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
