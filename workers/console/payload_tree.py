"""Payload tree: a body or headers as nodes for a page, within bounds, with personal fields marked. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from receiver.contract.event import form_fields
from receiver.contract.whole_characters import with_whole_characters

MAX_NODES = 1_000
MAX_CHILDREN = 200
MAX_DEPTH = 40
MAX_TEXT = 500
_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Literal(str):
    """A number, true, false or null as the sender wrote it: no digit is lost."""


@dataclass
class Node:
    name: str
    text: str = ""
    """The value, if it has no nodes below."""
    is_text: bool = False
    size: int = 0
    """The number of entries of an object or a list, of which not all may be shown."""
    brackets: str = ""
    nodes: list[Node] = field(default_factory=list)
    is_personal: bool = False
    note: str = ""
    """What is not shown."""


class PersonalFields:
    """Says which fields are personal: by their name, or by the end of their path."""

    def __init__(self, patterns: Iterable[str]) -> None:
        plain = [_plain(one) for one in patterns]
        self._names = [one for one in plain if "." not in one]
        self._paths = [f"*.{one}" for one in plain if "." in one]

    def has(self, path: Sequence[str]) -> bool:
        name, whole = _plain(path[-1]), "." + ".".join(map(_plain, path))
        return any(fnmatchcase(name, one) for one in self._names) or any(fnmatchcase(whole, one) for one in self._paths)


def _plain(name: str) -> str:
    """Field names in one form: firstName and First-Name are first_name."""
    return _WORD_BREAK.sub("_", name[:200]).lower().replace("-", "_")


def body_tree(body: bytes, personal: PersonalFields) -> Node | None:
    """The tree of a body that is JSON or a form; None for any other."""
    try:
        document = json.loads(
            with_whole_characters(body),
            parse_int=Literal,
            parse_float=Literal,
            parse_constant=Literal,
            object_pairs_hook=_Pairs,
        )
    except (ValueError, RecursionError):
        document = form_fields(body)
        if not document:
            return None
        document = _Pairs((name, value) for name, value in document.items())
    return _Builder(personal).build("", document, ())


def field_tree(fields: Iterable[tuple[str, str]], personal: PersonalFields) -> Node:
    """The tree of headers."""
    return _Builder(personal).build("", _Pairs(sorted(fields)), ())


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in order. A name may occur twice."""


class _Builder:
    def __init__(self, personal: PersonalFields) -> None:
        self._personal = personal
        self._left = MAX_NODES

    def build(self, name: str, value: Any, path: tuple[str, ...], depth: int = 0) -> Node:
        self._left -= 1
        node = self._node(name, value, path, depth)
        node.is_personal = bool(path) and self._personal.has(path)
        return node

    def _node(self, name: str, value: Any, path: tuple[str, ...], depth: int) -> Node:
        match value:
            case _Pairs():
                return self._with_nodes(Node(name, size=len(value), brackets="{}"), value, path, depth)
            case list() | tuple():
                return self._with_nodes(Node(name, size=len(value), brackets="[]"), enumerate(value), path, depth)
            case str() if not isinstance(value, Literal):
                rest = len(value) - MAX_TEXT
                return Node(name, value[:MAX_TEXT], is_text=True, note=f"{rest:,} more characters" if rest > 0 else "")
        return Node(name, value[:MAX_TEXT] if isinstance(value, str) else json.dumps(value))

    def _with_nodes(self, node: Node, entries: Iterable[tuple[Any, Any]], path: tuple[str, ...], depth: int) -> Node:
        if depth >= MAX_DEPTH:
            node.note = "deeper levels are not shown" if node.size else ""
            return node
        for key, value in entries:
            if self._left <= 0 or len(node.nodes) >= MAX_CHILDREN:
                node.note = f"{node.size - len(node.nodes):,} more are not shown"
                break
            below = path if isinstance(key, int) else (*path, str(key))  # an entry of a list has the path of its list
            node.nodes.append(self.build(_cut(str(key)), value, below, depth + 1))
        return node


def _cut(name: str) -> str:
    rest = len(name) - MAX_TEXT
    return f"{name[:MAX_TEXT]}… ({rest:,} more characters)" if rest > 0 else name
