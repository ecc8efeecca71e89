"""Writes: which resource an operation writes to, what its answer shows, and which data its echo has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation

MAX_ID = 200
"""Characters. A resource with a longer id is not watched: the id is part of a key in Redis."""
MAX_ROWS = 100
"""Of a bulk operation, the first rows are watched."""


@dataclass(frozen=True)
class Write:
    """A write that the store has answered."""

    kind: str
    """The first word of the resource's topics: product, order."""
    resource_id: str
    action: str
    """The last word of the topic that it causes: created or updated."""
    shown: Mapping[str, Any] | None
    """The whole resource in the answer; None if the answer shows another record, such as an inventory or a variant."""
    sent: Mapping[str, Any]
    """The fields of the request."""
    resent: bool = False
    """It was sent more than once: the first one may have had the effect, and the answer may show later changes."""


class WriteWatcher(Protocol):
    """Is notified before and after each write of a client."""

    def watch(self, kind: str, resource_id: str) -> AbstractContextManager[Callable[[Iterator[Write]], None]]:
        """Begin before the request; the id is empty if the request does not name the resource. Call what it returns
        with the answer."""


def kind_of(operation: Operation, catalogue: Catalogue) -> str:
    """The kind of resource that an operation belongs to: what `get` of its group returns."""
    return catalogue.operations.get(f"{operation.group}.get", operation).record


def writes_in(
    operation: Operation, catalogue: Catalogue, named: str, sent: Any, data: Any, *, resent: bool = False
) -> Iterator[Write]:
    """The writes that an answer's data shows. `named` is the resource in the path, if there is one."""
    kind, record_map = kind_of(operation, catalogue), catalogue.record_map(operation)
    shows_it = operation.record == kind
    if operation.body and isinstance(sent, Mapping):
        sent = sent.get(operation.body)
    for row in (data if isinstance(data, list) else [data])[:MAX_ROWS]:
        found = record_map.read(operation.record, "id", row) if shows_it or not named else None
        found = found if isinstance(found, int | str) else None
        resource_id = named if found is None else str(found)
        if 0 < len(resource_id) <= MAX_ID:
            action = "updated" if resource_id == named or not shows_it else "created"
            fields = sent if isinstance(sent, Mapping) else {}
            yield Write(kind, resource_id, action, row if shows_it and found is not None else None, fields, resent)


def data_digest(data: Any, volatile: Sequence[str]) -> str:
    """The digest of a resource without its volatile fields; empty if it is no object, or cannot be compared."""
    try:
        return exact_json.digest(data, without=volatile) if isinstance(data, Mapping) else ""
    except (ValueError, RecursionError):  # a number out of range, or nested too deeply
        return ""


def echo_digests(write: Write, known: Any, volatile: Sequence[str]) -> tuple[str, str]:
    """The digest that the echo of a write has, and those of the names and the values of what was sent, by which a
    repeated write is recognised. The latter have a "!" before them if the answer shows more changes than that;
    they are empty if it shows none.

    The first is empty if an event with that data could as well be an outside change.

    That is so if the answer shows none of the fields that were sent. It is also so if the write changed nothing of the
    data that its writer knew (`known`, None if it knew none), and yet the answer differs from that: then others have
    changed the resource since, and a store that sends no event for a write without effect sends only theirs. The same
    holds for a write that was sent again, if the answer shows more than it.
    """
    shown = write.shown
    sent = [name for name in write.sent if shown is not None and name in shown]
    if shown is None or not (sent or write.action == "created"):
        return "", ""
    digest = data_digest(shown, volatile)
    if write.action == "created":
        return digest, ""
    before = known if isinstance(known, Mapping) else {}
    if digest == data_digest(before, volatile):
        return digest, ""
    expected = {**before, **{name: shown[name] for name in sent}}
    if before and data_digest(expected, ()) == data_digest(before, ()):
        return "", ""
    others_changed = digest != data_digest(expected, volatile)
    if others_changed and write.resent:
        return "", ""
    names = data_digest(dict.fromkeys(write.sent), ())
    return digest, f"{'!' if others_changed else ''}{names}.{data_digest(write.sent, ())}"
