"""In a terminal of 80 columns every list fits, and what people copy is whole."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Callable

import pytest

from receiver.config import SANDBOX_SECRET
from receiver.config.values import Bounds
from receiver.inbox import FailureQueries, Outcome
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from receiver.spool import Refusal, open_refusals
from tests.receiver.inbox.test_inbox import claim_one, route
from tests.support.harness import System
from tests.support.programs import start

COLUMNS = 80
STORE = "north-and-south-trading"
HANDLER = "warehouse.export_order_to_the_erp"
PLUGIN = """
from workers import Router
router = Router("warehouse")
@router.on("order.created", "order.paid", "order.cancelled", retries=(10, 60, 300), when={"total": "> 100"})
def export_order_to_the_erp(event, ctx):
    pass
"""
LISTS = (
    "events",
    "failures",
    "failures --group GROUP",
    "handlers",
    "handlers explain last",
    "stores",
    "stats",
    "topics",
    "refused",
    "subscriptions",
    "scheme",
    "api --list",
)


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    """A shop with long names, in which things went wrong."""
    system = make_system(plugin=PLUGIN, more=f'[stores.{STORE}]\nsigning_secrets = ["{SANDBOX_SECRET}"]\n')
    for number in range(3):
        system.accept("order.created", store=STORE, data={"id": 123456789 + number})
        (run,) = route(system.inbox, claim_one(system.inbox), (HANDLER, "default", True))
        error = {"error": "KeyError: 'the VAT id of a customer'", "at": "/srv/erp.py:58", "version": "1.4.2"}
        system.inbox.finish([Outcome(run, "failed" if number else "retry", error, delay=600)])
    SubscriptionChecks(system.client).store_result(CheckResult(STORE, time.time() - 90, wanted=6))
    refusals = open_refusals(system.config.data_dir)
    line = Refusal(
        time.time(), STORE, STORE, "signature-mismatch", 12_345, "8bd246c012eabad4", "203.0.113.199", {}, b""
    )
    refusals.add([line], bounds=Bounds(3600, 1 << 20), now=time.time())
    refusals.close()
    return system


def in_a_terminal(system: System, *arguments: str) -> list[str]:
    """What a person sees in a terminal of 80 columns, line by line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "workers.cli", *arguments, "--config", str(system.config_file)]
    with os.fdopen(theirs, "wb") as terminal:
        process = start(command, terminal, terminal, env={"COLUMNS": ""})
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:  # the other side is closed: that is how a terminal ends
        pass
    finally:
        os.close(ours)
        process.wait(10)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()


def test_every_list_fits_and_what_people_copy_is_whole(shop: System) -> None:
    events = [event.id for event in shop.ledger.events()]
    (group,) = {group.id for group in FailureQueries(shop.client).groups()}
    for command in LISTS:
        lines = in_a_terminal(shop, *command.replace("GROUP", group).split())
        text = "\n".join(lines)
        assert len(lines) > 3, text
        assert [line for line in lines if len(line) > COLUMNS] == [], command
        assert HANDLER in text or command not in ("failures", "handlers", "handlers explain last"), text
        assert all(event in text for event in events) or command not in ("events", "failures --group GROUP"), text
        assert "Traceback" not in text


def test_a_pipe_gets_every_column(shop: System) -> None:
    told = shop.run_cli("events").stdout
    assert told.splitlines()[0].split() == ["RECEIVED", "STORE", "TOPIC", "RESOURCE", "STATUS", "SOURCE", "ID"]
    assert "KeyError: 'the VAT id of a customer'  erp.py:58" in shop.run_cli("failures").stdout
