"""What is stored of an exception or a result: text of bounded length, and the group of equal failures. Pure."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any

MAX_TRACEBACK = 8_000
MAX_TEXT = 500


def describe_error(error: BaseException, plugin_files: Iterable[str]) -> dict[str, Any]:
    """An exception as it is stored: one line, a bounded traceback, and its group."""
    files = set(plugin_files)
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.name}" for frame in frames if frame.filename in files]
    last = next((frame for frame in reversed(frames) if frame.filename in files), None)
    text = text_of(error, lambda one: "".join(traceback.format_exception(one))).encode("utf-8", "replace").decode()
    kind = type(error).__name__
    return {
        "error": shorten(f"{kind}: {text_of(error)}"),
        "traceback": text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK:],
        "group": group_of(kind, places),
        "at": f"{last.filename}:{last.lineno}" if last else None,
    }


def group_of(kind: str, places: Iterable[str]) -> str:
    """Equal for failures of one cause: the exception's type, and where in plugin code it was raised."""
    return hashlib.sha256("\n".join([kind, *places]).encode()).hexdigest()[:8]


def text_of(value: Any, how: Callable[[Any], str] = str) -> str:
    """A value as text, even where converting it raises."""
    try:
        return how(value)
    except Exception as error:  # noqa: BLE001  a plugin's __str__ may do anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def shorten(value: Any) -> str:
    """Text of bounded length that can be stored, whatever characters the handler put into it."""
    clean = text_of(value).encode("utf-8", "replace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
