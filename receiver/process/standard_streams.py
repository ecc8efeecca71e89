"""Standard streams: those of descriptors 0 to 2 that were closed before a program began, as by `>&-`."""

from __future__ import annotations

import os
import sys

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Call it first in a program, before it opens a file: a closed standard stream becomes /dev/null.

    Python sets it to None, and the next file or socket that is opened would get its descriptor, and what is printed.
    """
    for descriptor, (name, mode) in enumerate(STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one. Inherited, since `storehooks web` replaces its process.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
