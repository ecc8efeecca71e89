"""The spool: one SQLite file for each host, in data_dir, for deliveries that are not in the inbox.

Law of this room: no Redis and no HTTP. It imports `receiver.contract` and `receiver.config`; both packages import it.

Each kind of row has its own tables and its own connection, because they need different durability: a refused delivery
may be lost in a power cut (synchronous NORMAL), one that was answered 2xx may not (FULL). `open_spool` creates all
tables, so that any process may be the first to open the file.

    event          deliveries answered 2xx that are not in the inbox yet, in order; their ids are unique
    event_held     the bytes that each store's rows take there; updated by triggers, so that reading it costs nothing
    refused        a line for every refusal: time, store, reason, length, hash, address
    refused_body   headers and raw body of refusals, as far as they are stored; deleted before their lines
"""

from receiver.spool.database import FILE
from receiver.spool.refused_deliveries import Refusal, Refusals, StoreRefusals, open_existing_refusals, open_refusals
from receiver.spool.spooled_events import SpooledEvents, SpooledRow, open_events, open_events_read_only

__all__ = [
    "FILE",
    "Refusal",
    "Refusals",
    "SpooledEvents",
    "SpooledRow",
    "StoreRefusals",
    "open_events",
    "open_events_read_only",
    "open_existing_refusals",
    "open_refusals",
]
