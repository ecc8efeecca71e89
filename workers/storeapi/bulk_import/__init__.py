"""Bulk import: imports a file of any length into a store in batches, and resumes after an interruption.

Law of this room: memory is bounded. It imports the client, and reads one row at a time.
"""
