"""Field changes: what differs between two events of one resource. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workers.console.payload_tree import Node, PersonalFields, body_tree

MAX_CHANGES = 20
MAX_TEXT = 100


class FieldChange(NamedTuple):
    path: str
    before: str | None
    """Empty if the field was not there. None for a personal one."""
    after: str | None


def field_changes(
    before: bytes, after: bytes, personal: PersonalFields, data_path: str
) -> tuple[list[FieldChange], int, bool]:
    """The fields of the data that differ, by path, how many more there are, and whether all was compared."""
    trees = [body_tree(body, personal) for body in (before, after)]
    if None in trees:
        return [], 0, False
    found = [_data(tree, data_path) for tree in trees if tree]
    old, new = (dict(_leaves(node, "", is_personal)) for node, is_personal in found)
    paths = [path for path in sorted(old | new) if old.get(path) != new.get(path)]
    changes = [_change(path, old.get(path), new.get(path)) for path in paths[:MAX_CHANGES]]
    return changes, max(0, len(paths) - MAX_CHANGES), not any(_is_cut(node) for node, _ in found)


class _Leaf(NamedTuple):
    text: str
    is_text: bool
    is_personal: bool


def _change(path: str, old: _Leaf | None, new: _Leaf | None) -> FieldChange:
    if any(one and one.is_personal for one in (old, new)):
        return FieldChange(path, None, None)
    return FieldChange(path, *(one.text[:MAX_TEXT] if one else "" for one in (old, new)))


def _is_cut(node: Node) -> bool:
    return bool(node.note) or any(map(_is_cut, node.nodes))


def _data(tree: Node, path: str) -> tuple[Node, bool]:
    """The node at a path, and whether it is in a personal field; the whole tree, if it has no such node."""
    found, is_personal = tree, False
    for name in path.split(".") if path else ():
        below = next((one for one in found.nodes if one.name == name), None)
        if below is None:
            return tree, False
        found, is_personal = below, is_personal or below.is_personal
    return found, is_personal


def _leaves(node: Node, path: str, is_personal: bool) -> Iterator[tuple[str, _Leaf]]:
    for one in node.nodes:
        below = f"{path}.{one.name}" if path else one.name
        if one.nodes:
            yield from _leaves(one, below, is_personal or one.is_personal)
        else:
            yield below, _Leaf(one.brackets or one.text, one.is_text, is_personal or one.is_personal)
