"""A healthy installation and ways to break it, for the tests of doctor."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

from receiver.config import SANDBOX_SECRET
from receiver.inbox import Inbox
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from receiver.spool import open_existing_refusals
from receiver.spool.refused_deliveries import REFUSED_FILE
from tests.support.harness import (
    HEAD,
    OTHER_SECRET,
    SECRET,
    Server,
    System,
    eventually,
    free_port,
    sandbox_config,
)
from tests.support.raw_server import RawServer

PLUGIN = """
from workers import Router
router = Router("erp")

@router.on("order.created")
def export(event, ctx):
    return "exported"
"""
WORKERS = """[workers]
plugins = ["shop.py"]
[subscriptions]
check = "1s"
"""


class Installation:
    """A healthy installation, and copies of its config with a fault in them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.system = System(folder, server.url, plugin=PLUGIN)
        self.sandbox = free_port()
        self.config_file = self.system.config_file
        head = HEAD.format(redis=server.url, data=folder / "data", port=self.system.port) + WORKERS
        south = f'[stores.south]\nsigning_secrets = ["{OTHER_SECRET}"]\n'
        self.text = head + sandbox_config(self.sandbox) + south
        self.config_file.write_text(self.text)
        self.config_file.chmod(0o600)
        self.system.start("web", "worker", "housekeeper")
        self.system.start_cli("sandbox", "--store", "north", "--no-shopper", "--no-subscriptions")
        for store in ("north", "south"):
            assert self.system.settled(self.system.deliver(store=store)) == "settled"

    def broken(self, old: str, new: str, *, name: str = "broken.toml") -> Path:
        """A copy of the config with one change."""
        assert old in self.text
        path = self.config_file.with_name(name)
        path.write_text(self.text.replace(old, new, 1))
        return path

    def with_config(self, more: str) -> Path:
        return self.broken("[stores.south]", f"{more}\n[stores.south]")

    def with_store_at(self, url: str) -> Path:
        """A third store, `east`, whose API is at this URL."""
        return self.with_config(
            f'[stores.east]\nbase_url = "{url}"\nallow_private = true\nauth = {{token = "t"}}\n'
            f'signing_secrets = ["{SECRET}"]'
        )

    @contextmanager
    def setting(self, **values: str) -> Iterator[Path]:
        """The server with other settings, which are restored at the end."""
        before = {name: self.server.client.config_get(name.replace("_", "-")) for name in values}
        for name, value in values.items():
            self.server.client.config_set(name.replace("_", "-"), value)
        try:
            yield self.config_file
        finally:
            for settings in before.values():
                for name, value in settings.items():
                    self.server.client.config_set(name, value)


# Each breakage yields the config file to examine.

Breakage = Callable[[Installation, Path], AbstractContextManager[Path]]


@contextmanager
def unknown_key(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken("public_url =", "pubic_url =")


@contextmanager
def secret_not_set(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken(f'["{OTHER_SECRET}"]', '["env:SOUTH_SECRET_NOT_SET"]')


@contextmanager
def public_example_secret(installation: Installation, _: Path) -> Iterator[Path]:
    path = installation.broken('bind = "127.0.0.1:', 'bind = "0.0.0.0:')
    path.write_text(path.read_text().replace(OTHER_SECRET, SANDBOX_SECRET))
    yield path


@contextmanager
def no_server(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken(f'url = "{installation.server.url}"', f'url = "redis://127.0.0.1:{free_port()}"')


@contextmanager
def not_durable(installation: Installation, _: Path) -> Iterator[Path]:
    with installation.setting(appendfsync="everysec"):
        yield installation.broken("data_dir", 'ack = "fsync"\ndata_dir')


@contextmanager
def evicting(installation: Installation, _: Path) -> Iterator[Path]:
    with installation.setting(maxmemory_policy="allkeys-lru") as path:
        yield path


@contextmanager
def no_replica(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken("data_dir", 'ack = "replica"\ndata_dir')


@contextmanager
def nearly_full(installation: Installation, _: Path) -> Iterator[Path]:
    used = int(installation.server.client.info("memory")["used_memory"])
    with installation.setting(maxmemory=str(int(used * 1.1))) as path:
        yield path


@contextmanager
def broken_plugin(installation: Installation, _: Path) -> Iterator[Path]:
    (installation.config_file.parent / "broken.py").write_text("from workers import Router\nrouter = Router('b'\n")
    yield installation.broken('"shop.py"', '"shop.py", "broken.py"')


@contextmanager
def plugin_that_hangs(installation: Installation, _: Path) -> Iterator[Path]:
    (installation.config_file.parent / "hangs.py").write_text("import time\ntime.sleep(50)\n")
    yield installation.broken('"shop.py"', '"hangs.py"')


@contextmanager
def unknown_topic(installation: Installation, _: Path) -> Iterator[Path]:
    text = PLUGIN.replace('"erp"', '"stock"').replace("order.created", "order.crated")
    (installation.config_file.parent / "stock.py").write_text(text)
    yield installation.broken('"shop.py"', '"stock.py"')


@contextmanager
def unknown_store(installation: Installation, _: Path) -> Iterator[Path]:
    (installation.config_file.parent / "west.py").write_text(PLUGIN.replace('created")', 'created", stores="west")'))
    yield installation.broken('"shop.py"', '"west.py"')


@contextmanager
def unknown_store_in_config(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.with_config('[plugins.erp]\nstores = ["nort"]')


@contextmanager
def no_worker(installation: Installation, _: Path) -> Iterator[Path]:
    """Another database of the same server, which no worker and no housekeeper has ever used."""
    yield installation.broken(installation.server.url, f"{installation.server.url}?db=7")


@contextmanager
def wrong_credentials(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken('client_secret = "right"', 'client_secret = "wrong"')


@contextmanager
def no_token_endpoint(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken('url = "/oauth/token"', f'url = "http://127.0.0.1:{free_port()}/oauth/token"')


@contextmanager
def subscriptions_unreadable(installation: Installation, _: Path) -> Iterator[Path]:
    """The store lists its webhooks at another path than assumed, and the workers' check has reported that."""
    missing = CheckResult("north", time.time(), unknown="GET /api/v3/app/webhooks answered 404")
    with check_result(installation, missing) as path:
        yield path


@contextmanager
def disabled_subscription(installation: Installation, _: Path) -> Iterator[Path]:
    left = ({"action": "enable", "topic": "order.created", "why": "disabled again after 12 repairs"},)
    with check_result(installation, CheckResult("north", time.time(), wanted=1, pending=left)) as path:
        yield path


@contextmanager
def check_result(installation: Installation, checked: CheckResult) -> Iterator[Path]:
    """The result of a subscription check. The lock is held so that no real check replaces it."""
    checks = SubscriptionChecks(installation.server.client)
    eventually(lambda: checks.last_results(["north"]), what="the first subscription check")
    with checks.lock("north", within=10):
        before = checks.last_results(["north"])["north"]
        checks.store_result(checked)
        yield installation.config_file
        checks.store_result(before)


@contextmanager
def store_that_hangs(installation: Installation, _: Path) -> Iterator[Path]:
    silent = RawServer(b"H" * 100, pause=1.0)
    yield installation.with_store_at(silent.url)
    silent.close()


@contextmanager
def store_clock_ahead(installation: Installation, _: Path) -> Iterator[Path]:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    answer = '{"data": [], "meta": {"total": 0}}'
    head = f"HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n"
    store = RawServer(f"{head}connection: close\r\n\r\n{answer}".encode())
    yield installation.with_store_at(store.url)
    store.close()


@contextmanager
def wrong_public_url(installation: Installation, _: Path) -> Iterator[Path]:
    port = installation.system.port
    yield installation.broken(
        f'public_url = "http://127.0.0.1:{port}"', f'public_url = "http://localhost:{installation.sandbox}"'
    )


@contextmanager
def wrong_url_of_a_store(installation: Installation, _: Path) -> Iterator[Path]:
    """One store has its own URL, where another server listens; a second store has a URL that leads to the receiver."""
    south, here = (
        f"http://localhost:{installation.sandbox}/webhooks/south",
        f"http://localhost:{installation.system.port}/webhooks/w",
    )
    path = installation.with_config(f'[stores.west]\nurl = "{here}"\nsigning_secrets = ["{SECRET}"]')
    path.write_text(path.read_text().replace("[stores.south]", f'[stores.south]\nurl = "{south}"'))
    yield path


@contextmanager
def no_web(installation: Installation, _: Path) -> Iterator[Path]:
    path = installation.broken("processes = 1", "processes = 2")
    path.write_text(path.read_text().replace(f":{installation.system.port}", f":{free_port()}"))
    yield path


def spread_refusals(data_dir: Path) -> None:
    """The last refusal came two minutes later."""
    with closing(sqlite3.connect(data_dir / REFUSED_FILE)) as file, file:
        file.execute("UPDATE refused SET at = at + 120000 WHERE id = (SELECT max(id) FROM refused)")


@contextmanager
def rotated_secret(installation: Installation, _: Path) -> Iterator[Path]:
    """The store signs with a secret that the config does not have, so deliveries are refused for some time."""
    with refused_deliveries(installation):
        spread_refusals(installation.system.config.data_dir)
        yield installation.config_file


@contextmanager
def corrected_secret(installation: Installation, _: Path) -> Iterator[Path]:
    """The same, after the secret was added to the config."""
    with refused_deliveries(installation):
        yield installation.broken(OTHER_SECRET, SECRET)


@contextmanager
def refused_deliveries(installation: Installation) -> Iterator[None]:
    for number in range(3):
        request = installation.system.request(store="north", delivery_id=f"msg_{number}_{time.time()}")
        assert installation.system.post(request, "south").status_code == 401
    refusals = open_existing_refusals(installation.system.config.data_dir)
    eventually(lambda: refusals.count() == 3, what="three refusals are stored")
    yield
    refusals.delete([refusal.id for refusal in refusals.newest()])


@contextmanager
def expired_secret(installation: Installation, _: Path) -> Iterator[Path]:
    yield installation.broken(
        f'["{OTHER_SECRET}"]', f'[{{value = "{OTHER_SECRET}", not_after = 2026-01-01T03:12:00Z}}]'
    )


@contextmanager
def stuck_spool(installation: Installation, _: Path) -> Iterator[Path]:
    inbox = Inbox(installation.server.client)
    inbox.publish_spool("edge-2", 4, time.time() - 600)
    yield installation.config_file
    inbox.publish_spool("edge-2", 0, 0, stopped=True)


BROKEN: list[tuple[Breakage, int, str, list[str], str]] = [
    (unknown_key, 2, "config", ["broken.toml:7: unknown key receiver.pubic_url"], "did you mean public_url?"),
    (
        secret_not_set,
        2,
        "config",
        ["stores.south.signing_secrets[0] refers to $SOUTH_SECRET_NOT_SET"],
        "broken.toml:22",
    ),
    (public_example_secret, 2, "config", ["uses the sandbox's secret, which is public"], "`storehooks init`"),
    (no_server, 1, "server", ["does not answer", "Connection refused"], "start it, or set [redis] url"),
    (not_durable, 1, "server", ["appendfsync everysec", 'ack = "fsync"'], "CONFIG SET appendfsync always"),
    (evicting, 1, "server", ["maxmemory-policy is allkeys-lru"], "maxmemory-policy noeviction"),
    (no_replica, 1, "server", ['ack = "replica", and no replica is connected'], 'ack = "fsync"'),
    (nearly_full, 1, "memory", ["used: new deliveries go to the spool"], "raise maxmemory"),
    (broken_plugin, 1, "handlers", ["broken.py:2", "syntax error"], "what the message names"),
    (unknown_topic, 1, "handlers", ["stock.export wants order.crated, which no store has sent"], "stock.py:5"),
    (unknown_store, 1, "handlers", ["erp.export is for the store west, which is not configured"], "west.py:5"),
    (
        unknown_store_in_config,
        1,
        "handlers",
        ["erp.export is for the store nort, which is not configured"],
        "broken.toml:",
    ),
    (no_worker, 1, "workers", ["no worker is running"], "start `storehooks worker`"),
    (
        wrong_credentials,
        1,
        "north",
        ["no token", "401"],
        "client_secret of auth (",
    ),
    (
        no_token_endpoint,
        1,
        "north",
        ["north: no token: the token endpoint does not answer (no response: ", "Connection refused"],
        "and url of auth (",
    ),
    (subscriptions_unreadable, 1, "north", ["could not be checked", "answered 404"], "storehooks subscriptions plan"),
    (disabled_subscription, 1, "north", ["pending changes: enable order.created"], "storehooks subscriptions apply"),
    (store_that_hangs, 1, "east", ["API"], "base_url ("),
    (store_clock_ahead, 1, "east", ["clock is 9 min", "allows 300 s"], "run NTP"),
    (wrong_public_url, 1, "public url", ["not a storehooks answer"], "the proxy, DNS or certificate"),
    (wrong_url_of_a_store, 1, "public url", ["/webhooks/south answered 404"], "the proxy, DNS or certificate"),
    (no_web, 1, "public url", ["does not answer"], "start `storehooks web`"),
    (rotated_secret, 1, "south", ["3 refused since", "all stored"], "storehooks verify --store south --refused last"),
    (
        corrected_secret,
        1,
        "south",
        ["3 refused", "all valid under the current config"],
        "unless they have loaded this config; then storehooks refused release --store south",
    ),
    (expired_secret, 1, "south", ["the last signing secret expired"], "then send HUP"),
    (
        stuck_spool,
        1,
        "spool",
        ["4 accepted deliveries in the spool of edge-2"],
        "the log of `storehooks web` on edge-2",
    ),
]
