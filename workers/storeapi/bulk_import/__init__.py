"""Bulk import: a file of any length into a store, in batches, resumed where it stopped.

Law of this room: bounded memory. It imports the client and reads one row at a time.
"""
