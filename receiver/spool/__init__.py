"""The spool: SQLite files of each host, in data_dir, for deliveries that are not in the inbox.

Law of this room: no Redis and no HTTP. It imports `receiver.contract` and `receiver.config`; both packages import it.

There are two files, because a file has one write lock: a flood of forged deliveries must not delay a valid one that is
being spooled. A refused delivery may be lost in a power cut (synchronous NORMAL), one that was answered 2xx may not
(FULL). Any process may be the first to open a file, and creates its tables.

    spool.sqlite3      (spool-2.sqlite3 after this one was found damaged, and so on)
        event          deliveries answered 2xx that are not in the inbox yet, in order; their ids are unique
        store_usage    the number of each store's rows and their bytes; updated by triggers, so that no read counts rows
        attempt        one row, written to find out whether the spool would take a delivery
    refused.sqlite3
        refused        a line for every refusal: time, store, reason, answer, length, hash, address
        refused_body   headers and raw body of refusals, as far as they are stored; deleted before their lines
        released       hashes and ids of those that were released; created by the first release
"""

from receiver.spool.compaction import compact
from receiver.spool.damaged_events import DamagedEvents, is_damage, keep, kept_files, open_damaged, rename, set_aside
from receiver.spool.database import BUSY_SECONDS, check_format, free_disk_bytes, is_busy
from receiver.spool.refused_deliveries import (
    AMPLE_DISK_BYTES,
    NEEDED_DISK_BYTES,
    REFUSED_FILE,
    REFUSED_FORMAT,
    TRY_AGAIN,
    Refusal,
    Refusals,
    StoreRefusals,
    open_existing_refusals,
    open_refusals,
)
from receiver.spool.released_deliveries import ReleasedEvent
from receiver.spool.spooled_events import (
    EVENTS_FILE,
    EVENTS_FORMAT,
    RESERVED_DISK_BYTES,
    RowKey,
    SpooledEvents,
    SpooledRow,
    SpoolResult,
    events_files,
    newest_events_file,
    open_events,
    open_events_read_only,
)
