"""What a service says to systemd: ready, reloading, stopping, alive."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.process.service_manager import ServiceManager
from tests.support.activation import web_on_socket
from tests.support.harness import System, eventually, free_port
from tests.support.notify_socket import NotifySocket


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    found = NotifySocket(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_says_what_it_does(tmp_path: Path, abstract: bool) -> None:
    heard = NotifySocket(tmp_path, abstract=abstract)
    environ = heard.environ() | {"OTHER": "1"}
    service = ServiceManager(environ)
    assert environ == {"OTHER": "1"}, "child processes do not speak for the service"
    service.ready()
    service.reloading()
    service.stopping()
    service.alive()
    assert heard.said == ["READY=1", "RELOADING=1", "STOPPING=1"], "without a limit, no watchdog"
    heard.close()


@pytest.mark.parametrize("pid", ["", "own"])
def test_the_watchdog_of_this_process_hears_three_times_in_its_limit(manager: NotifySocket, pid: str) -> None:
    service = ServiceManager(manager.environ(watchdog=0.3) | {"WATCHDOG_PID": pid.replace("own", str(os.getpid()))})
    began = time.monotonic()

    def heard() -> int:
        service.alive()
        return len(manager.said)

    eventually(lambda: heard() == 4, what="four messages")
    assert time.monotonic() - began >= 0.3, "no more than three in that time"


def test_the_watchdog_of_another_process_hears_nothing(manager: NotifySocket) -> None:
    ServiceManager(manager.environ(watchdog=0.3) | {"WATCHDOG_PID": "1"}).alive()
    assert manager.said == []


def test_without_a_service_manager_nothing_happens(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"WATCHDOG_USEC": "garbage"}):
        service = ServiceManager(environ)
        service.ready()
        service.alive()


@pytest.mark.full
def test_web_and_console_say_when_they_are_ready_reload_and_stop(
    make_system: Callable[..., System], manager: NotifySocket
) -> None:
    system = make_system()
    for name in ("web", "console"):
        before = len(manager.states)

        def said(name_before: int = before) -> list[str]:
            return manager.states[name_before:]

        (process,) = system.start(name, env=manager.environ(watchdog=0.9))
        eventually(lambda said=said: said() == ["READY=1"], 60, what=f"{name} is ready")
        process.send(signal.SIGHUP)
        eventually(lambda said=said: said() == ["READY=1", "RELOADING=1", "READY=1"], 60, what=f"{name} has reloaded")
        heard = len(manager.said)
        eventually(lambda heard=heard: len(manager.said) > heard + 1, what="the watchdog hears more")
        assert process.stop() == 0
        assert said()[-1] == "STOPPING=1"


def test_a_given_socket_stays_in_use_when_bind_changes(make_system: Callable[..., System]) -> None:
    """gunicorn would close it and listen at the new address, while senders wait in the queue of the given one."""
    system = make_system()
    with socket.create_server(("127.0.0.1", system.port)) as listener:
        web = web_on_socket(system, listener)
        eventually(system.web_answers, 30)
        text = system.config_file.read_text()
        system.config_file.write_text(
            text.replace(f'bind = "127.0.0.1:{system.port}"', f'bind = "127.0.0.1:{free_port()}"')
        )
        web.send(signal.SIGHUP)
        eventually(lambda: "decides where web listens" in system.log("web"), 30)
        eventually(lambda: system.log("web").count('"web listens"') == 2, 30, what="the reload is over")
        assert system.web_answers()
        assert web.stop() == 0
