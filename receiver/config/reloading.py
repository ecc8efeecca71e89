"""Reloading: what of a new config a running process can use, and which changed keys need a restart.

A service applies every key on HUP but those of `[redis]`: its processes stay connected to one server, and what waits in
the spool is in the old data_dir. That holds also for the processes that a supervisor starts later. `storehooks sandbox`
applies all but `[sandbox]`.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, SecretStr

from receiver.config.config import Config
from receiver.config.settings import ENV_PREFIX
from receiver.config.source_files import KeyPath, dotted

SERVICE = "redis"
SANDBOX = "sandbox"


def adopt(old: Config, new: Config, *, keep: str = SERVICE) -> tuple[Config, list[str]]:
    """The new config with one table of the old, and the keys in which that table differs."""
    table = getattr(old, keep)
    return new.model_copy(update={keep: table}), list(map(dotted, changed_keys(table, getattr(new, keep), (keep,))))


def redis_variables(config: Config) -> dict[str, str]:
    """The environment in which a program that is started later uses the same server, whatever the config file says."""
    table = {name: one.get_secret_value() if isinstance(one, SecretStr) else one for name, one in config.redis}
    table["data_dir"] = str(config.data_dir)  # a variable may not follow the working directory
    return {f"{ENV_PREFIX}REDIS": json.dumps(table)}


def changed_keys(old: Any, new: Any, key: KeyPath = ()) -> list[KeyPath]:
    """The keys of two tables that have different values."""
    if isinstance(old, BaseModel) and isinstance(new, BaseModel):
        fields = type(old).model_fields
        return [one for name in fields for one in changed_keys(getattr(old, name), getattr(new, name), (*key, name))]
    return [] if old == new else [key]
