"""Output on a terminal: width, colour, harmless text. Plain text with every column in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import click
import pytest

from receiver.config import SANDBOX_SECRET
from receiver.config.values import Bounds
from receiver.inbox import FailureQueries, Outcome
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from receiver.spool import Refusal, open_refusals
from tests.receiver.inbox.test_inbox import claim_one, route
from tests.support.harness import System
from tests.support.programs import start
from workers.cli import COMMANDS, listing, output, storehooks

COLUMNS = 80
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
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
    "failures list",
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
    """A shop with long names, failures and a refused delivery."""
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


def in_a_terminal(
    system: System, *arguments: str, env: dict[str, str] | None = None, errors: str = "strict", columns: int = COLUMNS
) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "workers.cli", *arguments, "--config", str(system.config_file)]
    with os.fdopen(theirs, "wb") as terminal:
        process = start(
            command, terminal, terminal, env={"COLUMNS": "", "NO_COLOR": "", "TERM": "xterm", **(env or {})}
        )
    text = b""
    try:
        while part := os.read(ours, 1 << 16):
            text += part
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        process.wait(10)
    return text.decode(errors=errors)


def test_every_list_fits_and_what_people_copy_is_whole(shop: System) -> None:
    events = [event.id for event in shop.ledger.events()]
    (group,) = {group.id for group in FailureQueries(shop.client).groups().entries}
    for command in LISTS:
        text = COLOUR.sub("", in_a_terminal(shop, *command.replace("GROUP", group).split()))
        lines = text.splitlines()
        assert len(lines) > 3, text
        assert [line for line in lines if len(line) > COLUMNS and "--config" not in line] == [], command
        assert HANDLER in text or command not in ("failures", "handlers", "handlers explain last"), text
        assert all(event in text for event in events) or command not in ("events", "failures --group GROUP"), text
        assert "Traceback" not in text


def test_a_pipe_gets_every_column(shop: System) -> None:
    shown = shop.run_cli("events").stdout
    headings = ["RECEIVED AT", "STORE", "TOPIC", "RESOURCE ID", "STATUS", "SOURCE", "DELIVERY ID", "ID"]
    assert re.split(r"  +", shown.splitlines()[0].strip()) == headings
    assert "KeyError: 'the VAT id of a customer'  erp.py:58" in shop.run_cli("failures").stdout


def test_a_terminal_has_colour(shop: System) -> None:
    shown = in_a_terminal(shop, "events")
    assert "\x1b[31mfailed" in shown
    assert "\x1b[33mopen" in shown


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_switched_off(shop: System, env: dict[str, str]) -> None:
    assert "\x1b" not in in_a_terminal(shop, "events", env=env)


def test_json_and_pipes_have_no_colour(shop: System) -> None:
    assert "\x1b" not in in_a_terminal(shop, "events", "--json")
    assert "\x1b" not in shop.run_cli("events", env={"FORCE_COLOR": "1", "TERM": "xterm-256color"}).stdout


def test_text_from_outside_is_not_read_as_markup_or_escapes(system: System) -> None:
    system.accept("order.created", data={"id": "[red]7[/red]", "note": "\x1b[31m \x7f \u202e [bold]x[/bold]"})
    listed = in_a_terminal(system, "events", columns=120)
    assert "[red]7[/red]" in COLOUR.sub("", listed)
    shown = in_a_terminal(system, "events", "show", "last")
    assert "[bold]x[/bold]" in COLOUR.sub("", shown)
    assert not {"\x7f", "\u202e"} & set(shown)
    assert "\\u001b[31m" in COLOUR.sub("", shown)


def test_a_payload_is_indented(system: System) -> None:
    system.accept("order.created", data={"id": 7, "lines": [{"price": "42.10"}]})
    shown = system.run_cli("events", "show", "last").stdout
    assert '    "id": 7,\n    "lines": [\n      {\n        "price": "42.10"\n' in shown


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            b'{"total":42.10,"n":12345678901234567890123}',
            '{\n  "total": 42.10,\n  "n": 12345678901234567890123\n}\n',
        ),
        (b"id=7&note=a+%22b%22%1b", '{\n  "id": "7",\n  "note": "a \\"b\\"\\u001b"\n}\n'),
        (b"<xml/>\x1b[31m", "<xml/>\N{REPLACEMENT CHARACTER}[31m\n"),
        (b"[" * 100_000, "[" * 100_000 + "\n"),
        (b'"\\ud800"', '"\N{REPLACEMENT CHARACTER}"\n'),
    ],
    ids=["numbers", "a form", "no JSON", "nested too deeply", "a lone surrogate"],
)
def test_any_body_can_be_shown(capsys: pytest.CaptureFixture[str], body: bytes, shown: str) -> None:
    output.payload(body)
    assert capsys.readouterr().out == shown


def test_a_long_payload_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    output.payload(b"[" + b",".join([b"1"] * 500) + b"]")
    assert capsys.readouterr().out.endswith("\n… 402 more lines; --json shows all of it\n")


def test_help_names_each_command_with_the_first_line_of_its_own_help() -> None:
    for name, (_, text) in COMMANDS.items():
        command = storehooks.get_command(click.Context(storehooks), name)
        assert command is not None
        assert command.get_short_help_str(200) == text, name
        assert len(text) <= 60, "it would wrap on a terminal of 80 columns"


def test_help_does_not_wait_for_rich() -> None:
    code = "import sys; from workers.cli import main\ntry: main()\nexcept SystemExit: assert 'rich' not in sys.modules"
    for arguments in (["--help"], ["stats", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_long_cell_of_a_growing_table_is_not_joined_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    """The delivery ids of many stores are UUIDs, longer than such a column grows."""
    rows = [{"delivery": "46d3d8f4-7525-46b9-8fe9-7f3358ca0310", "id": "ugo72xl7"}, {"delivery": "x", "id": "y"}]
    listing._GrowingTable(listing.RowList()).add(rows)
    printed = capsys.readouterr().out
    assert "46d3d8f4-7525-46b9-8fe9-7f3358ca0310  " in printed
    assert "0310ugo72xl7" not in printed
