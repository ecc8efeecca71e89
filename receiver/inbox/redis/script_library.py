"""The texts of our Lua scripts: all of them as one library of functions, or one of them as a script. No I/O.

The server compiles a library once, when it is loaded. A script is compiled once too, but each call creates every
function in it again, which is a third of the cost of a small call. So scripts are only for a full server; see
`script_runner`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from receiver.inbox.redis.data_format import read_formats

LIBRARY_PREFIX = "storehooks_"
SHARED = (
    *(
        "call",
        "items",
        "repeats",
        "resources",
        "ready",
        "wake_up",
        "limits",
        "order",
        "begin",
        "held",
        "end",
        "move",
        "merge",
        "bulk",
        "imports",
    ),
)
"""The files in `lua/shared`, in an order in which each uses only those before it."""


class Source(NamedTuple):
    """A file in `lua`: its first line gives the flags, and the rest returns the function that is the script."""

    flags: tuple[str, ...]
    text: str


class Library(NamedTuple):
    name: str
    text: str


@cache
def sources() -> dict[str, Source]:
    """Every script by its name."""
    folder = resources.files("receiver.inbox") / "lua"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".lua")), key=lambda one: one.name)
    return {one.name.removesuffix(".lua"): _source(one.read_text()) for one in files}


@cache
def _shared() -> str:
    folder = resources.files("receiver.inbox") / "lua" / "shared"
    formats = f"local READ_FORMATS = ' {' '.join(read_formats())} '\n"
    return formats + "".join((folder / f"{name}.lua").read_text() for name in SHARED)


def _source(text: str) -> Source:
    first, _, rest = text.partition("\n")
    flags = first.removeprefix("#!lua").partition("flags=")[2]
    return Source(tuple(flags.split(",")) if flags else (), rest)


@cache
def library() -> Library:
    """All scripts as functions. The name contains a digest of the text, so two versions can use one server."""
    parts = [_shared()]
    for name, source in sources().items():
        flags = ", ".join(f"'{flag}'" for flag in source.flags)
        parts.append(
            f"do\n  local script = (function()\n{source.text}\n  end)()\n"
            f"  redis.register_function{{ function_name = LIBRARY .. '_{name}', flags = {{ {flags} }},\n"
            "    callback = function(keys, arguments) return call(script, keys, arguments) end }\nend\n"
        )
    text = "".join(parts)
    name = LIBRARY_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Library(name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{text}")


@cache
def function(name: str) -> str:
    """The name of a script's function."""
    return f"{library().name}_{name}"


@cache
def script(name: str) -> str:
    """The text of one script, for EVAL."""
    source = sources()[name]
    flags = f" flags={','.join(source.flags)}" if source.flags else ""
    return (
        f"#!lua{flags}\nlocal keys, arguments = KEYS, ARGV\n{_shared()}\n"
        f"local script = (function()\n{source.text}\nend)()\nreturn call(script, keys, arguments)\n"
    )
