"""`storehooks dev` with its sandbox store: however often something is saved or restarted, each topic has one
subscription, and each event of the store arrives once."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver import config
from tests.support.harness import (
    HEAD,
    OTHER_SECRET,
    SECRET,
    Process,
    children_of,
    comm,
    eventually,
    free_port,
    sandbox_config,
    storehooks,
)
from tests.support.programs import start_command
from workers.storeapi import client_for_store

PLUGIN = """
from workers import Router
router = Router("shop")

@router.on({topics})
def note(event, ctx):
    return "noted"
"""
WORKERS = """[workers]
plugins = ["shop.py"]
child_processes = 1
[subscriptions]
check = "1s"
[console]
bind = "127.0.0.1:0"
"""


WITHIN = 45
"""Seconds to wait for a condition: each look at the store is a command of its own."""


class ManagedDev:
    """`storehooks dev` whose store's subscriptions are managed by command."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.folder = folder
        self.plugin, self.config = folder / "shop.py", folder / "config.toml"
        self.handle(topic)
        head = HEAD.format(redis="", data=folder / "data", port=free_port())
        self.config.write_text(head + WORKERS + sandbox_config(free_port()))
        self.process = self.start()

    def start(self) -> Process:
        self.process = start_command("dev", config=self.config, log=self.folder / "dev.log")
        eventually(self.ready, WITHIN, what=f"dev answers; {self.process.output()[-500:]}")
        return self.process

    def ready(self, url: str = "http://") -> bool:
        """Whether the sandbox answers, and all subscriptions are for this URL."""
        listed = storehooks("api", "webhooks", "list", "--json", "--config", str(self.config))
        return listed.returncode == 0 and all(one["url"].startswith(url) for one in json.loads(listed.stdout))

    def handle(self, *topics: str) -> None:
        self.plugin.write_text(PLUGIN.format(topics=", ".join(repr(topic) for topic in topics)))

    def run(self, *arguments: str) -> str:
        done = storehooks(*arguments, "--config", str(self.config))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def apply(self) -> None:
        """Apply the plan, as soon as a worker has declared its handlers and the housekeeper's check has let go of the
        store."""
        eventually(self.handlers_are_declared, WITHIN, what="a worker's handlers")
        command = ("subscriptions", "apply", "--yes", "--config", str(self.config))
        eventually(lambda: storehooks(*command).returncode == 0, WITHIN, what="an applied plan")

    def handlers_are_declared(self) -> bool:
        """Until then a plan deletes nothing."""
        plan = storehooks("subscriptions", "plan", "--json", "--config", str(self.config))
        return bool(json.loads(plan.stdout)["stores"][0]["wanted"])

    def save(self, old: str = "", new: str = "") -> None:
        """Save config.toml, with a change or only with another comment, and wait until `dev` has reloaded it."""
        before = self.reloads()
        text = self.config.read_text().replace(old, new) if old else self.config.read_text() + f"# {before}\n"
        self.config.write_text(text)
        eventually(lambda: self.reloads() > before, WITHIN, what="a reload")

    def reloads(self) -> int:
        return self.process.output().count("config.toml and plugins reloaded")

    def subscriptions(self) -> list[Any]:
        listed: list[Any] = json.loads(self.run("api", "webhooks", "list", "--json"))
        return listed

    def topics(self) -> Counter[str]:
        return Counter(one["topic"] for one in self.subscriptions())

    def create_order(self) -> int:
        order = self.folder / "order.json"
        order.write_text(json.dumps({"lines": [{"product_id": 1, "quantity": 1}]}))
        return int(json.loads(self.run("api", "orders", "create", "--data", str(order), "--json"))["id"])

    def events(self, order: int) -> int:
        """How many events say that an order was created."""
        found = json.loads(self.run("events", "--json", "--limit", "500"))
        return sum((one["topic"], one["resource_id"]) == ("order.created", str(order)) for one in found)

    def sandbox_pid(self) -> int:
        """The sandbox's first process."""
        return next(pid for pid in children_of(self.process.pid) if comm(pid) == "sh-sandbox")


@pytest.fixture
def start_dev(tmp_path: Path) -> Iterator[Callable[[str], ManagedDev]]:
    """Starts `dev` with a handler for a topic; it is stopped with the test."""
    started: list[ManagedDev] = []

    def start(topic: str) -> ManagedDev:
        started.append(ManagedDev(tmp_path, topic))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()  # with everything below it; a check of a store that has stopped would delay a clean end


ACTIONS = ("created", "updated", "deleted", "paid", "shipped", "delivered", "cancelled", "refunded")
ORDERS = {f"order.{action}" for action in ACTIONS}


@pytest.mark.full
def test_each_topic_keeps_one_subscription_however_often_files_are_saved_and_processes_restart(
    start_dev: Callable[[str], ManagedDev],
) -> None:
    dev = start_dev("order.created")
    dev.apply()
    assert dev.topics() == {"order.created": 1}
    dev.handle("order.*")
    eventually(lambda: "plugins reloaded" in dev.process.output(), WITHIN)
    eventually(lambda: dev.topics() == Counter(ORDERS), WITHIN, what="the housekeeper creates those that are missing")

    dev.apply()
    for _ in range(3):
        dev.save()
    assert_each_event_arrives_once(dev)

    os.kill(dev.sandbox_pid(), signal.SIGHUP)
    os.kill(dev.sandbox_pid(), signal.SIGTERM)
    eventually(lambda: "sandbox ended with exit code 0; restarting it" in dev.process.output(), WITHIN)
    eventually(dev.ready, WITHIN)
    assert_each_event_arrives_once(dev)

    dev.process.stop()
    dev.start()
    assert_each_event_arrives_once(dev)


@pytest.mark.full
def test_subscriptions_follow_another_public_url_and_another_secret(start_dev: Callable[[str], ManagedDev]) -> None:
    """The sandbox reads its config only at its start, so `dev` restarts it."""
    dev = start_dev("order.*")
    dev.apply()
    port = re.search(r'public_url = "http://127.0.0.1:(\d+)"', dev.config.read_text())
    assert port
    dev.save(f'public_url = "http://127.0.0.1:{port[1]}"', f'public_url = "http://localhost:{port[1]}"')
    eventually(lambda: dev.ready("http://localhost"), WITHIN, what="the subscriptions have the new URL")
    assert_each_event_arrives_once(dev)
    dev.save(SECRET, OTHER_SECRET)
    eventually(dev.ready, WITHIN)
    assert_each_event_arrives_once(dev)


@pytest.mark.full
def test_subscriptions_made_by_apply_follow_another_public_url(start_dev: Callable[[str], ManagedDev]) -> None:
    dev = start_dev("order.*")
    client = client_for_store(config.load(dev.config, {}), "north")
    for one in dev.subscriptions():  # those that the sandbox made itself
        client.webhooks.delete(one["id"])
    dev.apply()
    port = dev.config.read_text().partition('public_url = "http://127.0.0.1:')[2].partition('"')[0]
    dev.save(f'public_url = "http://127.0.0.1:{port}"', f'public_url = "http://localhost:{port}"')
    eventually(lambda: dev.ready("http://localhost"), WITHIN, what="the subscriptions have the new URL")
    assert "sandbox ended" not in dev.process.output(), "dev itself has restarted it"
    dev.apply()
    assert_each_event_arrives_once(dev)


def assert_each_event_arrives_once(dev: ManagedDev) -> None:
    assert dev.topics() == Counter(ORDERS)
    first, last = dev.create_order(), dev.create_order()
    eventually(lambda: dev.events(last), WITHIN, what="the second order")  # sent after everything of the first
    assert dev.events(first) == 1
    assert json.loads(dev.run("stats", "--json"))["duplicates"] == 0
