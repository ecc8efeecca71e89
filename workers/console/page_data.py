"""Page data: what the views share: the console's config and connections, arguments of addresses, times and audit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar, cast

from flask import abort, current_app, g, request
from markupsafe import Markup
from redis import Redis

from receiver.config import Config
from receiver.contract.diagnosis.formatting import span
from receiver.contract.sender_address import TrustedProxies
from receiver.inbox.audit_trail import AuditEntry, AuditTrail
from receiver.inbox.queries.cursors import Cursor, parse_cursor
from receiver.inbox.queries.damage import PartialReader
from receiver.process.disk_try import require_answer
from receiver.spool import Refusals, open_existing_refusals
from workers.console.access import Access
from workers.history.call_limit import HistoryLimit
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryDatabase
from workers.operations.all_events import AllEvents

ROWS = 50
"""Rows of a list."""
MAX_ARGUMENT = 300
HISTORY_SECONDS = 60.0
"""After this time a history is opened anew, which notices a newer schema, or that another host has it now."""
HISTORY_CALLS = 2
"""A sender has a thread more: it serves pages without the history while that hangs."""
Choice = TypeVar("Choice", bound=str)
_PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]*")
_NAME = re.compile(r"[\w.*?\[\]:@|+-]*", re.ASCII)
"""Names of stores, handlers and groups, ids, and patterns of them."""


class OpenHistory(NamedTuple):
    database: HistoryDatabase | None
    until: float
    """When it is too old."""


class OpenHistories:
    """Those that no request uses now: to connect to PostgreSQL takes longer than to read a page. A request has its own,
    because only one thread at a time may use it."""

    def __init__(self, config: Config, client: Redis) -> None:
        self._config, self._client = config, client
        self._limit = HistoryLimit(HISTORY_CALLS)
        self._free: list[OpenHistory] = []

    def take(self) -> OpenHistory:
        now = time.monotonic()
        with suppress(IndexError):  # none is left
            while True:
                found = self._free.pop(0)  # in turns, so that none is kept beyond its time
                if now < found.until:
                    return found
                if found.database:
                    found.database.close()
        return OpenHistory(open_history(self._config, self._client, limit=self._limit), now + HISTORY_SECONDS)

    def put_back(self, used: OpenHistory) -> None:
        self._free.append(used)


@dataclass(frozen=True)
class Console:
    config: Config
    client: Redis
    access: Access
    histories: OpenHistories
    proxies: TrustedProxies


def console() -> Console:
    return cast(Console, current_app.extensions["console"])


def reader() -> Redis:
    """The connection for a page: a damaged key is left out, and the page says so."""
    if "reader" not in g:
        g.reader = PartialReader(console().client)
        g.damaged = g.reader.damaged
    return cast(Redis, g.reader)


def all_events(client: Redis | None = None) -> AllEvents:
    return AllEvents(client or reader(), history())


def history() -> HistoryDatabase | None:
    """The one of this request."""
    if "history" not in g:
        g.history = console().histories.take()
    return cast(OpenHistory, g.history).database


def end_request(_error: BaseException | None) -> None:
    if "history" in g:
        console().histories.put_back(g.pop("history"))


@contextmanager
def refusals() -> Iterator[Refusals]:
    """The refused deliveries of this host. A disk that hangs must not take the threads of all other pages."""
    require_answer(console().config.data_dir)
    with closing(open_existing_refusals(console().config.data_dir)) as found:
        yield found


# Arguments of addresses: a forged one is a sentence and 400


def text_argument(name: str, values: Mapping[str, str] | None = None) -> str:
    text = (request.args if values is None else values).get(name, "").strip()
    if len(text) > MAX_ARGUMENT or not _PLAIN.fullmatch(text):
        abort(400, f"{name} is too long, or has control characters.")
    return text


def name_argument(name: str, values: Mapping[str, str] | None = None) -> str:
    text = text_argument(name, values)
    if not _NAME.fullmatch(text):
        abort(400, f"{name} is not a name: {text[:60]}")
    return text


def choice_argument(name: str, choices: Sequence[Choice], values: Mapping[str, str] | None = None) -> Choice | None:
    text = text_argument(name, values)
    if text and text not in choices:
        abort(400, f"{name} is one of: {', '.join(choices)}.")
    return next((one for one in choices if one == text), None)


def cursor_argument() -> Cursor | None:
    text = text_argument("before")
    return parse_cursor(text) if text else None


def parse_moment(text: str) -> datetime | None:
    """A time of a form, as `<input type="datetime-local">` writes it or with a time zone; without one it is UTC."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        abort(400, f"{text[:40]} is not a time; write 2026-11-15T03:00")


# Times


def time_tag(moment: datetime | float | None) -> Markup:
    """A time in UTC, which the browser's script shows as local time."""
    if not moment:
        return Markup("")
    at = datetime.fromtimestamp(moment, UTC) if isinstance(moment, int | float) else moment.astimezone(UTC)
    iso, shown = utc_texts(at)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, shown, shown)


def utc_texts(at: datetime) -> tuple[str, str]:
    """A time in UTC for a program, and for a person."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z", f"{at:%Y-%m-%d %H:%M:%S} UTC"


def age(moment: datetime | float | None) -> str:
    """How long ago."""
    if not moment:
        return ""
    at = moment if isinstance(moment, int | float) else moment.timestamp()
    return span(datetime.now(UTC).timestamp() - at)


def milliseconds(ms: float | None) -> str:
    """A duration that may be short."""
    if ms is None:
        return ""
    if ms >= 1000:
        return span(ms / 1000)
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


# What people do


def who() -> str:
    """The person of this request, for the audit trail."""
    return f"console {g.role} {sender()}"


def sender() -> str:
    """Where this request comes from. Behind a proxy of ours, that is what the proxy names: its own address is the same
    for all."""
    forwarded = {"x-forwarded-for": request.headers.get("X-Forwarded-For", "")}
    return console().proxies.sender(request.remote_addr or "", forwarded)


def begin_action(action: str, *, count: int | None = None, **selection: Any) -> AuditEntry:
    return AuditTrail(console().client).begin(who(), action, selection, count=count)


def end_action(entry: AuditEntry, result: str) -> str:
    """The id by which the next page finds the result."""
    return AuditTrail(console().client).end(entry, result).id


def done() -> AuditEntry | None:
    """The end of the action that led to this page."""
    entry_id = name_argument("done")
    return AuditTrail(reader()).find(entry_id) if entry_id else None
