"""Earlier data: what is left where `data_dir` was while a relative path was that of the working directory.

Deliveries in a spool there were answered 2xx. A process that used the new place beside them would leave them behind, so
it does not start. Other processes may have made the new place already: what that holds decides only about the advice.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from receiver.config import EXAMPLE, Config
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError
from receiver.spool import events_files, open_events_read_only

SERVER_FILES = ("redis/dump.rdb", "redis/appendonlydir/*")


def require_no_earlier_data(config: Config) -> None:
    """For processes that use the data directory: raise ConfigError if the data of this config is elsewhere."""
    if found := describe_earlier_data(config):
        raise ConfigError(found)


def describe_earlier_data(config: Config) -> str:
    """A sentence that names both places and says what to do; empty if nothing is left at the earlier one."""
    earlier = config.earlier_data_dir
    what = earlier and _data_in(earlier, config)
    if not what:
        return ""
    fix = f"stop all processes and move its content there, or set data_dir to {earlier}"
    if _data_in(config.data_dir, config):
        fix = (
            f"both hold data: set data_dir to {earlier} until `storehooks hosts` shows that nothing waits there, "
            "or rename that folder if nothing in it is needed"
        )
    return (
        f"{earlier} holds {what}, and [redis] data_dir is {config.data_dir} (by {config.data_dir_set_by}); a relative "
        f"path no longer follows from the working directory: {fix}"
    )


def _data_in(folder: Path, config: Config) -> str:
    """What must not be left behind in a folder."""
    spooled, server = _spooled_in(folder), ""
    # With a config of its own, the data in the working directory is that of another installation, such as a checkout's.
    is_own = folder == config.data_dir or not any(Path(name).is_file() for name in ("config.toml", EXAMPLE))
    if config.redis.embedded and is_own and any(found for one in SERVER_FILES for found in folder.glob(one)):
        server = "the data of the embedded server"
    return " and ".join(filter(None, (spooled, server)))


def _spooled_in(folder: Path) -> str:
    count = 0
    for file in events_files(folder):
        try:
            with closing(open_events_read_only(file)) as events:
                count += events.summary()[0]
        except (sqlite3.Error, OSError):  # damaged, or of another version
            return f"a spool that cannot be read ({file.name})"
    return counted(count, "accepted delivery", "accepted deliveries") + " in its spool" if count else ""
