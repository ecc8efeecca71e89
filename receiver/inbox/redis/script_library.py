"""The texts of our scripts, as the server is given them: one library of functions, or one script each. No I/O.

The server makes a function of a library once, when it is loaded. A script is made anew for each call, with every
function it is written in, which is a third of what a small call costs.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

NAMED = "storehooks_"


class Source(NamedTuple):
    """A script as it is written: its file gives the function that does it, and the first line of it the flags."""

    flags: tuple[str, ...]
    text: str


class Text(NamedTuple):
    """What the server is given, and what it is called by then."""

    name: str
    text: str


@cache
def sources() -> dict[str, Source]:
    """Every script by its name, and what all of them share, by the name "lib"."""
    folder = resources.files("receiver.inbox") / "lua"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".lua")), key=lambda one: one.name)
    return {one.name.removesuffix(".lua"): _source(one.read_text()) for one in files}


def _source(text: str) -> Source:
    first, _, rest = text.partition("\n")
    if not first.startswith("#!lua"):
        return Source((), text)
    flags = first.partition("flags=")[2]
    return Source(tuple(flags.split(",")) if flags else (), rest)


@cache
def library() -> Text:
    """All scripts as functions. Its name tells its content, so that two versions of us may use one server."""
    parts = [sources()["lib"].text]
    for name, source in sources().items():
        if name != "lib":
            flags = ", ".join(f"'{flag}'" for flag in source.flags)
            parts.append(
                f"do\n  local script = (function()\n{source.text}\n  end)()\n"
                f"  redis.register_function{{ function_name = LIBRARY .. '_{name}', flags = {{ {flags} }},\n"
                "    callback = function(keys, arguments) return call(script, keys, arguments) end }\nend\n"
            )
    text = "".join(parts)
    own_name = NAMED + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Text(own_name, f"#!lua name={own_name}\nlocal LIBRARY = '{own_name}'\n{text}")


@cache
def function(name: str) -> str:
    """What one of them is called as a function."""
    return f"{library().name}_{name}"


@cache
def script(name: str) -> Text:
    """One of them as a script."""
    source = sources()[name]
    flags = f" flags={','.join(source.flags)}" if source.flags else ""
    text = (
        f"#!lua{flags}\nlocal keys, arguments = KEYS, ARGV\n{sources()['lib'].text}\n"
        f"local script = (function()\n{source.text}\nend)()\nreturn call(script, keys, arguments)\n"
    )
    return Text(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
