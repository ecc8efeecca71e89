"""Other texts of the Lua scripts: with limits so small that short tests reach them, or with a mistake to be noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from unittest.mock import patch

from redis.exceptions import ResponseError

from receiver.inbox import connect
from receiver.inbox.redis import script_library


def changed_texts(*changes: tuple[str, str]) -> tuple[str, Mapping[str, script_library.Source]]:
    """What all scripts share, and each of them. A change replaces a text that all of these together contain once."""
    shared, sources = script_library._shared(), script_library.sources()
    for before, after in changes:
        if sum(text.count(before) for text in (shared, *(one.text for one in sources.values()))) != 1:
            raise ValueError(f"not once in the scripts: {before}")
        shared = shared.replace(before, after)
        sources = {name: one._replace(text=one.text.replace(before, after)) for name, one in sources.items()}
    return shared, sources


@contextmanager
def changed_scripts(url: str, *changes: tuple[str, str]) -> Iterator[None]:
    """The server forgets them at the end."""
    shared, sources = changed_texts(*changes)
    try:
        with patch.multiple(script_library, _shared=lambda: shared, sources=lambda: sources):
            _read_again()
            try:
                yield
            finally:
                with connect(url, timeout=5.0) as client, suppress(ResponseError):
                    client.function_delete(script_library.library().name)
    finally:
        _read_again()


def _read_again() -> None:
    for cached in (script_library.library, script_library.function, script_library.script):
        cached.cache_clear()
