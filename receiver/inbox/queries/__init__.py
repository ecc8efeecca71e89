"""Reads for people and for commands: events, runs, failures, handlers, activity.

Law of this room: it only reads. It imports `receiver.contract` and the inbox's keys, model and connections.
"""
