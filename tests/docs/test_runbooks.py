"""The runbooks, executed from their first command to their last, on the deployment of docs/how-to/deploy.md."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from receiver.inbox import EventQueries
from receiver.spool import open_existing_refusals
from tests.receiver.process.test_start_checks import mounted
from tests.support.deployment import Deployment, deployed
from tests.support.harness import eventually, free_port
from tests.support.installations import spread_refusals
from tests.support.page_reader import steps
from tests.support.programs import ROOT
from tests.support.sandbox_controls import SandboxControls

RUNBOOKS = ROOT / "docs/runbooks"
SECRET = "the secret of north"
HANDLER = """
from storehooks import Router

router = Router("erp")


@router.on("order.*")
def export_order(event, ctx):
    return "exported"
"""
PLUGINS = '[workers]\nplugins = ["/etc/storehooks/erp.py"]\n'
FILES = {"north.secret": SECRET, "stores.d/plugins.toml": PLUGINS, "erp.py": HANDLER}
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def order(number: int) -> dict[str, object]:
    return {"id": number, "total_price": "42.00", "customer": {"email": f"{number}@example.com"}}


def handled(machine: Deployment, number: int) -> None:
    def all_are() -> bool:
        return machine.count("settled") == number and not machine.count("open")

    eventually(all_are, 60, what=f"{number} are handled")


def test_a_bug_in_the_night(tmp_path: Path) -> None:
    page = RUNBOOKS / "bug-in-the-night.md"
    broken = next(step.text for step in steps(page) if step.file.endswith("erp.py"))
    with deployed(tmp_path, {**FILES, "erp.py": broken}) as machine:
        store = machine.at_the_store(SECRET)
        orders = [order(number) if number < 3 else {"id": number, "customer": None} for number in range(12)]
        assert {machine.send(store, one) for one in orders} == {200}
        eventually(lambda: machine.count("failed") == 9, 60, what="the nine without a customer have failed")

        def of_failure(name: str) -> str:
            return str(json.loads(machine.run("storehooks failures list --json"))[0][name])

        machine.words |= {"GROUP": lambda: of_failure("group"), "EVENT": lambda: of_failure("event")}
        machine.after = {
            "storehooks failures replay --group GROUP --first 5": lambda: handled(machine, 8),
            "storehooks handlers resume erp.export_order": lambda: handled(machine, 12),
        }
        said = machine.follow(page)
        assert "it fails here too" in "".join(said.values())
        assert "exported for a guest" in said["storehooks handlers run erp.export_order --event event.json"]
        assert machine.count("failed") == 0


def test_a_rotated_secret(tmp_path: Path) -> None:
    with deployed(tmp_path, FILES) as machine:
        assert machine.send(machine.at_the_store(SECRET), order(1)) == 200
        store = machine.at_the_store("the secret after the rotation")
        assert {machine.send(store, order(number)) for number in (2, 3, 4)} == {401}
        eventually(lambda: open_existing_refusals(machine.data).count() == 3, 20, what="the refusals are stored")
        spread_refusals(machine.data)
        machine.edit("north.secret", "the secret after the rotation\n")
        answers: list[int] = []

        def is_accepted() -> bool:
            answers.append(machine.send(store, order(5)))
            return answers[-1] == 200

        machine.after = {
            "systemctl reload storehooks-web": lambda: eventually(is_accepted, 30, what="new deliveries are accepted"),
            # those that the old processes refused while they stopped are released too
            "storehooks refused release --store north": lambda: handled(machine, 4 + len(answers)),
        }
        said = machine.follow(RUNBOOKS / "rotated-secret.md")
        assert "signature-mismatch" in said['storehooks doctor || echo "there is something to fix"']
        assert "VALID" in said["storehooks verify --store north --refused last"]
        assert machine.send(machine.at_the_store(SECRET), order(6)) == 200, "the old secret is still valid"


SANDBOX = """
[sandbox]
bind = "127.0.0.1:{port}"

[secrets]
key = "{key}"

[subscriptions]
check = "off"

[stores.north]
base_url = "http://127.0.0.1:{port}"
allow_private = true
auth = {{ url = "/oauth/token", client_id = "app", client_secret = "s3cret" }}
signing_secrets = ["whsec_dGhlIHNlY3JldCBvZiBub3J0aCE="]
"""
SANDBOX_UNIT = """[Service]
Environment=STOREHOOKS_CONFIG=/etc/storehooks/config.toml
ExecStart=/opt/storehooks/bin/storehooks sandbox --store north --no-shopper --no-subscriptions
"""


class SandboxOf(SandboxControls):
    def __init__(self, port: int) -> None:
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)


def test_a_silent_store(tmp_path: Path) -> None:
    port = free_port()
    sandbox = SandboxOf(port)
    with deployed(tmp_path, {**FILES, "stores.d/north.toml": SANDBOX.format(port=port, key="00" * 32)}) as machine:
        unit = machine.filled_in(SANDBOX_UNIT)
        (machine.services.folder / "sandbox.service").write_text(unit)
        machine.services.wait_until_ready["sandbox"] = sandbox.answers
        machine.services.start("sandbox")
        machine.run("storehooks subscriptions apply --store north")

        def buy() -> str:
            """A new order at the store; returns its id."""
            printed = machine.run("storehooks api orders create --store north --json -p 'lines=[{\"product_id\": 1}]'")
            return str(json.loads(printed)["id"])

        def arrives(number: str) -> None:
            queries = EventQueries(machine.redis())
            arrived = lambda: [one for one in queries.events(store="north") if one.resource_id == number]  # noqa: E731
            eventually(arrived, 60, what=f"order {number} arrives")

        arrives(buy())
        sandbox.do("disable-subscriptions")
        buy()
        machine.after = {
            "storehooks api orders list --store north --all > orders.json": lambda: arrives(buy()),
        }
        said = machine.follow(RUNBOOKS / "silent-store.md")
        planned = said['storehooks subscriptions plan --store north || echo "changes are needed"']
        assert "changes are needed" in planned
        assert "no delivery for" in planned, "the gap, which the event that is sent next ends"
        assert len(json.loads((tmp_path / "orders.json").read_text())) == 2


@pytest.mark.parametrize("data", ["kept", "gone"])
def test_redis_lost(tmp_path: Path, data: str) -> None:
    with deployed(tmp_path, FILES) as machine:
        store = machine.at_the_store(SECRET)
        assert machine.send(store, order(1)) == 200
        handled(machine, 1)
        machine.services.running["redis-server"].kill()
        if data == "gone":
            shutil.rmtree(tmp_path / "var/lib/redis")
            (tmp_path / "var/lib/redis").mkdir()
        assert {machine.send(store, order(number)) for number in (2, 3)} == {200}
        there = 3 if data == "kept" else 2
        machine.after = {"systemctl start redis-server": lambda: handled(machine, there)}
        without = "3. If the data is gone" if data == "kept" else ""
        said = machine.follow(RUNBOOKS / "redis-lost.md", without=without)
        assert '"stores_in":"spool"' in said["curl --silent http://127.0.0.1:8000/readyz"].replace(" ", "")
        found = said['storehooks doctor || echo "there is something to fix"']
        assert found.count("there is something to fix") == (1 if data == "kept" else 2)


@pytest.mark.parametrize("disk", ["own", "shared with Redis"])
def test_a_full_disk(tmp_path: Path, disk: str) -> None:
    folder = tmp_path / ("var/lib/storehooks" if disk == "own" else "var/lib")
    folder.mkdir(parents=True)
    with mounted(folder, "size=90m"), deployed(tmp_path, FILES) as machine:
        store = machine.at_the_store(SECRET)
        assert machine.send(store, order(1)) == 200
        handled(machine, 1)
        core = machine.data / "core.4711"
        subprocess.run(["dd", "if=/dev/zero", f"of={core}", "bs=64k"], capture_output=True, check=False)
        assert shutil.disk_usage(folder).free == 0
        if disk == "own":
            assert machine.send(store, order(2)) == 200
        else:
            eventually(lambda: machine.send(store, order(2)) == 503, 30, what="nothing can be stored")

        def accepts_again() -> bool:  # each web process tries its readiness once a second
            ready = [httpx2.get(f"{machine.url}/readyz").status_code for _ in range(20)]
            return machine.send(store, order(3)) == 200 and set(ready) == {200}

        machine.after = {
            "systemctl start redis-server": lambda: eventually(accepts_again, 30, what="deliveries are accepted")
        }
        said = machine.follow(RUNBOOKS / "disk-full.md")
        assert "core.4711" in said["du -a /var/lib/storehooks | sort -n | tail -5"]
        assert "disk" in said['storehooks doctor || echo "there is something to fix"']
