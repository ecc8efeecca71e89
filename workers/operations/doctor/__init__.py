"""`storehooks doctor`: gather facts about an installation and report findings, each with its fix.

Law of this room: the facts modules read and draw no conclusions; the checks are pure, (facts) -> findings, without
I/O. It changes nothing, so it may run at any time next to a working installation.
"""
