"""The processes behind the queue: supervisor, housekeeper, workers and the child processes where plugin code runs.

Law of this room: it imports `receiver.contract`, `.config`, `.inbox`, `workers.plugins` and
`workers.subscriptions.plan`. Plugin code runs in `pool.child` only.
"""
