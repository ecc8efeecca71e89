"""What people do to events and stores: replay, release, explain, export, run by hand, store files; and the doctor.

Law of this room: it may import every other room behind the queue but `cli` and `console`, which call it.
"""
