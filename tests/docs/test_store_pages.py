"""The commands of the pages about a store's API, stores and hosts, typed at a terminal beside a sandbox store."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.deployment import Deployment, deployed
from tests.support.harness import SECRET, eventually, free_port, kill_with_children
from tests.support.page_reader import PageReader, commands, steps
from tests.support.programs import ROOT, Process
from tests.support.sandbox_controls import SandboxControls

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
DOCS = ROOT / "docs"
STORE = """
[sandbox]
bind = "127.0.0.1:{port}"

[secrets]
key = "{key}"

[subscriptions]
check = "off"

[stores.demo]
base_url = "http://127.0.0.1:{port}"
allow_private = true
auth = {{ url = "/oauth/token", client_id = "app", client_secret = "s3cret" }}
"""
PLUGIN = """
from storehooks import Router

router = Router("erp")


@router.on("order.*")
def export_order(event, ctx):
    return "exported"
"""
UNIT = """[Service]
Environment=STOREHOOKS_CONFIG=/etc/storehooks/config.toml
ExecStart=/opt/storehooks/bin/storehooks sandbox --store demo --no-shopper --no-subscriptions
"""


class Sandbox(SandboxControls):
    def __init__(self, port: int) -> None:
        self.port = port
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(free_port())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Iterator[Deployment]:
    files = {
        "stores.d/north.toml": "",
        "stores.d/demo.toml": STORE.format(port=sandbox.port, key="00" * 32),
        "stores.d/plugins.toml": '[workers]\nplugins = ["/etc/storehooks/erp.py"]\n',
        "erp.py": PLUGIN,
    }
    with deployed(tmp_path_factory.mktemp("machine"), files) as found:
        (found.etc / "stores.d/north.toml").unlink()
        (found.services.folder / "sandbox.service").write_text(found.filled_in(UNIT))
        found.services.wait_until_ready["sandbox"] = sandbox.answers
        found.services.start("sandbox")
        yield found


def type_all(reader: PageReader, page: str) -> None:
    for line in commands(DOCS / page):
        reader.run(reader.filled_in(line))


def test_the_client(machine: Deployment) -> None:
    rows = "\n".join(f"MUG-{number},Mug {number},9.90,{number}" for number in range(5))
    (machine.folder / "goods.csv").write_text(f"sku,name,price,stock\n{rows}\n")
    people = [json.dumps({"name": f"Ada {number}", "email": f"ada{number}@example.com"}) for number in range(5)]
    (machine.folder / "people.jsonl").write_text("\n".join(people))
    (machine.folder / "order.json").write_text(json.dumps({"lines": [{"product_id": 1, "quantity": 1}]}))
    machine.run("storehooks api orders create --data order.json")
    type_all(machine, "client.md")


def test_subscriptions(machine: Deployment) -> None:
    type_all(machine, "subscriptions.md")


def test_the_sandbox(machine: Deployment, sandbox: Sandbox) -> None:
    for number, line in enumerate(commands(DOCS / "sandbox.md")):
        words = shlex.split(line)
        if words[2].startswith("--"):
            machine.services.stop("sandbox")
            log = machine.folder / f"sandbox-{number}.log"
            started = Process([str(ROOT / ".venv/bin/storehooks"), *words[1:]], log=log, env=machine.environ)
            eventually(sandbox.answers, 60, what=line)
            started.stop()
            machine.services.start("sandbox")
        else:
            machine.run(line)


def test_stores(machine: Deployment, sandbox: Sandbox) -> None:
    for name, text in (("north.secret", SECRET), ("north.client", "s3cret")):
        (machine.etc / name).write_text(text)
        (machine.etc / name).chmod(0o600)
    reader = PageReader(machine.etc, machine.environ)
    reader.words["https://north.example"] = f"http://127.0.0.1:{sandbox.port} --allow-private"
    reader.words |= {"3f2a": "app", "shopify": "standard-webhooks"}  # as the sandbox has it
    south = Sandbox(free_port())
    reader.words["8003"] = str(south.port)
    started = None
    for step in steps(DOCS / "operating/stores.md"):
        if step.text.startswith("storehooks sandbox "):  # in a terminal of its own
            words = [str(ROOT / ".venv/bin/storehooks"), *shlex.split(step.text)[1:]]
            started = Process(words, log=machine.folder / "south.log", env=machine.environ, cwd=machine.etc)
            eventually(south.answers, 60, what=step.text)
        else:
            reader.do(step)
    assert started is not None
    started.stop()


def test_hosts(machine: Deployment) -> None:
    web = machine.services.running["storehooks-web"]
    (name,) = re.findall(r"^\S+:/\S+", machine.run("storehooks hosts"), re.MULTILINE)
    kill_with_children(web)
    eventually(lambda: "receiving" not in machine.run("storehooks hosts"), 60, what="the host does not report")
    machine.words["HOST"] = name
    type_all(machine, "operating/spool.md")
    machine.services.start("storehooks-web")


def test_redis_that_was_replaced(machine: Deployment) -> None:
    machine.services.stop("redis-server")
    for path in (machine.folder / "var/lib/redis").rglob("*"):
        path.unlink() if path.is_file() else None
    machine.services.start("redis-server")
    eventually(lambda: "emptied" in machine.run("storehooks doctor || true"), 60, what="it was noticed")
    machine.words["WRONG"] = "127.0.0.1"
    *ended, worker = commands(DOCS / "operating/replaced-redis.md")
    for line in ended:
        machine.run(machine.filled_in(line))
    variable, *words = shlex.split(machine.filled_in(worker))
    environ = {**machine.environ, **dict([variable.split("=", 1)])}
    started = Process([str(ROOT / ".venv/bin" / words[0]), *words[1:]], log=machine.folder / "more.log", env=environ)
    eventually(lambda: "worker started" in started.output(), 60, what=worker)
    started.send(signal.SIGTERM)
    assert started.wait(40) == 0


def test_certification(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "storehooks", "new-plugin", "loyalty"], cwd=tmp_path, check=True)
    type_all(PageReader(tmp_path), "certification.md")
