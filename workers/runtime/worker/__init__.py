"""One worker process: claims runs, routes events, gives runs to child processes, and writes their outcomes.

Law of this room: one thread, which never runs plugin code and never waits for one child process.
"""
