"""Stored headers: which headers of a delivery are stored, and which values only sealed or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache

from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import REDACTED
from receiver.contract.signing.signatures import Headers, Scheme

MAX_HEADERS = 64
MAX_NAME = 64
ITEM = "storehooks-item"
"""Stored like a header with each event of a batch: its place in the delivery, from 1. Never read from a sender."""
NEVER_STORED = frozenset(("authorization", "proxy-authorization", "cookie", ITEM, REDACTED))
"""Never stored as they were sent. One that the scheme reads is stored sealed with a refusal."""
NOT_STORED = "(not stored: it may be a credential)"
"""The value of a header whose own value is not stored. Not an empty one: that may have been sent."""
SEALED = "(sealed) "
"""Before the sealed value of a header that is never stored as it was sent."""
_SECRET = ("secret", "token", "passw", "passphrase", "sess", "cookie", "bearer", "wsse")
_CREDENTIAL = (
    *("credential", "private", "auth", "jwt", "oidc", "principal", "cert"),
    *(kind + mark + "key" for kind in ("api", "access") for mark in ("", "_", "-")),
)
_SECRET_ENDS = tuple(mark + word for mark in "?_-" for word in ("pass", "pwd", "otp"))
_KEY_ENDS = ("?key", "_key", "-key")
_NO_CREDENTIAL = ("signature", "hmac", "digest")
_NO_CREDENTIAL_ENDS = tuple(
    word + mark + "key"
    for word in ("idempotency", "event", "topic", "webhook", "delivery", "message", "request", "resource")
    for mark in "_-"
)
_SHA = re.compile(r"sha\d")

SealHeader = Callable[[str, str], str]
"""Seals the value of a header: name and value, to its text after `SEALED`."""


def is_credential(name: str) -> bool:
    """Whether a header, by its name, holds a credential, such as a proxy's token. A signature, id or topic is none.

    No store needs a very long name, and searching it takes long: it counts as one, so that its value is not stored.
    """
    return len(name) > MAX_NAME or _is_credential(name)


@lru_cache(maxsize=4096)
def _is_credential(name: str) -> bool:
    """By plain searches: a request may have a hundred new names, and a regex of alternatives takes long."""
    name = name.lower()  # that of a query field may be in any case
    end = "?" + name.removesuffix("\n")
    if name in NEVER_STORED or end.endswith(_SECRET_ENDS) or [word for word in _SECRET if word in name]:
        return True
    if not (end.endswith(_KEY_ENDS) or [word for word in _CREDENTIAL if word in name]):
        return False
    is_none = end.endswith(_NO_CREDENTIAL_ENDS) or [word for word in _NO_CREDENTIAL if word in name]
    return not (is_none or _SHA.search(name))


def stored_headers(headers: Headers, reads: Collection[str] = ()) -> dict[str, str]:
    """Return the headers to store: at most MAX_HEADERS, without credentials.

    Headers that the store's scheme reads are stored under any name, so that the delivery can be verified again.
    """
    wanted = [name for name in headers if not is_credential(name) or (name in reads and name not in NEVER_STORED)]
    if len(wanted) > MAX_HEADERS:
        wanted.sort(key=lambda name: name not in reads)
    return {name: headers[name] for name in wanted[:MAX_HEADERS]}


def headers_of_refusal(headers: Headers, reads: Collection[str] = (), seal: SealHeader | None = None) -> dict[str, str]:
    """Return the headers to store with a refusal. Credentials are stored as names only: one may be the signature.

    What is never stored as it was sent is sealed if the scheme reads it and there is a key.
    """
    sealed = {name: SEALED + seal(name, headers[name]) for name in NEVER_STORED.intersection(reads, headers) if seal}
    stored = {**sealed, **stored_headers(headers, reads)}
    others = [name for name in headers if name not in stored][: max(0, MAX_HEADERS - len(stored))]
    return {**stored, **{name: headers[name] and NOT_STORED for name in others}}


def sealed_headers(headers: Headers) -> dict[str, str]:
    """Return the sealed values of a refusal. Only those: another header may have been sent with the same text."""
    return {
        name: value.removeprefix(SEALED)
        for name, value in headers.items()
        if name in NEVER_STORED and value.startswith(SEALED)
    }


def omitted_headers(headers: Headers) -> list[str]:
    """Return the headers of a refusal whose values are not stored."""
    return [name for name, value in headers.items() if value == NOT_STORED and is_credential(name)]


def require_stored(headers: Headers, scheme: Scheme) -> None:
    """Refuse a stored delivery if the scheme reads a header whose value is not stored or was not opened."""
    missing = [name for name in omitted_headers(headers) if name in scheme.reads]
    if closed := [name for name in sealed_headers(headers) if name in scheme.reads]:
        why = "whose value is sealed under a [secrets] key that is not in the config"
        raise DeliveryRefused("incomplete", f"the scheme reads {', '.join(closed)}, {why}")
    if unkept := [name for name in missing if name in NEVER_STORED]:
        why = "whose value is stored only if there is a [secrets] key to seal it, and if the scheme read it on arrival"
        raise DeliveryRefused("incomplete", f"the scheme reads {', '.join(unkept)}, {why}")
    if missing:
        raise DeliveryRefused("incomplete", f"the scheme reads {', '.join(missing)}, whose value was not stored")
