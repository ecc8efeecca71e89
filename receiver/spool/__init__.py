"""Spool: one SQLite file for each host, in data_dir, for what the inbox does not hold.

Each kind of row has its tables and its own connection, because they want different care: a refused
delivery may be lost in a power cut (synchronous NORMAL), one that was answered 2xx may not (FULL).
`open_spool` makes every table, so that any process may be the first to come.

    event          deliveries answered 2xx that the inbox could not take yet, in order; their ids are unique
    event_held     for each store that waits there, the bytes its rows take; kept by triggers, so that asking is free
    refused        a line for every refusal: time, store, reason, length, hash, address
    refused_body   headers and raw body of those that are kept; deleted before their lines are
"""

from receiver.spool.database import FILE
from receiver.spool.refused_deliveries import UNKNOWN, Refusal, Refusals, RefusedOf, look_at_refusals, open_refusals
from receiver.spool.spooled_events import SpooledEvents, SpooledRow, open_events, open_events_read_only

__all__ = [
    "FILE",
    "UNKNOWN",
    "Refusal",
    "Refusals",
    "RefusedOf",
    "SpooledEvents",
    "SpooledRow",
    "look_at_refusals",
    "open_events",
    "open_events_read_only",
    "open_refusals",
]
