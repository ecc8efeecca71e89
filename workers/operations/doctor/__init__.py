"""Checkup: what `storehooks doctor` looks at, and what it makes of it.

Law of this room: `gather` and `ask` find facts out and judge nothing; the checks are pure, (facts) -> findings, and
touch nothing. It reads and changes nothing, so it may be run at any time, by anybody, next to everything that works.
"""
