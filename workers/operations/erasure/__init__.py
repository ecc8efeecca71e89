"""Erasure: finds and removes what is stored about one person, on this host and in what all hosts share.

Law of this room: subject and erased_events are pure; survey only reads; erasing changes one place after the other, and
may be killed at any moment and repeated. It imports what `workers/operations` may.
"""
