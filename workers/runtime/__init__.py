"""The processes behind the queue: supervisor, housekeeper, workers and the child processes where plugin code runs.

Law of this room: it imports `receiver.contract`, `.config`, `.inbox`, `.logs`, `.process_files`, `workers.plugins` and
`workers.processes`; the housekeeper also `workers.subscriptions.repair`. Plugin code runs in `pool.child` only.
"""
