"""Error messages for invalid config: file and line, the key, what is wrong, and the nearest known key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from receiver.config.settings import FileSettings
from receiver.config.source_files import KeyPath, Places, dotted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def explain(problem: ErrorDetails, places: Places) -> str:
    """Return one line for one of pydantic's errors."""
    key: KeyPath = tuple(problem["loc"])
    where = places.nearest(key) or "config"
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {dotted(key)}{did_you_mean(str(key[-1]), known_keys(key[:-1]))}"
    return f"{where}: {dotted(key)}: {problem['msg'].removeprefix('Value error, ')}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """Return `; did you mean NAME?` for the nearest known name, or an empty text where none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def known_keys(table: KeyPath) -> list[str]:
    """The keys that a table of the config file may have."""
    model: Any = FileSettings
    for step in table:
        if not _is_model(model):
            return []
        field = model.model_fields.get(str(step))
        if field is None:
            continue  # the name of a store, a plugin or a scheme
        model = field.annotation
        arguments = get_args(model)
        if arguments:
            model = arguments[-1]
    return list(model.model_fields) if _is_model(model) else []


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
