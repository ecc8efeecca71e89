"""Many connections that send the same bytes at once: `python -m tests.support.attackers PORT COUNT < BYTES`.

A process of its own, so that a healthy sender beside it is not slowed down by it. Prints the answers' statuses.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter


def attack(port: int, count: int, sent: bytes) -> Counter[str]:
    """Send, read the first bytes of each answer, and count the statuses; "none" without an answer."""
    statuses: Counter[str] = Counter()
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(sent))
        while statuses.total() < count:
            for key, events in selector.select(30):
                if events & selectors.EVENT_READ:
                    statuses[_status(key.fileobj)] += 1  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                elif left := _send(key.fileobj, key.data):  # type: ignore[arg-type]
                    selector.modify(key.fileobj, selectors.EVENT_READ | selectors.EVENT_WRITE, left)
                else:
                    selector.modify(key.fileobj, selectors.EVENT_READ)
    return statuses


def _send(connection: socket.socket, left: memoryview) -> memoryview:
    try:
        return left[connection.send(left) :]
    except BlockingIOError:
        return left
    except OSError:
        return left[:0]


def _status(connection: socket.socket) -> str:
    with connection:
        try:
            return connection.recv(12).decode("latin-1")[9:] or "none"
        except OSError:
            return "none"


def start_attack(port: int, count: int, sent: bytes) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.attackers", str(port), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(sent)
    process.stdin.close()
    return process


def start_flood(port: int, kind: str) -> subprocess.Popen[bytes]:
    """Floods until it is killed."""
    command = [sys.executable, "-m", "tests.support.attackers", str(port), "flood", kind]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def trickle(port: int, count: int) -> None:
    """So many connections that send a body byte by byte, without a pause, until this process is killed. One that ends
    is opened again."""
    head = b"POST /webhooks/north HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
    senders: list[socket.socket | None] = [None] * count
    while True:
        for number, sender in enumerate(senders):
            try:
                if sender:
                    sender.send(b"x")
                else:
                    senders[number] = one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                    one.send(head)
            except BlockingIOError:
                pass
            except OSError:
                senders[number] = None


def send_evenly(port: int, count: int, bytes_a_second: int, address: str) -> None:
    """Connections of one address that send large bodies in small pieces, until this process is killed. One that is
    answered is opened again."""
    head = b"POST /webhooks/north HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.66\r\nContent-Length: 900000\r\n\r\n"
    sent = memoryview(head + b"x" * 900_000)
    senders: dict[int, tuple[socket.socket, memoryview]] = {}
    began, total = time.monotonic(), 0
    while True:
        for number in range(count):
            try:
                if number not in senders:
                    one = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
                    one.setblocking(False)
                    senders[number] = one, sent
                one, left = senders[number]
                size = one.send(left[:2048])
                senders[number], total = (one, left[size:]), total + size
                one.recv(1000)
                del senders[number]
            except BlockingIOError:
                pass
            except OSError:
                senders.pop(number, None)
        time.sleep(max(0.0, began + total / bytes_a_second - time.monotonic()))


def flood(port: int, kind: str) -> None:
    """One connection after another, until this process is killed."""
    if kind == "trickles":
        trickle(port, 400)
    if kind.startswith("even bodies"):
        send_evenly(port, 160, 40_000_000, "127.0.0.1" if kind.endswith("through a proxy") else "127.0.0.66")
    kept = []
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=2)
            if kind == "resets":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(b"POST /webhooks/north HT")
            elif kind == "large bodies":
                connection.sendall(b"POST /webhooks/north HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
                connection.sendall(b"x" * 1_000_000)
                connection.recv(1000)
        except OSError:
            continue
        if kind == "idle connections":
            kept.append(connection)
        else:
            connection.close()
        time.sleep(0.001)


if __name__ == "__main__":
    if sys.argv[2] == "flood":
        flood(int(sys.argv[1]), sys.argv[3])
    print(json.dumps(attack(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read())))
