"""The inbox: all that both sides keep in Redis, and the only place that knows how.

Law of this room: every change of state is one Lua script (`scripts/`), every key name is on one page
(`keys`), and nothing outside this room writes a key. It may import `receiver.contract`, and no more.
"""

from receiver.inbox.accepting import Accepted
from receiver.inbox.client import connect, connect_to, server_url
from receiver.inbox.failures import Failures
from receiver.inbox.inbox import Inbox
from receiver.inbox.ledger import Ledger
from receiver.inbox.records import Claim, Declaration, Kept, Limit, Outcome, Routes, Run

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
