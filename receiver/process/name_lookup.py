"""Name lookup with a time limit. The system's lookup has none, so it runs in a thread of its own."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from ipaddress import ip_address


class _Lookups:
    """Those under way. Who asks for a name meanwhile waits for the same thread: a name server that does not answer
    would leave one behind for each try."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked process, which has none of these threads. Another thread may have held the lock."""
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[list[str]]] = {}

    def answer(self, host: str, port: int) -> Future[list[str]]:
        with self._lock:
            answer = self._under_way.get((host, port))
            if answer is None:
                answer = Future()
                self._start(host, port, answer)
                self._under_way[host, port] = answer
            return answer

    def _start(self, host: str, port: int, answer: Future[list[str]]) -> None:
        thread = threading.Thread(target=self._look_up, args=(host, port, answer), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of threads
            raise OSError(f"{host} cannot be looked up: {error}") from None

    def _look_up(self, host: str, port: int, answer: Future[list[str]]) -> None:
        found = list[str]()
        failure: OSError | None = OSError(f"{host} cannot be looked up")  # also if there is no memory later
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found, failure = list(dict.fromkeys(str(one[4][0]) for one in entries)), None
        except OSError as error:
            failure = error
        except UnicodeError as error:
            failure = OSError(f"{host[:64]} is no name of a host: {error}")
        except MemoryError:
            pass
        finally:
            with self._lock:
                del self._under_way[host, port]
            answer.set_exception(failure) if failure else answer.set_result(found)


_lookups = _Lookups()
os.register_at_fork(after_in_child=_lookups.forget)


def look_up(host: str, port: int, timeout: float | None) -> list[str]:
    """Every address of a host. Raises OSError if it has none, and TimeoutError if that is not known in time."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        return _lookups.answer(host, port).result(timeout)
