"""Event filter: which past events a search is for. The databases narrow it down, `is_met_by` decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from receiver.contract.errors import ConfigError
from receiver.contract.event import Event, follow
from receiver.contract.topics import matches
from workers.history.payload_search import body_may_match
from workers.plugins.conditions import faults_of, meets

MAX_TEXT = 300
"""Characters of a text that are stored to be searched. A longer one is compared with the whole event."""
_WHERE = re.compile(r"(?P<path>[^\s=!<>]+)\s*(?:(?P<sign>>=|<=|!=|>|<|=)\s*(?P<value>.*))?", re.DOTALL)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class EventFilter:
    """Conditions that an event must meet, all of them. Empty ones are met by every event."""

    store: str = ""
    topic: str = ""
    """A pattern, such as `order.*`."""
    resource_id: str = ""
    delivery_id: str = ""
    handler: str = ""
    """A handler that had a run of the event; `result` and `error` are those of its run, or else of any run."""
    result: str = ""
    """A part of a run's result as JSON, in upper or lower case."""
    error: str = ""
    """A part of a run's error, in upper or lower case."""
    since: int = 0
    """Time of acceptance (us), inclusive."""
    until: int | None = None
    """Time of acceptance (us), exclusive."""
    where: Sequence[tuple[str, Any]] = ()
    """Paths into `event.data`, each with a condition, as in `when=`; see `where_of`."""

    @property
    def topic_begins(self) -> str:
        """What a matching topic begins with."""
        return _WILD.split(self.topic, maxsplit=1)[0]

    @property
    def has_exact_topic(self) -> bool:
        return self.topic_begins == self.topic

    @property
    def needs_comparing(self) -> bool:
        """Whether the databases return events that do not match."""
        is_long = max(len(self.resource_id), len(self.delivery_id)) > MAX_TEXT
        return bool(self.where) or is_long or not self.has_exact_topic

    @property
    def names_few(self) -> bool:
        """Whether an index leads to the few events that can match, however many there are."""
        return bool(self.resource_id or self.delivery_id)

    def is_met_by(self, event: Event) -> bool:
        """Whether an event meets what the databases do not decide: patterns, long texts, and the payload."""
        if self.topic and not matches(self.topic, event.topic):
            return False
        if self.resource_id and event.resource_id != self.resource_id:
            return False
        if self.delivery_id and event.delivery_id != self.delivery_id:
            return False
        return all(_meets(path, condition, event) for path, condition in self.where)


def where_of(text: str) -> tuple[str, Any]:
    """A condition as it is typed, `customer.email=a@b` or `total>100`, as a path and a condition of `when=`.

    A path alone is met if the value is present. A number is also equal to its text, as in `when=`.
    """
    match = _WHERE.fullmatch(text.strip())
    if not match:
        raise ConfigError(f'--where {text!r} is not a condition; write "customer.email=a@b" or "total>100"')
    path, sign, value = match["path"], match["sign"], match["value"]
    condition: Any = "*" if sign is None else _equals(value.strip()) if sign == "=" else f"{sign} {value}"
    for fault in faults_of({path: condition}):
        raise ConfigError(f"--where {text!r}: the condition {fault}")
    return path, condition


def _equals(text: str) -> Any:
    """The values that a typed text may stand for."""
    if text in _WORDS:
        return [_WORDS[text], text]
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _meets(path: str, condition: Any, event: Event) -> bool:
    try:
        return body_may_match(event.body, [(path, condition)]) and meets(follow(event.data, path), condition)
    except (ValueError, RecursionError):  # the body is not JSON, or too deep to be read
        return False
