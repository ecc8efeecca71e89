"""Behind the queue. What an integrator needs is here, and importing it is light.

    from workers import Busy, Context, Drop, Event, Fail, Retry, Router

Law of this package: it may import `receiver.contract`, `.config`, `.inbox`, `.logs` and `.spool`, never the edge
(`receiver.app`, `receiver.server.loop_worker`, `receiver.server.web`). Plugin code runs in
`workers.runtime.pool.child` only.
"""

from receiver.contract.event import Event
from workers.plugins.context import Context
from workers.plugins.exceptions import Busy, Drop, Fail, Retry
from workers.plugins.router import Router

__all__ = ["Busy", "Context", "Drop", "Event", "Fail", "Retry", "Router"]
