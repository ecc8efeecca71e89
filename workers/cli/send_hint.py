"""send hint: the command that other commands name to send an event."""

from __future__ import annotations

from collections.abc import Sequence

from receiver.config import Config
from receiver.inbox import Declaration
from workers.operations.topic_names import sendable


def send_command(
    config: Config, handlers: Sequence[Declaration] | None = None, *, store: str | None = None
) -> list[str]:
    """The command that sends an event, of this store and to these handlers if they are given; nothing if no store sends
    one to them."""
    stores = (store,) if store else tuple(config.stores)
    found = sendable({name: config.known_stores[name].scheme for name in stores}, handlers)
    if found is None:
        return []
    sender, topic = found
    return [f"storehooks send {topic}" + (f" --store {sender}" if store or len(stores) > 1 else "")]
