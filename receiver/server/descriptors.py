"""Descriptors: how many connections a process may hold, and what the kernel knows of one."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import select
import sys
from termios import FIONREAD

CONNECTIONS = 1000
"""Maximum for one process."""
RESERVED_DESCRIPTORS = 100
"""What connections leave for Redis and the spool. A process uses about 30 of its own."""


def connections_within(descriptors: int) -> int:
    """How many connections a process may hold that may open this number of files."""
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(descriptors - RESERVED_DESCRIPTORS, descriptors // 4))


def unreceived_bytes(transport: asyncio.Transport) -> int:
    """How many bytes of a sender have arrived, and the loop has not received yet."""
    descriptor = transport.get_extra_info("socket").fileno()
    return int.from_bytes(fcntl.ioctl(descriptor, FIONREAD, bytes(4)), sys.byteorder) if descriptor >= 0 else 0


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether its sender has reset the connection. The loop notices this where it receives, but not in a pause."""
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are reported in any case; a sender that only sends no more is none
    return bool(poll.poll(0))
