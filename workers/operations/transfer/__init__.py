"""Moves everything that storehooks has stored to another server, as one file: export and import.

Law of this room: an import can be repeated. It changes nothing that the server has, and writes keys only through
receiver/inbox.
"""
