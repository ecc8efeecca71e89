"""Subscriptions under load: a rotation loses no delivery, a disabled one is repaired, a thousand stores are checked.

Slow: run by `make soak`, with their figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.subscription_checks import SubscriptionChecks
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.harness import SECRET, Process, Server, System, eventually, free_port, own_server
from tests.support.many_stores import TOKEN
from tests.support.sandbox_shop import Shop, make_folder, plugin, running_shop
from tests.support.signed_traffic import Sending
from tests.workers.subscriptions.test_apply import MADE_BY_THE_STORE
from workers.storeapi.errors import UnexpectedResponse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RATE = 200
TOPICS = ("customer.created", "order.created", "order.paid", "product.updated")


def sending_to(shop: Shop) -> Sending:
    state = shop.system.config.data_dir / "sandbox-demo.sqlite3"
    return Sending(shop.system.config.known_stores["demo"], state, shop.system.port, RATE)


def rotation(shop: Shop) -> Process:
    return shop.system.start_cli("subscriptions", "rotate", "--store", "demo", "--yes")


def rotated(shop: Shop) -> int:
    """Number of rotations at the store."""
    return sum(1 for _, _, path, status in shop.log() if path.endswith("/rotate-secret") and status == 200)


def report(name: str, shop: Shop, sending: Sending, took: float) -> None:
    print(
        f"\n{name}: {sending.sent:,} deliveries, {sending.attained:.0f} a second ({RATE} wanted), answered "
        f"{dict(sending.answers)}; the rotation took {took:.1f} s; at most {sending.longest:.1f} s until a 200"
    )


def hold(shop: Shop, sending: Sending) -> None:
    assert sending.answers["401"] == 0
    assert len(sending.accepted) == sending.sent, "everything was answered 200 in the end"
    ids = set(sending.accepted.values())
    assert len(ids) == sending.sent

    def kept() -> bool:
        """Those that went to the spool come home."""
        found = {one.id for one in shop.system.ledger.events(store="demo", limit=sending.sent * 2)}
        return ids <= found

    eventually(kept, 60, what="every delivery that was answered 200 is in the inbox")


def prepare(shop: Shop) -> None:
    shop.system.config_file.write_text(shop.system.config_file.read_text() + MADE_BY_THE_STORE)
    shop.declare(*TOPICS)
    done = shop.apply()
    assert done.exit_code == 0, done.output


def test_a_rotation_under_two_hundred_deliveries_a_second_loses_none(tmp_path: Path) -> None:
    with running_shop(tmp_path, "web", env={"WEB_CONCURRENCY": "2"}) as shop:
        prepare(shop)
        old = {one.fingerprint for one in keyring_of(shop).secrets_of("demo")}
        sending = sending_to(shop).start()
        time.sleep(5)
        began = time.monotonic()
        process = rotation(shop)
        assert process.wait(120) == 0, process.output()
        took = time.monotonic() - began
        time.sleep(5)
        sending.finish()
        report("rotation", shop, sending, took)
        assert rotated(shop) == len(TOPICS)
        live = {one.fingerprint for one in keyring_of(shop).secrets_of("demo") if one.not_after is None}
        assert len(live) == len(TOPICS)
        assert not live & old
        hold(shop, sending)
        refusals = shop.system.refusals()
        assert {one.status for one in refusals.newest(limit=10_000)} <= {503}
        print(f"{refusals.count()} refused deliveries are stored")
        assert " refused since " not in shop.system.run_cli("doctor", "--json").stdout, "all were sent again"
        assert sending.attained > 0.9 * RATE, "the intended rate was reached"


def keyring_of(shop: Shop) -> Keyring:
    return Keyring(shop.system.client, shop.system.config.data_dir, KEY)


def test_a_rotation_while_redis_is_killed_and_the_receiver_restarts_loses_none(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server") as server:
        shop = Shop(System(make_folder(tmp_path / "system"), server.url)).open()
        (web,) = shop.system.start("web")
        try:
            prepare(shop)
            sending = sending_to(shop).start()
            time.sleep(5)
            began = time.monotonic()
            process = rotation(shop)
            eventually(lambda: rotated(shop) >= 1 or not process.alive, 60, what="the first secret was rotated")
            break_things(shop, server, web)
            assert process.wait(180) == 0, process.output()
            took = time.monotonic() - began
            time.sleep(5)
            sending.finish(120)
            report("rotation with Redis away and the receiver restarted", shop, sending, took)
            assert rotated(shop) >= len(TOPICS)
            hold(shop, sending)
        finally:
            shop.close()


def break_things(shop: Shop, server: Server, web: Process) -> None:
    """Redis dies; the receiver is stopped and started without it; Redis comes back."""
    server.kill()
    time.sleep(2)
    web.stop()
    shop.system.processes.remove(web)
    shop.system.start("web")
    time.sleep(4)
    server.start()


def subscribed(shop: Shop) -> int:
    try:
        return len(shop.topics())
    except UnexpectedResponse:  # one was added during the listing
        return 0


def test_a_subscription_disabled_under_load_is_repaired_within_two_checks(tmp_path: Path) -> None:
    every = 5.0
    listens = plugin("*")
    with running_shop(tmp_path, "web", "worker", "housekeeper", check=f"{every:g}s", plugin=listens) as shop:
        eventually(lambda: subscribed(shop) == 14, 40, what="everything is subscribed")
        assert shop.process is not None
        shop.process.stop()
        shop.open("--no-subscriptions", "--every", "0.02")
        eventually(lambda: shop.count_events("order.created") >= 50, 60, what="events flow")
        shop.misbehave(disable=1)
        eventually(lambda: shop.status()["subscriptions"] < 14, 30, what="one was switched off without a word")
        off = time.time()
        shop.misbehave(disable=0)
        gone = 14 - shop.status()["subscriptions"]
        eventually(lambda: len(shop.topics()) == 14, 4 * every, what="all are on again")
        took = time.time() - off
        checks = SubscriptionChecks(shop.system.client)
        eventually(lambda: len(checks.repairs("demo")) >= gone, 30, what="each repair is noted")
        repairs = checks.repairs("demo")
        before = shop.count_events("*")
        eventually(lambda: shop.count_events("*") > before + 50, 60, what="events flow again")
        gaps = [repair.gap for repair in repairs if repair.gap is not None]
        print(
            f"\n{gone} switched off under load: on again {took:.1f} s after (a check each {every:g} s), "
            f"{len(repairs)} repairs, gaps {min(gaps):.1f} to {max(gaps):.1f} s, "
            f"probe {max(repair.probe_ms or 0 for repair in repairs):.0f} ms"
        )
        assert took < 2 * every
        assert len(repairs) >= gone
        assert all(repair.action == "enable" and repair.probe_ms for repair in repairs)
        assert len(gaps) == len(repairs)
        assert max(gaps) < 3 * every


STORES = 1_000
LIMIT = 10
MANY = """
[api]
rate_limit = "{limit}/s"
[subscriptions]
check = "2m"
[store_defaults]
base_url = "http://127.0.0.1"
allow_private = true
auth = {{ token = "{token}" }}
signing_secrets = ["{secret}"]
"""


def test_a_thousand_stores_are_checked_within_one_rate_limit(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    port = free_port()
    stores = "".join(f'[stores.s{n}]\nbase_url = "http://127.0.0.1:{port}/s{n}"\n' for n in range(STORES))
    more = MANY.format(limit=LIMIT, token=TOKEN, secret=SECRET) + stores
    system = make_system(more=more)
    text = system.config_file.read_text()
    begin, end = text.index("[stores.north]"), text.index("[sandbox]")
    system.config_file.write_text(text[:begin] + text[end:])
    api = Process(
        [sys.executable, "-m", "tests.support.many_stores", str(port), str(system.config_file)],
        log=tmp_path / "stores.log",
    )
    try:
        requests(port)
        shop_declares(system)
        began = time.time()
        system.start("housekeeper")
        names, checks = [f"s{n}" for n in range(STORES)], SubscriptionChecks(system.client)
        eventually(lambda: len(checks.last_results(names)) == STORES, 600, what="every store was looked at")
        took = time.time() - began
        came = sorted(at for at, _ in requests(port))
    finally:
        api.stop()
    each = {
        name: one for name, one in checks.last_results(names).items() if one.unknown or one.pending or one.wanted != 1
    }
    per_second = max(sum(1 for other in came[at : at + 40] if other < first + 1) for at, first in enumerate(came))
    print(
        f"\n{STORES:,} stores, {LIMIT} calls a second in all: a full check took {took:.0f} s, {len(came):,} calls, "
        f"{len(came) / (came[-1] - came[0]):.2f} a second on the whole, at most {per_second} in any second"
    )
    assert each == {}
    assert len(came) >= 2 * STORES
    assert per_second <= LIMIT


def requests(port: int) -> list[tuple[float, str]]:
    import httpx2

    def asked() -> list[tuple[float, str]] | None:
        try:
            return [tuple(one) for one in httpx2.get(f"http://127.0.0.1:{port}/requests", timeout=10).json()] or [
                (0, "")
            ]
        except (httpx2.HTTPError, json.JSONDecodeError):
            return None

    found = eventually(asked, 120, what="the stores answer")
    return [one for one in found or [] if one[0]]


def shop_declares(system: System) -> None:
    from receiver.inbox import Declaration

    system.inbox.declare([Declaration("shop.note", "1", ("order.paid",), ("*",), details={"limit": None})])
