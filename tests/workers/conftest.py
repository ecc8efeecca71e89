"""Fixtures: a sandbox store in its own process, and clients that call it over a real socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from receiver import config as config_room
from receiver.config import Config
from tests.support.forward_target import Target
from tests.support.harness import Process, eventually, free_port, port_is_free, sandbox_config
from tests.support.programs import start_command
from tests.support.sandbox_controls import SandboxControls
from workers.storeapi import Client, client_for_store

AUTH = '{ url = "/oauth/token", client_id = "the app", client_secret = "s&cret:+%" }'


class SandboxRun(SandboxControls):
    """A running sandbox store, its controls, and its clients."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        *arguments: str,
        store: str = "",
        sandbox: str = "",
        more: str = "",
        auth: str = AUTH,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.config_file = folder / "config.toml"
        head = f'[redis]\nurl = "{redis_url}"\ndata_dir = "{folder / "data"}"\n'
        own = sandbox_config(self.port, store="demo", auth=auth, more=sandbox)
        self.config_file.write_text(f"{head}{own}{store}\n{more}")
        self.arguments = arguments
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        self.process: Process | None = None
        self._first_config = ""

    @property
    def config(self) -> Config:
        return config_room.load(self.config_file, {})

    def start(self) -> SandboxRun:
        eventually(lambda: port_is_free(self.port), what="the port is free")
        log = self.folder / "sandbox.log"
        self.process = start_command("sandbox", *self.arguments, config=self.config_file, log=log)
        eventually(self.answers, 15, what=f"the sandbox answers: {self.process.output()[-500:]}")
        return self

    def reload(self, more: str) -> None:
        """Give the sandbox its first config with more lines, send HUP, and wait until it serves that."""
        assert self.process is not None
        self._first_config = self._first_config or self.config_file.read_text()
        self.config_file.write_text(self._first_config + more)
        before = self.status()["reloads"]
        os.kill(self.process.pid, signal.SIGHUP)
        eventually(lambda: self.status()["reloads"] > before, what="the sandbox has reloaded its catalogue")

    def log_text(self) -> str:
        """What the sandbox has printed."""
        return (self.folder / "sandbox.log").read_text()

    def with_config(self, more: str) -> Path:
        """Write another config for the client: this one with more lines. The sandbox does not read it."""
        path = self.folder / f"config-{len(list(self.folder.iterdir()))}.toml"
        path.write_text(self.config_file.read_text() + more)
        return path

    def client(self, redis: Redis | None = None, **how: Any) -> Client:
        return client_for_store(self.config, "demo", redis, **how)

    @staticmethod
    def client_from(config_file: Path, redis: Redis | None = None, **how: Any) -> Client:
        """A client with another config than the sandbox."""
        return client_for_store(config_room.load(config_file, {}), "demo", redis, **how)

    def stop(self) -> None:
        self.http.close()
        if self.process is not None:
            self.process.stop()


@pytest.fixture
def make_sandbox(tmp_path: Path, server_url: str) -> Iterator[Callable[..., SandboxRun]]:
    """Starts sandboxes that stop at the end of the test; by default without a shopper and without subscriptions."""
    made: list[SandboxRun] = []

    def make(*arguments: str, **how: Any) -> SandboxRun:
        given = arguments or ("--no-shopper", "--no-subscriptions")
        made.append(SandboxRun(tmp_path / f"sandbox-{len(made)}", server_url, *given, **how))
        return made[-1].start()

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def target() -> Iterator[Target]:
    """A server that takes what is forwarded or sent to it."""
    server = Target()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Iterator[SandboxRun]:
    """One process for all tests, because starting one takes a second."""
    run = SandboxRun(tmp_path_factory.mktemp("shared"), server_url, "--no-shopper", "--no-subscriptions").start()
    yield run
    run.stop()


@pytest.fixture
def sandbox(shared_sandbox: SandboxRun) -> SandboxRun:
    """A new store: 40 products, 20 customers, no subscriptions, no faults."""
    shared_sandbox.do("reset")
    return shared_sandbox


@pytest.fixture
def client(shared_sandbox: SandboxRun) -> Client:
    return shared_sandbox.client()
