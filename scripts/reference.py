"""Generates docs/reference.md from the code: every public name with its parameters and its docstring.

`make reference` writes the page; a test checks that it is current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import storehooks
from storehooks import api, records, testing
from workers.plugins.effects import PluginState
from workers.storeapi import errors

PAGE = Path(__file__).parent.parent / "docs/reference.md"
HEAD = """\
# Reference: every public name

Generated from the code by `make reference`. See [plugins.md](plugins.md) for how to use these names,
[effects.md](effects.md) for the guarantees of `ctx.once`, and [client.md](client.md) for the store's API.
"""
HIDDEN = {"effects", "connect", "deadline", "stopped", "handlers", "local_system"}  # internal wiring
ORDER = ("Router", "Event", "Context", "Retry", "Busy", "Fail", "Drop")


def page() -> str:
    parts = [HEAD, "## `storehooks`\n"]
    assert set(ORDER) == set(storehooks.__all__)
    parts += [_of_class(getattr(storehooks, name), name) for name in ORDER]
    parts.append(_of_class(PluginState, "ctx.state"))
    parts.append("## `storehooks.testing`\n")
    for name in sorted(testing.__all__, key=lambda name: (inspect.isclass(getattr(testing, name)), name)):
        found = getattr(testing, name)
        parts.append(_of_class(found, name) if inspect.isclass(found) else _of_function(found, name, "###"))
    parts.append(f"## `storehooks.errors`\n\n```text\n{inspect.getdoc(errors)}\n```\n")
    for module in (records, api):
        rows = [f"| `{name}` | {_one_line(_doc(getattr(module, name)))} |" for name in module.__all__]
        parts.append(f"## `{module.__name__}`\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _of_class(found: type[Any], name: str) -> str:
    made = "" if name == "ctx.state" else _signature(found)
    parts = [f"### `{name}`\n", f"```text\n{name}{made}\n```\n" if made else "", f"{_doc(found)}\n"]
    rows = list(_fields(found))
    if rows:
        parts.append("| | |\n|---|---|\n" + "\n".join(f"| `{row}` | {text} |" for row, text in rows) + "\n")
    for method, value in vars(found).items():
        if not method.startswith("_") and inspect.isfunction(value) and method not in HIDDEN:
            parts.append(_of_function(value, f"{_short(name)}.{method}", "####"))
    return "\n".join(part for part in parts if part)


def _of_function(found: Any, name: str, heading: str) -> str:
    return f"{heading} `{name}`\n\n```text\n{name}{_signature(found)}\n```\n\n{_doc(found)}\n"


def _fields(found: type[Any]) -> Iterator[tuple[str, str]]:
    """Public fields with the docstring below them in the source, and properties with their docstring."""
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            if field.name not in HIDDEN and field.name in found.__annotations__:
                yield field.name, _docstring_below(found, field.name)
    for name, value in vars(found).items():
        if name.startswith("_") or name in HIDDEN:
            continue
        if isinstance(value, property) or hasattr(value, "attrname"):
            yield name, _one_line(inspect.getdoc(value) or "")


def _docstring_below(found: type[Any], name: str) -> str:
    match = re.search(rf'^    {name}: [^\n]*\n    """(.*?)"""', inspect.getsource(found), re.DOTALL | re.MULTILINE)
    return _one_line(match[1]) if match else ""


def _signature(found: Any) -> str:
    """The signature without `self`; a long one with each parameter on its own line."""
    if dataclasses.is_dataclass(found):
        return ""
    signature = inspect.signature(found)
    parameters = list(_parameters([given for given in signature.parameters.values() if given.name != "self"]))
    returns = "" if signature.return_annotation in (signature.empty, "None") else f" -> {signature.return_annotation}"
    flat = f"({', '.join(parameters)}){returns}"
    if len(flat) <= 100:
        return flat
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returns}"


def _parameters(given: list[inspect.Parameter]) -> Iterator[str]:
    bare = False
    for at, one in enumerate(given):
        if one.kind is one.KEYWORD_ONLY and not bare:
            bare = True
            if not any(other.kind is one.VAR_POSITIONAL for other in given[:at]):
                yield "*"
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        kind = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else f" = {one.default!r}".replace("'", '"')
        yield f"{star}{one.name}{kind}{default}"
        following = given[at + 1].kind if at + 1 < len(given) else None
        if one.kind is one.POSITIONAL_ONLY and following is not one.POSITIONAL_ONLY:
            yield "/"


def _doc(found: Any) -> str:
    text = inspect.getdoc(found) or ""
    first, _, rest = text.partition("\n\n")
    return f"{first}\n\n```text\n{rest}\n```" if re.search(r"^\S+  +\S", rest, re.MULTILINE) else text


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _short(name: str) -> str:
    return {"Router": "router", "Context": "ctx", "Event": "event"}.get(name, name)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}", file=sys.stderr)
