"""The child processes of a worker, where plugin code runs; and the messages between them and the worker.

Law of this room: `pool` knows nothing of Redis; `child` holds no lease and writes nothing to the inbox.
"""
