"""The restore drill: follows docs/backup.md with an installation that loses Redis, and accounts for each delivery."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from receiver.contract.compose import Request
from receiver.inbox import keys
from tests.support.harness import Server, System, eventually
from tests.support.programs import ROOT
from workers.history.configured_history import open_history

PAGE = (ROOT / "docs/backup.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
FOLDERS, SPOOL, REDIS, HISTORY, RESTORE, LOOK = range(6)
PLUGIN = """
from pathlib import Path
from workers import Router
router = Router("shop")

def note(event):
    with Path({runs!r}).open("a") as file:
        file.write(event.delivery_id + "\\n")

@router.on("order.created")
def book(event, ctx):
    note(event)

@router.on("order.paid", retries=())
def pay(event, ctx):
    note(event)
    raise ValueError("no account")

@router.on("customer.created")
def greet(event, ctx):
    note(event)
"""
NAMES = {
    "settled": "settled before the backup",
    "spooled": "in the spool when it was copied, settled before Redis was",
    "failed": "failed before the backup",
    "open": "open at the backup",
    "after": "accepted after it, in the Redis that was lost",
    "in_spool": "accepted after it, in the spool that is still there",
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("sqlite3"), reason="sqlite3 is not installed"),
]


class Drill:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: dict[str, dict[str, Request]] = {}
        """By kind: the deliveries that were answered 2xx, as the log of a store has them."""
        self.runs_file = folder / "runs.txt"
        self.runs_file.touch()
        self.server, self.system = self.installation()

    def installation(self) -> tuple[Server, System]:
        """On the data of the folder, with the same address each time."""
        (self.folder / "data").mkdir(mode=0o700, exist_ok=True)
        server = Server(self.folder / "data").start()
        plugin = PLUGIN.format(runs=str(self.runs_file))
        more = '[history]\nurl = "sqlite"\nafter = "0s"\n'
        return server, System(self.folder, server.url, plugin=plugin, more=more)

    def follow(self, block: int) -> str:
        """Run a block of the page, as a person would in a shell that knows the folders."""
        commands = BLOCKS[FOLDERS] + BLOCKS[block]
        environ = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "STOREHOOKS_CONFIG": str(self.system.config_file),
        }
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", commands],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environ,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def send(self, kind: str, topic: str, many: int) -> None:
        for number in range(many):
            delivery = f"msg_{kind}_{number}"
            request = self.system.request(topic, delivery_id=delivery, data={"id": number, "kind": kind})
            assert self.system.post(request).status_code == 200
            self.sent.setdefault(kind, {})[delivery] = request

    def ran(self) -> Counter[str]:
        return Counter(self.runs_file.read_text().split())

    def wait_until_handled(self, *kinds: str) -> None:
        wanted = {delivery for kind in kinds for delivery in self.sent[kind]}
        eventually(lambda: wanted <= set(self.ran()), 60, what=f"{kinds} are handled")

    def known(self, delivery: str) -> bool:
        return self.system.run_cli("events", "show", delivery, "--json").returncode == 0

    def stop(self) -> None:
        self.system.close()
        self.server.stop()


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    with ExitStack() as stack:
        made = Drill(tmp_path)
        stack.callback(made.stop)
        yield made


def test_the_restore_drill(drill: Drill, capsys: pytest.CaptureFixture[str]) -> None:
    back_up(drill)
    lose(drill)
    restore(drill)
    rows = account(drill)
    with capsys.disabled():
        print("\n" + "\n".join(rows))
    redeliver_what_is_missing(drill)


def back_up(drill: Drill) -> None:
    system = drill.system
    system.administration.pause(handler="shop.greet")
    system.start("web", "supervisor")
    drill.send("settled", "order.created", 40)
    drill.send("failed", "order.paid", 3)
    drill.send("open", "customer.created", 5)
    drill.wait_until_handled("settled", "failed")
    drill.follow(SPOOL)
    assert not list((drill.folder / "data").glob("spool*")), "a copy of no spool made one, which is not the receiver's"
    history = open_history(system.config, system.client)
    eventually(lambda: history.sizes().events >= 40, 60, what="settled events are in the history")
    drill.server.kill()
    drill.send("spooled", "order.created", 4)
    drill.follow(SPOOL)
    drill.server.start()
    drill.wait_until_handled("spooled")
    eventually(lambda: system.client.zcard(keys.LEASED) == 0)
    drill.follow(REDIS)
    drill.follow(HISTORY)


def test_a_host_without_a_spool_keeps_its_newer_files(drill: Drill) -> None:
    data, kept = drill.folder / "data", drill.folder / "data/keyring.json"
    (data / "history").mkdir(mode=0o700)
    (data / "history/place").write_text("here")
    kept.write_text("learned before the backup")
    (data / "known_data").write_text("before")
    for block in (SPOOL, REDIS, HISTORY):
        drill.follow(block)
    assert not list((data / "history").glob("*.sqlite"))
    kept.write_text("learned since")
    (data / "known_data").unlink()
    drill.server.kill()
    shutil.rmtree(data / "redis")
    drill.follow(RESTORE)
    assert (kept.read_text(), (data / "known_data").read_text()) == ("learned since", "before")
    drill.server.start()


def lose(drill: Drill) -> None:
    """Redis is lost with its disk, and the history; receivers go on with their spool, until they are stopped."""
    drill.send("after", "order.created", 6)
    drill.wait_until_handled("after")
    drill.server.kill()
    drill.send("in_spool", "order.created", 4)
    drill.system.close()
    for lost in ("redis", "history"):
        shutil.rmtree(drill.folder / "data" / lost)


def restore(drill: Drill) -> None:
    (drill.folder / "data/redis.sock").unlink(missing_ok=True)
    drill.follow(RESTORE)
    drill.server, drill.system = drill.installation()
    drill.system.start("web")
    drill.follow(LOOK)
    drill.system.start("supervisor")
    drill.system.administration.resume(handler="shop.greet")
    drill.wait_until_handled("open", "in_spool")
    eventually(lambda: drill.system.ledger.counters().total["open"] == 0, 60, what="nothing is open")


def account(drill: Drill) -> list[str]:
    """A row for each kind of delivery; the promises of the page hold."""
    ran, rows = drill.ran(), [f"{'':<60} {'sent':>5} {'known':>6} {'runs':>5} {'twice':>6}"]
    known = {kind: [one for one in sent if drill.known(one)] for kind, sent in drill.sent.items()}
    for kind, sent in drill.sent.items():
        twice = [one for one in sent if ran[one] > 1]
        rows.append(
            f"{NAMES[kind]:<60} {len(sent):>5} {len(known[kind]):>6} {sum(ran[one] for one in sent):>5} {len(twice):>6}"
        )
        assert twice == [], kind
    missing = [one for kind, sent in drill.sent.items() for one in sent if one not in known[kind]]
    rows.append(f"missing, by the store's log: {', '.join(missing)}")
    assert missing == list(drill.sent["after"])
    assert drill.system.ledger.counters().total["failed"] == 3
    assert drill.system.identity_holds()
    return rows


def redeliver_what_is_missing(drill: Drill) -> None:
    for kind in ("settled", "spooled", "after"):
        answer = drill.system.post(next(iter(drill.sent[kind].values())))
        assert answer.json()["status"] == ("accepted" if kind == "after" else "duplicate"), kind
