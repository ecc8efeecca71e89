"""A system whose store `demo` has an API, served by a sandbox process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from click.testing import Result

from receiver.contract.topics import matches
from receiver.inbox import Declaration, keys
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.command_in_process import run_in_process
from tests.support.harness import Process, System, eventually, own_server
from tests.support.sandbox_controls import SandboxControls
from workers.subscriptions.managed_store import ManagedStore, declared_handlers

STORE = """
[secrets]
key = "{key}"
[subscriptions]
check = "{check}"
[stores.demo]
base_url = "http://{bind}"
allow_private = true
auth = {{ url = "/oauth/token", client_id = "app", client_secret = "s3cret" }}
{store}
"""

LISTENS = """
from workers import Router
router = Router("shop")

@router.on({topics})
def note(event, ctx):
    return event.topic
"""


def plugin(*topics: str) -> str:
    return LISTENS.format(topics=", ".join(repr(topic) for topic in topics))


class Shop(SandboxControls):
    """A system, its store `demo`, and the sandbox process that serves the store's API."""

    def __init__(self, system: System, *, check: str = "off", store: str = "", key: str = KEY, more: str = "") -> None:
        self.system = system
        bind = system.config.sandbox.bind
        text = system.config_file.read_text() + STORE.format(key=key, check=check, bind=bind, store=store) + more
        system.config_file.write_text(text)
        self.http = httpx2.Client(base_url=f"http://{bind}", timeout=10)
        self.process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.system.port}/webhooks/demo"

    def open(self, *arguments: str) -> Shop:
        """Start the sandbox; by default without a shopper and without subscriptions."""
        given = arguments or ("--no-shopper", "--no-subscriptions")
        self.process = self.system.start_cli("sandbox", "--store", "demo", *given)
        eventually(self.answers, 20, what="the sandbox answers")
        return self

    @property
    def managed(self) -> ManagedStore:
        return ManagedStore(self.system.config, "demo", self.system.client)

    def listed(self) -> dict[str, tuple[str, bool]]:
        """The store's subscriptions: topic and whether it is enabled, by id."""
        return {str(one.id): (one.topic, one.enabled) for one in self.managed.client.webhooks.list()}

    def topics(self) -> list[str]:
        """The topics of our enabled subscriptions."""
        found = self.managed.client.webhooks.list()
        return sorted(one.topic for one in found if one.url == self.url and one.enabled)

    def declare(self, *topics: str, name: str = "shop.note", version: str = "1") -> None:
        """Declare a handler as a worker would."""
        self.system.inbox.declare([Declaration(name, version, topics, ("*",), details={"limit": None})])

    def cli(self, *arguments: str, typed: str | None = None) -> Result:
        """Run a command in this process."""
        given = [*arguments, "--config", str(self.system.config_file)]
        return run_in_process(*given, input=typed)

    def apply(self) -> Result:
        return self.cli("subscriptions", "apply", "--yes")

    def plan(self) -> list[tuple[str, str]]:
        found = self.managed.plan(declared_handlers(self.system.client))
        assert not found.unknown, found.unknown
        return [(change.action, change.topic) for change in found.changes]

    def emit(self, many: int = 1) -> None:
        """Create customers at the store, so that it sends events."""
        for number in range(many):
            self.managed.client.customers.create(name=f"Ada {number}", email=f"ada{number}@example.com")

    def count_events(self, topic: str) -> int:
        """Number of events of a topic in the inbox."""
        return sum(matches(topic, one.topic) for one in self.system.ledger.events(store="demo", limit=10_000))

    def close(self) -> None:
        self.http.close()
        self.system.close()


def wait_for_check(shop: Shop, since: float, within: float = 15.0) -> CheckResult:
    """Wait for a check that is newer than `since`; returns its result."""
    checks = SubscriptionChecks(shop.system.client)

    def newer() -> CheckResult | None:
        last = checks.last_results(["demo"]).get("demo")
        return last if last and last.at > since else None

    found = eventually(newer, within, what=f"a check of demo; {shop.system.log('housekeeper')[-800:]}")
    assert found is not None
    return found


def changing_calls(log: Sequence[Any]) -> list[str]:
    """The calls in a sandbox's log that change webhooks."""
    return [f"{method} {path}" for _, method, path, _ in log if "/webhooks" in path and method != "GET"]


@contextmanager
def running_shop(
    base: Path, *services: str, check: str = "off", plugin: str = "", env: dict[str, str] | None = None
) -> Iterator[Shop]:
    """A server, a system with these processes, and a sandbox."""
    (base / "server").mkdir()
    with own_server(base / "server") as server:
        shop = Shop(System(make_folder(base / "system"), server.url, plugin=plugin), check=check).open()
        shop.system.start(*services, env=env)
        yield shop
        shop.close()


def reset(shop: Shop) -> Shop:
    """Empty the store and the inbox; the receivers stay registered."""
    shop.do("reset")
    kept = (keys.RECEIVERS, keys.KEYRING_VERSION)
    client = shop.system.client
    if gone := [key for key in client.keys("*") if key.decode() not in kept]:
        client.delete(*gone)
    shop.managed.keyring.files.pending_file.unlink(missing_ok=True)
    return shop


def make_folder(base: Path) -> Path:
    (base / "data").mkdir(parents=True)
    return base
