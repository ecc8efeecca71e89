"""The pytest plugin: fixtures for the tests of handler plugins. Found by pytest through its entry point.

Law of this room: it is imported by every pytest run of the environment, so it imports pytest and nothing else; what a
test does not ask for is neither loaded nor started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workers.testing import SandboxStore, SystemUnderTest


@pytest.fixture
def make_event() -> Callable[..., Any]:
    """Makes events as handlers are given them; see workers.testing.make_event."""
    from workers import testing

    return testing.make_event


@pytest.fixture
def make_context() -> Callable[..., Any]:
    """Makes contexts that need no server and write down what is done; see workers.testing.make_context."""
    from workers import testing

    return testing.make_context


@pytest.fixture(scope="session")
def storehooks_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxStore]:
    """One process of the sandbox for the whole run; use `store`."""
    from workers.testing import SandboxStore
    from workers.testing.local_system import LocalSystem

    rig = LocalSystem(tmp_path_factory.mktemp("sandbox"))
    rig.start("sandbox")
    yield SandboxStore(rig)
    rig.stop()


@pytest.fixture
def store(storehooks_sandbox: SandboxStore) -> SandboxStore:
    """A sandbox store over HTTP, on its first day."""
    storehooks_sandbox.reset()
    return storehooks_sandbox


@pytest.fixture
def system(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[SystemUnderTest]:
    """The real pipeline on an embedded server. With `store` in the same test, `ctx.api` is that store's."""
    from workers.testing import SystemUnderTest

    api = request.getfixturevalue("store").url if "store" in request.fixturenames else ""
    running = SystemUnderTest(tmp_path / "storehooks", api=api)
    yield running
    running.stop()
