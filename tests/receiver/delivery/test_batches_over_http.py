"""Batches over HTTP: the answers, the spool, the limits, and what operators do with refused and unreadable ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.contract.stored_headers import ITEM
from receiver.inbox import keys
from receiver.spool import open_events
from tests.support import batches
from tests.support.batches import in_inbox, item, items, post, signed
from tests.support.harness import Server, System, eventually, own_server

MORE = """
[schemes.by_header]
extends = "list"
[schemes.by_header.event]
id = ["header:x-delivery"]
[stores.limited]
scheme = "list"
max_stored = 10
signing_secrets = ["the secret of a store that sends batches"]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "data").mkdir(mode=0o700)
    (folder / "server").mkdir()
    with own_server(folder / "server") as server:
        system = System(folder, server.url, more=batches.CONFIG + MORE)
        system.start("web")
        yield system
        system.close()


@pytest.fixture
def shop(running: System) -> System:
    running.client.flushdb()
    return running


def counters(system: System) -> dict[str, int]:
    return dict(system.ledger.counters().stores.get("batches", {}))


def test_a_batch_is_answered_with_the_ids_of_its_events(shop: System) -> None:
    answer = post(shop, items("a", 100))
    assert answer.status_code == 200
    assert answer.json().keys() == {"ids", "status"}
    assert answer.json()["status"] == "accepted"
    assert len(set(answer.json()["ids"])) == 100
    assert [shop.ledger.event(one).summary.delivery_id for one in answer.json()["ids"][:2]] == ["a_0", "a_1"]  # type: ignore[union-attr]
    assert counters(shop)["accepted"] == 100
    assert shop.identity_holds()


def test_a_redelivered_batch_adds_none(shop: System) -> None:
    first, again = (post(shop, items("a", 100)).json() for _ in range(2))
    assert again == {"ids": first["ids"], "status": "duplicate"}
    assert (counters(shop)["accepted"], counters(shop)["duplicates"]) == (100, 100)


def test_only_what_is_new_in_an_overlapping_batch_is_added(shop: System) -> None:
    post(shop, items("a", 4))
    answer = post(shop, items("a", 7)).json()
    assert (answer["status"], len(answer["ids"])) == ("accepted", 7)
    assert (counters(shop)["accepted"], counters(shop)["duplicates"]) == (7, 4)


def test_an_empty_list_is_answered_without_ids(shop: System) -> None:
    answer = post(shop, [])
    assert (answer.status_code, answer.json()) == (200, {"ids": [], "status": "accepted"})
    assert shop.client.keys(keys.EVENT + "*") == []


def test_a_tampered_batch_is_refused(shop: System) -> None:
    request = signed(items("a", 3))
    assert shop.post(request._replace(body=request.body.replace(b"7.00", b"9.00")), "batches").status_code == 401
    assert in_inbox(shop, "a") == 0


def test_unreadable_items_fail_alone(shop: System) -> None:
    answer = post(shop, [item("a_1"), "text", {"id": "a_2"}, item("a_3")])
    assert answer.status_code == 200
    assert [shop.status(one) for one in answer.json()["ids"]] == ["open", "failed", "failed", "open"]
    assert counters(shop)["accepted"] == 4
    assert counters(shop)["failed"] == 2
    assert shop.identity_holds()
    eventually(lambda: shop.log("web").count(f'"{answer.json()["ids"][1]}"') == 1, what="the log has the event")


@pytest.mark.parametrize("content", [items("a", 1001), {"events": []}, b"[{]", b"7"], ids=["long", "none", "bad", "7"])
def test_a_delivery_without_a_readable_list_is_one_unreadable_event(shop: System, content: object) -> None:
    answer = post(shop, content).json()
    assert answer["status"] == "accepted"
    assert [shop.status(one) for one in answer["ids"]] == ["failed"]
    assert counters(shop)["accepted"] == 1


def test_the_largest_batch_is_accepted(shop: System) -> None:
    answer = post(shop, items("a", 1000)).json()
    assert (len(set(answer["ids"])), answer["status"]) == (1000, "accepted")
    assert counters(shop)["accepted"] == 1000


def test_batches_and_single_deliveries_do_not_mix(shop: System) -> None:
    """Sent at once, so that they are stored in common groups."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        many = [pool.submit(post, shop, items(f"b{number}", number % 5 + 1)) for number in range(40)]
        single = [pool.submit(shop.deliver) for _ in range(40)]
        answers = [one.result().json() for one in many]
        ids = [one.result() for one in single]
    assert [len(one["ids"]) for one in answers] == [number % 5 + 1 for number in range(40)]
    every = [*ids, *(event_id for one in answers for event_id in one["ids"])]
    assert len(set(every)) == len(every) == len(shop.client.keys(keys.EVENT + "*"))
    for number, answer in enumerate(answers):
        found = [shop.ledger.event(event_id).summary.delivery_id for event_id in answer["ids"]]  # type: ignore[union-attr]
        assert found == [f"b{number}_{place}" for place in range(number % 5 + 1)]


def test_a_full_store_refuses_a_batch_as_a_whole(shop: System) -> None:
    assert shop.post(signed(items("a", 12)), "limited").status_code == 200, "it was not full before"
    assert shop.post(signed(items("b", 2)), "limited").status_code == 503
    assert shop.post(signed(items("a", 12)), "limited").json()["status"] == "duplicate"
    assert (in_inbox(shop, "a"), in_inbox(shop, "b")) == (12, 0)


# While Redis is away


def test_a_spooled_batch_is_drained_once(make_system: Callable[..., System], own_redis: Server) -> None:
    system = make_system(url=own_redis.url, more=batches.CONFIG)
    system.start("web")
    post(system, items("before", 2))
    own_redis.kill()
    answer = post(system, [*items("a", 299), "unreadable"])
    assert (answer.status_code, answer.json()["status"], len(set(answer.json()["ids"]))) == (200, "accepted", 300)
    assert open_events(system.config.data_dir).count() == 300
    again = post(system, [*items("a", 299)])
    assert (again.json()["status"], again.json()["ids"]) == ("duplicate", answer.json()["ids"][:-1])
    own_redis.start()
    eventually(lambda: system.http.get("/readyz").json()["spooled"] == 0, 20)
    assert in_inbox(system, "a") == 299
    eventually(lambda: counters(system)["duplicates"] == 299)
    assert counters(system)["accepted"] == 302
    found = [system.ledger.find_id(answer.json()["ids"][place]) for place in (0, 298, 299)]
    assert [system.status(one) for one in found] == ["open", "open", "failed"]
    assert post(system, items("a", 299)).json()["status"] == "duplicate"
    assert system.identity_holds()


# What operators do


def test_a_refused_batch_is_released_as_its_events(make_system: Callable[..., System]) -> None:
    system = make_system(more=batches.CONFIG)
    system.start("web")
    without_ids = [{"type": "order.paid", "order": {"total": number}} for number in (1, 1, 2)]
    for content in (items("a", 3), without_ids, [], items("a", 3)):
        assert system.post(signed(content, "new secret"), "batches").status_code == 401
    system.refused(4)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace(batches.SECRET, "new secret"))
    would = system.run_cli("refused", "release", "--dry-run")
    assert "at most 9 events would be accepted" in would.stdout, would.stdout + would.stderr
    assert re.search(r"^  storehooks refused release\b.* accept what is valid$", would.stdout, re.MULTILINE), (
        would.stdout
    )
    assert "storehooks events" not in would.stdout, "nothing new is there"
    released = system.run_cli("refused", "release", "--yes")
    assert "6 events accepted" in released.stdout, released.stdout + released.stderr
    assert "3 duplicates: accepted already, by an earlier release or delivery" in released.stdout
    assert counters(system)["accepted"] == 6
    assert system.refusals().count() == 0, "the empty one is gone, too"


def fixed(system: System, old: str, new: str) -> None:
    text = system.config_file.read_text()
    assert old in text
    system.config_file.write_text(text.replace(old, new))


def test_items_that_could_not_be_read_are_read_again(make_system: Callable[..., System]) -> None:
    system = make_system(more=batches.CONFIG.replace('["json:type"]', '["json:kind"]'))
    system.start("web")
    ids = post(system, [*items("a", 3), 7]).json()["ids"]
    assert [system.status(one) for one in ids] == ["failed"] * 4
    fixed(system, '["json:kind"]', '["json:type"]')
    read = system.run_cli("events", "reread", "--yes")
    assert "1 still unreadable: the item is not an object" in read.stdout, read.stdout + read.stderr
    assert [system.status(one) for one in ids] == ["open", "open", "open", "failed"]
    system.processes[0].stop()
    system.start("web")
    again = post(system, [*items("a", 3)]).json()
    assert again == {"ids": ids[:3], "status": "duplicate"}
    assert system.identity_holds()


def test_a_delivery_that_was_stored_before_its_list_was_known_becomes_its_events(
    make_system: Callable[..., System],
) -> None:
    system = make_system(more=batches.CONFIG.replace('batch = "body"', ""))
    system.start("web")
    content = [*items("a", 2), {"type": "order.paid", "order": {"total": 1}}]
    whole = str(post(system, content).json()["id"])
    assert system.status(whole) == "failed"
    fixed(system, 'headers = ["X-Signature"]', 'headers = ["X-Signature"]\nbatch = "body"')
    for _ in range(2):  # as if the first one was killed before it settled the delivery
        read = system.run_cli("events", "reread", whole, "--yes")
        assert read.returncode == 0, read.stdout + read.stderr
        assert system.status(whole) == "settled"
        assert system.ledger.counters().stores["batches"]["accepted"] == 4
    assert in_inbox(system, "a") == 2
    assert "read as a batch" in system.run_cli("events", "show", whole).stdout
    assert system.identity_holds()


def test_items_without_ids_that_were_delivered_again_run_once(make_system: Callable[..., System]) -> None:
    """Before and after their first delivery is read as a batch."""
    system = make_system(more=batches.CONFIG.replace('batch = "body"', ""))
    (web,) = system.start("web")
    before, after = (
        [{"type": "order.paid", "order": {"total": total}} for total in totals] for totals in ((1, 1), (3,))
    )
    for content in (before, after):
        assert system.status(str(post(system, content).json()["id"])) == "failed"
    fixed(system, 'headers = ["X-Signature"]', 'headers = ["X-Signature"]\nbatch = "body"')
    web.stop()
    system.start("web")
    assert post(system, before).json()["status"] == "accepted"
    assert "2 read and routed" in system.run_cli("events", "reread", "--yes").stdout
    assert post(system, after).json()["status"] == "duplicate"
    counts = system.ledger.counters().stores["batches"]
    assert (counts["accepted"], counts["duplicates"]) == (2 + 2 + 1, 2 + 1), "two whole deliveries, then three events"
    assert system.identity_holds()


def test_events_show_says_which_place_of_the_delivery_an_event_had(shop: System) -> None:
    ids = post(shop, items("a", 3)).json()["ids"]
    record = shop.ledger.event(ids[2])
    assert record is not None
    assert record.headers[ITEM] == "3"
    shown = shop.run_cli("events", "show", ids[2], "--json")
    assert f'"{ITEM}": "3"' in shown.stdout, shown.stdout + shown.stderr


def test_send_works_with_a_store_that_sends_batches(shop: System) -> None:
    sent = shop.run_cli("send", "order.paid", "--store", "batches")
    found = re.search(r"event (\w+)", sent.stdout)
    assert found, sent.stdout + sent.stderr
    eventually(lambda: shop.ledger.event(found[1]), what="on a slow machine it is spooled first")


def test_verify_shows_the_events_of_a_batch(shop: System, tmp_path: Path) -> None:
    request = signed(items("a", 5))
    head = "".join(f"{name}: {value}\n" for name, value in request.headers.items())
    (tmp_path / "request.txt").write_bytes(head.encode() + b"\n" + request.body)
    shown = shop.run_cli("verify", "--store", "batches", "--request", str(tmp_path / "request.txt"))
    assert "delivery id a_0" in shown.stdout, shown.stdout + shown.stderr
    assert "and 2 more events" in shown.stdout
