"""Response shapes: finds lists, records and the store's words in a response whose shape is not known. Pure, bounded."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from workers.storeapi.errors import MAX_EXCERPT

MAX_DEPTH = 6
MAX_WORDS = 5
MAX_TEXT = 4096
_WORD_KEYS = re.compile(r"error|message|detail|fault|reason|problem|title|description|msg", re.IGNORECASE)
_NO_WORDS = re.compile(r"trace|stack|url|href|link|type", re.IGNORECASE)
_KEY = re.compile(r"[^\s.]{1,60}")
"""A key that a path in config can have."""
_TAGS = re.compile(r"<(script|style)\b[^>]*>.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)


def lists_in(document: Any, path: str = "", depth: int = 3) -> Iterator[str]:
    """The paths of the lists of objects in a document, the outer ones first. The document itself has the path ""."""
    if isinstance(document, list) and document and all(isinstance(item, Mapping) for item in document):
        yield path
    if isinstance(document, Mapping) and depth:
        for where, value in entries(document, path):
            yield from lists_in(value, where, depth - 1)


def record_in(document: Any, path: str = "", depth: int = 2) -> str | None:
    """The path of the outermost object that has an id; None if there is none."""
    if not isinstance(document, Mapping):
        return None
    if any(str(key).lower() in ("id", "_id", "uuid") for key in document):
        return path
    if depth:
        for where, value in entries(document, path):
            found = record_in(value, where, depth - 1)
            if found is not None:
                return found
    return None


def entries(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """The path and the value of each key that config can name. A store may send any other, of any length."""
    for key, value in document.items():
        if _KEY.fullmatch(key) and key.isprintable():
            yield f"{path}.{key}" if path else key, value


def words_in(document: Any) -> str:
    """What a store says in the JSON document of an error: the texts at keys such as `message` and below `errors`."""
    found: dict[str, None] = {}
    texts = [document] if isinstance(document, str) else _texts(document, "", False, MAX_DEPTH)
    for text in texts:
        found.setdefault(text)
        if len(found) == MAX_WORDS:
            break
    return "; ".join(found)


def _texts(value: Any, key: str, inside: bool, depth: int) -> Iterator[str]:
    """`inside`: a key above says that this is about the error."""
    says = bool(_WORD_KEYS.search(key))
    if isinstance(value, str) and value.strip() and (says or inside):
        yield value[:MAX_TEXT] if says or not key else f"{key[:60]}: {value[:MAX_TEXT]}"
    elif isinstance(value, Mapping) and depth:
        for name, part in value.items():
            if not _NO_WORDS.search(str(name)):
                yield from _texts(part, str(name), says or inside, depth - 1)
    elif isinstance(value, list) and depth:
        for part in value:
            if inside and isinstance(part, str) and key:  # {"errors": {"title": ["is empty"]}}
                yield f"{key[:60]}: {part[:MAX_TEXT]}"
            else:
                yield from _texts(part, "" if says else key, says or inside, depth - 1)


def text_of(content: bytes) -> str:
    """The words of a body that is not JSON; those of a page without its tags."""
    text = content[:MAX_TEXT].decode("utf-8", "ignore")
    return html.unescape(_TAGS.sub(" ", text)) if "<" in text else text


def one_line(text: object, hidden: Iterable[str] = (), limit: int = MAX_EXCERPT) -> str:
    """Text from outside as one line of printable characters, of bounded length, without the hidden secrets."""
    shown = str(text)
    for secret in filter(None, hidden):
        shown = shown.replace(secret, "***")
    return " ".join("".join(one if one.isprintable() else " " for one in shown[:MAX_TEXT]).split())[:limit]
