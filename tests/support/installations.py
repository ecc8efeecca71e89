"""A healthy installation, and deliberate ways to break it: what doctor's tests examine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

from receiver.config import SANDBOX_SECRET
from receiver.inbox import Inbox, keys
from receiver.inbox.subscription_checks import Checked, SubscriptionChecks
from receiver.spool import look_at_refusals
from tests.support.harness import HEAD, OTHER_SECRET, SECRET, Process, Server, System, eventually, free_port
from tests.support.raw_server import Listener

PLUGIN = """
from workers import Router
router = Router("erp")

@router.on("order.created")
def export(event, ctx):
    return "exported"
"""
CONFIG = (
    HEAD
    + """[workers]
plugins = ["shop.py"]
[subscriptions]
check = "1s"
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
)


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
        self.config_file.chmod(0o600)
        self.system.start("web", "worker", "housekeeper")
        command = [
            sys.executable,
            "-m",
            "workers.cli",
            "sandbox",
            "--store",
            "north",
            "--no-shopper",
            "--no-subscriptions",
        ]
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
def nobody_may_subscribe(clinic: Clinic, _: Path) -> Iterator[Path]:
    """The store lists its webhooks elsewhere than assumed; the workers' check has found that out."""
    missing = Checked("north", time.time(), unknown="GET /api/v3/app/webhooks answered 404")
    with found(clinic, missing) as path:
        yield path


@contextmanager
def disabled_subscription(clinic: Clinic, _: Path) -> Iterator[Path]:
    left = ({"action": "enable", "topic": "order.created", "why": "disabled again after 12 heals"},)
    with found(clinic, Checked("north", time.time(), wanted=1, left=left)) as path:
        yield path


@contextmanager
def found(clinic: Clinic, checked: Checked) -> Iterator[Path]:
    """As a check would leave it; that no other comes in between, its lock is held."""
    checks = SubscriptionChecks(clinic.server.client)
    with checks.alone("north", within=10):
        before = checks.last(["north"])["north"]
        checks.found(checked)
        yield clinic.config_file
        checks.found(before)


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
def wrong_url_of_a_store(clinic: Clinic, _: Path) -> Iterator[Path]:
    """One that has an address of its own, where something else listens; another has one that leads here."""
    south, here = (
        f"http://localhost:{clinic.sandbox}/webhooks/south",
        f"http://localhost:{clinic.system.port}/webhooks/w",
    )
    path = clinic.with_more(f'[stores.west]\nurl = "{here}"\nsigning_secrets = ["{SECRET}"]')
    path.write_text(path.read_text().replace("[stores.south]", f'[stores.south]\nurl = "{south}"'))
    yield path


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
    (
        secret_not_set,
        2,
        "config",
        ["stores.south.signing_secrets[0] refers to $SOUTH_SECRET_NOBODY_SET"],
        "broken.toml:21",
    ),
    (public_example_secret, 2, "config", ["uses the sandbox's secret, which is public"], "`storehooks init`"),
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
    (nobody_may_subscribe, 1, "north", ["could not be looked at", "answered 404"], "storehooks subscriptions plan"),
    (disabled_subscription, 1, "north", ["not made: enable order.created"], "storehooks subscriptions apply"),
    (store_that_hangs, 1, "east", ["its API"], "base_url ("),
    (clock_of_a_store, 1, "east", ["its clock is 9 min", "allows 300 s"], "run NTP"),
    (wrong_public_url, 1, "public url", ["not as storehooks does"], "the proxy, DNS or certificate"),
    (wrong_url_of_a_store, 1, "public url", ["/webhooks/south answered 404"], "the proxy, DNS or certificate"),
    (no_web, 1, "public url", ["does not answer"], "start `storehooks web`"),
    (rotated_secret, 1, "south", ["3 refused since", "all kept"], "storehooks verify --store south --refused last"),
    (mended_secret, 1, "south", ["3 refused", "all fit today's config"], "storehooks refused release --store south"),
    (ended_secret, 1, "south", ["its last signing secret ended"], "then HUP"),
    (stuck_spool, 1, "spool", ["4 answered deliveries wait on edge-2"], "the log of `storehooks web` on edge-2"),
]
