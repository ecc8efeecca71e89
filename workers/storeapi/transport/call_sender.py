"""Call sender: one call to a store, with its token and within the rate limits, retried until its deadline."""

from __future__ import annotations

import random
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from workers.storeapi.errors import AccessDenied, ApiError, RateLimited, StatusError, Unreachable
from workers.storeapi.transport.auth import TokenSource
from workers.storeapi.transport.http import HttpResponse, HttpSession
from workers.storeapi.transport.rate_limit import SLACK, RateLimiter
from workers.storeapi.transport.retry import MAX_FAULTS, backoff, is_fault, retry_after

SHORTEST_SECRET = 8
SHORTEST_TRY = 0.25
"""Seconds. A try that has less would end in a timeout, which hides what the store has answered before."""
LONGEST_PAUSE = 3600.0
"""Seconds. A store that asks all calls to wait longer is asked again after this time."""
MAX_MISSED_SLOTS = 5
"""Number of slots a call may miss by waking up late. After that it is sent anyway."""


@dataclass(frozen=True)
class ApiCall:
    """One call. It may be sent more than once."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes | None
    retry_safe: bool
    until: float
    name: str


class TokenHeader(NamedTuple):
    """The header that holds the token, and the word before the token; "" for none."""

    name: str
    scheme: str

    def value(self, token: str) -> str:
        """With Basic, `user:password` is encoded; a token that has no colon is encoded already."""
        if self.scheme.lower() == "basic" and ":" in token:
            token = b64encode(token.encode()).decode()
        return f"{self.scheme} {token}".strip()

    def secrets(self, token: str) -> tuple[str, ...]:
        """The token as it is in config and in the header."""
        return token, self.value(token).rpartition(" ")[2]


BEARER = TokenHeader("authorization", "Bearer")
_NAME_OF_A_SECRET = re.compile("key|token|secret|auth|password")
"""The headers of a catalogue may have a second key, and values that every error may show."""


def _to_hide(secrets: Iterable[str]) -> tuple[str, ...]:
    """As they are, and in JSON whose slashes are escaped."""
    return tuple(text for one in secrets if len(one) >= SHORTEST_SECRET for text in (one, one.replace("/", "\\/")))


class CallLimit(NamedTuple):
    """A rate limit that calls obey. `evenly`: a call that wakes up late for its slot takes another one."""

    name: str
    limiter: RateLimiter
    evenly: bool


@dataclass
class _Retries:
    """What has happened to a call so far."""

    faults: int = 0
    rate_limited: int = 0
    refused_token: str = field(default="", repr=False)


class CallSender:
    def __init__(
        self,
        store: str,
        http: HttpSession,
        tokens: TokenSource,
        *,
        token_header: TokenHeader = BEARER,
        store_limit: CallLimit,
        overall_limit: CallLimit | None = None,
        count: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        """`count` is called with the status of each answer, and with None if there was none."""
        self._store = store
        self._http = http
        self._tokens = tokens
        self._token_header = token_header
        self._store_limit = store_limit
        self._overall_limit = overall_limit
        self._count = count

    def send(self, call: ApiCall, error_for: Callable[[HttpResponse], StatusError]) -> HttpResponse:
        """Send until the store answers 2xx; return that response. Raises an ApiError when no retry is left.

        `error_for` makes the error of a response that is not 2xx.
        """
        retries = _Retries()
        self._http.warm_up(call.url, until=call.until)
        try:
            while True:
                token = self._tokens.bearer(refused=retries.refused_token, until=call.until)
                self._take_slots(call)  # last: calls that waited for the same token must not leave all at once
                try:
                    response = self._send_once(call, token)
                except Unreachable as error:
                    self._count(None)
                    self._wait_after_lost_response(call, retries, error)
                    continue
                self._count(response.status)
                if response.status < 300:
                    return replace(response, resent=retries.faults > 0)
                self._wait_after_error(call, retries, response, token, error_for(response))
        except ApiError as error:
            raise error.with_context(store=self._store, operation=call.name) from None

    def _take_slots(self, call: ApiCall) -> None:
        """Take a slot of the store's own limit, then one of the limit that all stores share. The shared one comes last,
        so that no other wait makes the call leave after its slot: others count these calls too."""
        self._take_slot(call, self._store_limit)
        if self._overall_limit is not None:
            self._take_slot(call, self._overall_limit)

    def _take_slot(self, call: ApiCall, limit: CallLimit) -> None:
        """Wait for a slot. On a busy machine the call may wake up after its slot; then it takes another."""
        for _ in range(MAX_MISSED_SLOTS):
            asked = time.monotonic()
            wait = limit.limiter.take_slot(call.until - asked)
            if wait < 0:
                raise RateLimited(
                    f"{limit.name} has no slot for {-wait:.1f} s, longer than this call may take",
                    status=429,
                    retry_after=-wait,
                )
            if wait:
                time.sleep(wait if limit.evenly else wait * random.uniform(1.0, 1.1))  # noqa: S311  not all at once
            if not limit.evenly or time.monotonic() - asked - wait < SLACK:
                return

    def _send_once(self, call: ApiCall, token: str) -> HttpResponse:
        headers = {"accept": "application/json", "user-agent": "storehooks", **call.headers}
        headers[self._token_header.name] = self._token_header.value(token)
        if call.content is not None:
            headers["content-type"] = "application/json"
        response = self._http.send(call.method, call.url, headers=headers, content=call.content, until=call.until)
        keys = [value for name, value in call.headers.items() if _NAME_OF_A_SECRET.search(name)]
        return replace(response, hidden=_to_hide([*self._token_header.secrets(token), *keys]))

    def _wait_after_lost_response(self, call: ApiCall, retries: _Retries, error: Unreachable) -> None:
        """No response. A retry is safe if the store cannot have the call, or if doing it twice does no harm."""
        retries.faults += 1
        pause = backoff(retries.faults - 1)
        if _is_late(call, pause) or retries.faults >= MAX_FAULTS or (error.sent and not call.retry_safe):
            raise error
        time.sleep(pause)

    def _wait_after_error(
        self, call: ApiCall, retries: _Retries, response: HttpResponse, token: str, error: StatusError
    ) -> None:
        """An error response. Raises `error`, or returns when the call is to be sent again."""
        if isinstance(error, AccessDenied) and response.status == 401 and not retries.refused_token:
            retries.refused_token = token  # expired or revoked; the store did nothing, so a retry is safe
            return
        after = retry_after(response.headers.get("retry-after"))
        if response.status == 429:
            pause = after or backoff(retries.rate_limited)
            retries.rate_limited += 1
        elif is_fault(response.status) and call.retry_safe and retries.faults + 1 < MAX_FAULTS:
            pause = max(backoff(retries.faults), after or 0.0)
            retries.faults += 1
        else:
            raise error
        error.retry_after = pause if after is None else after
        pauses_all = response.status == 429 and after != 0  # "Retry-After: 0" is for this call alone
        if pauses_all:  # also if this call cannot wait: the store counts the calls of every process
            self._store_limit.limiter.pause(min(pause, LONGEST_PAUSE))
        if _is_late(call, pause):
            raise error
        if not pauses_all:
            time.sleep(pause)


def _is_late(call: ApiCall, pause: float) -> bool:
    """Whether the call's time would be over soon after this pause."""
    return time.monotonic() + pause + SHORTEST_TRY >= call.until
