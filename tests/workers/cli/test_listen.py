"""`storehooks listen --forward`: new events go to a local program while the command runs. The inbox is unchanged."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.forward_target import Target
from tests.support.harness import SECRET, Server, System, eventually
from tests.support.programs import ROOT

PAGE = ROOT / "docs/how-to/forward.md"


def ids(target: Target) -> list[str]:
    return [received.headers["storehooks-event"] for received in target.received]


def test_new_events_are_sent_in_order_until_the_command_ends(system: System, target: Target) -> None:
    before = system.accept("order.created")
    target.answer = (503, {}, b"starting")
    (command,) = re.findall(r"^storehooks (listen .*)", PAGE.read_text(), flags=re.MULTILINE)
    arguments = shlex.split(command.replace("http://127.0.0.1:3000", target.url))
    assert arguments == ["listen", "--forward", f"{target.url}/hook", "--topic", "order.*"]
    (system.folder / "listen.secret").write_text(f"{SECRET}\n")
    listening = system.start_cli(*arguments, "--store", "north", "--secret", f"file:{system.folder / 'listen.secret'}")
    eventually(lambda: "new events are sent to" in system.log("listen"), 20, what="it listens")
    stored = set(system.client.keys("*"))

    first = system.accept("order.created")
    others = [system.accept("product.updated"), system.accept("order.created", store="south")]
    second = system.accept("order.paid")
    eventually(lambda: ids(target).count(first) >= 2, what="the first is sent again")
    assert second not in ids(target)
    target.answer = (422, {}, b"no")
    eventually(lambda: second in ids(target), what="the second is sent")
    target.answer = (200, {}, b"")
    third = system.accept("order.created")
    eventually(lambda: third in system.log("listen"), what="the third is sent")

    assert list(dict.fromkeys(ids(target))) == [first, second, third]
    assert not {before, *others} & set(ids(target))
    assert ids(target).count(second) == ids(target).count(third) == 1
    for received in target.received:
        Webhook(SECRET).verify(received.body, received.headers)
    listening.send(signal.SIGINT)
    eventually(lambda: not listening.alive, what="it ends")
    log = system.log("listen")
    assert log.count("127.0.0.1 answered 503: starting") == 1
    assert "127.0.0.1 answered 422: no" in log
    assert log.rstrip().endswith("stopped; 3 events sent")
    assert [one for one in system.ledger.declared() if "listen" in one[0].handler] == []
    new = {key.decode() for key in set(system.client.keys("*")) - stored}
    assert [key for key in new if "listen" in key or "declar" in key] == []


def test_an_outage_of_the_server_is_waited_for(tmp_path: Path, own_redis: Server, target: Target) -> None:
    """It ended, and what was accepted later was never sent."""
    system = System(tmp_path, own_redis.url)
    listening = system.start_cli("listen", "--forward", f"{target.url}/hook")
    try:
        eventually(lambda: "new events are sent to" in system.log("listen"), 20, what="it listens")
        own_redis.stop()
        eventually(lambda: "Redis does not answer" in system.log("listen"), what="it says so")
        own_redis.start()
        sent = system.accept()
        eventually(lambda: sent in ids(target), what="it goes on")
        assert listening.alive
    finally:
        system.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--forward", "127.0.0.1:3000"], "--forward is not a URL; write --forward http://127.0.0.1:3000/hook"),
        (["--forward", "http://127.0.0.1:3000", "--secret", "whsec_%"], "storehooks: --secret cannot be used"),
        (
            ["--forward", "http://127.0.0.1:3000", "--secret", "env:NOT"],
            "storehooks: --secret: the environment variable",
        ),
        (["--forward", "http://127.0.0.1:3000", "--store", "west"], "no store west"),
        (["--forward", "http://127.0.0.1:3000", "--topic", "Order!"], "asks for the topic"),
        ([], "Missing option '--forward'"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(system: System, arguments: list[str], says: str) -> None:
    done = system.run_cli("listen", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
