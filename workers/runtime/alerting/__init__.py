"""Alerts: which rules of `[alerts]` are broken now, the messages about them, and sending these.

Law of this room: what fires is stored by the inbox in one step, with the messages about it. No target delays a tick.
"""
