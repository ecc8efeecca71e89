"""The workers: everything behind the queue.

The names for plugins are here, and importing them is light. Integrators import them from `storehooks`.

Law of this package: it may import `receiver.contract`, `.config`, `.inbox`, `.spool`, `.logs`, `.ports` and
`.process_files`, never the edge (`receiver.app`, `.server`, `.delivery`). Plugin code runs in
`workers.runtime.pool.child` only.
"""

from receiver.contract.event import Event
from workers.plugins.context import Context
from workers.plugins.exceptions import Busy, Drop, Fail, Retry
from workers.plugins.router import Router

__all__ = ["Busy", "Context", "Drop", "Event", "Fail", "Retry", "Router"]
