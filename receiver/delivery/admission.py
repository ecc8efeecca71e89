"""Admission: verifies an incoming delivery, and admits or refuses it.

The Flask view and the event loop both use it, so that they cannot answer differently. It knows no web framework and no
socket.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from secrets import token_bytes
from typing import NamedTuple

from receiver import logs
from receiver.config.values import is_store_name
from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import LOOP_BYTES, Delivery, LongWork, NoEvents, read_delivery
from receiver.contract.sender_address import SENDER_BITS, TrustedProxies, sender_at
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import MAX_TRIED, Headers, Verified, verify
from receiver.contract.signing.sources import BodyFields
from receiver.contract.stored_headers import NEVER_STORED, SealHeader, headers_of_refusal
from receiver.contract.stores import UNKNOWN_STORE, NamedStore, Store, StoreIndex
from receiver.delivery.answers import Answer, json_answer, problem, unavailable
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.delivery.signed_contents import SignedContents, repeatable_bytes
from receiver.delivery.storage import NotStored, Stored
from receiver.inbox import AcceptResult, keys
from receiver.inbox.counter_buffer import CounterBuffer
from receiver.spool import Refusal, SpoolResult

INVALID_SIGNATURE = problem(HTTPStatus.UNAUTHORIZED, "Invalid signature.")
CANNOT_VERIFY = unavailable("The signature cannot be verified now. Retry later.")
NOT_STORED = unavailable("The delivery could not be stored. Retry later.")
SENT_TOO_OFTEN = unavailable("The same signed content was sent too often. Retry later.")
STORE_FULL = unavailable("This store has too many waiting events. Retry later.")
LOOP_HASHED = 16 << 20
"""Bytes that are hashed to verify a delivery in the loop, in 40 to 80 ms: a large one with each secret of a store. At
the common URL one that names four stores may take many times as long; a thread does not hold up the loop with that."""
_LENGTH = re.compile("[0-9]{0,20}")
"""Python converts no more than 4,300 digits, and some servers pass on any number of zeros."""
_FULL = {"redis": "it has max_stored open events", "spool": "its part of the spool is full"}

log = logs.get("receiver")


class IncomingDelivery(NamedTuple):
    """One request, before it is verified."""

    store: str
    """From the URL; empty at the common URL, where headers or body name the store."""
    headers: Headers
    """Names in lower case; query fields as `?NAME`."""
    body: bytes
    address: str
    """Of the connection's other end, which may be a proxy."""
    at: float


class BodyTooLong(Exception):
    """The body is longer than the limit."""


class BodyUnreadable(Exception):
    """The body is incomplete or malformed. The text is shown to the sender."""


class Admission:
    def __init__(
        self,
        stores: Mapping[str, Store],
        key: bytes,
        secrets: SecretCache,
        counts: CounterBuffer,
        refusals: RefusalLog,
        seal: SealHeader | None = None,
        proxies: TrustedProxies | None = None,
    ) -> None:
        """`key` decides which store an unknown one is treated like; it must be equal in all processes."""
        self._seal = seal
        self._proxies = proxies or TrustedProxies()
        self._stores = stores
        self._index = StoreIndex(stores, key)
        self._dummy_secrets = tuple(Secret(token_bytes(32)) for _ in range(MAX_TRIED))
        self._secrets = secrets
        self._counts = counts
        self._refusals = refusals
        self._contents = SignedContents()
        self._counted = logs.CountedLog(log)
        self._unreadable = logs.LimitedLog(
            log, self._counted, level="error", more="more unreadable deliveries, without a line each"
        )

    def admit(self, incoming: IncomingDelivery, *, in_loop: bool = False) -> Delivery | Answer:
        """Return the verified delivery, to be stored; or the answer to one that is refused.

        An unknown store costs the same work as a known one and gets the same answer. With `in_loop` raises LongWork for
        one that takes long to verify, or to read. Its content decides only once it is verified: else the time of an
        answer could reveal which stores exist.
        """
        refused: list[tuple[str, NamedStore]] = []
        named = self._named(incoming)
        if in_loop and len(incoming.body) > LOOP_BYTES and self._hashed_bytes(named, incoming) > LOOP_HASHED:
            raise LongWork("")
        fields = BodyFields(incoming.body)
        for one in named:
            try:
                store, proof = self._verify(one, incoming, fields)
                delivery = read_delivery(
                    incoming.headers,
                    incoming.body,
                    store=store,
                    now=incoming.at,
                    source="webhook",
                    signed_with=proof.secret.fingerprint,
                    in_loop=in_loop,
                )
                return SENT_TOO_OFTEN if self._is_too_often(delivery, proof.content, incoming) else delivery
            except DeliveryRefused as refusal:
                # only the reason: the exception refers to this frame, and so would keep the body in memory
                refused.append((refusal.reason, one))
            except NoEvents:
                return json_answer({"ids": [], "status": "accepted"}, one.store.scheme.success)
        answer = CANNOT_VERIFY if self._secrets.may_be_incomplete else INVALID_SIGNATURE
        self._record(*refused[0], incoming, answer)
        return answer

    def answer(self, delivery: Delivery, stored: Stored | NotStored) -> Answer:
        """The answer to an admitted delivery, by what storing it returned."""
        store = delivery.event.store
        if isinstance(stored, NotStored):
            self._counted.add("deliveries answered 503", level="error", store=store, reason=stored.reason)
            return NOT_STORED
        if stored.status == "full":
            self._counted.add("deliveries answered 503", store=store, reason=_FULL[stored.where])
            return STORE_FULL
        scheme = self._stores[store].scheme
        if not scheme.batch:
            if delivery.unreadable:
                self._log_unreadable(delivery, stored)
            return json_answer({"id": stored.id, "status": stored.status}, scheme.success)
        items = stored.items or (stored,)
        for one, result in zip((delivery, *delivery.rest), items, strict=True):
            if one.unreadable:
                self._log_unreadable(one, result)
        return json_answer({"ids": [one.id for one in items], "status": stored.status}, scheme.success)

    def _is_too_often(self, delivery: Delivery, content: bytes, incoming: IncomingDelivery) -> bool:
        """Whether what is signed of a delivery was sent too often under other ids, or with other bodies."""
        size, store = repeatable_bytes(delivery), delivery.event.store
        if not size:
            return False
        sender = sender_at(self._proxies.sender(incoming.address, incoming.headers), bits=SENDER_BITS)
        if not self._contents.add(delivery.signed_with, content, sender, size):
            return False
        reason = "the same signed content was sent too often"
        self._counted.add("deliveries answered 503", store=store, reason=reason)
        return True

    def _log_unreadable(self, delivery: Delivery, stored: Stored | AcceptResult | SpoolResult) -> None:
        if stored.status == "accepted":
            # The cause is not logged: it may quote the body.
            failure = {"event_id": stored.id, "handler": keys.INTAKE, "reason": "unreadable", "next_try": "none"}
            self._unreadable.add(logs.FAILED, {"store": delivery.event.store}, **failure)

    def _named(self, incoming: IncomingDelivery) -> list[NamedStore]:
        """At least one, known ones first."""
        if incoming.store:
            return [self._index.by_name(incoming.store)]
        return self._index.candidates(incoming.headers, incoming.body)

    def _hashed_bytes(self, named: list[NamedStore], incoming: IncomingDelivery) -> int:
        secrets = sum(len(self._secrets.with_current_secrets(one.store).secrets) for one in named)
        return secrets * len(incoming.body)

    def _verify(self, named: NamedStore, incoming: IncomingDelivery, fields: BodyFields) -> tuple[Store, Verified]:
        """Verify a delivery to a known store. One to an unknown store is refused with what that costs for a known one.

        It is verified with as many secrets as the imitated store has, none of which can match.
        """
        store = self._secrets.with_current_secrets(named.store)
        secrets = (store.secrets if named.is_known else self._dummy_secrets)[: len(store.secrets)]
        proof = verify(
            store.scheme,
            secrets=secrets,
            headers=incoming.headers,
            body=fields,
            now=incoming.at,
            url=store.url,
        )
        if not named.is_known:  # no input leads here; it must never become an event of the imitated store
            raise DeliveryRefused("unknown-store", "no such store")
        return store, proof

    def _record(self, why: str, named: NamedStore, incoming: IncomingDelivery, answer: Answer) -> None:
        """Count a refusal and store the delivery for a while: the configured secret may be the wrong one."""
        label, reason = (named.store.name, why) if named.is_known else (UNKNOWN_STORE, "unknown-store")
        self._counts.add(label, "refused", f"refused:{reason}")
        self._counted.add("deliveries refused", store=label, reason=reason)
        reads = named.store.scheme.reads
        if not named.is_known:
            reads = reads & NEVER_STORED  # sealing takes time, and an unknown store costs the same work as a known one
        self._refusals.add(
            Refusal(
                at=incoming.at,
                store=label,
                named=incoming.store if is_store_name(incoming.store) else "",
                reason=reason,
                length=len(incoming.body),
                hash=hashlib.sha256(incoming.body).hexdigest()[:16],
                address=self._proxies.sender(incoming.address, incoming.headers),
                headers=headers_of_refusal(incoming.headers, reads, self._seal),
                body=incoming.body,
                status=answer.status,
            )
        )


def read_body(read: Callable[[int], bytes], announced: str, limit: int) -> bytes:
    """Read the whole body. Raises for one that is longer than the limit, or not as long as announced."""
    if not _LENGTH.fullmatch(announced):
        raise BodyUnreadable("Content-Length is not a number.")
    length = int(announced or limit + 1)
    if announced and length > limit:
        raise BodyTooLong
    try:
        body = _read_up_to(read, length)  # some servers wait for what is beyond it
    except Exception:  # noqa: BLE001  a bad chunk, a closed connection: each server raises its own errors
        raise BodyUnreadable("The body could not be read.") from None
    if len(body) > limit:
        raise BodyTooLong
    if announced and len(body) != length:
        raise BodyUnreadable("The body is shorter than its Content-Length.")
    return body


def _read_up_to(read: Callable[[int], bytes], limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := read(limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
