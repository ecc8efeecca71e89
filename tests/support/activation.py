"""The receiver on a socket that a service manager has opened."""

from __future__ import annotations

import os
import socket
import sys

from tests.support.harness import System
from tests.support.programs import Process


def web_on_socket(system: System, listener: socket.socket) -> Process:
    """The receiver with a listening socket as descriptor 3, as a service manager passes it."""
    code = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
        "os.execv(sys.executable, [sys.executable, '-m', 'receiver.server.web', '--config', sys.argv[2]])"
    )
    descriptor = os.dup(listener.fileno())
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", code, str(descriptor), str(system.config_file)]
    process = Process(command, log=system.folder / "web.log", keep=(descriptor,))
    os.close(descriptor)
    system.processes.append(process)
    return process
