"""The pytest plugin: fixtures for tests of handler plugins. pytest loads it through its entry point.

Every pytest run of the environment imports it, so it imports pytest and nothing else. A fixture loads and starts what
it needs when a test requests it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from storehooks.testing import SandboxStore, SystemUnderTest


@pytest.fixture
def make_event() -> Callable[..., Any]:
    """Makes events as handlers receive them; see storehooks.testing.make_event."""
    from storehooks import testing

    return testing.make_event


@pytest.fixture
def make_context() -> Callable[..., Any]:
    """Makes contexts that need no server and record calls; see storehooks.testing.make_context."""
    from storehooks import testing

    return testing.make_context


@pytest.fixture(scope="session")
def storehooks_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxStore]:
    """One sandbox process for the whole test session. Tests use `store`."""
    from storehooks.testing import SandboxStore
    from workers.testing.local_system import LocalSystem

    local_system = LocalSystem(tmp_path_factory.mktemp("sandbox"))
    local_system.start("sandbox")
    yield SandboxStore(local_system)
    local_system.stop()


@pytest.fixture
def store(storehooks_sandbox: SandboxStore) -> SandboxStore:
    """A sandbox store over HTTP, reset to its initial records."""
    storehooks_sandbox.reset()
    return storehooks_sandbox


@pytest.fixture
def system(tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[SystemUnderTest]:
    """The real pipeline on an embedded server. In a test that also uses `store`, `ctx.api` calls that store."""
    from storehooks.testing import SystemUnderTest

    api = request.getfixturevalue("store").url if "store" in request.fixturenames else ""
    running = SystemUnderTest(tmp_path / "storehooks", api=api)
    yield running
    running.stop()
