"""The child processes of a worker, where plugin code runs.

Law of this room: `pool` and `child_handle` never call Redis; `child` holds no lease and writes no outcome.
"""
