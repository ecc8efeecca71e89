"""The inbox: everything that receivers and workers store in Redis, and the only room that writes its keys.

Law of this room: every change of an event or a run is one Lua script (`lua/`), every key name is on one page (`keys`),
and nothing outside this room writes a key. It may import `receiver.contract`, `receiver.config.settings` and
`receiver.config.values`, and no more.
"""

from receiver.inbox.accept_batch import AcceptResult
from receiver.inbox.administration import Administration
from receiver.inbox.housekeeping import Housekeeping
from receiver.inbox.inbox import Inbox
from receiver.inbox.model import Claim, Declaration, Limit, Routes, Run, StoredEvent
from receiver.inbox.outcomes import Outcome
from receiver.inbox.queries.events import EventQueries
from receiver.inbox.queries.failures import FailureQueries
from receiver.inbox.redis.connecting import connect, connect_to, server_url
