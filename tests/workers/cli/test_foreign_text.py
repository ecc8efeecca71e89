"""Text from outside never controls a terminal: it is escaped there, and unchanged in a pipe."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.config.values import Bounds
from receiver.contract.diagnosis.terminal_text import escaped
from receiver.inbox import FailureQueries, Outcome
from receiver.spool import Refusal, open_refusals
from tests.receiver.inbox.test_inbox import claim_one, route
from tests.support.harness import System
from tests.workers.cli.test_output import in_a_terminal

EVIL = (
    "\x1b[2J\x1b]0;title\x07 \x00 \x08 \r \x7f \x84 \x9b31m \x9d0;title\x9c \u202ereversed\u202c \u2066a\u2069 "
    "\u200e\u200f "
    "\u061c \u200b \u2028 \u2029 \ufeff \U000e0041 \ue000 \x85 end"
)
HANDLER = "shop.export"
PLAIN = {"NO_COLOR": "1"}


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    """A shop with an event, a failure and a refused delivery that are full of control characters."""
    system = make_system(plugin=EVIL_PLUGIN)
    system.accept("order." + "\u202e" + "made", data={"id": EVIL, "note": EVIL}, delivery_id="msg_\x9b31m\u202e")
    (run,) = route(system.inbox, claim_one(system.inbox), (HANDLER, "default", True))
    error = {"error": f"KeyError: {EVIL}", "at": f"/srv/{EVIL}.py:58", "version": EVIL, "traceback": EVIL}
    system.inbox.finish([Outcome(run, "failed", error)])
    body = json.dumps({"type": EVIL}, ensure_ascii=False).encode() + EVIL.encode() + b"\xff\x9b"
    headers = {"x-signature": EVIL, "webhook-signature": "v1," + EVIL, "user-agent": EVIL.encode().decode("latin-1")}
    line = Refusal(time.time(), "north", "north", "malformed-signature", 9, "00", EVIL, headers, body)
    refusals = open_refusals(system.config.data_dir)
    refusals.add([line], bounds=Bounds(3600, 1 << 20), now=time.time())
    refusals.close()
    return system


EVIL_PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.created")
def export(event, ctx):
    pass
"""


def harmful(shown: str) -> set[str]:
    """The characters that could control a terminal. A line ends with CR LF there."""
    kinds = {character: unicodedata.category(character) for character in shown.replace("\r\n", "\n")}
    return {one for one, kind in kinds.items() if (kind[0] == "C" or kind in ("Zl", "Zp")) and one != "\n"}


COMMANDS = (
    "events --json",
    "events show last",
    "events show last --json",
    "events show last --export -",
    "failures",
    "failures --json",
    "failures show GROUP",
    "handlers explain last --json",
    "topics --json",
    "stats --json",
    "refused",
    "refused --json",
    "refused show last",
    "refused show last --raw",
    "refused show last --json",
    "verify --refused last",
    "verify --request FILE --store north",
    "scheme detect --request FILE --secret env:SECRET",
    "send order.created --print --set note=EVIL",
    "send EVIL",
    "doctor",
    "EVIL",
    "events show EVIL",
    "events --EVIL",
    "stores show EVIL",
    "handlers pause EVIL",
    "verify --request EVIL --store north",
    "api EVIL",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_passes_control_characters_to_a_terminal(shop: System, tmp_path: Path, command: str) -> None:
    (group,) = {group.id for group in FailureQueries(shop.client).groups().entries}
    file = tmp_path / "request.txt"
    evil = EVIL.replace("\x00", "")
    file.write_bytes(
        f"x-signature: {evil}\n\u009b{evil}: b\n\n".replace("\r", "").encode() + evil.encode() + b"\xff\x9b"
    )
    words = {"GROUP": group, "FILE": str(file)}
    given = [words.get(word, word.replace("EVIL", evil)) for word in command.split(" ")]
    shown = in_a_terminal(shop, *given, env=PLAIN | {"SECRET": "a secret"})
    assert shown.strip()
    assert harmful(shown) == set(), shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "command", ["events", "events show last", "refused", "refused show last", "failures", "stores show north", "topics"]
)
def test_json_on_a_terminal_is_the_same_document(shop: System, command: str) -> None:
    piped = shop.run_cli(*command.split(), "--json").stdout
    assert json.loads(in_a_terminal(shop, *command.split(), "--json", env=PLAIN)) == json.loads(piped)
    if command in ("events show last", "refused show last", "failures"):
        assert "\u202e" in piped, "a pipe gets it unchanged"


def test_a_raw_request_is_raw_in_a_pipe_and_with_force(shop: System) -> None:
    expected = open_refusals(shop.config.data_dir).get(1)
    assert expected is not None
    shown = in_a_terminal(shop, "refused", "show", "last", "--raw", env=PLAIN)
    assert "\\u001b[2J" in shown
    assert "--force prints them as they are" in shown
    forced = in_a_terminal(shop, "refused", "show", "last", "--raw", "--force", env=PLAIN, errors="replace")
    assert "\x1b[2J" in forced
    assert "\u202e" in forced


def test_plain_text_is_not_changed() -> None:
    text = 'Grüße, 注文 👍🏽 {"a": "\\u001b"}\n\ttab'
    assert escaped(text) == text


def test_an_escaped_document_is_the_same_document() -> None:
    text = json.dumps({EVIL: [EVIL, "\U000e0041"]}, ensure_ascii=False)
    assert json.loads(escaped(text)) == json.loads(text)
    assert harmful(escaped(text)) == set()
    assert escaped("\ud800") == "\\ud800"


def test_only_one_module_writes_to_the_terminal() -> None:
    """All others use workers/cli/output.py, which escapes."""
    for file in (Path(__file__).parents[3] / "workers/cli").glob("*.py"):
        if file.name != "output.py":
            assert not re.search(r"click\.(s?echo|confirm)\(|\bprint\(|stdout\.(buffer\.)?write", file.read_text()), (
                file
            )
