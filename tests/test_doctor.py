"""doctor, against real processes: a healthy set-up has nothing to fix, of a broken one it names fault and fix."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from receiver.config import SANDBOX_SECRET
from receiver.inbox import Inbox, connect, keys
from tests.harness import OTHER_SECRET, SECRET, Process, Server, System, eventually, free_port, own_server
from tests.storeapi.listener import Listener
from workers.cli import storehooks

PLUGIN = """
from workers import Router
router = Router("erp")

@router.on("order.created")
def export(event, ctx):
    return "exported"
"""
CONFIG = """
[redis]
url = "{redis}"
data_dir = "{data}"
[receiver]
bind = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{port}"
processes = 1
[workers]
plugins = ["shop.py"]
[sandbox]
bind = "127.0.0.1:{sandbox}"
[stores.north]
base_url = "http://127.0.0.1:{sandbox}"
allow_private = true
auth = {{ url = "/oauth/token", client_id = "app", client_secret = "right" }}
signing_secrets = ["{secret}"]
[stores.south]
signing_secrets = ["{other}"]
"""


@dataclass
class Told:
    """What doctor said."""

    code: int
    text: str
    findings: list[dict[str, Any]] = field(default_factory=list)

    def lines(self, level: str) -> list[str]:
        return [f"{one['check']}: {one['text']} | {one['fix']}" for one in self.findings if one["level"] == level]


def doctor(config: Path, *options: str, env: dict[str, str] | None = None) -> Told:
    """The command, called here: a process of its own would add seconds and nothing else."""
    arguments = ["doctor", "--config", str(config), *options]
    done = CliRunner().invoke(storehooks, arguments, env=env, catch_exceptions=False)
    findings = json.loads(done.stdout)["findings"] if "--json" in options else []
    return Told(done.exit_code, done.output, findings)


class Clinic:
    """A healthy installation, and copies of its config with something wrong in them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.system = System(folder, server.url, plugin=PLUGIN)
        self.sandbox = free_port()
        self.config_file = self.system.config_file
        self.text = CONFIG.format(
            redis=server.url,
            data=folder / "data",
            port=self.system.port,
            sandbox=self.sandbox,
            secret=SECRET,
            other=OTHER_SECRET,
        )
        self.config_file.write_text(self.text)
        self.system.start("web", "worker", "housekeeper")
        command = [sys.executable, "-m", "workers.cli", "sandbox", "--store", "north", "--no-shopper"]
        log = folder / "sandbox.log"
        self.system.processes.append(Process([*command, "--config", str(self.config_file)], log=log))
        for store in ("north", "south"):
            assert self.system.settled(self.system.deliver(store=store)) == "settled"

    def broken(self, old: str, new: str, *, name: str = "broken.toml") -> Path:
        """The config with one thing changed."""
        assert old in self.text
        path = self.config_file.with_name(name)
        path.write_text(self.text.replace(old, new, 1))
        return path

    def with_more(self, more: str) -> Path:
        return self.broken("[stores.south]", f"{more}\n[stores.south]")

    @contextmanager
    def setting(self, **values: str) -> Iterator[Path]:
        """The server set otherwise for a while."""
        before = {name: self.server.client.config_get(name.replace("_", "-")) for name in values}
        for name, value in values.items():
            self.server.client.config_set(name.replace("_", "-"), value)
        try:
            yield self.config_file
        finally:
            for told in before.values():
                for name, value in told.items():
                    self.server.client.config_set(name, value)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    folder = tmp_path_factory.mktemp("clinic")
    (folder / "data").mkdir()
    with own_server(tmp_path_factory.mktemp("server")) as server:
        clinic = Clinic(folder, server)
        yield clinic
        clinic.system.close()


def test_a_healthy_set_up_has_nothing_to_fix(clinic: Clinic) -> None:
    told = eventually(lambda: (t := doctor(clinic.config_file)).code == 0 and t, 20, what="the sandbox answers")
    assert "everything is fine" in told.text
    assert "FAIL" not in told.text
    for name in ("config", "server", "memory", "disk", "handlers", "workers", "housekeeper", "public url", "north"):
        assert f"ok    {name} " in told.text, told.text
    assert "token 59 min" in told.text or "token 1 h" in told.text
    assert SECRET not in told.text


# Twelve broken set-ups, and a few more. Each gives the config to examine.

Setup = Callable[[Clinic, Path], AbstractContextManager[Path]]


@contextmanager
def unknown_key(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken("public_url =", "pubic_url =")


@contextmanager
def secret_not_set(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken(f'["{OTHER_SECRET}"]', '["env:SOUTH_SECRET_NOBODY_SET"]')


@contextmanager
def public_example_secret(clinic: Clinic, _: Path) -> Iterator[Path]:
    path = clinic.broken('bind = "127.0.0.1:', 'bind = "0.0.0.0:')
    path.write_text(path.read_text().replace(OTHER_SECRET, SANDBOX_SECRET))
    yield path


@contextmanager
def no_server(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken(f'url = "{clinic.server.url}"', f'url = "redis://127.0.0.1:{free_port()}"')


@contextmanager
def not_durable(clinic: Clinic, _: Path) -> Iterator[Path]:
    with clinic.setting(appendfsync="everysec"):
        yield clinic.broken("data_dir", 'ack = "fsync"\ndata_dir')


@contextmanager
def evicting(clinic: Clinic, _: Path) -> Iterator[Path]:
    with clinic.setting(maxmemory_policy="allkeys-lru") as path:
        yield path


@contextmanager
def no_replica(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken("data_dir", 'ack = "replica"\ndata_dir')


@contextmanager
def nearly_full(clinic: Clinic, _: Path) -> Iterator[Path]:
    used = int(clinic.server.client.info("memory")["used_memory"])
    with clinic.setting(maxmemory=str(int(used * 1.1))) as path:
        yield path


@contextmanager
def broken_plugin(clinic: Clinic, _: Path) -> Iterator[Path]:
    (clinic.config_file.parent / "broken.py").write_text("from workers import Router\nrouter = Router('b'\n")
    yield clinic.broken('"shop.py"', '"shop.py", "broken.py"')


@contextmanager
def plugin_that_hangs(clinic: Clinic, _: Path) -> Iterator[Path]:
    (clinic.config_file.parent / "hangs.py").write_text("import time\ntime.sleep(50)\n")
    yield clinic.broken('"shop.py"', '"hangs.py"')


@contextmanager
def topic_nobody_sends(clinic: Clinic, _: Path) -> Iterator[Path]:
    text = PLUGIN.replace('"erp"', '"stock"').replace("order.created", "order.crated")
    (clinic.config_file.parent / "stock.py").write_text(text)
    yield clinic.broken('"shop.py"', '"stock.py"')


@contextmanager
def store_nobody_has(clinic: Clinic, _: Path) -> Iterator[Path]:
    (clinic.config_file.parent / "west.py").write_text(PLUGIN.replace('created")', 'created", stores="west")'))
    yield clinic.broken('"shop.py"', '"west.py"')


@contextmanager
def nobody_works(clinic: Clinic, _: Path) -> Iterator[Path]:
    """Another database of the same server: no worker and no housekeeper has ever been there."""
    yield clinic.broken(clinic.server.url, f"{clinic.server.url}?db=7")


@contextmanager
def wrong_credentials(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken('client_secret = "right"', 'client_secret = "wrong"')


@contextmanager
def store_that_hangs(clinic: Clinic, _: Path) -> Iterator[Path]:
    silent = Listener(b"H" * 100, pause=1.0)
    yield clinic.with_more(
        f'[stores.east]\nbase_url = "{silent.url}"\nallow_private = true\nauth = {{token = "t"}}\n'
        f'signing_secrets = ["{SECRET}"]'
    )
    silent.close()


@contextmanager
def clock_of_a_store(clinic: Clinic, _: Path) -> Iterator[Path]:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    answer = '{"data": [], "meta": {"total": 0}}'
    head = f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n"
    store = Listener(f"{head}connection: close\r\n\r\n{answer}".encode())
    yield clinic.with_more(
        f'[stores.east]\nbase_url = "{store.url}"\nallow_private = true\nauth = {{token = "t"}}\n'
        f'signing_secrets = ["{SECRET}"]'
    )
    store.close()


@contextmanager
def wrong_public_url(clinic: Clinic, _: Path) -> Iterator[Path]:
    port = clinic.system.port
    yield clinic.broken(f'public_url = "http://127.0.0.1:{port}"', f'public_url = "http://localhost:{clinic.sandbox}"')


@contextmanager
def no_web(clinic: Clinic, _: Path) -> Iterator[Path]:
    path = clinic.broken("processes = 1", "processes = 2")
    path.write_text(path.read_text().replace(f":{clinic.system.port}", f":{free_port()}"))
    yield path


@contextmanager
def rotated_secret(clinic: Clinic, _: Path) -> Iterator[Path]:
    """The store signs with another secret than we have: deliveries are refused."""
    with refused(clinic):
        yield clinic.config_file


@contextmanager
def mended_secret(clinic: Clinic, _: Path) -> Iterator[Path]:
    """The same, once the config has it."""
    with refused(clinic):
        yield clinic.broken(OTHER_SECRET, SECRET)


@contextmanager
def refused(clinic: Clinic) -> Iterator[None]:
    from receiver.spool import look_at_refusals

    for number in range(3):
        request = clinic.system.request(store="north", delivery_id=f"msg_{number}_{time.time()}")
        assert clinic.system.post(request, "south").status_code == 401
    refusals = look_at_refusals(clinic.system.config.data_dir)
    eventually(lambda: refusals.count() == 3, what="three refusals are written")
    yield
    refusals.delete([one.id for one in refusals.newest()])


@contextmanager
def ended_secret(clinic: Clinic, _: Path) -> Iterator[Path]:
    yield clinic.broken(f'["{OTHER_SECRET}"]', f'[{{value = "{OTHER_SECRET}", not_after = 2026-01-01T03:12:00Z}}]')


@contextmanager
def stuck_spool(clinic: Clinic, _: Path) -> Iterator[Path]:
    inbox = Inbox(clinic.server.client)
    inbox.publish_spool("edge-2", 4, time.time() - 600)
    yield clinic.config_file
    clinic.server.client.hdel(keys.SPOOLS, "edge-2")


BROKEN: list[tuple[Setup, int, str, list[str], str]] = [
    (unknown_key, 2, "config", ["broken.toml:7: unknown key receiver.pubic_url"], "did you mean public_url?"),
    (secret_not_set, 2, "config", ["stores.south.signing_secrets[0] wants $SOUTH_SECRET_NOBODY_SET"], "broken.toml:19"),
    (public_example_secret, 2, "config", ["uses the sandbox's secret, which all know"], "`storehooks init`"),
    (no_server, 1, "server", ["does not answer", "Connection refused"], "set [redis] url"),
    (not_durable, 1, "server", ["appendfsync everysec", 'ack = "fsync"'], "CONFIG SET appendfsync always"),
    (evicting, 1, "server", ["maxmemory-policy is allkeys-lru"], "maxmemory-policy noeviction"),
    (no_replica, 1, "server", ['ack = "replica", and no replica is connected'], 'ack = "fsync"'),
    (nearly_full, 1, "memory", ["used: new deliveries go to the spool"], "more maxmemory"),
    (broken_plugin, 1, "handlers", ["broken.py:2", "syntax error"], "what it says"),
    (plugin_that_hangs, 1, "handlers", ["takes too long"], "what it says"),
    (topic_nobody_sends, 1, "handlers", ["stock.export wants order.crated, never sent"], "stock.py:5"),
    (store_nobody_has, 1, "handlers", ["erp.export is for the store west, and there is none"], "west.py:5"),
    (nobody_works, 1, "workers", ["none is alive"], "start `storehooks worker`"),
    (
        wrong_credentials,
        1,
        "north",
        ["no token", "401"],
        "client_secret (",
    ),
    (store_that_hangs, 1, "east", ["its API"], "base_url ("),
    (clock_of_a_store, 1, "east", ["its clock is 9 min", "allows 300 s"], "run NTP"),
    (wrong_public_url, 1, "public url", ["not as storehooks does"], "the proxy, DNS or certificate"),
    (no_web, 1, "public url", ["does not answer"], "start `storehooks web`"),
    (rotated_secret, 1, "south", ["3 refused since", "all kept"], "storehooks verify --store south --refused last"),
    (mended_secret, 1, "south", ["3 refused", "all fit today's config"], "storehooks refused release --store south"),
    (ended_secret, 1, "south", ["its last signing secret ended"], "then HUP"),
    (stuck_spool, 1, "spool", ["4 answered deliveries wait on edge-2"], "the log of `storehooks web` on edge-2"),
]


@pytest.mark.parametrize(
    ("setup", "code", "check", "says", "fix"), BROKEN, ids=[f"{one[0].__name__}-{one[2]}" for one in BROKEN]
)
def test_a_broken_set_up_is_named_with_its_fix(
    clinic: Clinic, tmp_path: Path, setup: Setup, code: int, check: str, says: list[str], fix: str
) -> None:
    with setup(clinic, tmp_path) as config:
        started = time.monotonic()
        told = doctor(config, "--json", "--timeout", "2.5s")
        took = time.monotonic() - started
    found = [line for line in told.lines("fail") if line.startswith(f"{check}: ")]
    assert any(all(part in line for part in says) and fix in line for line in found), told.findings
    assert told.code == code
    assert took < 6, f"{took:.1f} s"
    assert SECRET not in told.text
    assert OTHER_SECRET not in told.text
    if setup is nobody_works:
        assert any(line.startswith("housekeeper: none is alive") for line in told.lines("fail"))


def test_what_is_only_to_know_is_no_failure_unless_asked_so(clinic: Clinic) -> None:
    with clinic.setting(appendfsync="everysec") as config:
        told = doctor(config)
        assert told.code == 0, told.text
        assert re.search(r"^WARN  server +Valkey [0-9.]+, appendfsync everysec$", told.text, flags=re.M)
        assert "a power cut may lose the last second of accepted events" in told.text
        assert "0 to fix, 1 to know" in told.text
        assert doctor(config, "--strict").code == 1


def test_a_paused_store_and_an_assumed_operation_are_told(clinic: Clinic) -> None:
    from workers.storeapi import ApiError, client_of

    inbox = Inbox(connect(clinic.server.url, timeout=5.0))
    with pytest.raises(ApiError):
        client_of(clinic.system.config, "north", inbox.client).webhooks.get(99)
    inbox.pause(store="north")
    try:
        told = doctor(clinic.config_file)
    finally:
        inbox.resume(store="north")
    assert re.search(r"^WARN  paused +north is paused; its work waits$", told.text, flags=re.M)
    assert "fix: storehooks stores resume north" in told.text
    assert "webhooks.get is used, assumed, never confirmed" in told.text
