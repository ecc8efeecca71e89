"""What is stored of an exception or a result: text of bounded length, and the group of equal failures. Pure."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import Any

from receiver.contract.failure_groups import group_id
from receiver.contract.redaction import MAX_ERROR, without_payload

MAX_TRACEBACK = 8_000
MAX_TEXT = 500


def describe_error(
    error: BaseException, *, handler: str, packages: Collection[str], known: Iterable[str] = (), payload: Any = None
) -> dict[str, Any]:
    """An exception as it is stored: one line, a bounded traceback, and its group.

    `packages` are the top-level packages of the plugin's own code, `known` values of the event. The texts of its
    payload are replaced by their paths: failures are stored longer than bodies.
    """
    frame, number = _innermost_frame(error, packages)
    text = text_of(error, lambda one: "".join(traceback.format_exception(one))).encode("utf-8", "replace").decode()
    kind, message = type(error).__name__, text_of(error)
    function = frame.f_code.co_qualname if frame else ""
    text = without_payload(text, payload) if len(text) <= MAX_ERROR else text
    line = error_line(kind, message, payload)
    if len(text) > MAX_TRACEBACK:  # the calls alone, which have no text of the payload: a cut could be inside of one
        text = f"…{''.join(traceback.format_tb(error.__traceback__))[-MAX_TRACEBACK:]}{line}\n"
    return {
        "error": line,
        "traceback": text,
        "group": group_id(handler, kind, message, function=function, known=known),
        "at": f"{frame.f_code.co_filename}:{number}" if frame else None,
    }


def error_line(kind: str, message: str, payload: Any) -> str:
    """The type of an exception and its message, from its beginning, without the texts of the event's payload."""
    return shorten(without_payload(f"{kind}: {message}"[:MAX_ERROR], payload))


def _innermost_frame(error: BaseException, packages: Collection[str]) -> tuple[FrameType | None, int]:
    """The innermost call of the plugin's own code that an exception passed through, and its line."""
    own = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in packages
    ]
    return own[-1] if own else (None, 0)


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


def storable(value: Any) -> Any:
    """A handler's result as it is stored: numbers as they are where JSON has them, anything else as short text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return shorten(value if isinstance(value, str) else text_of(value, repr))


def exit_code_of(error: BaseException | None) -> int:
    """The exit code with which Python would end after this."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    return code if isinstance(code, int) else int(code is not None)
