"""The inbox: all that both sides keep in Redis, and the only place that knows how.

Law of this room: every change of state is one Lua script (`lua/`), every key name is on one page
(`keys`), and nothing outside this room writes a key. It may import `receiver.contract`, and no more.
"""

from receiver.inbox.accept_batch import Accepted
from receiver.inbox.inbox import Inbox
from receiver.inbox.model import Claim, Declaration, Kept, Limit, Outcome, Routes, Run
from receiver.inbox.queries.events import Ledger
from receiver.inbox.queries.failures import Failures
from receiver.inbox.redis.connecting import connect, connect_to, server_url

__all__ = [
    "Accepted",
    "Claim",
    "Declaration",
    "Failures",
    "Inbox",
    "Kept",
    "Ledger",
    "Limit",
    "Outcome",
    "Routes",
    "Run",
    "connect",
    "connect_to",
    "server_url",
]
